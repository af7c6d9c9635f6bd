"""Fuzzes the readers of manifests and segments, guided by what they cover (Atheris)."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from campaigns.command import main
from campaigns.fuzz_inputs import CORPUS

_MEMORY_MB = 2048
_SLOWEST_S = 10


def run(*, seconds: float = 600.0, seed: int = 1, keep: str = "") -> dict[str, Any]:
    """Fuzz for `seconds`, from the corpus of the repository; what it finds new goes to the folder `keep`.

    A crash is anything but a CorruptionError: another exception, a signal, 2 GB of memory, 10 s for an input.
    """
    end = time.monotonic() + seconds
    executions = covered = 0
    crashes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        found = Path(keep or name) / "found"
        found.mkdir(parents=True, exist_ok=True)
        while (left := end - time.monotonic()) >= 1:
            command = [
                sys.executable, "-m", "campaigns.fuzz_target", str(found), str(CORPUS),
                f"-max_total_time={int(left)}", f"-seed={seed + len(crashes)}", f"-timeout={_SLOWEST_S}",
                f"-rss_limit_mb={_MEMORY_MB}", "-print_final_stats=1", f"-artifact_prefix={found.parent}/",
                "-max_len=8192",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            counts = re.findall(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
            executions += int(counts[-1]) if counts else 0
            covered = max([covered, *map(int, re.findall(r"cov: (\d+)", done.stderr))])
            if done.returncode != 0:
                crashes.append(done.stderr[-3000:])
            if done.returncode != 0 and not counts:
                break  # it did not even begin
        kept = len(list(found.iterdir()))
    return {
        "executions": executions,
        "crashes": len(crashes),
        "seconds": round(seconds),
        "covered": covered,
        "new_inputs": kept,
        "messages": crashes[:5],
    }


if __name__ == "__main__":
    main(run)
