from __future__ import annotations

from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model, Rows, flip, python, restored, segment_path

from cpr_native.store import CheckpointStore, files, inspect, verify
from cpr_native.store.compact import fold, priority_run


def rounds(path: Path, keep: int | None, count: int) -> tuple[Model, list[Rows]]:
    """`count` times a base, a priority save and a delta; the rows at each exact save."""
    model, seen = Model(), []
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT, keep=keep) as writer:
        for _ in range(count):
            for kind in ("base", "priority", "delta"):
                model.train_some()
                assert model.save(writer, kind).retention_error is None
                if kind != "priority":
                    seen.append(model.rows())
    return model, seen


def sequences(path: Path) -> list[list[int]]:
    return [[commit.sequence for commit in chain.commits] for chain in inspect(path).chains]


def test_only_what_the_newest_points_need_is_kept(tmp_path: Path) -> None:
    _, seen = rounds(tmp_path, 2, 3)
    # 2-4, 5-7, 8-10 are base, priority, delta; the base 8 left the points 8 and 7, and 7 needs the base 5.
    # The priority commit 6 is older than the point 7, which has its rows.
    assert sequences(tmp_path) == [[7, 8, 9, 10], *[[5, 7, 8, 9, 10]] * 3]
    for chain in inspect(tmp_path).chains:
        names = [path.name[:12] for path in (tmp_path / chain.chain / "segments").iterdir()]
        assert {int(name) for name in names} <= {c.sequence for c in chain.commits}
    store = CheckpointStore(tmp_path)
    assert [point.step for point in store.points()] == [9, 7, 6]
    for point, rows in zip(store.points(), (seen[5], seen[4], seen[3]), strict=True):
        model = Model(seed=4)
        point.plan().apply(model)
        assert model.rows() == rows
    assert restored(store, "running") == seen[5]
    assert verify(tmp_path) == []


def test_nothing_is_removed_without_a_limit(tmp_path: Path) -> None:
    rounds(tmp_path, None, 2)
    assert sequences(tmp_path) == [list(range(1, 8))] * 4


def test_v23_the_last_valid_chain_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = rounds(tmp_path, None, 1)
    store, real = CheckpointStore(tmp_path), files.link_new

    def damaging(source: Path, target: Path) -> None:
        real(source, target)
        if target.is_relative_to(tmp_path / "shards/0"):
            flip(segment_path(tmp_path, "shards/0", int(target.name[:12])))

    with store.writer(SCHEMA, PLACEMENT, keep=1) as writer:
        writer.rollback(store.latest())
        model.train_some()
        # The base that would replace the old chain is damaged as soon as it is written.
        monkeypatch.setattr(files, "link_new", damaging)
        model.save(writer, "base")
        monkeypatch.setattr(files, "link_new", real)
        assert store.latest().step == 3
        assert restored(store) == seen[-1]
        # The point 4 and the base 2 that it needs stay.
        assert sequences(tmp_path) == [[4, 6, 7], *[[2, 4, 6, 7]] * 3]
        model.save(writer, "base")
        assert sequences(tmp_path) == [[8]] * 4
    assert restored(store) == model.rows()


def test_abandoned_branches_are_removed(tmp_path: Path) -> None:
    model, seen = rounds(tmp_path, None, 1)
    store = CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=2) as writer:
        writer.rollback(store.points()[1])
        model.save(writer, "base")
    # 2 base, 3 priority and 4 delta (abandoned), 5 epoch (its child), 6 rollback to 2, 7 base.
    assert sequences(tmp_path) == [[2, 7]] * 4
    assert [point.step for point in store.points()] == [3, 1]
    assert restored(store) == model.rows()
    assert verify(tmp_path) == []
    assert seen


def test_what_retention_removed_before_a_rollback_is_not_missed(tmp_path: Path) -> None:
    model, store = Model(), CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=2) as writer:
        for kind in ("base", "priority", "delta", "priority"):
            model.train_some()
            model.save(writer, kind)
        writer.housekeeping.prune()
        # Of 2 base, 3 priority, 4 delta, 5 priority the 3 is in neither point.
        assert sequences(tmp_path)[1] == [2, 4, 5]
        writer.rollback(store.points()[1])  # 6: before what was the newest point
        assert verify(tmp_path) == []


def test_a_chain_that_is_folded_keeps_what_another_ones_commit_names(tmp_path: Path) -> None:
    model, store = Model(), CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=2) as writer:
        for kind in ("base", "priority"):
            model.train_some()
            model.save(writer, kind)
        writer.rollback(store.points()[0])  # abandons 3
        for _ in range(2):
            model.train_some()
            model.save(writer, "priority")
        chain = writer._chains[1]
        run = priority_run(chain.reader())
        assert run is not None
        fold(chain, chain.reader(), run)
        running = restored(store, "running")
        writer.housekeeping.prune()  # one point, fewer than it keeps: only what is folded goes
        assert sequences(tmp_path)[1:3] == [[1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 5, 6]]
        assert verify(tmp_path) == []
        assert restored(store, "running") == running


def test_an_error_of_retention_does_not_fail_the_save(tmp_path: Path) -> None:
    model, _ = rounds(tmp_path, None, 1)
    store = CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=1) as writer:
        writer.rollback(store.latest())
        old = segment_path(tmp_path, "shards/1", 2)
        old.rename(tmp_path / "moved")
        old.mkdir()  # cannot be unlinked
        info = model.save(writer, "base")
    assert info.retention_error is not None
    assert str(old) in info.retention_error
    assert restored(store) == model.rows()


KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import CheckpointStore, files, retention

root = Path(sys.argv[1])
model = Model()
store = CheckpointStore(root / "old")
with store.writer(SCHEMA, PLACEMENT) as writer:
    for kind in ("base", "delta", "base", "delta"):
        model.train_some()
        model.save(writer, kind)
calls, fatal, real = 0, 0, files.remove

def remove(path):
    global calls
    calls += 1
    if calls == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)

files.remove = remove
shutil.copytree(root / "old", root / "0")
retention.prune(root / "0", 1)
for fatal in range(1, calls + 1):
    calls = 0
    shutil.copytree(root / "old", root / str(fatal))
    if os.fork() == 0:
        retention.prune(root / str(fatal), 1)
        os._exit(0)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
print(fatal)
"""


def test_v13_killed_while_removing_keeps_the_newest_point(tmp_path: Path) -> None:
    done = python(KILLER, tmp_path)
    assert done.stderr == ""
    count = int(done.stdout)
    assert count > 20
    want = restored(CheckpointStore(tmp_path / "old"))
    for at in range(count + 1):
        store = CheckpointStore(tmp_path / str(at))
        assert verify(store.path) == []
        assert restored(store) == restored(store, "running") == want
        for point in store.points():
            point.plan().verify()
        with store.writer(SCHEMA, PLACEMENT) as writer:
            writer.rollback(store.latest())
        assert not any(chain.unfinished for chain in inspect(store.path).chains)
