"""One emulated job of the study: so many shards, one strategy, one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study_common.runner import Unit

from cpr_native.data.tables import kaggle_table_sizes
from cpr_native.emulate.failures import draw_failures
from cpr_native.emulate.runner import run_emulation
from cpr_native.emulate.settings import Emulation
from cpr_native.emulate.sources import GeneratedSource
from cpr_native.models import DLRMConfig, Recipe
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import Costs, Job

STRATEGIES = ("full", "partial", "mfu")
SHARDS = (4, 16, 64, 256)
NODE_MTBF_HOURS = 224.0  # eight nodes fail every 28 hours, as in the CPR paper
FAILURES = 8  # of one shard each, in a job of as many times its MTBF
SHARD_BYTES = 64e9  # what costs that grow with the bytes are taken for
TARGET_PLS = 0.1
HOUR = 3600.0
RECIPE = Recipe(
    model=DLRMConfig(embedding_dim=16, bottom=(32, 16), top=(32, 1)),
    batch_size=32,
    table_optimizer=RowWiseAdagrad(lr=0.02),
    dense_lr=0.01,
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured on a cluster, seconds, with shards of `shard_bytes`.

    `save`: training time that a save of everything takes; `load`: to read a shard's rows back; `reschedule`:
    from a kill to training again, less `load`.
    """

    shard_bytes: float
    save: float
    load: float
    reschedule: float

    @classmethod
    def read(cls, cluster: Mapping[str, Any]) -> Measured:
        """Return the costs in docs/results/cluster.json.

        A save costs what lookups beside it took longer than others did.
        """
        failures, save = cluster["failures"], cluster["training"]["ray"]["save"]
        slower = save["lookup_beside_save_ms"] - save["lookup_ms"]
        return cls(
            shard_bytes=failures["shard_bytes"],
            save=slower / 1e3 * save["lookups_beside"] / save["saves"],
            load=failures["kill"]["restore"]["median"],
            reschedule=failures["kill"]["without_restore"]["median"],
        )

    def costs(self) -> Costs:
        """Return the costs of shards of `SHARD_BYTES`: all shards save and load at the same time."""
        scale = SHARD_BYTES / self.shard_bytes
        return Costs(
            save=self.save * scale / HOUR, load=self.load * scale / HOUR, reschedule=self.reschedule / HOUR
        )


def job_of(shards: int) -> Job:
    """Return the job: its MTBF falls with the number of nodes, and it lasts `FAILURES` times that."""
    mtbf = NODE_MTBF_HOURS / shards
    return Job(total_hours=FAILURES * mtbf, mtbf_hours=mtbf, shards=shards)


def run_unit(unit: Unit, costs: Costs, samples: int) -> dict[str, Any]:
    """Train an emulated job of (shards, strategy, seed) through its failures; return figures, JSON values."""
    shards, strategy, seed = int(unit[0]), unit[1], unit[2]
    job = job_of(shards)
    schedule = draw_failures(
        seed, total_hours=job.total_hours, num_shards=shards, count=FAILURES, lost_fraction=1 / shards
    )
    emulation = Emulation(
        job=job, costs=costs, schedule=schedule, recipe=RECIPE, target_pls=TARGET_PLS, seed=seed
    )
    source = GeneratedSource(samples=samples, table_sizes=tuple(kaggle_table_sizes(0.001)), seed=seed)
    run = run_emulation(emulation, source, [strategy]).runs[0]
    hours = run.overhead_hours
    return {
        "shards": shards,
        "strategy": strategy,
        "seed": seed,
        "overhead_percent": run.overhead_percent,
        "parts_percent": {
            name: 100.0 * getattr(hours, name) / job.total_hours
            for name in ("save", "load", "lost", "reschedule")
        },
        "pls": run.pls,
        "pls_expected": run.pls_expected,
        "saves": run.commits,
        "auc": run.auc,
    }
