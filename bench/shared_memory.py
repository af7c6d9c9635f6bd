"""What shared memory costs a step: the update of tables in it against private ones, and the manager's commit.

`python bench/shared_memory.py`: prints JSON. Rounds in the order private, shared, shared, private; the ratio
is the median over rounds of shared / private.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from cpr_native.config import EmbeddingBagConfig
from cpr_native.models import build_dlrm
from cpr_native.models.dlrm import DLRMConfig
from cpr_native.models.presets import DEMO, KAGGLE
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Delta
from cpr_native.recovery import RecoveryManager
from cpr_native.shared import SharedMemory
from cpr_native.store import CheckpointStore

TABLES, ROWS, DIM, BATCH, ROUNDS = 26, 200_000, 32, 2048, 12


def tables() -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(name=f"t{t}", num_embeddings=ROWS, embedding_dim=DIM, feature_names=(f"f{t}",))
        for t in range(TABLES)
    ]
    return EmbeddingBagCollection(configs, optimizer=RowWiseAdagrad(lr=0.01))


def step_seconds(model: EmbeddingBagCollection, batches: list[torch.Tensor], offsets: torch.Tensor) -> float:
    """Seconds of a forward and backward, with the update in it."""
    started = perf_counter()
    for ids in batches:
        model(ids, offsets).sum().backward()
    return (perf_counter() - started) / len(batches)


def update_ratio(folder: Path) -> dict[str, float]:
    memory = SharedMemory(folder / "tables")
    private = tables()
    with memory:
        shared = tables()
    random = np.random.default_rng(0)
    batches = [
        torch.from_numpy((ROWS * random.random(TABLES * BATCH) ** 3).astype(np.int64)) for _ in range(4)
    ]
    offsets = torch.arange(TABLES * BATCH + 1)
    ratios, seconds = [], []
    for _ in range(ROUNDS + 1):
        a = step_seconds(private, batches, offsets)
        b = step_seconds(shared, batches, offsets) + step_seconds(shared, batches, offsets)
        a += step_seconds(private, batches, offsets)
        memory.region.commit(b"", [])  # a step ends: the marker begins anew
        ratios.append(b / a)
        seconds.append(a / 2)
    return {"private_ms": 1e3 * median(seconds[1:]), "shared_to_private": median(ratios[1:])}


def commit_milliseconds(folder: Path, config: DLRMConfig) -> dict[str, float]:
    """The manager's commit of a step, with Adam for the dense parameters."""
    memory = SharedMemory(folder / "model")
    with memory:
        model = build_dlrm(config, [1000] * 26, optimizer=RowWiseAdagrad(lr=0.01))
    dense = torch.optim.Adam(model.dense_parameters())
    for parameter in model.dense_parameters():
        parameter.grad = torch.zeros_like(parameter)
    dense.step()
    manager = RecoveryManager(
        model,
        CheckpointStore(folder / "checkpoint"),
        policy=Delta(),
        job=Job(total_hours=100.0, mtbf_hours=10.0, shards=4),
        costs=Costs(save=0.1, load=0.1, reschedule=0.1),
        total_samples=10**9,
        dense_optimizer=dense,
        shared=memory,
    )
    with manager:
        manager.start()
        manager.flush()
        times = []
        for _ in range(100):
            started = perf_counter()
            manager._leave()
            times.append(perf_counter() - started)
    numbers = sum(parameter.numel() for parameter in model.dense_parameters())
    return {"dense_numbers": numbers, "commit_ms": 1e3 * median(times)}


if __name__ == "__main__":
    figures = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        figures["update"] = update_ratio(Path(name))
    for title, widths in (("demo", DEMO.model), ("kaggle", KAGGLE)):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            figures[title] = commit_milliseconds(Path(name), widths)
    print(json.dumps(figures, indent=1))
