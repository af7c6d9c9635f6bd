"""Timing of work on a device: by CUDA's events on a GPU, by the clock on a device that runs on the host."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from cpr_native.device.place import Place

WARM_UP = 3
# Cycles that the GPU waits before what is timed, about 1 ms: the host has given it all work by then, so that
# gaps between launches aren't timed.
WAIT_CYCLES = 2_000_000

Work = Callable[[int], object]


def nothing(_: int) -> None:
    """What comes before timed work that needs nothing."""


class Timer:
    """Times work on one place; `work(i)` is the i-th call, warming up included."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.on_gpu = place.torch_device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for all work."""
        if self.on_gpu:
            torch.cuda.synchronize(self.place.torch_device)
        else:
            self.place.native.synchronize()

    def span(self, work: Callable[[], object]) -> float:
        """Milliseconds from the begin to the end of `work` on the device, which has all of it before."""
        if not self.on_gpu:
            begin = perf_counter()
            work()
            self.synchronize()
            return (perf_counter() - begin) * 1e3
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(WAIT_CYCLES)
        first.record()
        work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last)

    def device_ms(self, work: Work, count: int, before: Work = nothing) -> float:
        """Median time on the device of `count` calls; `before(i)` goes ahead of each, untimed."""
        times = []
        for i in range(WARM_UP + count):
            before(i)
            times.append(self.span(lambda i=i: work(i)))  # type: ignore[misc]
        return median(times[WARM_UP:])

    def loop_ms(self, work: Work, count: int) -> float:
        """Time a call of a loop that waits for nothing between its calls: what a training loop sees."""
        for i in range(WARM_UP):
            work(i)
        self.synchronize()
        begin = perf_counter()
        for i in range(WARM_UP, WARM_UP + count):
            work(i)
        self.synchronize()
        return (perf_counter() - begin) / count * 1e3

    def bandwidth(self, target: torch.Tensor, source: torch.Tensor, count: int = 10) -> float:
        """Bytes a second that copies of `source` read and write together."""
        return 2 * source.nbytes / self.device_ms(lambda _: target.copy_(source), count) * 1e3


class Replay:
    """Work that is done again and again: a captured CUDA graph on a GPU, the calls themselves on the host.

    `work` is called once before it is captured, twice on the host. Raises what capturing raises.
    """

    def __init__(self, place: Place, work: Callable[[], object]) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        work()
        if place.torch_device.type != "cuda":
            work()
            return
        torch.cuda.synchronize(place.torch_device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def __call__(self) -> None:
        """Do the work once more, on torch's current stream."""
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()


def kernels_of(timer: Timer, replay: Replay, repeats: int = 4) -> list[str] | None:
    """Return the names of the kernels that a replay runs, as CUPTI sees them; None on the host: it has none.

    Raises RuntimeError where the profiler sees none, or another number every time.
    """
    if not timer.on_gpu:
        return None
    seen = []
    for _ in range(repeats):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            replay()
            timer.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            seen.append(kernels_in(json.loads(path.read_text(encoding="utf-8"))))
    numbers = [len(names) for names in seen]
    if numbers[-1] == 0 or numbers[-1] != numbers[-2]:  # the first profiles of a process may miss some
        raise RuntimeError(f"kernels of a replay: the profiler saw {numbers}")
    return seen[-1]


def kernels_in(trace: dict[str, Any]) -> list[str]:
    """The kernels of a profile, no copies and fills, without namespaces, template arguments, parameters."""
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    plain = [name.replace("(anonymous namespace)::", "").removeprefix("void ") for name in names]
    return [re.split(r"[<(]", name)[0].split("::")[-1] for name in plain]
