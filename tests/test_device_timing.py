"""The calls by which work is timed, captured and counted on a GPU: torch's side is recorded, not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_memory import place_for_test
from device_timing import Replay, Timer, kernels_in, kernels_of

SEEN = {
    "Memset (Device)": "gpu_memset",
    "Memcpy DtoD (Device -> Device)": "gpu_memcpy",
    "cudaGraphLaunch": "cuda_runtime",
    "cpr::cuda::(anonymous namespace)::lookup_float(cpr::cuda::LookupArgs)": "kernel",
    "void cub::CUB_300001_SM_900::detail::DeviceRadixSortOnesweepKernel<X, int>(int)": "kernel",
    "void cpr::cuda::(anonymous namespace)::update_rows<(cpr::Optimizer)2>(UpdateArgs)": "kernel",
}
KERNELS = ["lookup_float", "DeviceRadixSortOnesweepKernel", "update_rows"]
TRACE = {"traceEvents": [*({"name": name, "cat": kind} for name, kind in SEEN.items()), {"name": "a mark"}]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called of torch.cuda, in order."""
    made: list[str] = []
    note = made.append

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            note("record")

        def synchronize(self) -> None:
            note("wait for the event")

        def elapsed_time(self, last: Event) -> float:
            return 3.5

    class Graph:
        def replay(self) -> None:
            note("replay")

    @contextmanager
    def graph(captured: Any) -> Iterator[None]:
        assert isinstance(captured, Graph)
        note("capture")
        yield
        note("captured")

    for name, value in (
        ("Event", Event),
        ("CUDAGraph", Graph),
        ("graph", graph),
        ("_sleep", lambda cycles: note("sleep")),
        ("synchronize", lambda device=None: note("synchronize")),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    return made


GPU: Any = SimpleNamespace(torch_device=torch.device("cuda", 0))


def test_work_is_timed_by_events_after_the_host_has_run_ahead(calls: list[str]) -> None:
    timer = Timer(GPU)
    assert timer.device_ms(lambda i: calls.append("work"), 1, before=lambda i: calls.append("before")) == 3.5
    one = ["before", "sleep", "record", "work", "record", "wait for the event"]
    assert calls == one * 4


def test_a_loop_waits_before_and_after_and_not_between(calls: list[str]) -> None:
    assert Timer(GPU).loop_ms(lambda i: calls.append(str(i)), 2) >= 0
    assert calls == ["0", "1", "2", "synchronize", "3", "4", "synchronize"]


def test_work_runs_once_before_it_is_captured(calls: list[str]) -> None:
    replay = Replay(GPU, lambda: calls.append("work"))
    assert calls == ["work", "synchronize", "capture", "work", "captured"]
    replay()
    assert calls[5:] == ["replay"]


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The traces of the next profiles."""
    traces: list[dict[str, Any]] = []

    class Profile:
        def __init__(self, *, activities: list[Any]) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text(json.dumps(traces.pop(0)), encoding="utf-8")

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    return traces


def test_copies_and_fills_are_no_kernels(calls: list[str], profiles: list[dict[str, Any]]) -> None:
    assert kernels_in(TRACE) == KERNELS
    replay = Replay(GPU, lambda: None)
    nothing: dict[str, Any] = {"traceEvents": []}
    profiles += [nothing, nothing, TRACE, TRACE]  # the first ones of a process may miss some
    assert kernels_of(Timer(GPU), replay) == KERNELS
    profiles += [TRACE, TRACE, TRACE, nothing]
    with pytest.raises(RuntimeError, match=r"the profiler saw \[3, 3, 3, 0\]"):
        kernels_of(Timer(GPU), replay)


def test_the_host_has_no_kernels_to_count() -> None:
    place = place_for_test()
    if place.torch_device.type == "cuda":
        pytest.skip("a GPU has")
    assert kernels_of(Timer(place), Replay(place, lambda: None)) is None


def test_medians_leave_the_first_calls_out() -> None:
    made: list[int] = []
    assert Timer(place_for_test()).device_ms(made.append, 4) >= 0
    assert made == list(range(7))
