"""Restore of a base and 8 deltas: every byte is verified before the first row is written in place.

The yardstick is `torch.load` of the same rows from 9 files and a copy into a table, verifying nothing.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import Checkpointed, table_of
from figures import Figures
from harness import Compare
from torch import Tensor

from cpr_native import CheckpointStore
from cpr_native.shard import Restored, restore_rows
from cpr_native.store.naming import SEGMENTS

ROWS = 2_000_000
DELTAS = 8
STEPS = 4
ROUNDS = 5


def save(job: Checkpointed, number: int, folder: Path) -> None:
    """Commit the rows that changed (the first time all rows), and save the same with torch."""
    rows = torch.from_numpy(np.flatnonzero(job.engine.dirty(0)))
    tensors = job.tensors()
    torch.save(
        {"rows": rows, **{name: value[rows] for name, value in tensors.items()}}, folder / f"{number}.pt"
    )
    assert job.manager.save("base" if number == 0 else "delta", wait=True)


def load(folder: Path, target: dict[str, Tensor]) -> None:
    """Read the base and the deltas with torch into `target`."""
    for number in range(DELTAS + 1):
        saved = torch.load(folder / f"{number}.pt", weights_only=True)
        for name, tensor in target.items():
            if number == 0:
                tensor.copy_(saved[name])
            else:
                tensor.index_copy_(0, saved["rows"], saved[name])


def restore(job: Checkpointed) -> Restored:
    """Read the newest exact point into the engine, as a restart does."""
    plan = CheckpointStore(job.directory).latest("exact").plan()
    ranges = [rows for shard in job.manager.shards for rows in shard.ranges]
    return restore_rows(job.engine, ranges, plan, dirty="clear")


def peak_bytes(job: Checkpointed) -> int:
    """Return how much the process grows, at most, while it restores."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak from now on
    before = _status("VmRSS")
    restore(job)
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def test_restore_against_torch_load(compare: Compare, figures: Figures, tmp_path: Path) -> None:
    shape = table_of(ROWS, compare.timed)
    job = Checkpointed(shape, tmp_path / "checkpoints")
    job.manager.start()
    job.manager.flush()
    job.engine.mark_dirty(0)
    batches = iter(shape.batches(STEPS * (DELTAS + 1)))
    for number in range(DELTAS + 1):
        for ids in itertools.islice(batches, STEPS):
            job.ours.step(ids)
        save(job, number, tmp_path)
    expected = job.tensors()
    plain = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    for shard in job.manager.shards:
        shard.discard()
    assert job.tensors()["weight"].isnan().all()
    restored = restore(job)
    load(tmp_path, plain)
    assert sum(restored.rows.values()) == shape.rows[0]
    for name, tensor in job.tensors().items():
        assert torch.equal(tensor, expected[name])
        assert torch.equal(plain[name], expected[name])
    extra: dict[str, Any] = {}
    if compare.timed:
        segment = max(size for path, size in job.files().items() if path.parent.name == SEGMENTS)
        extra["peak_segments"] = round(peak_bytes(job) / segment, 3)
    times = compare(
        lambda _: restore(job), lambda _: load(tmp_path, plain), itertools.repeat(None), rounds=ROUNDS,
        group="restore", **extra,
    )  # fmt: skip
    if compare.timed:
        figures.put(
            "snapshot",
            restore_vs_torch=times.ratio,
            restore_peak_segments=extra["peak_segments"],
            restore_ms=times.ours_ms,
            torch_load_ms=times.yardstick_ms,
        )
    job.manager.close()
    shutil.rmtree(tmp_path)
