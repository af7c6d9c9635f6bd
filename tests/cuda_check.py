"""Everything that a GPU can tell about the CUDA engine, in one command: `make cuda-check`, under 6 minutes.

It builds the package for the GPU that is there, with the torch, nvcc and build tools of this Python (nothing
is fetched), and runs the tests of tests/device on it: once, again and again beside other work of the GPU, and
under compute-sanitizer. Then come the benchmarks. A short table is printed last and written to
build/cuda/check.json with the card, its driver and all versions; the exit status is 1 if anything failed or
was cut short, 2 if there is no GPU.

    python tests/cuda_check.py [--seconds 340]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cuda_check_parts import FOLDER, PARTS, ROOT, Failed

TOOLS = ("torch", "pybind11", "scikit_build_core", "pytest", "pytest_timeout", "hypothesis", "numpy")


@dataclass(kw_only=True)
class Step:
    """What one part of the check found; `figures` are those of the table."""

    name: str
    ok: bool = False
    seconds: float = 0.0
    said: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def what_is_missing() -> str:
    """Why the check can't begin here; empty if it can."""
    tools = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if tools:
        return f"{sys.executable} lacks {', '.join(tools)}"
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        return "nvcc was not found: the check builds the CUDA engine"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return ""


def machine() -> dict[str, Any]:
    """The card, its driver and all versions."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    nvcc = subprocess.run(
        [shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    version = re.search(r"V([\d.]+)", nvcc)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "card": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": driver.strip(),
        "nvcc": version[1] if version else "",
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip(),
    }


def check(budget: float) -> list[Step]:
    """Run all parts within `budget` seconds; after a failed build there is nothing to run."""
    begin = time.monotonic()
    steps = []
    for name, (work, limit) in PARTS.items():
        step = Step(name=name)
        steps.append(step)
        left = budget - (time.monotonic() - begin)
        if not steps[0].ok and len(steps) > 1:
            step.said = "not run: there is no build"
            continue
        if left < 10:
            step.said = "not run: the time is over"
            continue
        print(f"-- {name} (at most {min(limit, left):.0f} s)", flush=True)
        started = time.monotonic()
        try:
            step.figures = work(min(limit, left))
            step.ok = True
        except Failed as error:
            step.said = str(error)
        step.seconds = round(time.monotonic() - started, 1)
    return steps


def brief(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in figures.items() if not isinstance(value, dict))


def table(steps: list[Step]) -> str:
    """The short table: a line a part, and what failed parts said above it."""
    lines = [f"{step.name}:\n{step.said}\n" for step in steps if not step.ok]
    for step in steps:
        lines.append(
            f"{'ok' if step.ok else 'FAILED':8}{step.name:12}{step.seconds:7.1f} s  {brief(step.figures)}"
        )
        lines += [
            f"    {key}: {brief(value)}" for key, value in step.figures.items() if isinstance(value, dict)
        ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check the CUDA engine on the GPU of this machine.")
    parser.add_argument("--seconds", type=float, default=340.0, help="of all parts together (default 340)")
    options = parser.parse_args(arguments)
    missing = what_is_missing()
    if missing:
        print(f"make cuda-check can't run here: {missing}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    where = machine()
    print(json.dumps(where, indent=1), flush=True)
    steps = check(options.seconds)
    record = {"machine": where, "steps": [asdict(step) for step in steps]}
    (FOLDER / "check.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(steps))
    return 0 if all(step.ok for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
