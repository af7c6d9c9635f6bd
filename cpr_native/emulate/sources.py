"""Where an emulation's samples come from: the generator or a Criteo file, 90 % to train on, 10 % held out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cpr_native.data import ClickBatch, CriteoReader, SyntheticClicks, count_lines

TRAIN_SHARE = 0.9


class ClickLoader(Protocol):
    """Batches with a data position, as `fit` takes them."""

    def __iter__(self) -> Iterator[ClickBatch]:
        """The batches from the position on."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch yielded last."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` start at a position."""


class ClickSource(Protocol):
    """Samples of one emulation; every run gets new loaders over the same samples."""

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of the 26 tables."""

    @property
    def train_samples(self) -> int:
        """Samples of one pass over the training part."""

    def train(self, batch_size: int) -> ClickLoader:
        """A new loader of the training part."""

    def held_out(self, batch_size: int) -> Iterable[ClickBatch]:
        """A new loader of the held-out part."""

    def describe(self) -> dict[str, Any]:
        """The source as `results.json` holds it."""


@dataclass(frozen=True, kw_only=True)
class GeneratedSource:
    """Samples of the generator (`SyntheticClicks`).

    Args:
        samples: to train on and held out together, at least 100.
        table_sizes: rows of the 26 tables.
        seed: of the generator, at least 0.

    Raises:
        ValueError: `samples` is below 100.
    """

    samples: int
    table_sizes: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 100:
            raise ValueError(f"samples must be at least 100, got {self.samples}")

    @property
    def train_samples(self) -> int:
        """Samples of one pass over the training part."""
        return int(self.samples * TRAIN_SHARE)

    def train(self, batch_size: int) -> SyntheticClicks:
        """A new loader of the training part."""
        return self._clicks(0, self.train_samples, batch_size)

    def held_out(self, batch_size: int) -> SyntheticClicks:
        """A new loader of the held-out part."""
        return self._clicks(self.train_samples, self.samples, batch_size)

    def describe(self) -> dict[str, Any]:
        """The source as `results.json` holds it."""
        return {
            "source": "generator",
            "seed": self.seed,
            **_description(self, self.samples - self.train_samples),
        }

    def _clicks(self, begin: int, end: int, batch_size: int) -> SyntheticClicks:
        return SyntheticClicks(
            begin=begin, end=end, batch_size=batch_size, table_sizes=self.table_sizes, seed=self.seed
        )


class CriteoSource:
    """Samples of a file in the raw Criteo format, plain or gzip (`CriteoReader`)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table_sizes: Sequence[int],
        lines: int | None = None,
        on_error: Literal["raise", "skip"] = "skip",
    ) -> None:
        """Read the file once to count lines, samples and damaged lines.

        Args:
            path: the file.
            table_sizes: rows of the 26 tables; values are hashed to them.
            lines: use the first `lines` lines only, at least 100; None for all.
            on_error: "skip" leaves damaged lines out and counts them, "raise" raises at the first.

        Raises:
            ValueError: too few lines, or a damaged line with "raise"; the message names file and line.
            OSError: the file can't be read.
        """
        self._path = os.fspath(path)
        self._on_error = on_error
        found = count_lines(path)
        self._lines = found if lines is None else min(lines, found)
        if self._lines < 100:
            raise ValueError(f"{self._path}: at least 100 lines are needed, got {self._lines}")
        self._cut = int(self._lines * TRAIN_SHARE)
        self._sizes = tuple(table_sizes)
        self._train_samples, damaged, examples = self._count(self.train(8192))
        self._held_out_samples, more, more_examples = self._count(self.held_out(8192))
        self._damaged, self._examples = damaged + more, (*examples, *more_examples)[:20]

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of the 26 tables."""
        return self._sizes

    @property
    def train_samples(self) -> int:
        """Intact lines of the training part."""
        return self._train_samples

    @property
    def damaged_examples(self) -> tuple[str, ...]:
        """The first damaged lines, each as `file:line: reason`."""
        return self._examples

    @property
    def damaged(self) -> int:
        """Damaged lines left out."""
        return self._damaged

    def train(self, batch_size: int) -> CriteoReader:
        """A new loader of the training part."""
        return self._reader(0, self._cut, batch_size)

    def held_out(self, batch_size: int) -> CriteoReader:
        """A new loader of the held-out part."""
        return self._reader(self._cut, self._lines, batch_size)

    def describe(self) -> dict[str, Any]:
        """The source as `results.json` holds it."""
        return {
            "source": self._path,
            "lines": self._lines,
            "damaged_lines": self._damaged,
            **_description(self, self._held_out_samples),
        }

    def _reader(self, begin: int, end: int, batch_size: int) -> CriteoReader:
        return CriteoReader(
            self._path, batch_size=batch_size, table_sizes=self._sizes, begin=begin, end=end,
            on_error=self._on_error,
        )  # fmt: skip

    def _count(self, reader: CriteoReader) -> tuple[int, int, tuple[str, ...]]:
        samples = sum(len(batch) for batch in reader)
        return samples, reader.damaged, reader.damaged_examples


def _description(source: ClickSource, held_out: int) -> dict[str, Any]:
    return {
        "train_samples": source.train_samples,
        "held_out_samples": held_out,
        "tables": len(source.table_sizes),
        "rows": sum(source.table_sizes),
        "table_sizes": list(source.table_sizes),
    }
