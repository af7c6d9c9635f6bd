"""The parts of `make cuda-check` (cuda_check.py): each returns its figures or raises Failed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "cuda"
SITE = FOLDER / "site"
REPEATS = 5


class Failed(Exception):
    """A part of the check failed; the message says how."""


def run(
    command: list[str], *, log: str, seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with its output in build/cuda/LOG.log; raises Failed when it lasts too long."""
    path = FOLDER / f"{log}.log"
    inherited = {key: value for key, value in os.environ.items() if key != "SKBUILD_CMAKE_DEFINE"}
    search = f"{SITE}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    with path.open("w", encoding="utf-8") as stream:
        # A session of its own: what the command started ends with it.
        process = subprocess.Popen(
            command,
            cwd=FOLDER,
            env={**inherited, "PYTHONPATH": search, **(environment or {})},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failed(f"cut short after {seconds:.0f} s, see {path}") from None
    text = path.read_text(encoding="utf-8", errors="replace")
    return subprocess.CompletedProcess(command, status, text, "")


def last_lines(text: str, number: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-number:])


def build(seconds: float) -> dict[str, Any]:
    """Build for this GPU into build/cuda/site, and import it."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-t",
        str(SITE),
    ]
    options = ["-C", f"build-dir={FOLDER / 'build'}", "-C", "cmake.define.CPR_CUDA=ON"]
    begin = time.monotonic()
    done = run([*command, *options, "-v", str(ROOT)], log="build", seconds=seconds)
    if done.returncode != 0:
        raise Failed(last_lines(done.stdout))
    took = time.monotonic() - begin
    ask = "from cpr_native import cuda; print(cuda.device_count(), cuda.get_arch_list(), cuda.why_not())"
    said = run([sys.executable, "-c", ask], log="import", seconds=60)
    if said.returncode != 0 or "None" not in said.stdout:
        raise Failed(f"the module that was built can't use the GPU: {last_lines(said.stdout)}")
    (module,) = SITE.glob("cpr_native/_native*.so")
    return {
        "build_s": round(took, 1),
        "module_mb": round(module.stat().st_size / 1e6, 1),
        "devices": said.stdout.strip(),
    }


def pytest_command(*options: str) -> list[str]:
    # Not tests/conftest.py: it brings what the tests of remote checkpoints need.
    folder = ROOT / "tests" / "device"
    return [
        *(
            sys.executable,
            "-P",
            "-m",
            "pytest",
            str(folder),
            f"--confcutdir={folder}",
            "-q",
            "-p",
            "no:cacheprovider",
        ),
        *options,
    ]


def run_tests(
    log: str, seconds: float, *options: str, wrapper: tuple[str, ...] = (), **more: str
) -> dict[str, int]:
    """Run tests of tests/device on the GPU; returns how many passed and were skipped."""
    report = FOLDER / f"{log}.xml"
    report.unlink(missing_ok=True)
    command = [*wrapper, *pytest_command(f"--junitxml={report}", *options)]
    done = run(command, log=log, seconds=seconds, environment={"CPR_TEST_DEVICE": "cuda", **more})
    if done.returncode != 0:
        raise Failed(last_lines(done.stdout))
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [(int(s.get("tests", 0)), int(s.get("skipped", 0))) for s in suites]
    total, skipped = (sum(column) for column in zip(*counts, strict=True))
    if total == skipped:
        raise Failed("no test ran on the GPU: all were skipped")
    return {"passed": total - skipped, "skipped": skipped}


LOAD = """
import torch
a = torch.randn(4096, 4096, device="cuda")
b = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("busy", flush=True)
while True:
    for _ in range(50):
        a = a @ a / a.abs().max()
        b.copy_(b.flip(0))
    torch.cuda.synchronize()
"""


@contextmanager
def busy_gpu() -> Iterator[None]:
    """Keep the GPU busy with matrix products and copies of another process."""
    load = subprocess.Popen(
        [sys.executable, "-c", LOAD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert load.stdout is not None
    try:
        if load.stdout.readline() != "busy\n":
            raise Failed("the load did not begin")
        yield
        if load.poll() is not None:
            raise Failed("the load ended before the tests")
    finally:
        load.kill()
        load.wait()
        load.stdout.close()


def under_load(seconds: float) -> dict[str, Any]:
    """The tests that compare bits, again and again while the GPU does other work."""
    begin = time.monotonic()
    rounds = passed = 0
    with busy_gpu():
        for round_number in range(REPEATS):
            left = seconds - (time.monotonic() - begin)
            if left < 10 and round_number:
                break
            counts = run_tests(f"load{round_number}", left, "-k", BITS)
            passed += counts["passed"]
            rounds += 1
    return {"rounds": rounds, "passed": passed}


def memcheck(seconds: float) -> dict[str, Any]:
    """Small shapes under compute-sanitizer."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    )
    if sanitizer is None:
        raise Failed("compute-sanitizer was not found")
    wrapper = (
        sanitizer,
        "--tool",
        "memcheck",
        "--error-exitcode",
        "9",
        "--target-processes",
        "application-only",
    )
    return dict(run_tests("memcheck", seconds, "-x", "-k", SMALL, wrapper=wrapper))


# Names of tests: those that compare bits, and of these a few of small shapes.
BITS = "same or bits or pools or sums or weights"
SMALL = "pools_as_the_host or weights_scale"


def speed(seconds: float) -> dict[str, Any]:
    """The benchmarks of bench/device_speed.py."""
    script = ROOT / "bench" / "device_speed.py"
    done = run([sys.executable, str(script), str(FOLDER / "speed.json")], log="speed", seconds=seconds)
    if done.returncode != 0:
        raise Failed(last_lines(done.stdout))
    figures: dict[str, Any] = json.loads((FOLDER / "speed.json").read_text(encoding="utf-8"))
    return figures


# With the seconds that each may take at most.
PARTS: dict[str, tuple[Callable[[float], dict[str, Any]], float]] = {
    "build": (build, 150.0),
    "tests": (lambda seconds: dict(run_tests("tests", seconds)), 90.0),
    "under load": (under_load, 60.0),
    "memcheck": (memcheck, 60.0),
    "speed": (speed, 100.0),
}
