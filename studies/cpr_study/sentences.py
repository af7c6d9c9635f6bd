"""Sentences of the page that claim something, made from the figures of cpr.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "full": "full recovery", "partial": "vanilla", "partial_small": "vanilla, small tables often",
    "delta_partial": "delta without limit", "mfu": "MFU", "ssu": "SSU", "scar": "SCAR", "drift": "drift",
    "random": "random", "round_robin": "round robin", "ssu_paper": "SSU, the paper's eviction",
    "mfu_zeroed": "MFU, state zeroed", "partial_zeroed": "vanilla, state zeroed",
    "noise": "noise: MLPs changed by 1e-6",
}  # fmt: skip
UNIT = 1e-4
Figures = Mapping[str, Any]


def named(policy: str) -> str:
    """Return what the page calls a policy."""
    return NAMES.get(policy, policy)


def scaled(value: float | None) -> str:
    """Return a difference in units of 1e-4."""
    return "-" if value is None else f"{value / UNIT:+.2f}"


def bounds(interval: Sequence[float] | None) -> str:
    """Return an interval in units of 1e-4."""
    return "" if interval is None else f"[{scaled(interval[0])}, {scaled(interval[1])}]"


def difference(value: float | None, interval: Sequence[float] | None) -> str:
    """Return a mean and its interval in units of 1e-4."""
    return f"{scaled(value)} {bounds(interval)}".strip()


def correlation(value: float, interval: Sequence[float] | None) -> str:
    """Return a correlation and its interval."""
    return f"{value:.2f}" + ("" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]")


def percent(value: float | None, digits: int = 2) -> str:
    """Return a figure that is in per cent."""
    return "not measured" if value is None else f"{value:.{digits}f} %"


def count(value: float | None) -> str:
    """Return a rounded number with separators."""
    return "-" if value is None else f"{value:,.0f}"


def megabytes(value: float | None) -> str:
    """Return bytes in MB."""
    return "-" if value is None else f"{value / 1e6:.2f}"


def seeds(number: int | None) -> str:
    """Return how many seeds would resolve a difference."""
    return "more than 10,000 seeds" if number is None else f"about {number:,} seeds"


def sensitivity_bar(setup: str, bar: Figures) -> str:
    """Say whether vanilla's loss is seen in a set-up."""
    if bar["mean"] is None:
        return f"Not run in the {setup} set-up."
    figures = f"{difference(bar['mean'], bar['ci95'])} e-4 over {bar['seeds']} seeds"
    if bar["passed"]:
        return f"Reached in the {setup} set-up: vanilla's progressive loss is {figures}, above 0."
    return f"Missed in the {setup} set-up: vanilla's progressive loss is {figures}, not known to be above 0."


def claims_text(bars: Figures) -> str:
    """Say whether the study may claim anything."""
    if bars["claims"]:
        return "Both set-ups see the loss that they are to compare, so (b) and (c) are judged."
    return "Not both set-ups see the loss that they are to compare, so **no claim is made** in (b) and (c)."


def non_inferiority_bar(bar: Figures, claims: bool) -> str:
    """Say whether a policy's AUC loss is below the margin."""
    name, margin = named(bar["policy"]), f"{bar['margin']:g}"
    if bar["upper95"] is None:
        return f"{name}: not decided, {bar['seeds']} seed."
    loss = f"mean AUC loss {scaled(bar['mean'])} e-4, at most {scaled(bar['upper95'])} e-4 (one-sided 95 %)"
    over = f"over {bar['seeds']} seeds"
    if not claims:
        return f"{name}: no claim; {loss} {over}."
    if bar["verdict"] == "reached":
        return f"{name}: reached, {loss} {over}, below {margin}."
    if bar["verdict"] == "missed":
        return f"{name}: missed, {loss} {over}; it is at least {margin}."
    return (
        f"{name}: not resolved, {loss} {over}, against {margin}; it would take {seeds(bar['seeds_needed'])}."
    )


def ranking_bar(bar: Figures, claims: bool) -> str:
    """Say whether one policy loses less than another."""
    lower, higher = named(bar["lower"]), named(bar["higher"])
    figures = (
        f"{difference(bar['mean'], bar['ci95'])} e-4, p = {bar['p_holm']:.2g} (Holm), {bar['seeds']} seeds"
    )
    if not claims:
        return f"{lower} < {higher}: no claim; {figures}."
    if bar["resolved"]:
        return f"{lower} < {higher}: resolved, {figures}."
    if bar["wrong_way"]:
        return f"{lower} < {higher}: not resolved, and measured the other way round: {figures}."
    return f"{lower} < {higher}: not resolved, {figures}; it would take {seeds(bar['seeds_needed'])}."


def ranking_text(bars: Figures) -> str:
    """Say whether the whole ranking holds."""
    if bars["void"] is None:
        return "The ratio of rows touched to rows saved was not computed, so the ranking is not claimed."
    if bars["void"]:
        return "The stress set-up is **void**: its budget hardly binds, so the ranking is not claimed."
    if not bars["ranking"]:
        return "The ranking was not run."
    if not bars["claims"]:
        return "The ranking is not claimed."
    resolved = sum(bar["resolved"] for bar in bars["ranking"])
    whole = f"{resolved} of {len(bars['ranking'])} differences are resolved"
    complete = resolved == len(bars["ranking"])
    return f"{whole}: priority < random < vanilla {'holds' if complete else 'is not shown as a whole'}."


def touched_text(setup: str, touched: Figures) -> str:
    """Say how far the budget binds in a set-up."""
    text = (
        f"{setup}: {count(touched['rows_touched'])} rows of the {touched['tables']} prioritised tables "
        f"are touched in r*T_save ({count(touched['every_samples'])} samples) for a budget of "
        f"{count(touched['budget_rows'])}, ratio {touched['ratio']:.2f}; "
        f"{touched['tables_binding']} tables reach 2 alone, the least has {touched['least_of_a_table']:.2f}"
    )
    return text + (": **void**, MFU is nearly an unlimited delta here." if touched["void"] else ".")


def small_tables_text(entry: Figures | None) -> str:
    """Say what part of MFU's gain the small tables make."""
    if entry is None:
        return "Not run."
    gain = f"MFU's gain over vanilla is {difference(entry['gain']['mean'], entry['gain']['ci95'])} e-4"
    if entry["share"] is None:
        return f"{gain}, not resolved, so it can't be shared out."
    low, high = entry["ci95"]
    return (
        f"{gain}; saving only the small tables as often gives {100 * entry['share']:.0f} % "
        f"[{100 * low:.0f}, {100 * high:.0f}] of it."
    )


def pair_text(pair: Figures) -> str:
    """Compare two cases in both measures."""
    parts = []
    for measure, what in (("progressive", "progressive loss"), ("auc_loss", "AUC loss")):
        entry = pair[measure]
        figures = f"{difference(entry['mean'], entry['ci95'])} e-4"
        unresolved = f", not resolved (it would take {seeds(entry['seeds_needed'])})"
        parts.append(f"{what} {figures}{'' if entry['resolved'] else unresolved}")
    seeds_of = pair["progressive"]["seeds"]
    lower, higher = named(pair["lower"]), named(pair["higher"])
    return f"{higher} less {lower}: {'; '.join(parts)}; {seeds_of} seeds."


def proxy_text(verdict: Figures) -> str:
    """Say whether the planner should leave PLS."""
    if verdict["too_few"]:
        return f"{verdict['seeds']} seeds are too few for a verdict: the planner stays with PLS."
    best = f"The highest pooled correlation is that of `{verdict['best']}`"
    if not verdict["better"]:
        return (
            f"{best}; no candidate's lead over PLS excludes 0 both pooled and within policies. "
            "**The planner stays with PLS.**"
        )
    names = ", ".join(f"`{name}`" for name in verdict["better"])
    text = f"{best}; the lead over PLS excludes 0, pooled and within policies, for {names}. "
    if verdict["planner"] is None:
        return text + "None of them is known once the shard is dead: **the planner stays with PLS.**"
    return (
        text
        + f"Of those that a trainer still knows then, `{verdict['planner']}` is the best: "
        + "**it replaces PLS.**"
    )


def budget_text(entries: Sequence[Figures]) -> str:
    """Say where priority saving beats a delta at the same bytes."""
    groups: dict[str, list[str]] = {"wins": [], "loses": [], "open": [], "cheaper": [], "dearer": []}
    for entry in entries:
        place = entry["place"]
        if entry["difference"] is not None:
            low, high = entry["ci95"]
            place = "wins" if low > 0 else "loses" if high < 0 else "open"
        r = f"r = {entry['fraction']:g}" if "fraction" in entry else ""
        groups[place].append(f"{named(entry['policy'])} {r} ({megabytes(entry['bytes_written'])} MB)".strip())
    says = {
        "wins": "loses less than a delta of as many bytes",
        "loses": "loses more than a delta of as many bytes",
        "open": "is not resolved from a delta of as many bytes",
        "cheaper": "writes less than the sparsest delta that saves at all, so there is nothing to compare",
        "dearer": "writes more than the most frequent delta of the study, so there is nothing to compare",
    }
    parts = [f"- {', '.join(groups[key])}: {text}." for key, text in says.items() if groups[key]]
    return "\n".join(parts) if parts else "Not run."


def measured_goal(goal: Figures) -> str:
    """Say whether a measured overhead reaches its goal."""
    name = f"{goal['config'].capitalize()}, {named(goal['policy'])}"
    if goal["measured"] is None:
        return f"{name}: not measured (goal: at most {percent(goal['goal'])})."
    word = "reached" if goal["reached"] else "missed"
    return (
        f"{name}: {word}, {percent(goal['measured'], 3)} against a goal of at most {percent(goal['goal'])}."
    )


def times_text(log: Figures | None) -> str:
    """Say what the laws of the times of failures are."""
    text = "All with the job's MTBF. Gamma's number is its shape: below 1 failures come in bursts."
    if log is None:
        return f"{text} Recorded times were not run."
    shape = "" if log["gamma_shape"] is None else f", gamma shape {log['gamma_shape']:.2f}"
    return (
        f"{text} Recorded: stretches of {log['source']} ({log['failures']} failures{shape}), "
        "scaled to that MTBF."
    )


def scaling_text(rows: Sequence[Figures]) -> str:
    """Say from how many shards on vanilla's first save comes after the job's end."""
    parts = []
    for law, words in (
        ("constant", "one MTBF for any number of shards"),
        ("inverse", "an MTBF inverse to them"),
    ):
        own = [row for row in rows if row["law"] == law]
        if not own:
            continue
        never = [row["shards"] for row in own if not row["saves_before_end"]]
        first, last = own[0], own[-1]
        text = (
            f"With {words} the formula's overhead goes from {percent(first['overhead_formula_percent'])} at "
            f"{first['shards']} shards to {percent(last['overhead_formula_percent'])} at {last['shards']}"
        )
        tail = (
            f"; from {min(never)} shards on the T_save of the target is longer than the job" if never else ""
        )
        parts.append(text + tail + ".")
    return " ".join(parts) if parts else "Not run."


def closed_loop_text(config: str, study: Figures) -> str:
    """Compare the open loop of the paper with the closed loops of a configuration."""
    opened, closed = study["open"], study["closed_learning"]
    low, high = opened["p_exceeds_ci95"]
    text = (
        f"{config.capitalize()}: the paper's interval exceeds a PLS of {study['target_pls']:g} in "
        f"{100 * opened['p_exceeds']:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {study['jobs']:,} "
        "simulated jobs, at an "
        f"overhead of {percent(opened['overhead_percent']['mean'])}."
    )
    kept = [point for point in closed if point["p_exceeds_ci95"][0] <= 1.0 - point["probability"]]
    text += (
        f" The closed loop, which learns the MTBF as it runs, keeps the chosen probability in {len(kept)} of "
        f"{len(closed)} cases"
    )
    at = next((point for point in closed if point["probability"] == 0.95), None)
    if at is not None:
        text += (
            f"; asked for 95 % it exceeds the target in {100 * at['p_exceeds']:.1f} % of the jobs "
            f"at an overhead of {percent(at['overhead_percent']['mean'])}"
        )
    return text + "."
