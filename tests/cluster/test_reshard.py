"""A checkpoint of n shards in a cluster of m: the rows of a local collection, and what was read for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import OPTIMIZERS, LocalTables, spec_of
from cluster.cluster_trainers import DENSE, Job, Trainer, check_same, cluster_state, train

from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.spec import ClusterSpec, Source
from cpr_native.errors import CorruptionError, NoCheckpointError, SchemaMismatchError
from cpr_native.optim import SGD
from cpr_native.store import CheckpointStore, files, rows_staggered, whole_tables

STEPS = 7


def saved_job(path: Path, *, shards: int = 4, **options: Any) -> ClusterSpec:
    """Train a job of 4 shards with a base and two deltas, and steps after them; return its spec."""
    job = Job(path, shards=shards, **options)
    for step in range(1, STEPS + 1):
        train(job.trainers, step, step)
        if step in (2, 4, 6):
            job.save(step)
    job.close()
    return job.spec


def local_of(spec: ClusterSpec, steps: int) -> LocalTables:
    local = LocalTables(spec)
    for step in range(1, steps + 1):
        local.step(step)
    return local


def trainer_from(directory: LocalDirectory, spec: ClusterSpec, step: int) -> Trainer:
    return Trainer(directory, spec, acknowledged=dict.fromkeys(range(spec.shards), step))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shards", [3, 8, 4, 1])
def test_rows_are_those_of_a_local_collection(tmp_path: Path, shards: int, optimizer: str) -> None:
    saved_job(tmp_path / "old", optimizer=OPTIMIZERS[optimizer])
    source = Source.newest(str(tmp_path / "old"))
    spec = spec_of(tmp_path / "new", shards=shards, source=source, optimizer=OPTIMIZERS[optimizer])
    directory = LocalDirectory(spec)
    local = local_of(spec, 6)
    check_same(directory, spec, local)
    recoveries = [directory.life(shard).server.recovery for shard in range(shards)]
    assert {(r.source, r.watermarks, r.notes) for r in recoveries} == {("resharded", (6,), ())}
    assert sum(sum(r.rows.values()) for r in recoveries) == 61 + 3 + 40
    train([trainer_from(directory, spec, 6)], 7, 9)
    for step in (7, 8, 9):
        local.step(step)
    check_same(directory, spec, local)
    assert np.array_equal(source.point().dense()["w"], DENSE["w"])
    directory.close()


@pytest.mark.parametrize("made_by", [rows_staggered, whole_tables])
def test_any_placement_becomes_any_other(tmp_path: Path, made_by: Any) -> None:
    plain = spec_of(tmp_path / "old")
    placement = made_by(plain.schema, 4)
    saved_job(tmp_path / "old", placement=placement)
    for shards, kind in ((3, rows_staggered), (8, whole_tables)):
        path = tmp_path / f"new-{shards}"
        spec = spec_of(
            path,
            placement=kind(plain.schema, shards),
            source=Source.newest(str(tmp_path / "old")),
        )
        directory = LocalDirectory(spec)
        check_same(directory, spec, local_of(spec, 6))
        directory.close()


def test_each_shard_reads_the_chains_that_have_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (("a", 64, 8), ("b", 96, 8), ("c", 32, 4))
    saved_job(tmp_path / "old", tables=tables)
    opened: list[str] = []
    original = files.opened

    def opened_files(path: Path, *args: Any) -> Any:
        opened.append(str(path))
        return original(path, *args)

    monkeypatch.setattr(files, "opened", opened_files)
    spec = spec_of(tmp_path / "new", shards=8, tables=tables, source=Source.newest(str(tmp_path / "old")))
    whole = sum(path.stat().st_size for path in (tmp_path / "old/shards").rglob("*.safetensors"))
    for shard in range(8):
        opened.clear()
        server = ShardServer(spec, shard)
        segments = [name for name in opened if "old/shards" in name and "segments" in name]
        assert segments
        assert all(
            f"shards/{shard // 2:05d}/" in name or f"shards/{shard // 2}/" in name for name in segments
        )
        assert 0 < server.recovery.read_bytes < whole / 3
        server.close()


def test_segments_without_wanted_rows_cost_their_ids_only(tmp_path: Path) -> None:
    tables = (("a", 40_000, 64), ("b", 8, 64))
    job = Job(tmp_path / "old", shards=1, tables=tables, max_staging_bytes=4 << 20)
    job.directory.life(0).server._writer.max_segment_bytes = 1_000_000  # several segments of the base
    train(job.trainers, 1, 1)
    job.save(1)
    job.close()
    sizes = [path.stat().st_size for path in (tmp_path / "old/shards").rglob("*.safetensors")]
    assert len(sizes) >= 6
    spec = spec_of(tmp_path / "new", shards=8, tables=tables, source=Source.newest(str(tmp_path / "old")))
    for shard in range(8):
        server = ShardServer(spec, shard)
        # Its eighth of the rows lies in two segments at most; of all others only the ids are read.
        assert server.recovery.read_bytes < 40_008 * 8 + 2 * max(sizes) < sum(sizes) / 2
        server.close()


def test_tables_come_and_go_by_name(tmp_path: Path) -> None:
    old = saved_job(tmp_path / "old")
    tables = (("c", 40, 4), ("new", 19, 8), ("a", 61, 8))
    spec = spec_of(tmp_path / "new", shards=3, tables=tables, source=Source.newest(str(tmp_path / "old")))
    directory = LocalDirectory(spec)
    before, fresh = local_of(old, 6), LocalTables(spec)
    expected = LocalTables(spec)
    expected.engines = {**before.engines, "new": fresh.engines["new"]}
    check_same(directory, spec, expected)
    recovery = directory.life(1).server.recovery
    assert recovery.notes == (
        "table 'new' is not in the checkpoint: initial rows",
        "table 'b' of the checkpoint is dropped",
    )
    assert recovery.reset == {"new": 7}
    assert recovery.rows == {"c": 14, "a": 21}
    directory.close()


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ((("a", 62, 8), ("b", 3, 8), ("c", 40, 4)), {}, "table 'a': rows: expected 62, got 61"),
        ((("a", 61, 8), ("b", 3, 8), ("c", 40, 8)), {}, "table 'c': dim: expected 8, got 4"),
        ((("a", 61, 8),), {"optimizer": SGD(lr=0.1)}, "optimizer: expected sgd, got row_wise_adagrad"),
    ],
)
def test_tables_of_another_kind_are_refused(
    tmp_path: Path, tables: Sequence[tuple[str, int, int]], options: dict[str, Any], message: str
) -> None:
    saved_job(tmp_path / "old")
    source = Source.newest(str(tmp_path / "old"))
    with pytest.raises(SchemaMismatchError, match=message):
        ShardServer(spec_of(tmp_path / "new", tables=tables, source=source, **options), 0)


def test_its_own_saves_come_first(tmp_path: Path) -> None:
    saved_job(tmp_path / "old")
    job = Job(tmp_path / "new", shards=3, source=Source.newest(str(tmp_path / "old")))
    job.trainers = [trainer_from(job.directory, job.spec, 6)]
    train(job.trainers, 7, 7)
    job.directory.kill(1)  # before its first save: from the old checkpoint again
    train(job.trainers, 8, 8)
    assert job.trainers[0].lost == [(1, 1)]
    assert job.directory.life(1).server.recovery.source == "resharded"
    assert job.save(8).kind == "base"
    job.directory.kill(1)
    train(job.trainers, 9, 9)
    assert job.trainers[0].lost == [(1, 1), (1, 0)]
    assert job.directory.life(1).server.recovery.source == "checkpoint"
    job.close()


def test_a_damaged_or_lost_source_is_refused(tmp_path: Path) -> None:
    saved_job(tmp_path / "old")
    source = Source.newest(str(tmp_path / "old"))
    with pytest.raises(NoCheckpointError, match="commit 99 is not an exact point"):
        ShardServer(spec_of(tmp_path / "other", shards=3, source=replace(source, sequence=99)), 0)
    with pytest.raises(NoCheckpointError, match="no exact point"):
        Source.newest(str(tmp_path / "nothing"))
    for path in (tmp_path / "old/shards").rglob("*.safetensors"):
        data = bytearray(path.read_bytes())
        for at in range(len(data) // 4, len(data), 16):
            data[at] ^= 4
        path.write_bytes(bytes(data))
    with pytest.raises(CorruptionError):
        ShardServer(spec_of(tmp_path / "new", shards=3, source=source), 0)
    assert CheckpointStore(tmp_path / "new").points() == []


def test_a_job_of_one_process_becomes_a_cluster(tmp_path: Path) -> None:
    """Its checkpoint has rows, optimizer state and scalars; tables of several dims lie in one collection."""
    torch = pytest.importorskip("torch")
    from cpr_native.config import EmbeddingBagConfig
    from cpr_native.modules import EmbeddingBagCollection
    from cpr_native.optim import Adam
    from cpr_native.overhead import Costs
    from cpr_native.overhead import Job as Planned
    from cpr_native.policy import Full
    from cpr_native.recovery import RecoveryManager

    shapes = (("a", 61, 8), ("b", 3, 8), ("c", 40, 4))
    model = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name])
            for name, rows, dim in shapes
        ],
        optimizer=Adam(lr=0.05),
        seed=11,
    )
    manager = RecoveryManager(
        model,
        CheckpointStore(tmp_path / "old"),
        policy=Full(),
        costs=Costs(save=0.1, load=0.1, reschedule=0.1),
        job=Planned(total_hours=10.0, mtbf_hours=5.0, shards=5),
        samples_per_hour=100,
        total_samples=1000,
    )
    manager.start()
    for step in range(4):
        ids = torch.randint(0, 3, (3 * 4,), generator=torch.Generator().manual_seed(step))
        model(ids, torch.arange(13)).square().sum().backward()
        manager.step(samples=4)
    manager.save(wait=True)
    expected = {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}
    manager.close()
    spec = spec_of(
        tmp_path / "new",
        optimizer=Adam(lr=0.01),
        source=Source.newest(str(tmp_path / "old")),
        placement=rows_staggered(spec_of(tmp_path / "x").schema, 4),
    )
    directory = LocalDirectory(spec)
    for (name, _, _), weight in zip(shapes, expected.values(), strict=True):
        assert np.array_equal(cluster_state(directory, spec, name)["weight"], weight)
    scalars = directory.life(0).server._tables.scalars()
    assert (scalars["step"], scalars["learning_rate"], scalars["beta2"]) == (4, 0.05, 0.999)
    assert directory.life(3).server.status().watermarks == (4,)
    directory.close()
