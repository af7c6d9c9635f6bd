"""Sentences of the page that claim something, made from the figures of scar.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
NAMES = {
    "priority": "priority", "random": "random", "round_robin": "round robin",
    "traditional": "partial alone", "drift": "drift",
}  # fmt: skip
TITLES = {
    "mlr": "Logistic regression", "mf_als": "Factorisation, ALS", "mf_sgd": "Factorisation, SGD",
    "lda": "LDA", "cnn": "CNN",
}  # fmt: skip
DATA = {
    "mnist": "MNIST", "covertype": "CoverType", "movielens": "MovieLens", "jester": "Jester",
    "reuters": "Reuters", "newsgroups": "20 Newsgroups",
}  # fmt: skip
PARTS = {0.25: "1/4", 0.5: "1/2", 0.75: "3/4"}


def titled(about: Figures) -> str:
    """Return what the page calls a workload on its data."""
    title = f"{TITLES[about['workload']]}, {DATA[about['data']]}"
    return f"{title}, {about['variant']}" if about["variant"] else title


def named(policy: str) -> str:
    """Return what the page calls a policy."""
    return NAMES[policy]


def percent(value: float | None) -> str:
    """Return a reduction."""
    return "-" if value is None else f"{value:.1f}"


def ends(interval: Sequence[float] | None, digits: int = 1) -> str:
    """Return an interval."""
    return "" if interval is None else f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def reduction(row: Figures | None) -> str:
    """Return a reduction and its interval."""
    return "-" if row is None else f"{percent(row['reduction_percent'])} {ends(row['ci95'])}".strip()


def goal_bar(bar: Figures, about: Figures, least: float) -> str:
    """Say whether a workload reaches the least reduction at a share lost."""
    where = f"{titled(about)}, {PARTS[bar['lost']]} lost"
    if bar["ci95"] is None:
        return f"{where}: not known."
    figures = f"{percent(bar['reduction_percent'])} % {ends(bar['ci95'])}"
    means = [bar["reduction_percent"]]
    if bar["corrected_ci95"] is not None:
        figures += f", less one block's {percent(bar['corrected_percent'])} % {ends(bar['corrected_ci95'])}"
        means.append(bar["corrected_percent"])
    figures += f", {bar['trials']} trials"
    if bar["reached"]:
        return f"{where}: reached, {figures}."
    why = "only the interval reaches below" if min(means) >= least else "the mean is below"
    return f"{where}: missed, {figures}; {why} {least:g} %."


def goals_text(goals: Figures, abouts: Figures) -> str:
    """Say how many bars are reached."""
    reached = sum(bar["reached"] for bar in goals["bars"])
    text = (
        f"{reached} of {len(goals['bars'])} reach a reduction of at least {goals['least']:g} % with the "
        "lower end of the 95 % interval."
    )
    best = goals["best"]
    if best is None:
        return text
    value = min(x for x in (best["reduction_percent"], best["corrected_percent"]) if x is not None)
    word = "reached" if goals["best_reached"] else "missed"
    return (
        f"{text} Above {goals['best_percent']:g} % on one workload at 1/4 lost: {word}, the highest is "
        f"{percent(value)} % ({titled(abouts[best['name']])})."
    )


def why_missed(about: Figures, row: Figures, alone: Figures | None) -> str:
    """Explain a reduction by how the run moves; `alone`: the same of copies that are of one age."""
    measured, lag, full = row["iteration_cost"], row["lag_cost"], row["rollback_cost"]
    text = (
        f"{titled(about)}, {PARTS[row['lost']]} lost: the failures set the run back by {lag:.2f} of its own "
        f"steps and cost {measured:.2f} iterations, full recovery {full:.2f}; "
        f"{100 * about['spread']:.0f} % of the blocks move."
    )
    if about["distance"] == "tv":
        return text
    if abs(measured - lag) <= 0.25 * max(measured, lag):
        return text + " The lag explains the cost."
    if measured > lag:
        text += " The lag does not explain the cost"
        if alone is None:
            return text + "."
        of_one_age, set_back = alone["iteration_cost"], alone["lag_cost"]
        compared = (
            f"copies of one age (partial alone) set it back by {set_back:.2f} and cost {of_one_age:.2f}"
        )
        dearer = of_one_age - set_back < measured - lag
        return f"{text}: {compared}{', so blocks of different ages disturb each other' if dearer else ''}."
    return text + " The lag would cost more: part of it is made good sooner."


def against_published(ranges: Sequence[Figures], published: Figures) -> list[str]:
    """Compare the ranges over the workloads with the published ones."""
    lines = []
    for entry in ranges:
        if entry["policy"] not in ("priority", "traditional"):
            continue
        wanted = published[entry["policy"]]
        low, high = wanted if entry["policy"] == "priority" else wanted[f"{entry['lost']:g}"]
        lines.append(
            f"{named(entry['policy'])}, {PARTS[entry['lost']]} lost: {entry['lowest']:.0f} to "
            f"{entry['highest']:.0f} % here, {low} to {high} % published"
        )
    return lines


def null_text(about: Figures, row: Figures) -> str:
    """Say what a failure of one block costs: the noise of a stochastic workload."""
    figures = f"{row['iteration_cost']:+.2f} {ends(row['cost_ci95'], 2)}"
    return f"{titled(about)}: {figures} iterations where one block is lost."


def rollback_text(about: Figures) -> str:
    """Say whether full recovery costs what it should."""
    run = about["rollback"]
    if run["measured"] is None:
        return f"{titled(about)}: full recovery was run and did not reach the target."
    same = abs(run["measured"] - run["expected"]) < 1e-6
    return (
        f"{titled(about)}: full recovery after {run['failed']} iterations costs {run['measured']:.2f}, "
        f"{'as' if same else 'not'} the {run['expected']} expected."
    )


def bound_text(about: Figures, figures: Figures) -> list[str]:
    """Say whether perturbations stay within the bound."""
    lines = []
    for kind in figures["kinds"]:
        text = f"{titled(about)}, {kind['kind']}: {kind['within']} of {kind['count']} cost at most the bound"
        if kind["mean_share"] is not None:
            text += f", on average {100 * kind['mean_share']:.0f} % of it"
        if kind["worst_excess"] is not None and kind["worst_excess"] > 0:
            text += f"; the worst exceeds it by {kind['worst_excess']:.1f} iterations"
        lines.append(text + ".")
    return lines


def estimate_text(about: Figures, figures: Figures) -> str:
    """Say what the online estimate of c makes of the run."""
    estimate = figures["estimate"]
    known = (
        f"{titled(about)}: c = {figures['c']:.4f} is the slowest step's, with which "
        f"{figures['c'] ** about['iterations']:.2f} of the distance would be left after K iterations; "
        f"{figures['left']:.2f} is"
    )
    if estimate["supported"]:
        return f"{known}. The estimate from the steps alone is {estimate['c']:.4f}."
    return f"{known}. The estimate from the steps alone refuses: {estimate['reason']}."


def difference_text(about: Figures, lost: str, entry: Figures | None, what: str, than: str) -> str:
    """Say which of two ways costs fewer iterations."""
    where = f"{titled(about)}, {PARTS[float(lost)]} lost"
    if entry is None:
        return f"{where}: not run."
    figures = f"{entry['mean']:+.2f} {ends(entry['ci95'], 2)} iterations"
    if not entry["resolved"]:
        return f"{where}: {what} is not resolved from {than}, {figures}."
    return (
        f"{where}: {what} costs {'more' if entry['mean'] > 0 else 'fewer'} iterations than {than}, {figures}."
    )


def memory_text(about: Figures, drift: Figures) -> str:
    """Compare the memory of the drift with that of the copy."""
    share = 100 * drift["drift_bytes"] / drift["copy_bytes"]
    figures = f"{drift['drift_bytes']:,} bytes instead of the copy's {drift['copy_bytes']:,}"
    return f"{titled(about)}: {figures} ({share:.1f} %)."
