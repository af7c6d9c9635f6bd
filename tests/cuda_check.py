"""Everything that a GPU can tell about the CUDA engine, in one command: `make cuda-check`, under 6 minutes.

It builds the package for the GPU that is there, with the torch, nvcc and build tools of this Python (nothing
is fetched), and runs the tests of tables on devices on it: once, repeatedly beside other work of the GPU, and
under compute-sanitizer. Between them come the benchmarks. A short table is printed last, with every goal
of the benchmarks and whether it was held. build/cuda/check.json has all of it, with the card, its driver and
all versions; it is written after each part, so what was found stays when the rest is cut short. The exit
status is 1 if a part failed or did not run, 2 if the check can't begin here; a goal that was missed is no
failure.

    python tests/cuda_check.py [--seconds 345]
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from cuda_check_parts import FOLDER, PARTS, ROOT, Failed, Part

# Packages that the check needs, each with the oldest version that will do.
TOOLS = {
    "torch": (2, 7),
    "numpy": (1, 24),
    "click": (8, 1),
    "rich": (13, 7),
    "pybind11": (3, 0),
    "scikit-build-core": (0, 11),
    "pytest": (8, 2),
    "pytest-timeout": (2, 3),
    "hypothesis": (6, 100),
    "pip": (22, 1),
}
# Commands, and the Python packages that bring them too.
COMMANDS = {"cmake": "cmake", "ninja": "ninja", "g++": ""}


@dataclass(kw_only=True)
class Step:
    """What one part of the check found; `figures` are those of the table."""

    name: str
    ok: bool = False
    seconds: float = 0.0
    said: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def version_of(package: str) -> tuple[int, ...]:
    """The numbers of an installed package's version; empty if it isn't installed."""
    try:
        return tuple(int(number) for number in re.findall(r"\d+", metadata.version(package))[:3])
    except metadata.PackageNotFoundError:
        return ()


def what_is_missing() -> str:
    """Why the check can't begin here; empty if it can."""
    missing = []
    for package, least in TOOLS.items():
        found = version_of(package)
        if not found:
            missing.append(package)
        elif found < least:
            missing.append(f"{package} {'.'.join(map(str, least))} or newer")
    for command, package in COMMANDS.items():
        if shutil.which(command) is None and not (package and version_of(package)):
            missing.append(command)
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)}"
    if nvcc() is None:
        return "nvcc was not found: the check builds the CUDA engine"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return ""


def nvcc() -> str | None:
    """The compiler, where the build looks for it too."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def answer(*command: str) -> str:
    """What a command prints, in `ROOT`; empty if it fails or isn't there."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """The card, its driver and all versions."""
    import torch

    driver = answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    version = re.search(r"V([\d.]+)", answer(nvcc() or "nvcc", "--version"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "card": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "memory_gb": round(torch.cuda.mem_get_info()[1] / 1e9, 1),
        "driver": driver,
        "nvcc": version[1] if version else "",
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": answer("git", "rev-parse", "HEAD"),
    }


def limit_of(name: str, left: float) -> float:
    """Seconds that a part may take when `left` are left: so much that those after it can still begin."""
    later = list(PARTS)[list(PARTS).index(name) + 1 :]
    return min(PARTS[name].limit, left - sum(PARTS[other].least for other in later))


def run_part(step: Step, part: Part, left: float, built: bool) -> None:
    """Run one part and enter what it found."""
    limit = max(limit_of(step.name, left), min(part.least, left))
    if not built:
        step.said = "not run: there is no build"
        return
    if limit < part.least:
        step.said = f"not run: {max(left, 0):.0f} s were left"
        return
    print(f"-- {step.name} (at most {limit:.0f} s)", flush=True)
    started = time.monotonic()
    try:
        step.figures = part.work(limit)
        step.ok = True
    except Failed as error:
        step.said, step.figures = str(error), error.figures
    step.seconds = round(time.monotonic() - started, 1)


def check(budget: float, where: dict[str, Any]) -> list[Step]:
    """Run all parts within `budget` seconds; after a failed build there is nothing to run."""
    end = time.monotonic() + budget
    steps: list[Step] = []
    for name, part in PARTS.items():
        step = Step(name=name)
        run_part(step, part, end - time.monotonic(), not steps or steps[0].ok)
        steps.append(step)
        record = {"machine": where, "steps": [asdict(step) for step in steps]}
        (FOLDER / "check.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(table([step]), flush=True)
    return steps


def brief(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in figures.items() if not isinstance(value, dict | list))


def table(steps: list[Step]) -> str:
    """The short table: a line a part, and what failed parts said above it; then the goals."""
    lines = [f"{step.name}:\n{step.said}\n" for step in steps if not step.ok]
    for step in steps:
        state = "ok" if step.ok else "FAILED"
        lines.append(f"{state:8}{step.name:12}{step.seconds:7.1f} s  {brief(step.figures)}".rstrip())
        lines += [
            f"    {key}: {brief(value)}" for key, value in step.figures.items() if isinstance(value, dict)
        ]
    for step in steps:
        for goal in step.figures.get("goals", []):
            state = "held" if goal["held"] else "NOT MEASURED" if goal["measured"] is None else "MISSED"
            lines.append(f"{state:14}{goal['goal']:40} {goal['measured']}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check the CUDA engine on the GPU of this machine.")
    parser.add_argument("--seconds", type=float, default=345.0, help="of all parts together (default 345)")
    options = parser.parse_args(arguments)
    missing = what_is_missing()
    if missing:
        print(f"make cuda-check can't run here: {missing}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    where = machine()
    print(json.dumps(where, indent=1), flush=True)
    steps = check(options.seconds, where)
    print(f"\n{table(steps)}")
    return 0 if all(step.ok for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
