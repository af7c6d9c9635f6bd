"""docs/results/scar.json: every figure of the study, from its records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study_common import pages
from study_common.records import Records

from scar_study import analysis
from scar_study.arms import NULL, Arm
from scar_study.catalogue import NAMES
from scar_study.page import write_page
from scar_study.published import PUBLISHED


def write_results(records: Records, docs: Path, extra: Mapping[str, Any]) -> None:
    """Write results/scar.json below `docs`, then the page and the plots that are made from it.

    `extra`: `machine`, `data` and `command`, facts for the page. Raises OSError where a file can't be
    written, ValueError for a figure that is not finite.
    """
    pages.write_results(collect(records, extra), docs, "scar", write_page)


def collect(records: Records, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures; parts without records are empty."""
    trunks = records.all("trunk")
    abouts = {name: _about(trunks[name][0]) for name in NAMES if name in trunks}
    found = records.all("failures")
    failures = {name: analysis.by_arm(found[name]) for name in abouts if name in found}
    rows = [
        analysis.row(abouts[name], arm, trials, arms.get(NULL, {}))
        for name, arms in failures.items()
        for arm, trials in arms.items()
    ]
    return {
        "command": extra.get("command", "make scar-study"),
        "machine": extra.get("machine") or {},
        "data": extra.get("data") or {},
        "workloads": abouts,
        "table": rows,
        "goals": analysis.goals(rows, abouts),
        "ranges": analysis.partial_range(rows),
        "published": PUBLISHED,
        "bound": {name: analysis.bound_figures(found[0]) for name, found in records.all("bound").items()},
        "drift": {
            name: _drift(arms, abouts[name]) for name, arms in failures.items() if not abouts[name]["variant"]
        },
        "pays": {name: _pays(arms) for name, arms in failures.items() if not abouts[name]["variant"]},
        "state": {name: _state(arms) for name, arms in failures.items() if abouts[name]["optimizer_state"]},
    }


def _about(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("made_from", "seed")}


def _drift(arms: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ranking by drift costs more than by the copy, by the share lost, and both memories."""
    found = {
        f"{lost:g}": analysis.difference(
            arms.get(Arm(part="main", policy="priority", lost=lost).name, {}),
            arms.get(Arm(part="drift", policy="drift", lost=lost).name, {}),
        )
        for lost in (0.25, 0.5)
    }
    blocks, numbers = about["blocks"], about["numbers"]
    return {"more": found, "copy_bytes": 4 * numbers, "drift_bytes": 8 * blocks}


def _pays(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Return what other saves cost more than priority, by policy and share lost."""
    return {
        policy: {
            f"{lost:g}": analysis.difference(
                arms.get(Arm(part="main", policy="priority", lost=lost).name, {}),
                arms.get(Arm(part="main", policy=policy, lost=lost).name, {}),
            )
            for lost in (0.25, 0.5)
        }
        for policy in ("traditional", "round_robin")
    }


def _state(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Return what zeroed optimizer state costs more than restored, by the share lost."""
    return {
        f"{lost:g}": analysis.difference(
            arms.get(Arm(part="main", policy="priority", lost=lost).name, {}),
            arms.get(Arm(part="state", policy="priority", lost=lost, state="zeroed").name, {}),
        )
        for lost in (0.25, 0.5)
    }
