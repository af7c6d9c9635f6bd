"""What the benchmarks of one session measured: gathered here, written to build/bench when it ends."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from cpr_native._native import isa

FILES = ("engine", "snapshot", "cluster")


class Figures:
    """One tree of figures a file; numbers are rounded to five significant digits."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, Any]] = {name: {} for name in FILES}

    def put(self, file: str, *path: str, **values: Any) -> None:
        """Enter `values` at `path` of `file`, one of FILES."""
        place = self._files[file]
        for key in path:
            place = place.setdefault(key, {})
        place.update({key: _rounded(value) for key, value in values.items()})

    def sample(self, file: str, *path: str, **values: float) -> None:
        """Enter the medians of `values` and of those of earlier calls for `path`; all go to its "builds"."""
        for key, value in values.items():
            builds = [*self.get(file, *path, "builds").get(key, []), value]
            self.put(file, *path, "builds", **{key: builds})
            self.put(file, *path, **{key: median(builds)})

    def get(self, file: str, *path: str) -> Any:
        """Return what lies at `path`, an empty mapping where nothing does."""
        place: Any = self._files[file]
        for key in path:
            place = place.get(key, {})
        return place

    def write(self, directory: Path) -> list[Path]:
        """Write the files that have figures, each whole, with the machine in it; return their paths."""
        written = []
        for name, figures in self._files.items():
            if figures:
                directory.mkdir(parents=True, exist_ok=True)
                path = directory / f"{name}.json"
                text = json.dumps({**figures, "machine": machine()}, indent=1)
                path.write_text(_short_lists(text) + "\n", encoding="utf-8")
                written.append(path)
        return written


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _short_lists(text: str) -> str:
    """Put every list of numbers on one line."""
    return re.sub(r"\[[\s\d.,e+-]+\]", lambda match: re.sub(r"\s+", " ", match[0]), text)


def machine() -> dict[str, Any]:
    """Return what the figures depend on; nothing that names the machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*:\s*(.+)", info)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores_used": len(os.sched_getaffinity(0)),
        "cores": os.cpu_count(),
        "cache": _caches(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": platform.release().split("-")[0],
        "instruction_set": isa(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fbgemm_gpu_cpu": version("fbgemm-gpu-cpu"),
    }


def _caches() -> dict[str, str]:
    """Return the size of each cache of the first core, by level and kind."""
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = _read(index / "type")
        if kind != "Instruction":
            caches[f"L{_read(index / 'level')}"] = _read(index / "size")
    return caches


def _read(path: str | Path) -> str:
    path = Path(path)
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""
