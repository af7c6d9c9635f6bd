"""What saves and loads cost a training on this machine: the measured half of the overhead."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional

from cpr_native.config import Trackers
from cpr_native.data import SyntheticClicks, kaggle_table_sizes
from cpr_native.models import KAGGLE as KAGGLE_MODEL
from cpr_native.models import TERABYTE as TERABYTE_MODEL
from cpr_native.models import DLRMConfig, build_dlrm
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import KAGGLE, TERABYTE, Costs, Job, Preset, plan
from cpr_native.policy import Full, Mfu, Partial, Policy, Ssu
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

# Criteo Terabyte's categorical values, as TorchRec's benchmarks list them; the paper caps them at 10M.
TERABYTE_TABLE_SIZES = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
_CAP = 10_000_000
BATCH = 2048
BATCHES = 100
POLICIES: Mapping[str, Policy] = {"full": Full(), "partial": Partial(), "mfu": Mfu(), "ssu": Ssu()}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model that is trained while it is saved.

    `table_sizes`: as trained here; `rows`: of the job that is meant, whose saves cost `rows` / trained rows
    times as much.
    """

    preset: Preset
    model: DLRMConfig
    table_sizes: tuple[int, ...]
    rows: int

    @property
    def factor(self) -> float:
        """How much larger the job's tables are than those trained here."""
        return self.rows / sum(self.table_sizes)


def configs(*, small: bool) -> dict[str, Config]:
    """Return the configurations; `small`: with tables of a few thousand rows."""
    terabyte = tuple(min(size, _CAP) for size in TERABYTE_TABLE_SIZES)
    most = 1000 if small else 1_000_000
    kaggle = kaggle_table_sizes(0.0001 if small else 1.0)
    return {
        "kaggle": Config(
            preset=KAGGLE, model=KAGGLE_MODEL, table_sizes=kaggle, rows=sum(kaggle_table_sizes())
        ),
        "terabyte": Config(
            preset=TERABYTE, model=TERABYTE_MODEL, table_sizes=tuple(min(size, most) for size in terabyte),
            rows=sum(terabyte),
        ),
    }  # fmt: skip


class _Training:
    def __init__(self, config: Config, *, small: bool) -> None:
        self.model = build_dlrm(
            config.model, config.table_sizes, optimizer=RowWiseAdagrad(lr=0.01), trackers=Trackers()
        )
        self.optimizer = torch.optim.Adagrad(self.model.dense_parameters(), lr=0.01)
        batch, count = (64, 4) if small else (BATCH, BATCHES)
        clicks = SyntheticClicks(end=count * batch, batch_size=batch, table_sizes=config.table_sizes)
        self._batches = itertools.cycle(list(clicks))

    def step(self) -> int:
        batch = next(self._batches)
        self.optimizer.zero_grad()
        logits = self.model(batch.dense, batch.ids, batch.offsets)
        torch.autograd.backward(functional.binary_cross_entropy_with_logits(logits, batch.labels))
        self.optimizer.step()
        return len(batch)


def measure(config: Config, *, small: bool, pairs: int) -> dict[str, Any]:
    """Train with saves and without, in alternating order, and load a shard; return seconds and bytes.

    Each policy: `save_seconds`, by how much longer the steps take during which a save is begun and written
    (median over pairs, as long as the save takes), `load_seconds` of one shard's recovery, `save_bytes`. All
    are those of the tables as trained here.
    """
    found: dict[str, Any] = {}
    for name, policy in POLICIES.items():
        if name == "partial":
            found[name] = dict(found["full"])  # both save everything
            continue
        folder = Path(tempfile.mkdtemp(prefix="cpr-study-"))
        try:
            found[name] = _measure_policy(config, policy, folder, small=small, pairs=pairs)
        finally:
            shutil.rmtree(folder)
    return found


def _measure_policy(
    config: Config, policy: Policy, folder: Path, *, small: bool, pairs: int
) -> dict[str, Any]:
    training = _Training(config, small=small)
    manager = RecoveryManager(
        training.model, CheckpointStore(folder / "store"), policy=policy, job=config.preset.job,
        costs=config.preset.costs, total_samples=10**12, dense_optimizer=training.optimizer, keep=1,
    )  # fmt: skip
    manager.start()
    manager.flush()
    extra = []
    for pair in range(pairs):
        steps, spent = 0, {}
        for saves in (True, False) if pair % 2 == 0 else (False, True):
            begin = perf_counter()
            if saves:
                manager.save(policy.kind(pair))
                while manager.saving:
                    manager.step(training.step())
                    steps += 1
            else:
                for _ in range(steps or 50):
                    manager.step(training.step())
            spent[saves] = (perf_counter() - begin) / max(1, steps if saves else (steps or 50))
        extra.append((spent[True] - spent[False]) * steps)
    begin = perf_counter()
    manager.recover([0])
    load = perf_counter() - begin
    saved = [save for save in manager.saves if save.reason == "requested"]
    manager.close()
    return {
        "save_seconds": max(0.0, median(extra)), "load_seconds": load, "pairs": pairs,
        "save_bytes": median(save.bytes_written for save in saved),
    }  # fmt: skip


def overhead_percent(config: Config, measured: Mapping[str, Any]) -> dict[str, float]:
    """Return each policy's overhead in percent: measured saves, published load and reschedule costs.

    A priority save is charged for its whole quota of rows: in the few steps trained here fewer are touched.
    Full recovery's lost work, half an interval a failure, is the formula's.
    """
    job, costs = config.preset.job, config.preset.costs
    found = {}
    for name, seconds in measured.items():
        quota = POLICIES[name].fraction * measured["full"]["save_bytes"]
        save = seconds["save_seconds"] * max(1.0, quota / seconds["save_bytes"])
        found[name] = _percent(config, job, costs, name, save)
    return found


def _percent(config: Config, job: Job, costs: Costs, name: str, seconds: float) -> float:
    policy = POLICIES[name]
    hours = policy.interval_hours(plan(job, costs, config.preset.target_pls, fraction=policy.fraction))
    save = seconds * config.factor / 3600.0
    lost = 0.5 * hours if policy.recovery == "full" else 0.0
    failure = costs.load_of(policy.recovery) + costs.reschedule_of(policy.recovery) + lost
    return 100.0 * (save * job.total_hours / hours + failure * job.failures) / job.total_hours
