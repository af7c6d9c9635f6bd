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

import numpy as np
import torch
from torch.nn import functional

from cpr_native._tensor import describe
from cpr_native.config import Trackers
from cpr_native.data import SyntheticClicks, kaggle_table_sizes
from cpr_native.models import KAGGLE as KAGGLE_MODEL
from cpr_native.models import TERABYTE as TERABYTE_MODEL
from cpr_native.models import DLRMConfig, build_dlrm
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import KAGGLE, TERABYTE, Preset, plan
from cpr_native.policy import Drift, Full, Mfu, Partial, Policy, Random, RoundRobin, Scar, Ssu
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore
from cpr_study.setups import TERABYTE_TABLE_SIZES

_CAP = 10_000_000
BATCH = 2048
BATCHES = 100
POLICIES: Mapping[str, Policy] = {
    "full": Full(), "partial": Partial(), "mfu": Mfu(), "ssu": Ssu(), "scar": Scar(), "drift": Drift(),
    "random": Random(), "round_robin": RoundRobin(),
}  # fmt: skip
_LISTED = np.uint32(1 << 29)


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
    most = 1000 if small else 3_000_000
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
    def __init__(self, config: Config, policy: Policy, *, small: bool) -> None:
        trackers = Trackers(drift=isinstance(policy, Drift))
        self.model = build_dlrm(
            config.model, config.table_sizes, optimizer=RowWiseAdagrad(lr=0.01), trackers=trackers
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

    def touch_every_row(self, policy: Policy) -> None:
        """Make every row look used and changed, so that a priority save takes its whole quota."""
        engine: Any = self.model.embeddings.engine
        draw = np.random.default_rng(0)
        for table, spec in enumerate(engine.tables):
            counts = draw.integers(1, 1000, spec.num_embeddings).astype(np.uint32)
            words, drifts = counts | _LISTED, counts.astype(np.float32)
            engine.set_trackers(table, describe(words))
            if isinstance(policy, Drift):
                engine.set_drift(table, describe(drifts))
        if isinstance(policy, Scar):
            with torch.no_grad():
                for weight in self.model.embeddings.parameters():
                    weight.mul_(1.001)


def measure(config: Config, *, small: bool, pairs: int) -> dict[str, Any]:
    """Train with saves and without, in alternating order, and load a shard; return seconds and bytes.

    Before each priority save every row is made to look used, so that it takes its whole quota. Each policy:
    `save_seconds`, by how much longer the steps take during which a save is begun and written
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
    training = _Training(config, policy, small=small)
    manager = RecoveryManager(
        training.model, CheckpointStore(folder / "store"), policy=policy, job=config.preset.job,
        costs=config.preset.costs, total_samples=10**12, dense_optimizer=training.optimizer, keep=1,
    )  # fmt: skip
    manager.start()
    manager.flush()
    extra = []
    for pair in range(pairs):
        steps, spent = 0, {}
        if policy.fraction < 1:
            training.touch_every_row(policy)
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

    Full recovery's lost work, half an interval a failure, is the formula's.
    """
    return {name: _percent(config, name, seconds["save_seconds"]) for name, seconds in measured.items()}


def _percent(config: Config, name: str, seconds: float) -> float:
    job, costs = config.preset.job, config.preset.costs
    policy = POLICIES[name]
    hours = policy.interval_hours(plan(job, costs, config.preset.target_pls, fraction=policy.fraction))
    save = seconds * config.factor / 3600.0
    lost = 0.5 * hours if policy.recovery == "full" else 0.0
    failure = costs.load_of(policy.recovery) + costs.reschedule_of(policy.recovery) + lost
    return 100.0 * (save * job.total_hours / hours + failure * job.failures) / job.total_hours
