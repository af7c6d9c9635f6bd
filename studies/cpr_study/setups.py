"""What is trained in the study: model, tables, samples and job of each set-up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpr_native.data import ClickBatch, hashed_table_sizes, kaggle_table_sizes
from cpr_native.emulate.sources import ClickSource, CriteoSource, GeneratedSource
from cpr_native.models import CRITEO, DLRMConfig, Recipe
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import KAGGLE, Costs, Job

# Most of what this model learns is in its tables.
_SMALL_MLPS = Recipe(
    model=DLRMConfig(bottom=(64, 16), top=(64, 1)),
    batch_size=128,
    table_optimizer=RowWiseAdagrad(lr=0.02),
    dense_lr=0.005,
)


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """A model, its tables and the emulated job.

    `lost`: shards lost at a failure; `max_rows`: cap of every table.
    """

    name: str
    recipe: Recipe
    max_rows: int
    lost: int
    job: Job = KAGGLE.job
    costs: Costs = KAGGLE.costs
    target_pls: float = 0.1
    fraction: float = 0.125

    def source(self, data: Path | None, samples: int) -> ClickSource:
        """Return the samples: `data` in the raw Criteo format, or `samples` generated ones."""
        if data is None:
            return GeneratedSource(samples=samples, table_sizes=kaggle_table_sizes(max_rows=self.max_rows))
        return CriteoSource(data, table_sizes=hashed_table_sizes(max_rows=self.max_rows))


PAPER = SetUp(name="paper", recipe=CRITEO, max_rows=100_000, lost=1)
STRESS = SetUp(name="stress", recipe=_SMALL_MLPS, max_rows=10_000, lost=4)
SETUPS = {setup.name: setup for setup in (PAPER, STRESS)}


@dataclass(frozen=True)
class Samples:
    """The batches of a source, read once: `train` in order, `held_out` for evaluation."""

    table_sizes: tuple[int, ...]
    train: tuple[ClickBatch, ...]
    held_out: tuple[ClickBatch, ...]
    described: dict[str, object]

    @property
    def count(self) -> int:
        """Samples to train on."""
        return sum(len(batch) for batch in self.train)


def read_samples(setup: SetUp, data: Path | None, generated: int) -> Samples:
    """Read or generate all samples of a set-up; raises what its source raises."""
    source = setup.source(data, generated)
    return Samples(
        tuple(source.table_sizes),
        tuple(source.train(setup.recipe.batch_size)),
        tuple(source.held_out(4096)),
        source.describe(),
    )
