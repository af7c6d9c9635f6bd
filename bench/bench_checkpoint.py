"""Saves and restores of one table of 1M rows x dim 32, in 8 shards.

- save: snapshot, segment files and commits of every row, synced to disk, against a plain `torch.save` of the
  same tensors, which is not synced;
- restore: checksums verified, rows of one shard or of all written in place, against `torch.load` and a copy
  of the same rows, which verifies nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import SHARDS, Checkpointed, seconds_to_write, table_of
from harness import Compare

ROWS = 1_000_000
ROUNDS = 5


def test_save_against_torch_save(compare: Compare, tmp_path: Path) -> None:
    shape = table_of(ROWS, compare.timed)
    job = Checkpointed(shape, tmp_path / "checkpoints")
    job.manager.start()
    job.manager.flush()
    batches = shape.batches(20)
    plain = job.tensors()

    def save(_: torch.Tensor) -> None:
        job.save()

    def torch_save(_: torch.Tensor) -> None:
        torch.save(plain, tmp_path / "table.pt")

    job.ours.step(batches[0])
    job.save()
    expected = job.tensors()
    job.ours.step(batches[1])
    job.manager.recover(range(SHARDS))
    for name, tensor in job.tensors().items():
        assert torch.equal(tensor, expected[name])
    size = sum(tensor.nbytes for tensor in expected.values())
    raw = seconds_to_write(tmp_path / "raw", size) * 1e3
    compare(
        save, torch_save, batches, rounds=ROUNDS, group="save", raw_write_and_sync_ms=round(raw, 1),
        stall_ms=round(job.manager.saves[-1].stall_seconds * 1e3, 3),
    )  # fmt: skip
    job.manager.close()
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("shards", [1, SHARDS])
def test_restore_against_torch_load(compare: Compare, tmp_path: Path, shards: int) -> None:
    shape = table_of(ROWS, compare.timed)
    job = Checkpointed(shape, tmp_path / "checkpoints")
    job.manager.start()
    for ids in shape.batches(5):
        job.ours.step(ids)
    job.save()
    torch.save(job.tensors(), tmp_path / "table.pt")
    expected = job.tensors()
    plain = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    lost = slice(0, sum(len(shard) for shard in job.manager.shards[:shards]))

    def restore(_: int) -> None:
        for shard in job.manager.shards[:shards]:
            shard.restore()

    def torch_load(_: int) -> None:
        saved = torch.load(tmp_path / "table.pt", weights_only=True)
        for name, tensor in plain.items():
            tensor[lost] = saved[name][lost]

    for shard in job.manager.shards[:shards]:
        shard.discard()
    assert torch.isnan(job.tensors()["weight"][lost]).all()
    restore(0)
    torch_load(0)
    for name, tensor in job.tensors().items():
        assert torch.equal(tensor, expected[name])
        assert torch.equal(plain[name][lost], expected[name][lost])
    compare(restore, torch_load, [0], rounds=2 * ROUNDS, group=f"restore {shards} of {SHARDS} shards")
    job.manager.close()
    shutil.rmtree(tmp_path)
