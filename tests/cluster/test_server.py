"""A shard behind the protocol: order, watermarks, repeats, refusals."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cluster.cluster_jobs import (
    OPTIMIZERS,
    TIMEOUT,
    LocalTables,
    Unique,
    batch_of,
    gradient_of,
    spec_of,
)
from cluster.cluster_trainers import Trainer, check_same, train
from numpy.typing import NDArray

from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import (
    ProtocolError,
    QueueFull,
    RowIds,
    StepGap,
    Tag,
    WrongGeneration,
    WrongIncarnation,
)
from cpr_native.cluster.server import ShardServer
from cpr_native.config import DataType
from cpr_native.store import Placement


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_trainer_has_the_bits_of_a_local_collection(tmp_path: Path, optimizer: str) -> None:
    spec = spec_of(tmp_path, optimizer=OPTIMIZERS[optimizer])
    local, directory = LocalTables(spec), LocalDirectory(spec)
    train([Trainer(directory, spec)], 1, 12)
    for step in range(1, 13):
        local.step(step)
    check_same(directory, spec, local, ("weight", "state", "count", "dirty"))
    directory.close()


@pytest.mark.parametrize("dtype", [DataType.FP16, DataType.BF16])
def test_half_precision_is_rounded_as_in_a_local_collection(tmp_path: Path, dtype: DataType) -> None:
    spec = spec_of(tmp_path, optimizer=OPTIMIZERS["adam"])
    spec = replace(spec, tables=tuple(replace(table, data_type=dtype) for table in spec.tables))
    local, directory = LocalTables(spec), LocalDirectory(spec)
    train([Trainer(directory, spec)], 1, 8)
    for step in range(1, 9):
        local.step(step)
    check_same(directory, spec, local)
    directory.close()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_are_summed_in_their_order(tmp_path: Path, ranks: int) -> None:
    spec = spec_of(tmp_path, ranks=ranks)
    local, directory = LocalTables(spec), LocalDirectory(spec)
    trainers = [Trainer(directory, spec, rank=rank, ranks=ranks) for rank in range(ranks)]
    for step in range(1, 9):
        found = [trainer.look_up(step) for trainer in trainers]
        order = np.random.default_rng(step).permutation(ranks)
        for rank in order:  # whoever comes first waits for the others
            trainers[rank].send(step, found[rank])
        local.step(step, ranks)
    check_same(directory, spec, local, ("weight", "state", "count", "dirty"))
    directory.close()


def test_more_shards_than_rows_and_a_single_shard(tmp_path: Path) -> None:
    for shards in (1, 8):
        spec = spec_of(tmp_path / str(shards), shards=shards, tables=(("b", 3, 8), ("e", 9, 4)))
        local, directory = LocalTables(spec), LocalDirectory(spec)
        train([Trainer(directory, spec)], 1, 5)
        for step in range(1, 6):
            local.step(step)
        check_same(directory, spec, local)
        directory.close()


def test_a_lookup_waits_for_the_step_before(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ranks=2)
    directory = LocalDirectory(spec)
    first, second = (Trainer(directory, spec, rank=rank, ranks=2) for rank in range(2))
    rows = [first.look_up(1), second.look_up(1)]
    first.send(1, rows[0])
    found: list[dict[str, NDArray[np.float32]]] = []
    thread = threading.Thread(target=lambda: found.append(first.look_up(2)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert found == []
    second.send(1, rows[1])
    thread.join(TIMEOUT)
    local = LocalTables(spec)
    local.step(1, 2)
    unique = Unique.of(batch_of(spec, 2))
    assert len(found) == 1
    for table in spec.tables:
        expected = local.lookup(table.name, unique.rows[table.name])
        assert np.array_equal(found[0][table.name], expected)
    directory.close()


def test_a_lookup_that_waits_too_long_names_the_rank(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ranks=2, lookup_seconds=0.1)
    server = ShardServer(spec, 0)
    with pytest.raises(TimeoutError, match=r"for step 1: 0 is applied, \[0, 1\] are the ranks"):
        server.lookup(Tag(1, 2, 0, server.incarnation), _nothing(spec))
    server.close()


def test_staleness_lets_lookups_run_ahead(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, staleness=2)
    directory = LocalDirectory(spec)
    trainer = Trainer(directory, spec)
    rows = {step: trainer.look_up(step) for step in (1, 2, 3)}  # of step 0: two behind
    local = LocalTables(spec)
    for step in (1, 2, 3):
        unique = Unique.of(batch_of(spec, step))
        for table in spec.tables:
            assert np.array_equal(rows[step][table.name], local.lookup(table.name, unique.rows[table.name]))
    for step in (1, 2, 3):
        trainer.send(step, rows[step])
        unique = Unique.of(batch_of(spec, step))
        for table in spec.tables:
            gradient = gradient_of(rows[step][table.name], step, 0)
            local.update(table.name, unique.rows[table.name], gradient, unique.times[table.name])
    check_same(directory, spec, local, ("weight", "state", "count"))
    directory.close()


def _nothing(spec: object) -> RowIds:
    return RowIds(np.zeros(3, np.int64), np.zeros(0, np.int32))


def _one_row(server: ShardServer, value: float = 1.0) -> tuple[RowIds, np.ndarray, np.ndarray]:
    rows = RowIds(np.array([1, 0, 0], np.int64), np.array([2], np.int32))
    return rows, np.full(8, value, np.float32), np.array([3], np.uint32)


def test_a_repeated_update_is_acknowledged_and_not_applied(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    tag = Tag(1, 1, 0, server.incarnation)
    assert server.update(tag, *_one_row(server)).applied == 1
    before = server.rows("a")
    assert before["count"][2] == 3
    for value in (1.0, 7.0):
        assert server.update(tag, *_one_row(server, value)).applied == 1
    after = server.rows("a")
    assert np.array_equal(before["weight"], after["weight"])
    assert np.array_equal(before["count"], after["count"])
    server.close()


def test_an_update_that_waits_is_taken_once(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path, ranks=2), 0)
    tag = Tag(1, 1, 0, server.incarnation)
    for _ in range(3):
        assert server.update(tag, *_one_row(server)).applied == 0
    assert server.update(Tag(1, 1, 1, server.incarnation), *_one_row(server)).applied == 1
    assert server.rows("a")["count"][2] == 6
    server.close()


@pytest.mark.parametrize(
    ("tag", "error", "message"),
    [
        ((1, 3, 0, 0), StepGap, "expected the update of step 1 next, got step 3"),
        ((1, 1, 0, -1), WrongIncarnation, "incarnation: expected 1, got 0"),
        ((1, 1, 0, 1), WrongIncarnation, "incarnation: expected 1, got 2"),
        ((0, 1, 0, 0), WrongGeneration, "expected 1, got 0"),
        ((2, 1, 0, 0), WrongGeneration, "expected 1, got 2"),
        ((1, 1, 1, 0), ProtocolError, "rank 1 of 1"),
        ((1, 0, 0, 0), ProtocolError, "step: expected at least 1, got 0"),
    ],
)
def test_what_is_out_of_order_changes_nothing(
    tmp_path: Path, tag: tuple[int, int, int, int], error: type[Exception], message: str
) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    before = server.rows("a")
    generation, step, rank, life = tag
    with pytest.raises(error, match=message):
        server.update(Tag(generation, step, rank, server.incarnation + life), *_one_row(server))
    if error is not StepGap:
        with pytest.raises(error, match=message):
            server.lookup(Tag(generation, step, rank, server.incarnation + life), _nothing(server.spec))
    after = server.rows("a")
    assert server.status().watermarks == server.status().received == (0,)
    assert all(np.array_equal(before[key], after[key]) for key in ("weight", "count", "dirty"))
    server.close()


def test_a_rank_that_runs_ahead_is_held_back(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path, ranks=2, max_queued=3), 0)
    for step in (1, 2, 3):
        server.update(Tag(1, step, 0, server.incarnation), *_one_row(server))
    with pytest.raises(QueueFull, match=r"3 of its updates wait for step 1 of ranks \[1\]"):
        server.update(Tag(1, 4, 0, server.incarnation), *_one_row(server))
    assert server.update(Tag(1, 1, 1, server.incarnation), *_one_row(server)).applied == 1
    assert server.update(Tag(1, 4, 0, server.incarnation), *_one_row(server)).applied == 1
    server.close()


def test_hyperparameters_change_at_their_step(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    directory, local = LocalDirectory(spec), LocalTables(spec)
    trainer = Trainer(directory, spec)
    for shard in range(spec.shards):
        life = directory.life(shard)
        life.server.set_scalars(1, life.incarnation, 3, {"learning_rate": 0.01})
        with pytest.raises(ValueError, match="expected some of"):
            life.server.set_scalars(1, life.incarnation, 3, {"momentum": 0.01})
    train([trainer], 1, 5)
    for step in range(1, 6):
        if step == 3:
            for engine in local.engines.values():
                engine.learning_rate = 0.01
        local.step(step)
    check_same(directory, spec, local)
    with pytest.raises(ProtocolError, match="step 5 is applied already"):
        directory.life(0).server.set_scalars(1, directory.life(0).incarnation, 5, {"learning_rate": 0.1})
    directory.close()


def test_an_update_that_fails_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BaseException] = []
    server = ShardServer(spec_of(tmp_path), 0, fatal=seen.append)

    def fail(parts: object) -> bool:
        raise MemoryError("no memory")

    monkeypatch.setattr(server._tables, "update", fail)
    tag = Tag(1, 1, 0, server.incarnation)
    with pytest.raises(MemoryError):
        server.update(tag, *_one_row(server))
    assert [str(error) for error in seen] == ["no memory"]
    with pytest.raises(Exception, match="MemoryError: no memory"):
        server.lookup(tag, _nothing(server.spec))
    assert server.status().error == "no memory"
    server.close()


def test_a_spec_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the tables"):
        spec_of(tmp_path, placement=Placement(shards=2, blocks={"a": 40}))
    with pytest.raises(ValueError, match="staleness"):
        spec_of(tmp_path, staleness=-1)
