"""Puts the engine on torch's threads."""

from __future__ import annotations

from pathlib import Path

import torch

from cpr_native._native import share_openmp

_NAMES = ("libgomp", "libiomp5", "libomp")
_MAPS = Path("/proc/self/maps")


def share_torch_threads() -> bool:
    """Run the engine on the threads of torch's OpenMP runtime; returns whether that worked.

    Torch's idle threads spin for a while after each of its operations. A second pool of threads would fight
    them for the cores in every step: docs/design.md has the figures. Where no loaded runtime can be told to
    be torch's, the engine keeps threads of its own.
    """
    if not _MAPS.exists():
        return False
    mapped = {line.split(maxsplit=5)[-1].strip() for line in _MAPS.read_text().splitlines() if "/" in line}
    loaded = sorted(path for path in mapped if Path(path).name.startswith(_NAMES))
    root = str(Path(torch.__file__).parent)
    candidates = [path for path in loaded if path.startswith(root)] or loaded
    return len(candidates) == 1 and share_openmp(candidates[0])
