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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FOLDER = ROOT / "build" / "cuda"
SITE = FOLDER / "site"
REPEATS = 5
JOBS = max(1, min(6, (os.cpu_count() or 1) // 2))
NO_TESTS = 5  # pytest's exit status
# Of tests on a GPU. cuBLAS gives the same bits each time with a workspace of its own.
SETTINGS = {"CPR_TEST_DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Names of tests that compare bits.
BITS = "same or bits or pools or sums or weights"
# Small ones of every kind of kernel.
MEMCHECKED = (
    "test_device_lookup.py::test_weights_scale_the_items",
    "test_device_lookup.py::test_gradient_of_weights",
    "test_device_update.py::test_weights_scale_gradients",
    "test_device_update.py::test_without_pooling",
    "test_device_update.py::test_the_list_agrees_when_slots_are_few",
    "test_device_rows.py::test_rows_are_reset_and_discarded",
    "test_device_rows.py::test_rows_are_marked",
    "test_device_snapshot.py::test_an_abort_that_nothing_was_read_of",
    "test_device_snapshot.py::test_rounded_rows_and_long_ones",
    "test_device_engine.py::test_half_precision",
)


class Failed(Exception):
    """A part of the check failed; the message says how. `figures`: what it found nevertheless."""

    def __init__(self, message: str, figures: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


@dataclass(frozen=True)
class Part:
    """`work(seconds)`; `limit`: seconds that it may take, `least`: that it needs."""

    work: Callable[[float], dict[str, Any]]
    limit: float
    least: float


def run(
    command: Sequence[str], *, log: str, seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with its output in build/cuda/LOG.log; raises Failed when it lasts too long."""
    path = FOLDER / f"{log}.log"
    inherited = {key: value for key, value in os.environ.items() if key != "SKBUILD_CMAKE_DEFINE"}
    search = f"{SITE}:{TESTS}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    with path.open("w", encoding="utf-8") as stream:
        # A session of its own: what the command started ends with it.
        process = subprocess.Popen(
            command,
            cwd=FOLDER,
            env={**inherited, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(max(seconds, 1.0))
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = last_lines(path.read_text(encoding="utf-8", errors="replace"), 4)
            raise Failed(f"cut short after {seconds:.0f} s, see {path}\n{said}") from None
    text = path.read_text(encoding="utf-8", errors="replace")
    return subprocess.CompletedProcess(command, status, text, "")


def last_lines(text: str, number: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-number:])


def build(seconds: float) -> dict[str, Any]:
    """Build for this GPU into build/cuda/site, and import it."""
    shutil.rmtree(SITE, ignore_errors=True)
    install = ["install", "--no-build-isolation", "--no-deps", "--no-index", "--no-compile", "-v"]
    options = ["-C", f"build-dir={FOLDER / 'build'}", "-C", "cmake.define.CPR_CUDA=ON"]
    begin = time.monotonic()
    command = [sys.executable, "-m", "pip", *install, "-t", str(SITE), *options, str(ROOT)]
    done = run(command, log="build", seconds=seconds)
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


def files_of_tests() -> list[Path]:
    """The files whose tests run on a GPU, those of whole jobs first: they last longest."""
    files = [*TESTS.glob("device/test_*.py"), *TESTS.glob("*/test_device*.py")]
    return sorted(set(files), key=lambda file: (file.parent.name, file.stat().st_size), reverse=True)


def settings_of(tests: Sequence[str]) -> list[str]:
    """Pytest's options for tests of one folder.

    Not tests/conftest.py: it brings what the tests of remote checkpoints need. Warnings, which other versions
    of other packages give, are no failures.
    """
    folder = Path(tests[0].partition("::")[0]).parent
    return ["-q", "-p", "no:cacheprovider", "-p", "gpu_plugin", "-W", "default", f"--confcutdir={folder}"]


def run_tests(
    log: str, seconds: float, tests: Sequence[str], *options: str, wrapper: Sequence[str] = (), **more: str
) -> dict[str, int]:
    """Run tests of one folder on the GPU; returns how many passed and were skipped.

    `wrapper`: what runs pytest; `more`: environment variables.
    """
    report = FOLDER / f"{log}.xml"
    report.unlink(missing_ok=True)
    command = [*wrapper, sys.executable, "-P", "-m", "pytest", *settings_of(tests)]
    command += [f"--junitxml={report}", *options, *tests]
    done = run(command, log=log, seconds=seconds, environment={**SETTINGS, **more})
    if done.returncode not in (0, NO_TESTS):
        raise Failed(last_lines(done.stdout))
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [(int(s.get("tests", 0)), int(s.get("skipped", 0))) for s in suites]
    total, skipped = (sum(column) for column in zip(*counts, strict=True))
    return {"passed": total - skipped, "skipped": skipped}


def run_files(log: str, seconds: float, *options: str) -> dict[str, int]:
    """Run every file in a process of its own, some at a time: a fault of a kernel ends one file's alone."""
    end = time.monotonic() + seconds
    failures: list[str] = []

    def one(file: Path) -> dict[str, int]:
        try:
            return run_tests(f"{log}-{file.stem}", end - time.monotonic(), [str(file)], *options)
        except Failed as error:
            failures.append(f"{file.relative_to(ROOT)}: {error}")
            return {"failed_files": 1}

    with ThreadPoolExecutor(JOBS) as pool:
        found = list(pool.map(one, files_of_tests()))
    totals = {name: sum(counts.get(name, 0) for counts in found) for name in ("passed", "skipped")}
    if failures:
        raise Failed("\n".join(failures), {**totals, "failed_files": len(failures)})
    if totals["passed"] == 0:
        raise Failed("no test ran on the GPU", totals)
    return totals


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
    rounds, passed, longest = 0, 0, 0.0
    with busy_gpu():
        for round_number in range(REPEATS):
            begun = time.monotonic()
            left = seconds - (begun - begin)
            if round_number and left < 1.5 * longest:
                break
            passed += run_files(f"load{round_number}", left, "-k", BITS)["passed"]
            longest = max(longest, time.monotonic() - begun)
            rounds += 1
    return {"rounds": rounds, "passed": passed}


def memcheck(seconds: float) -> dict[str, Any]:
    """Small shapes under compute-sanitizer, which finds accesses outside of memory."""
    places = "/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=places)
    if sanitizer is None:
        raise Failed("not run: compute-sanitizer was not found")
    # Calls of torch's that CUDA refuses are no errors of memory.
    wrapper = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no"]
    tests = [str(TESTS / "device" / test) for test in MEMCHECKED]
    try:
        # Each tensor is an allocation of its own: torch's cache would hide what lies behind one.
        counts = run_tests(
            "memcheck", seconds, tests, "-x", wrapper=wrapper, PYTORCH_NO_CUDA_MEMORY_CACHING="1"
        )
    except Failed:
        said = (FOLDER / "memcheck.log").read_text(encoding="utf-8", errors="replace").splitlines()
        unable = [line.strip("= ") for line in said if "not supported" in line.lower()]
        if unable:
            raise Failed(f"not run: compute-sanitizer can't use this machine's GPU: {unable[0]}") from None
        raise
    if counts["passed"] == 0:
        raise Failed("no test ran on the GPU")
    return dict(counts)


def speed(seconds: float) -> dict[str, Any]:
    """The benchmarks of bench/device_speed.py."""
    script, out = ROOT / "bench" / "device_speed.py", FOLDER / "speed.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, str(script), str(out), "--seconds", f"{max(seconds - 15, 1):.0f}"]
    said = ""
    try:
        done = run(command, log="speed", seconds=seconds)
        if done.returncode != 0:
            said = last_lines(done.stdout) or f"exit status {done.returncode}"
    except Failed as error:
        said = str(error)
    found: dict[str, Any] = {}
    if out.exists():
        record = json.loads(out.read_text(encoding="utf-8"))
        found = {**record["figures"], "goals": record["goals"]}
    if said or not found:
        raise Failed(said or "no figures were written", found)
    return found


PARTS = {
    "build": Part(build, 150, 30),
    "tests": Part(lambda seconds: dict(run_files("tests", seconds)), 95, 20),
    "speed": Part(speed, 115, 30),
    "under load": Part(under_load, 45, 15),
    "memcheck": Part(memcheck, 60, 15),
}
