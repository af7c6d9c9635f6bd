"""Saves with little memory, and a first save that fails."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.jobs import BATCH, OPTIMIZERS, ROWS, Net, batches, manage, rows_of, same, train_step

import cpr_native.store.segment
from cpr_native.config import EmbeddingBagConfig
from cpr_native.errors import CprError
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.policy import Delta, Full, Mfu


class Large(torch.nn.Module):
    """One table of 2.6 MB with room for a third of it in a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        config = EmbeddingBagConfig(name="t", num_embeddings=40_000, embedding_dim=16, feature_names=["f"])
        self.tables = EmbeddingBagCollection(
            [config], optimizer=OPTIMIZERS["adagrad"], max_staging_bytes=2**20
        )


def test_staging_smaller_than_the_table_is_written_in_pieces(tmp_path: Path) -> None:
    model = Large()
    manager = manage(model, tmp_path, Full())  # type: ignore[arg-type]
    manager.start()
    ids = torch.arange(0, 40_000, 997)
    for _ in range(3):
        model.tables(ids, torch.arange(len(ids) + 1)).square().sum().backward()
        manager.step(BATCH)
    manager.flush()
    assert [save.rows for save in manager.saves] == [40_000]
    expected = model.tables.engine.weight(0).copy()
    manager.close()
    again = Large()
    manager = manage(again, tmp_path, Full())  # type: ignore[arg-type]
    manager.resume()
    assert again.tables.engine.weight(0).tobytes() == expected.tobytes()
    manager.close()


def test_v12_no_dirty_row_is_dropped_when_staging_is_full(tmp_path: Path) -> None:
    """Peers drop ids beyond their buffer; here more rows than fit are dirty, and change while being saved."""
    model = Large()
    manager = manage(model, tmp_path, Delta())  # type: ignore[arg-type]
    manager.start()
    manager.flush()
    ids = torch.arange(40_000)
    for number in range(3):
        model.tables(ids, torch.arange(len(ids) + 1)).square().sum().backward()
        manager.step(BATCH)
        manager.save("delta")
        some = ids[number::7]
        model.tables(some, torch.arange(len(some) + 1)).square().sum().backward()
        manager.step(BATCH)
        manager.flush()
    manager.save("delta", wait=True)
    assert [save.rows for save in manager.saves[-2:]] == [40_000, len(ids[2::7])]
    expected = model.tables.engine.weight(0).copy()
    manager.close()
    again = Large()
    manager = manage(again, tmp_path, Delta())  # type: ignore[arg-type]
    manager.resume()
    assert again.tables.engine.weight(0).tobytes() == expected.tobytes()
    manager.close()


def test_first_base_that_failed_is_made_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "segment")

    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Delta())
    with monkeypatch.context() as patch:
        patch.setattr(cpr_native.store.segment, "_write", full)
        manager.start()
        with pytest.raises(OSError, match="No space left"):
            manager.flush()
    train_step(model, batches(1)[0])
    manager.step(BATCH)
    manager.flush()
    assert [(save.kind, save.step, save.rows) for save in manager.saves] == [("base", 1, sum(ROWS))]
    at_save = rows_of(model)
    train_step(model, batches(1, seed=8)[0])
    manager.step(BATCH)
    manager.recover([0])
    assert same(rows_of(model), at_save)
    manager.close()


def test_priority_policy_of_all_rows_measures_lookups_too(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Mfu(fraction=1.0), target_pls=0.0625, background=False)
    manager.start()
    for batch in batches(12):
        train_step(model, batch)
        manager.step(BATCH)
    report = manager.recover([0])
    lookups = sum(len(batch[0]) for batch in batches(12))
    assert report.pls == pytest.approx(report.lost_lookups / lookups * 12 / 40)
    manager.close()


def test_rows_written_from_outside_during_a_save_fail_it_and_are_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing torn is committed, and the writer, which waits for the walk, hears of it."""
    model = Large()
    manager = manage(model, tmp_path, Delta())  # type: ignore[arg-type]
    written = threading.Event()
    write = cpr_native.store.segment._write

    def held(path: Path, *args: Any) -> Any:
        assert written.wait(30)
        return write(path, *args)

    monkeypatch.setattr(cpr_native.store.segment, "_write", held)
    manager.start()  # 2.6 MB through 1 MB of staging: the walk waits for the writer
    with torch.no_grad():
        model.tables.embedding_bags["t"].weight.add_(1.0)
    model.tables.sync()
    written.set()
    with pytest.raises(CprError, match="written from outside"):
        manager.flush()
    assert not manager.saves
    assert model.tables.engine.dirty(0).all()
    manager.save()
    manager.flush()
    assert [(save.kind, save.rows) for save in manager.saves] == [("base", 40_000)]
    expected = model.tables.engine.weight(0).copy()
    manager.close()
    again = Large()
    manager = manage(again, tmp_path, Delta())  # type: ignore[arg-type]
    manager.resume()
    assert again.tables.engine.weight(0).tobytes() == expected.tobytes()
    manager.close()
