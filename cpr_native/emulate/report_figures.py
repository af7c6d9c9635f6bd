"""The figures of the report: a plot, its words for who can't see it, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cpr_native.emulate import report_tables as tables
from cpr_native.emulate.report_tables import DataTable, number
from cpr_native.emulate.results import Results, RunResult
from cpr_native.emulate.row_statistics import age_of, pooled_age_of, saved_of

if TYPE_CHECKING:
    from cpr_native.emulate.style import Series


@dataclass(frozen=True, kw_only=True)
class ReportFigure:
    """One plot: `svg` the element, `words` what it shows, `note` how to read it, `table` its numbers."""

    title: str
    svg: str
    words: str
    note: str
    table: DataTable


def figures_of(results: Results) -> list[ReportFigure]:
    """Every figure that the results have numbers for; importing matplotlib takes a second."""
    from cpr_native.emulate.style import series_of

    hours = float(results.config["total_hours"])
    failing = [run for run in results.runs if run.strategy != "none"]
    styles = series_of([run.strategy for run in failing])
    figures = []
    if failing:
        figures += _job_figures(results, failing, styles)
    figures.append(_timeline(results.runs, hours))
    saved = [run for run in failing if run.rows_saved]
    if saved:
        figures += _saved_figures(saved, styles)
    struck = [run for run in failing if run.failures]
    if struck:
        figures += _age_figures(struck, styles, hours)
    return figures


def _job_figures(
    results: Results, failing: Sequence[RunResult], styles: dict[str, Series]
) -> list[ReportFigure]:
    from cpr_native.emulate import charts

    hours, target = float(results.config["total_hours"]), float(results.config["target_pls"])
    reference = next((run for run in results.runs if run.strategy == "none"), None)
    note = "What saving and recovering cost, by cause."
    expected = results.config.get("overhead_percent_expected")
    if expected:
        note += (
            " Averaged over the times of failures, full recovery costs "
            f"{expected['full']:.2f} % and partial recovery {expected['partial']:.2f} %."
        )
    found = [
        ReportFigure(
            title="Overhead",
            svg=charts.overhead_chart(failing, hours),
            words=_overhead_words(failing),
            note=note + " The saves before the first and after the last step are not charged.",
            table=tables.overhead_table(failing, hours),
        )
    ]
    if reference is not None:
        found.append(
            ReportFigure(
                title="Quality against a run without failure",
                svg=charts.quality_chart(failing, reference),
                words=_quality_words(failing, reference),
                note="One seed: differences of a few 0.0001 are within chance.",
                table=tables.quality_table(failing, reference),
            )
        )
    found.append(
        ReportFigure(
            title="Portion of lost samples (PLS)",
            svg=charts.pls_chart(failing, styles, target, hours),
            words=_pls_words(failing, target),
            note="A failure adds the samples that the lost shards learnt since they were last saved. The "
            "thin line is what the planner expected by then, the thick broken one the whole job's budget.",
            table=tables.pls_table(failing, target, hours),
        )
    )
    return found


def _timeline(runs: Sequence[RunResult], hours: float) -> ReportFigure:
    from cpr_native.emulate import charts

    return ReportFigure(
        title="Saves and failures",
        svg=charts.timeline_chart(runs, hours),
        words=_timeline_words(runs),
        note="Base: all rows; delta: every row changed since; priority: the rows chosen by the strategy.",
        table=tables.saves_table(runs),
    )


def _saved_figures(runs: Sequence[RunResult], styles: dict[str, Series]) -> list[ReportFigure]:
    from cpr_native.emulate import row_charts

    return [
        ReportFigure(
            title="How often rows were saved",
            svg=row_charts.saved_chart(runs),
            words=_saved_words(runs),
            note="Every commit counts, those at start and end too. Prioritised are the largest tables that "
            "hold 99 % of the rows, from which a priority save chooses; the small ones it takes whole.",
            table=tables.saved_table(runs),
        ),
        ReportFigure(
            title="What the saved rows are used for",
            svg=row_charts.coverage_chart(runs, styles),
            words=_coverage_words(runs),
            note="Of all tables. Right: the share of the training samples' lookups that went to rows saved "
            "at least k times. A strategy that saves few rows, but those in use, is low left and high right.",
            table=tables.coverage_table(runs),
        ),
    ]


def _age_figures(runs: Sequence[RunResult], styles: dict[str, Series], hours: float) -> list[ReportFigure]:
    from cpr_native.emulate import row_charts

    age = (
        "Age: hours of work between the failure and the step of which the restored copy is. Full recovery "
        "sends all rows back, to one step, and trains them again; partial recovery those of the failed "
        "shards. Rows that nobody used since their last save are old too, but hardly weigh by lookups."
    )
    return [
        ReportFigure(
            title="Age of rows at failures",
            svg=row_charts.age_chart(runs, styles),
            words=_age_words(runs),
            note=f"All failures together. {age}",
            table=tables.age_table(runs),
        ),
        ReportFigure(
            title="Age of rows, failure by failure",
            svg=row_charts.age_of_failures_chart(runs, styles, hours),
            words=_age_of_failures_words(runs),
            note="How long before a failure the rows had been saved is partly luck: compare strategies at "
            "the same failure.",
            table=tables.failure_age_table(runs),
        ),
    ]


def _overhead_words(runs: Sequence[RunResult]) -> str:
    return "Overhead in percent of the job's hours: " + "; ".join(
        f"{run.strategy} {run.overhead_percent:.2f} % ("
        + ", ".join(f"{part} {hours:.2f} h" for part, hours in asdict(run.overhead_hours).items())
        + ")"
        for run in runs
    )


def _quality_words(runs: Sequence[RunResult], reference: RunResult) -> str:
    return f"Quality on held-out samples, and the difference to {reference.strategy}: " + "; ".join(
        f"{run.strategy} AUC {run.auc:.4f} ({run.auc - reference.auc:+.4f}), "
        f"log loss {run.logloss:.4f} ({run.logloss - reference.logloss:+.4f})"
        for run in runs
    )


def _pls_words(runs: Sequence[RunResult], target: float) -> str:
    return f"Portion of lost samples at the end against a budget of {target:g}: " + "; ".join(
        f"{run.strategy} {run.pls:.4f}, expected {run.pls_expected:.4f}" for run in runs
    )


def _timeline_words(runs: Sequence[RunResult]) -> str:
    return "Saves and failures over the job: " + "; ".join(
        f"{run.strategy} {run.commits} saves, failures at "
        + (", ".join(f"{failure.hour:.1f} h" for failure in run.failures) or "no time")
        for run in runs
    )


def _saved_words(runs: Sequence[RunResult]) -> str:
    return "Mean number of times a row was saved: " + "; ".join(
        f"{run.strategy} {number(saved_of(run, 'rows').mean, '.2f')}, weighted by lookups "
        f"{number(saved_of(run, 'lookups').mean, '.2f')}"
        for run in runs
    )


def _coverage_words(runs: Sequence[RunResult]) -> str:
    return "Share of rows, and of lookups, with rows saved at least three times: " + "; ".join(
        f"{run.strategy} {number(100 * saved_of(run, 'rows').at_least(3), '.1f')} % and "
        f"{number(100 * saved_of(run, 'lookups').at_least(3), '.1f')} %"
        for run in runs
    )


def _age_words(runs: Sequence[RunResult]) -> str:
    return "Mean age in hours of the rows that went back, and weighted by lookups: " + "; ".join(
        f"{run.strategy} {number(pooled_age_of(run, 'rows').mean, '.1f')} and "
        f"{number(pooled_age_of(run, 'lookups').mean, '.1f')}"
        for run in runs
    )


def _age_of_failures_words(runs: Sequence[RunResult]) -> str:
    return "Mean age in hours of the rows that went back at each failure, weighted by lookups: " + "; ".join(
        f"{run.strategy} "
        + ", ".join(
            f"{number(age_of(failure, 'lookups').mean, '.1f')} at {failure.hour:.1f} h"
            for failure in run.failures
        )
        for run in runs
    )
