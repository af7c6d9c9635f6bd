"""What is trained in the study: model, tables, samples and job of each set-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cpr_native.data import ClickBatch, hashed_table_sizes, kaggle_table_sizes
from cpr_native.emulate.sources import ClickSource, CriteoSource, GeneratedSource
from cpr_native.models import CRITEO, DLRMConfig, Recipe
from cpr_native.models import TERABYTE as TERABYTE_MODEL
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import KAGGLE, TERABYTE, Job, Preset

# Criteo Terabyte's categorical values, as TorchRec's benchmarks list them; the paper caps them at 10M.
TERABYTE_TABLE_SIZES = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)

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

    `config`: the job's configuration, "kaggle" or "terabyte"; `max_rows`: cap of every table; `lost`: shards
    lost at a failure; `fraction`: r of priority saves.
    """

    name: str
    config: str
    recipe: Recipe
    max_rows: int
    lost: int
    fraction: float = 0.125

    @property
    def preset(self) -> Preset:
        """The published job, costs and target PLS."""
        return CONFIGS[self.config]

    @property
    def job(self) -> Job:
        """The published job."""
        return self.preset.job

    def source(self, data: Path | None, samples: int) -> ClickSource:
        """Return the samples: `data` in the raw Criteo format, or `samples` generated ones.

        Terabyte's are generated in any case.
        """
        if self.config == "terabyte":
            sizes = tuple(min(size, self.max_rows) for size in TERABYTE_TABLE_SIZES)
            return GeneratedSource(samples=samples, table_sizes=sizes)
        if data is None:
            return GeneratedSource(samples=samples, table_sizes=kaggle_table_sizes(max_rows=self.max_rows))
        return CriteoSource(data, table_sizes=hashed_table_sizes(max_rows=self.max_rows))


CONFIGS = {"kaggle": KAGGLE, "terabyte": TERABYTE}
PAPER = SetUp(name="paper", config="kaggle", recipe=CRITEO, max_rows=100_000, lost=1)
STRESS = SetUp(name="stress", config="kaggle", recipe=_SMALL_MLPS, max_rows=10_000, lost=4)
TERABYTE_SETUP = SetUp(
    name="terabyte", config="terabyte", recipe=replace(CRITEO, model=TERABYTE_MODEL), max_rows=100_000, lost=1
)
SETUPS = {setup.name: setup for setup in (PAPER, STRESS, TERABYTE_SETUP)}


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
