"""Result files, and the pages and plots that are made from them."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DIGITS = 6
Results = Mapping[str, Any]
Draw = Callable[[Axes], None]
_SETTINGS: Any = {
    "svg.hashsalt": "cpr_native",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def machine() -> dict[str, Any]:
    """Return what figures depend on; nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)), "architecture": platform.machine(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(), "python": platform.python_version(),
        "torch": torch.__version__, "numpy": version("numpy"),
    }  # fmt: skip


def encode(results: Results) -> str:
    """Return the text of a result file, a list of figures on one line; ValueError for NaN and infinity."""
    text = json.dumps(_rounded(results), indent=1, allow_nan=False)
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return int(value) if isinstance(value, np.integer) else value


def render(template: Path, results: Results, sentences: ModuleType, **more: Any) -> str:
    """Return the text of `template` with the figures of `results` and the functions of `sentences` as `say`.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    says = {name: getattr(sentences, name) for name in dir(sentences) if not name.startswith("_")}
    return environment.get_template(template.name).render(**results, say=says, **more)


def write_page(text: str, panels: Mapping[str, Sequence[Draw]], docs: Path, stem: str) -> None:
    """Write results/`stem`.md and its plots, one of each name of `panels`, below `docs`; raises OSError.

    Plots that are no longer drawn are removed. The same figures give the same bytes.
    """
    folder = docs / "results" / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{stem}_*.svg"):
        old.unlink()
    with mpl.rc_context(_SETTINGS):
        for name, drawn in panels.items():
            figure = Figure(figsize=(4.5 * max(2, len(drawn)) - 1.0, 4.0), layout="constrained")
            for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
                panel(axes)
            figure.savefig(folder / f"{stem}_{name}.svg", metadata={"Date": None})
    (docs / "results" / f"{stem}.md").write_text(text, encoding="utf-8")


def write_results(results: Results, docs: Path, stem: str, page: Callable[[Results, Path], None]) -> None:
    """Write results/`stem`.json below `docs`, then call `page` with what the file says; raises OSError.

    Raises ValueError for a figure that is not finite.
    """
    text = encode(results)
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results" / f"{stem}.json").write_text(text, encoding="utf-8")
    page(json.loads(text), docs)


def page_again(page: Callable[[Results, Path], None], stem: str, arguments: Sequence[str]) -> None:
    """Make a page again from its result file below the folder of documents in `arguments` ("docs")."""
    docs = Path(arguments[0] if arguments else "docs")
    page(json.loads((docs / "results" / f"{stem}.json").read_text(encoding="utf-8")), docs)
