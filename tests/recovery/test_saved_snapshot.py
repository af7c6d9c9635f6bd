"""A snapshot saved by native code against its chunks given to the store one by one: the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery.jobs import OPTIMIZERS, ROWS, SHARDS, Net, batches, train_step

from cpr_native._native import Selection, Snapshot
from cpr_native.config import DataType
from cpr_native.errors import CprError
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.store import CheckpointStore, Placement, SegmentPart
from cpr_native.store.writer import Save


class Saved:
    """A trained model whose snapshots can be saved more than once."""

    def __init__(self, path: Path, data_type: DataType = DataType.FP32) -> None:
        self._path = path
        model = Net(OPTIMIZERS["adagrad"], data_type=data_type)
        for batch in batches(6):
            train_step(model, batch)
        self.tables = TrainedCollection(model)
        self.placement = Placement.contiguous(self.tables.schema, SHARDS)

    def snapshot(self) -> Snapshot:
        return self.tables.engine.begin(
            [Selection.all()] * len(ROWS),
            clears_dirty=True,
            shard_rows=self.tables.blocks(self.placement),
        )

    def chunks(self, snapshot: Snapshot, save: Save) -> tuple[int, list[int]]:
        rows, lookups = 0, [0] * SHARDS
        for chunk in snapshot:
            rows += len(chunk.rows)
            lookups[chunk.shard] += int(chunk.count.sum())
            part = SegmentPart(
                shard=chunk.shard,
                table=self.tables.schema.tables[chunk.table].name,
                rows=chunk.rows,
                weight=chunk.weight,
                state=chunk.state,
                count=chunk.count,
                close=chunk.close,
            )
            save.add(part)
        return rows, lookups

    def files(self, name: str, *, native: bool) -> tuple[dict[str, bytes], tuple[int, list[int]]]:
        """Segments and manifests of a base, and what was counted; the snapshot is taken back."""
        store = CheckpointStore(self._path / name)
        snapshot = self.snapshot()
        with store.writer(self.tables.schema, self.placement, run_id="run") as writer:
            save = writer.begin("base", step=6, samples=96)
            counted = save.add_snapshot(snapshot) if native else self.chunks(snapshot, save)
            save.commit({})
        snapshot.abort()
        found = [path for path in store.path.rglob("*/*.*") if path.is_file()]
        return {str(path.relative_to(store.path)): path.read_bytes() for path in found}, counted


@pytest.mark.parametrize("data_type", list(DataType)[:3])
def test_native_segments_are_those_of_the_chunks(tmp_path: Path, data_type: DataType) -> None:
    saved = Saved(tmp_path, data_type)
    native, counted = saved.files("native", native=True)
    parts, expected = saved.files("parts", native=False)
    assert counted == expected
    assert counted[0] == sum(ROWS)
    assert sum(counted[1]) > 0
    assert native == parts
    assert len([name for name in native if name.endswith(".safetensors")]) == SHARDS + 1


def test_rows_of_another_shard_are_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    writer = CheckpointStore(tmp_path / "one").chain_writer(1, saved.tables.schema, saved.placement)
    snapshot = saved.snapshot()
    with writer:
        save = writer.begin("base", step=0, samples=0)
        gathered = next(snapshot.gather(1 << 30, [-1] * SHARDS))
        assert gathered.shard == 0
        with pytest.raises(ValueError, match="expected shard 1, got 0"):
            save.add_gathered(gathered)
        assert gathered.tensors(["a", "b", "c"])
        gathered.close()
    snapshot.abort()


def test_a_snapshot_that_ends_early_leaves_only_abort(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    snapshot = saved.snapshot()
    snapshot.abort()
    with CheckpointStore(tmp_path / "c").writer(saved.tables.schema, saved.placement) as writer:
        with writer.begin("base", step=0, samples=0) as save, pytest.raises(CprError, match="aborted"):
            save.add_snapshot(snapshot)
        writer.begin("base", step=0, samples=0).abort()
    assert not list((tmp_path / "c").rglob("*.safetensors"))
