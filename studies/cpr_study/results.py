"""docs/results/cpr.json: every figure of the study, from its records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study_common import pages
from study_common.records import Records

from cpr_study import budget, proxy, quality, sensitivity
from cpr_study.page import write_page
from cpr_study.setups import SETUPS

LEAST_PROXY_SEEDS = 20


def write_results(records: Records, docs: Path, extra: Mapping[str, Any]) -> None:
    """Write results/cpr.json below `docs`, then the page and the plots that are made from it.

    Args:
        records: of finished units.
        docs: the folder of the documents.
        extra: what the records don't hold, each None or missing where it was not run: `measured`, overhead in
            per cent of the job by configuration and policy; `measured_seconds`, what it is made from
            (`measured.measure`), `measured_factors`, how much larger the job's tables are than the ones
            measured; `failure_log`: what recorded failures are from; `touched` (`touched.touched_in_cells`);
            `closed_loop`, `cpr_native.overhead.closed_loop_study` by configuration; `machine`, `data` and
            `command`: facts for the page.

    Raises:
        OSError: a file can't be written.
        ValueError: a figure is not finite.
    """
    pages.write_results(collect(records, extra), docs, "cpr", write_page)


def collect(records: Records, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures; parts without records are empty."""
    cells = records.all("quality")
    touched = extra.get("touched") or {}
    stress = cells.get("stress", [])
    sensitive = quality.sensitive(cells)
    measured = extra.get("measured")
    singles = records.all("proxy").get("single", [])
    varied = records.all("sensitivity")
    paper = cells.get("paper", [])
    return {
        "command": extra.get("command", "make study"),
        "machine": extra.get("machine") or {},
        "data": extra.get("data") or {},
        "setups": {name: _setup(name) for name in SETUPS},
        "table": quality.table(cells, measured),
        "measured_goals": _goals(measured),
        "measured_seconds": extra.get("measured_seconds") or {},
        "measured_factors": extra.get("measured_factors") or {},
        "noise": quality.noise(cells),
        "touched": touched,
        "bars": {
            "sensitivity": sensitive,
            "claims": all(bar["passed"] for bar in sensitive.values()),
            "non_inferiority": [
                quality.non_inferior(paper, policy)
                for policy in quality.NON_INFERIOR
                if policy in quality.cases_of(paper)
            ],
            "void": touched.get("quality", {}).get("stress", {}).get("void"),
            "ranking": quality.ranking(stress),
        },
        "small_tables": quality.small_tables(stress),
        "controls": {cell: _control(own) for cell, own in records.all("controls").items()},
        "failure_log": extra.get("failure_log"),
        "optimizer_state": quality.pairs(stress, [("mfu", "mfu_zeroed"), ("partial", "partial_zeroed")]),
        "zeroed": _cases(stress, ("mfu_zeroed", "partial_zeroed")),
        "eviction": quality.pairs(stress, [("ssu", "ssu_paper")]),
        "tenths": quality.tenths(cells),
        **_proxies(singles),
        "sensitivity": sensitivity.sensitivity(varied),
        "scaling": sensitivity.scaling(varied),
        "budget": {
            "points": budget.points(records.all("budget")),
            "equal_bytes": budget.equal_bytes(records.all("budget")),
        },
        "closed_loop": extra.get("closed_loop") or {},
    }


def _setup(name: str) -> dict[str, Any]:
    setup = SETUPS[name]
    model = setup.recipe.model
    return {
        "bottom": list(model.bottom), "top": list(model.top), "batch_size": setup.recipe.batch_size,
        "max_rows": setup.max_rows, "lost": setup.lost, "shards": setup.job.shards,
        "total_hours": setup.job.total_hours, "mtbf_hours": setup.job.mtbf_hours,
        "target_pls": setup.preset.target_pls, "fraction": setup.fraction,
    }  # fmt: skip


def _goals(measured: Mapping[str, Mapping[str, float]] | None) -> list[dict[str, Any]]:
    goals = []
    for config, goal in quality.MEASURED_GOALS.items():
        for policy in quality.NON_INFERIOR:
            value = ((measured or {}).get(config) or {}).get(policy)
            reached = None if value is None else bool(value <= goal)
            goals.append({
                "config": config, "policy": policy, "goal": goal, "measured": value, "reached": reached
            })  # fmt: skip
    return goals


def _control(records: list[dict[str, Any]]) -> dict[str, Any]:
    names = tuple(name for name in quality.cases_of(records) if name != "noise")
    return {
        "cases": _cases(records, names), "small_tables": quality.small_tables(records),
        "ranking": quality.ranking(records),
    }  # fmt: skip


def _cases(records: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    present = quality.cases_of(records)
    return {name: quality.measures(records, name) for name in names if name in present}


def _proxies(records: list[dict[str, Any]]) -> dict[str, Any]:
    entries = proxy.evaluate(records) if len(records) > 1 else []
    too_few = len(records) < LEAST_PROXY_SEEDS
    judged = proxy.verdict(entries)
    if too_few:
        judged |= {"better": [], "planner": None}
    return {"proxy": entries, "proxy_verdict": judged | {"too_few": too_few, "seeds": len(records)}}
