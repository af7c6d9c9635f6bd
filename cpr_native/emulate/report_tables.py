"""The tables behind the report's plots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from cpr_native.emulate.results import PARTS, RunResult
from cpr_native.emulate.row_statistics import Distribution, age_of, pooled_age_of, saved_of
from cpr_native.emulate.units import human_bytes

_MOST_TIMES = 12


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """Texts: `head` names the columns; the first column of `rows` names the row."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def overhead_table(runs: Sequence[RunResult], total_hours: float) -> DataTable:
    """Hours of each part of the overhead, their sum and its percentage."""
    return DataTable(
        caption=f"Hours of overhead of a job of {total_hours:g} hours.",
        head=("strategy", *(f"{part}, h" for part in PARTS), "all, h", "all, %"),
        rows=tuple(
            (
                run.strategy,
                *(f"{hours:.4f}" for hours in asdict(run.overhead_hours).values()),
                f"{run.overhead_hours.total:.4f}",
                f"{run.overhead_percent:.3f}",
            )
            for run in runs
        ),
    )


def quality_table(runs: Sequence[RunResult], reference: RunResult) -> DataTable:
    """AUC and log loss, and what they differ from those of `reference`."""
    return DataTable(
        caption=f"On held-out samples; differences to {reference.strategy}.",
        head=("strategy", "AUC", "difference", "log loss", "difference"),
        rows=tuple(
            (
                run.strategy,
                f"{run.auc:.6f}",
                f"{run.auc - reference.auc:+.6f}",
                f"{run.logloss:.6f}",
                f"{run.logloss - reference.logloss:+.6f}",
            )
            for run in (reference, *runs)
        ),
    )


def pls_table(runs: Sequence[RunResult], target: float, total_hours: float) -> DataTable:
    """What each failure added, the sum, and what was expected by then."""
    rows = [
        (
            run.strategy,
            f"{failure.hour:.2f}",
            ", ".join(map(str, failure.shards)),
            f"{failure.pls:.5f}",
            f"{pls:.5f}",
            f"{run.pls_expected * failure.hour / total_hours:.5f}",
            f"{failure.lost_lookups:,}",
        )
        for run in runs
        for failure, (_, pls) in zip(run.failures, run.pls_trace, strict=True)
    ]
    ends = [
        (run.strategy, f"{total_hours:.2f}", "end", "", f"{run.pls:.5f}", f"{run.pls_expected:.5f}", "")
        for run in runs
    ]
    return DataTable(
        caption=f"Portion of lost samples after each failure and at the end; the budget is {target:g}.",
        head=("strategy", "hour", "shards lost", "added", "PLS", "expected by then", "lost lookups"),
        rows=tuple(sorted((*rows, *ends), key=lambda row: [run.strategy for run in runs].index(row[0]))),
    )


def saves_table(runs: Sequence[RunResult]) -> DataTable:
    """Number, bytes and hours of each kind of save."""

    def rows() -> Iterator[tuple[str, ...]]:
        for run in runs:
            for kind in sorted({save.kind for save in run.saves}):
                saves = [save for save in run.saves if save.kind == kind]
                yield (
                    run.strategy,
                    kind,
                    str(len(saves)),
                    human_bytes(sum(save.bytes_written for save in saves)),
                    f"{sum(save.cost_hours for save in saves):.4f}",
                    ", ".join(f"{save.hour:.1f}" for save in saves),
                )

    return DataTable(
        caption="Saves of each kind; overhead charged for them; the hours of work at which they were taken.",
        head=("strategy", "kind", "saves", "written", "overhead, h", "at hours"),
        rows=tuple(rows()),
    )


def saved_table(runs: Sequence[RunResult]) -> DataTable:
    """Rows and lookups of every group by the number of times saved."""
    return DataTable(
        caption="Rows by the number of commits that held them, and lookups of these rows in training.",
        head=("strategy", "tables", "times saved", "rows", "% of group", "lookups", "% of group"),
        rows=tuple(
            (
                run.strategy,
                part.group,
                f"{time}",
                f"{rows:,}",
                _percent(rows, sum(part.rows)),
                f"{lookups:,}",
                _percent(lookups, sum(part.lookups)),
            )
            for run in runs
            for part in run.rows_saved
            for time, rows, lookups in zip(part.times, part.rows, part.lookups, strict=True)
        ),
    )


def coverage_table(runs: Sequence[RunResult]) -> DataTable:
    """Share of rows and lookups with rows saved at least k times, for k up to a dozen."""
    most = max(int(saved_of(run, "rows").highest) for run in runs)
    times = sorted({round(1 + k * (most - 1) / (_MOST_TIMES - 1)) for k in range(_MOST_TIMES)})
    return DataTable(
        caption="% of rows, and of lookups, with rows saved at least k times, over all tables.",
        head=("strategy", "of", *(f"k = {time}" for time in times)),
        rows=tuple(
            (run.strategy, weight, *(_share(spread.at_least(time)) for time in times))
            for run in runs
            for weight, spread in (("rows", saved_of(run, "rows")), ("lookups", saved_of(run, "lookups")))
        ),
    )


_AGES = ("mean", "median", "90 %", "oldest")


def age_table(runs: Sequence[RunResult]) -> DataTable:
    """Ages of rows of all failures of each run."""
    return DataTable(
        caption="Ages in hours of the rows that went back, all failures together.",
        head=("strategy", "weighted by", "rows or lookups", *_AGES),
        rows=tuple(
            (run.strategy, weight, *_ages(spread))
            for run in runs
            for weight, spread in (
                ("rows", pooled_age_of(run, "rows")),
                ("lookups", pooled_age_of(run, "lookups")),
            )
        ),
    )


def failure_age_table(runs: Sequence[RunResult]) -> DataTable:
    """Ages of rows at each failure."""
    return DataTable(
        caption="Age in hours of the rows that went back at each failure.",
        head=("strategy", "hour", "shards lost", "weighted by", "rows or lookups", *_AGES),
        rows=tuple(
            (
                run.strategy,
                f"{failure.hour:.2f}",
                ", ".join(map(str, failure.shards)),
                weight,
                *_ages(spread),
            )
            for run in runs
            for failure in run.failures
            for weight, spread in (("rows", age_of(failure, "rows")), ("lookups", age_of(failure, "lookups")))
        ),
    )


def _ages(spread: Distribution) -> tuple[str, ...]:
    values = (spread.mean, spread.quantile(0.5), spread.quantile(0.9), spread.highest)
    return (
        f"{int(spread.weights.sum()):,}",
        *(number(value, ".3f") for value in values),
    )


def _percent(part: int, whole: int) -> str:
    return _share(part / whole if whole else math.nan)


def _share(share: float) -> str:
    return number(100.0 * share, ".2f")


def number(value: float, form: str) -> str:
    """`value` in the format `form`; "none" for NaN, a statistic of nothing."""
    return "none" if math.isnan(value) else format(value, form)
