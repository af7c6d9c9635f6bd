"""Quality of every policy against no failure, paired by seed, and the claims that the figures allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from study_common.inference import (
    Floats,
    excludes_zero,
    holm,
    interval,
    p_above_zero,
    resamples,
    seeds_needed,
    summary,
)

from cpr_native.overhead import (
    Preset,
    full_overhead,
    optimal_full_interval,
    partial_interval,
    partial_overhead,
)
from cpr_study.setups import CONFIGS, SETUPS

Record = Mapping[str, Any]

# Whose losses must be seen before anything is claimed.
CLAIMED = ("paper", "stress")
POLICIES = (
    "full", "partial", "partial_small", "delta_partial", "random", "round_robin",
    "mfu", "ssu", "scar", "drift",
)  # fmt: skip
PRIORITY = ("mfu", "ssu", "scar", "drift")
NON_INFERIOR = ("mfu", "ssu")
MARGIN = 0.0002
MOST_PAPER_SEEDS = 80
# Save policies that the equations of CPR don't know: their saves are charged by bytes, against vanilla's.
BY_BYTES = ("partial_small", "delta_partial")
MEASURED_GOALS = {"kaggle": 0.35, "terabyte": 0.52}


def column(records: Sequence[Record], case: str, name: str) -> Floats:
    """Return a figure of a case, one a seed."""
    return np.array([record["cases"][case][name] for record in records], np.float64)


def auc_change(records: Sequence[Record], case: str) -> Floats:
    """Return the AUC of a case less that without failures, one a seed."""
    return column(records, case, "auc") - column(records, "none", "auc")


def cases_of(records: Sequence[Record]) -> list[str]:
    """Return the cases, but for that without failures, that every record has."""
    common = set.intersection(*(set(record["cases"]) for record in records)) if records else set()
    known = [name for name in (*POLICIES, "ssu_paper", "mfu_zeroed", "partial_zeroed") if name in common]
    return known + sorted(common - set(known) - {"none"})


def measures(records: Sequence[Record], case: str) -> dict[str, Any]:
    """Return the figures of a case against no failure, means over the seeds."""
    auc = summary(auc_change(records, case))
    log_loss = summary(column(records, case, "logloss") - column(records, "none", "logloss"))
    progressive = summary(column(records, case, "progressive"))
    return {
        "auc_delta": auc["mean"],
        "auc_ci95": auc["ci95"],
        "auc_loss_upper95": None if auc["lower95"] is None else -auc["lower95"],
        "logloss_delta": log_loss["mean"],
        "logloss_ci95": log_loss["ci95"],
        "progressive_delta": progressive["mean"],
        "progressive_ci95": progressive["ci95"],
        "bytes_written": float(column(records, case, "bytes_written").mean()),
        "rows_written": float(column(records, case, "rows_written").mean()),
        "saves": float(column(records, case, "saves").mean()),
        "seeds": len(records),
    }


def formula_percent(preset: Preset, policy: str, bytes_against_vanilla: float | None = None) -> float | None:
    """Return the overhead of a policy by the equations of CPR, in per cent of the job.

    Priority saving costs what vanilla costs, r times as much each r*T_save. For policies that the paper's
    equations don't know, `bytes_against_vanilla` scales the cost of vanilla's saves; None without it.
    """
    job, costs = preset.job, preset.costs
    if policy == "full":
        return full_overhead(job, costs, optimal_full_interval(job, costs)).percent(job.total_hours)
    overhead = partial_overhead(job, costs, partial_interval(job, preset.target_pls)[0])
    if policy not in BY_BYTES:
        return overhead.percent(job.total_hours)
    if bytes_against_vanilla is None:
        return None
    rest = overhead.total - overhead.save
    return 100.0 * (rest + overhead.save * bytes_against_vanilla) / job.total_hours


def table(
    cells: Mapping[str, Sequence[Record]], measured: Mapping[str, Mapping[str, float]] | None
) -> list[dict[str, Any]]:
    """Return a row for each configuration, set-up and policy; figures that were not measured are None.

    `cells`: records of the experiment on quality by set-up.
    """
    rows = []
    for config, preset in CONFIGS.items():
        setups = [name for name, setup in SETUPS.items() if setup.config == config and name in cells]
        run = {setup: cases_of(cells[setup]) for setup in setups}
        pairs = [
            (setup, policy) for setup in setups for policy in POLICIES if policy in (*run[setup], "full")
        ]
        known = {policy for _, policy in pairs}
        pairs += [("", policy) for policy in POLICIES if policy not in known]
        for setup, policy in pairs:
            records = cells[setup] if policy in run.get(setup, ()) else []
            figures: dict[str, Any] = measures(records, policy) if records else dict.fromkeys(_MEASURES)
            vanilla = 0.0
            if "partial" in cases_of(records):
                vanilla = float(column(records, "partial", "bytes_written").mean())
            share = figures["bytes_written"] / vanilla if vanilla > 0 else None
            rows.append({
                "config": config, "setup": setup or None, "policy": policy,
                "overhead_formula_percent": formula_percent(preset, policy, share),
                "overhead_measured_percent": ((measured or {}).get(config) or {}).get(policy),
                "bytes_against_vanilla": share, **figures,
            })  # fmt: skip
    return rows


_MEASURES = (
    "auc_delta", "auc_ci95", "auc_loss_upper95", "logloss_delta", "logloss_ci95", "progressive_delta",
    "progressive_ci95", "bytes_written", "rows_written", "saves", "seeds",
)  # fmt: skip


def noise(cells: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Return the noise floor of each set-up: what a change in the last bits of the MLPs does."""
    floors = {}
    for setup, records in cells.items():
        if "noise" in cases_of(records):
            auc, progressive = auc_change(records, "noise"), column(records, "noise", "progressive")
            floors[setup] = measures(records, "noise") | {
                "auc_sd": summary(auc)["sd"],
                "progressive_sd": summary(progressive)["sd"],
            }
    return floors


def sensitive(cells: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Return for both set-ups whether vanilla's progressive loss is above 0; else no claim is made."""
    found = {}
    for setup in CLAIMED:
        records = cells.get(setup, [])
        if "partial" in cases_of(records):
            figures = summary(column(records, "partial", "progressive"))
            seen = figures["ci95"] is not None and figures["ci95"][0] > 0
            found[setup] = {**figures, "passed": seen}
        else:
            found[setup] = {"mean": None, "ci95": None, "seeds": 0, "passed": False}
    return found


def non_inferior(records: Sequence[Record], policy: str) -> dict[str, Any]:
    """Judge whether a policy's AUC loss is below the margin; verdict "reached", "missed" or "undecided"."""
    loss = summary(-auc_change(records, policy))
    verdict = "undecided"
    if loss["upper95"] is not None:
        verdict = (
            "reached" if loss["upper95"] < MARGIN else "missed" if loss["lower95"] >= MARGIN else verdict
        )
    needed = seeds_needed(MARGIN - loss["mean"], loss["sd"])
    return {"policy": policy, "margin": MARGIN, **loss, "verdict": verdict, "seeds_needed": needed}


def decided(cells: Mapping[str, Sequence[Record]]) -> bool:
    """Return whether the non-inferiority of MFU and SSU needs no more seeds of the paper's set-up."""
    records = cells.get("paper", [])
    if len(records) >= MOST_PAPER_SEEDS:
        return True
    if not set(NON_INFERIOR) <= set(cases_of(records)):
        return False
    return all(non_inferior(records, policy)["verdict"] != "undecided" for policy in NON_INFERIOR)


def compare(
    records: Sequence[Record], lower: str, higher: str, measure: str = "progressive", alpha: float = 0.025
) -> dict[str, Any]:
    """Return by how much `measure` of case `higher` exceeds that of `lower`, paired by seed.

    `measure` "auc_loss" is the AUC lost against no failure.
    """
    if measure == "auc_loss":
        differences = column(records, lower, "auc") - column(records, higher, "auc")
    else:
        differences = column(records, higher, measure) - column(records, lower, measure)
    figures = summary(differences)
    return {
        "lower": lower, "higher": higher, "measure": measure, **figures, "p": p_above_zero(differences),
        "resolved": excludes_zero(figures["ci95"]),
        "seeds_needed": seeds_needed(abs(figures["mean"]), figures["sd"], alpha),
    }  # fmt: skip


def ranking(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Test priority < random < vanilla in progressive loss, one-sided, corrected by Holm."""
    present = cases_of(records)
    pairs = [(name, "random") for name in PRIORITY] + [("random", "partial")]
    pairs = [pair for pair in pairs if set(pair) <= set(present)]
    found = [compare(records, *pair, alpha=0.05 / len(pairs)) for pair in pairs]
    corrected = holm([entry["p"] for entry in found])
    for entry, p in zip(found, corrected, strict=True):
        wrong_way = entry["mean"] <= 0
        entry |= {"p_holm": p, "resolved": p < 0.05, "wrong_way": wrong_way}
        if wrong_way:
            entry["seeds_needed"] = None
    return found


def small_tables(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the part of MFU's gain over vanilla that saving only the small tables as often gives."""
    if not {"partial", "partial_small", "mfu"} <= set(cases_of(records)):
        return None
    losses = np.stack([column(records, case, "progressive") for case in ("partial", "partial_small", "mfu")])
    gain = summary(losses[0] - losses[2])
    result: dict[str, Any] = {"gain": gain, "share": None, "ci95": None, "seeds": len(records)}
    if excludes_zero(gain["ci95"]) and gain["mean"] > 0:
        means = losses[:, resamples(len(records))].mean(axis=-1)
        result["share"] = float((losses[0] - losses[1]).mean() / gain["mean"])
        result["ci95"] = interval((means[0] - means[1]) / (means[0] - means[2]))
    return result


def pairs(records: Sequence[Record], wanted: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Compare cases in progressive loss and in AUC; pairs of which one is missing are left out."""
    present = set(cases_of(records))
    return [
        {measure: compare(records, lower, higher, measure) for measure in ("progressive", "auc_loss")}
        | {"lower": lower, "higher": higher}
        for lower, higher in wanted
        if {lower, higher} <= present
    ]


def tenths(cells: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, list[float]]]:
    """Return each policy's progressive loss by tenths of the time since the first failure."""
    return {
        setup: {
            case: np.mean([r["cases"][case]["progressive_tenths"] for r in records], axis=0).tolist()
            for case in cases_of(records)
        }
        for setup, records in cells.items()
    }
