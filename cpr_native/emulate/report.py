"""`report.html`: one self-contained page about one emulation."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from cpr_native.emulate.report_figures import figures_of
from cpr_native.emulate.results import PARTS, Results, RunResult, write_text_atomically
from cpr_native.emulate.units import human_bytes

_TEMPLATE = "report.html.j2"


def require_demo_extra() -> None:
    """Check that the libraries of the report are installed.

    Raises:
        ModuleNotFoundError: one is missing; the message names it and how to install it.
    """
    for name in ("matplotlib", "jinja2"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f'the report needs {name}: install it with pip install "cpr-native[demo]"', name=name
            ) from None


def render_report(results: Results) -> str:
    """The page as text: plots inlined as SVG, no reference to anything outside itself.

    Args:
        results: as `run_emulation` returns them.

    Raises:
        ModuleNotFoundError: the extra `demo` is not installed.
    """
    require_demo_extra()
    import jinja2

    hours = float(results.config["total_hours"])
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = (resources.files("cpr_native.emulate") / "templates" / _TEMPLATE).read_text("utf-8")
    return environment.from_string(source).render(
        summary=_summary([run for run in results.runs if run.strategy != "none"], hours),
        figures=figures_of(results),
        runs=results.runs,
        parts=PARTS,
        hours=hours,
        bytes=human_bytes,
        sections=(("Settings", _flat(results.config)), ("Data", _flat(results.data))),
    )


def write_report(results: Results, path: str | os.PathLike[str]) -> None:
    """Write `report.html` atomically (see `render_report`).

    Raises:
        OSError: the file cannot be written; `filename` names it.
        ModuleNotFoundError: the extra `demo` is not installed.
    """
    write_text_atomically(render_report(results), path)


def _summary(runs: Sequence[RunResult], hours: float) -> str:
    if not runs:
        return f"A job of {hours:g} hours without failure."
    failures = max(len(run.failures) for run in runs)
    costs = ", ".join(f"{run.strategy} {run.overhead_percent:.2f} %" for run in runs)
    return f"A job of {hours:g} hours meets {failures} failure{'s' * (failures != 1)}. Overhead: {costs}."


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _words(value)) for name, value in values.items()]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
