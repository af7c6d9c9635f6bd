from __future__ import annotations

from pathlib import Path

from store_cases import PLACEMENT, SCHEMA, Model, flip, history, segment_path

from cpr_native.store import CheckpointStore, inspect, verify
from cpr_native.store.outlook import outlook, row_ages


def test_every_recovery_says_what_it_would_read(tmp_path: Path) -> None:
    store, _ = history(tmp_path)  # base, delta, priority, delta, priority at steps 1 to 5
    full, restart, *shards = outlook(store)
    assert (full.recovery, full.step, full.commits) == ("full", 4, ("base", "delta", "delta"))
    assert (restart.recovery, restart.step) == ("restart", 5)
    assert restart.commits == ("base", "delta", "delta", "priority")
    assert [each.recovery for each in shards] == ["shard 0", "shard 1", "shard 2"]
    assert {each.step for each in shards} == {5}
    assert full.rows < restart.rows == sum(each.rows for each in shards)
    assert restart.bytes == sum(each.bytes for each in shards)
    assert {each.problem for each in (full, restart, *shards)} == {None}


def test_a_recovery_that_is_not_possible_says_why(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    flip(segment_path(tmp_path, "shards/1", 2))
    full, restart, first, second, _ = outlook(store)
    assert "000000000002-000.safetensors" in (full.problem or "")
    assert first.problem is None
    assert "no intact base" in (second.problem or "")
    assert "no intact base" in (restart.problem or "")


def test_ages_are_those_of_the_newest_copies(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.step = 10
        model.save(writer, "base")
        model.train({"user": [0, 1, 2, 19], "item.id": [3]})
        model.save(writer, "priority", {"user": [0, 1], "item.id": [3]})
        model.step = 13
        model.save(writer, "delta")
    rows = sum(table.rows for table in SCHEMA.tables)
    assert row_ages(CheckpointStore(tmp_path)) == {0: 5, 3: rows - 5}


def test_rows_that_no_save_has_are_counted_apart(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.train({"user": [0, 1]})
        model.save(writer, "priority", {"user": [0, 1]})
        model.train({"user": [1]})
        model.save(writer, "priority", {"user": [1]})
    rows = sum(table.rows for table in SCHEMA.tables)
    assert row_ages(CheckpointStore(tmp_path)) == {0: 1, 1: 1, None: rows - 2}


def test_verify_tells_how_far_it_is(tmp_path: Path) -> None:
    history(tmp_path)
    told: list[tuple[int, int]] = []
    assert verify(tmp_path, watch=lambda done, total: told.append((done, total))) == []
    size = sum(chain.bytes for chain in inspect(tmp_path).chains)
    assert told[-1] == (size, size)
    assert told == sorted(told)


def test_rows_and_bytes_of_a_save_are_those_of_its_shards(tmp_path: Path) -> None:
    history(tmp_path)
    summary = inspect(tmp_path)
    base = summary.chains[0].commits[1]
    rows, size = summary.saved(base)
    assert rows == sum(table.rows for table in SCHEMA.tables)
    assert size == base.bytes + sum(chain.commits[1].bytes for chain in summary.chains[1:])
