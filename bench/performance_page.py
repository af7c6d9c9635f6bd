"""Write docs/performance.md and its plots: `python bench/performance_page.py [folder of result files]`.

The figures come from `engine.json` and `snapshot.json` as `make bench` writes them to build/bench; with that
folder given they are first copied to docs/results, where the page's figures are kept. The words around them
are in `bench/performance.md.in`, and what was tried is written by hand in `docs/performance-tried.md`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
SHAPES = {
    "S1": "26 x 100k rows, dim 16, batch 2048, 1 id a bag, Zipf 1.05",
    "S2": "26 x 1M rows, dim 64, batch 2048, 1 id a bag, Zipf 1.05",
    "S3": "8 x 500k rows, dim 128, batch 2048, 10 ids a bag, Zipf 1.05",
    "S4": "the 26 tables of Criteo Kaggle (33.8M rows), dim 16, batch 2048, 1 id a bag, measured skew",
    "S5": "1 x 10M rows, dim 32, batch 65,536, 1 id a bag, Zipf 1.05",
}
STEP_GOALS = {"S1": 9.0, "S2": 4.0, "S3": 3.3, "S4": 5.0, "S5": 3.0}
TORCH_GOALS = {"S1": 8.0, "S3": 8.0, "S4": 8.0}
TRACKING_GOALS = {"S1": 0.05, "S2": 0.03, "S3": 0.03, "S4": 0.03, "S5": 0.03}
MACHINE = {
    "cpu": "processor",
    "cores_used": "cores used",
    "cores": "cores there",
    "memory_gib": "memory, GiB",
    "huge_pages": "transparent huge pages",
    "kernel": "Linux",
    "instruction_set": "kernels chosen",
    "python": "Python",
    "torch": "torch",
    "numpy": "NumPy",
    "fbgemm_gpu_cpu": "fbgemm-gpu-cpu",
}


def load(folder: Path) -> dict[str, Any]:
    """Return the figures of both files; raises OSError where one is missing."""
    return {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("engine", "snapshot")
    }


def goals(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each goal, what was measured and whether that reaches it."""
    engine, snapshot = results["engine"], results["snapshot"]
    rows: list[dict[str, Any]] = []

    def at_least(what: str, value: float, goal: float) -> None:
        rows.append({"what": what, "value": figure(value), "goal": f"at least {goal:g}", "ok": value >= goal})

    def at_most(what: str, value: float, goal: float, unit: str = "", scale: float = 1.0) -> None:
        text = f"at most {goal * scale:g}{unit}"
        rows.append(
            {"what": what, "value": f"{figure(value * scale)}{unit}", "goal": text, "ok": value <= goal}
        )

    for shape, goal in STEP_GOALS.items():
        at_least(f"{shape}: step, times FBGEMM", engine[shape]["vs_fbgemm"], goal)
    for shape in SHAPES:
        at_least(f"{shape}: lookup, times FBGEMM", engine[shape]["vs_fbgemm_forward"], 1.0)
    for shape, goal in TORCH_GOALS.items():
        at_least(f"{shape}: step, times torch with Adagrad", engine[shape]["vs_torch_adagrad"], goal)
    for shape, goal in TRACKING_GOALS.items():
        at_most(f"{shape}: cost of tracking", engine[shape]["tracking_cost"], goal, " %", 100.0)
    at_most("MLP and tables in one step, against the sum of both", engine["pool_overhead"], 0.05, " %", 100.0)
    for size, milliseconds in snapshot["begin_ms"].items():
        at_most(f"`begin` on {size} rows", milliseconds, 0.5, " ms")
    at_most(
        "95th percentile of a step during a snapshot, times that without", snapshot["step_p95_ratio"], 1.25
    )
    stall = max(entry["stall_ms_a_step"] for entry in snapshot["steps"].values())
    at_most("stalls a step during a snapshot", stall, 1.0, " ms")
    at_least("copy of a base, share of the copy bandwidth", snapshot["copy_vs_memcpy"], 0.5)
    at_least("distances from the copy last saved, share of reading both", snapshot["changes_vs_read"], 0.7)
    at_least("commit, times plain write and sync", snapshot["commit_vs_raw"], 0.9)
    at_least("restore, times `torch.load` and copy", snapshot["restore_vs_torch"], 2.0)
    at_most("memory of a restore beside the tables, in segments", snapshot["restore_peak_segments"], 1.0)
    at_least("training with a delta every second, times without", snapshot["train_with_commits"], 0.97)
    return rows


def figure(value: float) -> str:
    """Return a number with two or three significant digits."""
    value = float(value)
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def percent(value: float) -> str:
    """Return a share in per cent."""
    return f"{100.0 * value:.1f} %"


def render(results: dict[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a figure that is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, DOCS]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"figure": figure, "percent": percent}
    template = environment.get_template("performance.md.in")
    return template.render(shapes=SHAPES, machine_names=MACHINE, goals=goals(results), **results)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write docs/performance.md and its plots.")
    parser.add_argument("folder", nargs="?", type=Path, help="copy the result files from here first")
    folder = parser.parse_args(None if arguments is None else list(arguments)).folder
    if folder is not None:
        results = load(folder)
        render(results)  # nothing is copied that has not all figures
        RESULTS.mkdir(exist_ok=True)
        for name in results:
            shutil.copyfile(folder / f"{name}.json", RESULTS / f"{name}.json")
    results = load(RESULTS)
    from performance_plots import draw

    draw(results, DOCS / "plots", {"FBGEMM, step": STEP_GOALS})
    (DOCS / "performance.md").write_text(render(results), encoding="utf-8")


if __name__ == "__main__":
    main()
