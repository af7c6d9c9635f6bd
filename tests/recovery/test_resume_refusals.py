"""What `resume()` and `start()` refuse, with nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    ROWS,
    SHARDS,
    Net,
    adam,
    batches,
    everything,
    manage,
    same,
    train_step,
)

from cpr_native._native import Selection
from cpr_native.config import EmbeddingBagConfig
from cpr_native.errors import NoCheckpointError, SchemaMismatchError
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.overhead import Job
from cpr_native.policy import Full
from cpr_native.recovery import ResumableLoader
from cpr_native.store import CheckpointStore, Placement, SegmentPart


def left_behind(path: Path, steps: int) -> None:
    """A job that ended as in a crash: no close, the lock freed."""
    model = Net(OPTIMIZERS["sgd"])
    loader = ResumableLoader(batches())
    manager = manage(model, path, Full(), dense=adam(model), loader=loader, background=False)
    manager.start()
    for batch in batches(steps):
        train_step(model, batch)
        manager.step(BATCH)
    manager.__exit__(KeyboardInterrupt)


def test_empty_store_gives_none_or_raises_when_required(tmp_path: Path) -> None:
    manager = manage(Net(OPTIMIZERS["sgd"]), tmp_path, Full())
    assert manager.resume() is None
    with pytest.raises(NoCheckpointError, match="no checkpoint"):
        manager.resume(required=True)
    assert not manager.running
    manager.start()
    manager.close()


def test_v23_a_used_store_is_never_started_over(tmp_path: Path) -> None:
    left_behind(tmp_path, 6)
    model = Net(OPTIMIZERS["sgd"])
    manager = manage(model, tmp_path, Full(), dense=adam(model))
    for call in (manager.start, lambda: manager.step(BATCH)):
        with pytest.raises(ValueError, match="holds commits already; call resume"):
            call()
    assert (manager.steps, manager.samples) == (0, 0)


def test_v23_nothing_intact_raises_instead_of_starting_over(tmp_path: Path) -> None:
    left_behind(tmp_path, 6)
    for segment in (tmp_path / "shards" / "0" / "segments").iterdir():
        segment.write_bytes(segment.read_bytes()[:-1])
    model = Net(OPTIMIZERS["sgd"])
    before = everything(model)
    manager = manage(model, tmp_path, Full(), dense=adam(model))
    with pytest.raises(NoCheckpointError):
        manager.resume()
    with pytest.raises(ValueError, match="holds commits already"):
        manager.start()
    assert same(everything(model), before)
    assert not manager.running


def test_v22_damaged_newest_save_is_passed_over_and_named(tmp_path: Path) -> None:
    left_behind(tmp_path, 11)
    newest = max((tmp_path / "shards" / "1" / "segments").iterdir())
    data = bytearray(newest.read_bytes())
    data[-5] ^= 4
    newest.write_bytes(bytes(data))
    model = Net(OPTIMIZERS["sgd"])
    manager = manage(model, tmp_path, Full(), dense=adam(model), loader=ResumableLoader(batches()))
    report = manager.resume()
    assert report is not None
    assert report.step == 5
    assert newest.name in " ".join(report.skipped)
    manager.close()


class Other(torch.nn.Module):
    def __init__(self, *, rows: int = ROWS[0], hidden: int = 8) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name="big", num_embeddings=rows, embedding_dim=8, feature_names=["a", "b"]
                ),
                EmbeddingBagConfig(name="mid", num_embeddings=ROWS[1], embedding_dim=4, feature_names=["c"]),
                EmbeddingBagConfig(name="tiny", num_embeddings=ROWS[2], embedding_dim=4, feature_names=["d"]),
            ],
            optimizer=OPTIMIZERS["sgd"],
            seed=11,
        )
        self.mlp = torch.nn.Linear(24, hidden)


@pytest.mark.parametrize(
    ("other", "job", "kind", "match"),
    [
        (Other(rows=ROWS[0] + 1), None, SchemaMismatchError, "big.*rows"),
        (Other(), Job(total_hours=40.0, mtbf_hours=20.0, shards=5), SchemaMismatchError, "shards"),
        (Other(hidden=9), None, ValueError, "another model"),
    ],
)
def test_checkpoint_of_another_model_is_refused_with_nothing_changed(
    tmp_path: Path, other: Any, job: Job | None, kind: type[Exception], match: str
) -> None:
    model = Net(OPTIMIZERS["sgd"])
    with manage(model, tmp_path, Full()) as manager:
        train_step(model, batches(1)[0])
        manager.step(BATCH)
    before = [value.clone() for value in other.state_dict().values()]
    files = list(tmp_path.rglob("*.json"))
    options = {} if job is None else {"job": job}
    manager = manage(other, tmp_path, Full(), **options)
    with pytest.raises(kind, match=match):
        manager.resume()
    assert all(torch.equal(a, b) for a, b in zip(before, other.state_dict().values(), strict=True))
    assert not manager.running
    assert set(files) <= set(tmp_path.rglob("*.json"))


class OtherFile:
    """A loader that refuses the position in another file, as `CriteoReader` does."""

    def __iter__(self) -> Any:
        return iter(batches())

    def state_dict(self) -> dict[str, Any]:
        return {"at": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise ValueError("state is of a file of 7 bytes")


def test_position_of_another_data_file_is_refused_with_nothing_changed(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["sgd"])
    with manage(model, tmp_path, Full(), dense=adam(model), loader=OtherFile()) as manager:
        train_step(model, batches(1)[0])
        manager.step(BATCH)
    other = Net(OPTIMIZERS["sgd"])
    dense = adam(other)
    before, rng = everything(other, dense), torch.get_rng_state()
    manager = manage(other, tmp_path, Full(), dense=dense, loader=OtherFile())
    with pytest.raises(ValueError, match="a file of 7 bytes"):
        manager.resume()
    assert same(everything(other, dense), before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert not manager.running


def test_directory_that_no_manager_wrote_is_refused_with_nothing_changed(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["sgd"])
    manager = manage(model, tmp_path, Full())
    schema = manager._tables.schema
    placement = Placement.contiguous(schema, SHARDS)
    with CheckpointStore(tmp_path).writer(schema, placement) as writer:
        engine = model.tables.engine
        snapshot = engine.begin(
            [Selection.all()] * 3,
            clears_dirty=True,
            shard_rows=[placement.blocks[t.name] for t in schema.tables],
        )
        save = writer.begin("base", step=0, samples=0)
        for chunk in snapshot:
            save.add(
                SegmentPart(
                    shard=chunk.shard, table=schema.tables[chunk.table].name, rows=chunk.rows,
                    weight=chunk.weight, state=chunk.state, count=chunk.count, close=chunk.close,
                )
            )  # fmt: skip
        save.commit({})
        snapshot.commit()
    before = everything(model)
    with pytest.raises(ValueError, match=r"not made by a RecoveryManager: it has no due_saves.*state"):
        manager.resume()
    assert same(everything(model), before)
    assert not manager.running


def test_resume_comes_first(tmp_path: Path) -> None:
    manager = manage(Net(OPTIMIZERS["sgd"]), tmp_path, Full())
    manager.start()
    with pytest.raises(ValueError, match="goes before"):
        manager.resume()
    manager.close()
