from __future__ import annotations

from pathlib import Path

import pytest
from store_cases import (
    PLACEMENT,
    SCHEMA,
    Model,
    flip,
    history,
    manifest_path,
    restored,
    segment_path,
)

from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, system
from cpr_native.store.system import System


@pytest.mark.parametrize("chain", ["global", "shards/1"])
@pytest.mark.parametrize("what", ["manifest", "segment", "missing manifest", "missing segment"])
@pytest.mark.parametrize(("sequence", "step"), [(5, 2), (3, 1)])
def test_latest_falls_back_past_a_damaged_delta(
    tmp_path: Path, chain: str, what: str, sequence: int, step: int
) -> None:
    store, seen = history(tmp_path)
    damage(tmp_path, chain, what, sequence)
    if chain == "global" and sequence == 3:
        assert restored(store) == seen[3]  # the newest point needs nothing of an older global commit
        return
    point = store.latest()
    assert point.step == step
    assert restored(store) == seen[step - 1]
    assert any(f"{chain}/" in message and f"{sequence:012d}" in message for message in point.skipped)


def damage(path: Path, chain: str, what: str, sequence: int) -> None:
    target = (manifest_path if "manifest" in what else segment_path)(path, chain, sequence)
    if "missing" in what:
        target.unlink()
    else:
        flip(target, target.stat().st_size // 2)


@pytest.mark.parametrize("what", ["manifest", "segment", "missing manifest", "missing segment"])
@pytest.mark.parametrize("sequence", [4, 6])
def test_a_damaged_priority_commit_is_skipped_and_reported(tmp_path: Path, what: str, sequence: int) -> None:
    store, seen = history(tmp_path)
    running = restored(store, "running")
    damage(tmp_path, "shards/1", what, sequence)
    assert restored(store, "exact") == seen[3]
    assert store.latest("exact").skipped == ()
    point = store.latest("running")
    if sequence == 4:
        assert restored(store, "running") == running  # the delta after it has all its rows
        return
    assert not point.plan().broken
    assert [f"{6:012d}" in message for message in point.skipped] == (
        [] if what == "missing manifest" else [True]
    )
    got, model = restored(store, "running"), Model(seed=99)
    store.latest("running").plan(shards=[0, 2]).apply(model)
    store.latest("exact").plan(shards=[1]).apply(model)
    assert got == model.rows()


def test_running_goes_around_several_damaged_priority_commits(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        for row in range(5):
            model.train({"user": [row]})
            model.save(writer, "priority", {"user": [row]})
        exact = restored(store)
    for sequence in (4, 6):
        flip(manifest_path(tmp_path, "shards/0", sequence))
    plan = store.shard_plan(0)
    assert [s.commit.sequence for s in plan.segments] == [2, 3, 5, 7]
    assert len(plan.skipped) == 2
    assert not plan.broken
    flip(manifest_path(tmp_path, "shards/0", 5))  # two in a row: straight to the base
    assert [s.commit.sequence for s in store.shard_plan(0).segments] == [2, 7]
    assert restored(store) == exact


def test_running_past_a_damaged_delta_asks_for_a_base(tmp_path: Path) -> None:
    for what in ("manifest", "segment"):
        store, _ = history(tmp_path / what)
        damage(tmp_path / what, "shards/1", what, 5)
        plan = store.shard_plan(1)
        assert plan.broken
        assert plan.chains[0].exact is None
        assert [s.commit.sequence for s in plan.segments] == [2, 3, 4, 6]
        with store.writer(SCHEMA, PLACEMENT) as writer:
            writer.rollback(store.latest("running"))
            assert writer.permits("priority")
            assert not writer.permits("delta")
            model = Model()
            model.save(writer, "base")
            assert writer.permits("delta")
        assert restored(store) == model.rows()


def test_running_never_passes_a_damaged_base_in_silence(tmp_path: Path) -> None:
    for what in ("manifest", "segment", "missing manifest"):
        store, _ = history(tmp_path / what)
        damage(tmp_path / what, "shards/2", what, 2)
        with pytest.raises(NoCheckpointError, match="no intact base before the damage"):
            store.shard_plan(2)
        for mode in ("exact", "running"):
            with pytest.raises(NoCheckpointError, match=f"{2:012d}"):
                store.latest(mode)


def test_an_older_base_serves_when_the_newest_is_damaged(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    model = Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        writer.rollback(store.latest())
        store.latest().plan().apply(model)
        model.step = 6
        info = model.save(writer, "base")
    damage(tmp_path, "shards/0", "segment", info.sequence)
    assert store.latest().step == 4
    assert restored(store) == seen[3]
    plan = store.shard_plan(0)
    assert plan.broken
    assert [s.commit.sequence for s in plan.segments] == [2, 3, 5]


def test_a_reader_looks_again_when_retention_removes_what_it_reads(tmp_path: Path) -> None:
    """A writer commits a base and prunes whenever the reader has listed a chain, three times."""
    model, store = Model(), CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=1) as writer:
        model.save(writer, "base")

        class Overtaken(System):
            left = 3

            def listdir(self, fd: int) -> list[str]:
                names = super().listdir(fd)
                if self.left and any(name.endswith(".json") for name in names):
                    self.left -= 1
                    with system.use(System()):
                        model.train_some()
                        model.save(writer, "base")
                return names

        for look in (store.latest, lambda: store.shard_plan(1)):
            with system.use(Overtaken()):
                found = look()
            assert list(found.skipped) == []
        assert store.latest().step == model.step == 6
        assert restored(store) == model.rows()
