"""A program in two processes, ranks 0 and 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_ranks(program: str, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """What each of two processes prints, as JSON; they are told rank, `folder` and `arguments`."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(folder), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    found: list[dict[str, Any]] = []
    try:
        for process in processes:
            out, error = process.communicate(timeout=90)
            assert process.returncode == 0, error
            found.append(json.loads(out))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)
    return found
