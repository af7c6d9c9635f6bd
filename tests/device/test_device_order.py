"""Which stream gets an engine's work; with streams that only tell what was asked of them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from device_memory import ON_GPU, place_for_test

from cpr_native.device import Place
from cpr_native.device.order import StreamOrder


class Stream:
    """Stands for a `torch.cuda.Stream`."""

    def __init__(self, address: int) -> None:
        self.cuda_stream = address
        self.waited: list[int] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other.cuda_stream)


class Held:
    """Stands for a tensor in memory of a GPU."""

    def __init__(self) -> None:
        self.used_by: list[int] = []

    def record_stream(self, stream: Stream) -> None:
        self.used_by.append(stream.cuda_stream)


class Streams:
    """Which stream is torch's current one, and whether it is being captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = [Stream(address) for address in range(3)]
        self.current = self.all[0]
        self.capturing = False
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: self.current)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        self.held = Held()
        place = Place(torch.device("cuda", 0), cast(Any, None), cast(Any, None))
        self.order = StreamOrder(place, lambda: [cast(Any, self.held)])

    def use(self, number: int) -> int:
        self.current = self.all[number]
        return self.order.stream()


def test_a_call_on_another_stream_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    assert [streams.use(0), streams.use(0)] == [0, 0]
    assert streams.all[0].waited == streams.held.used_by == []
    assert [streams.use(2), streams.use(2), streams.use(1)] == [2, 2, 1]
    assert streams.all[2].waited == [0]
    assert streams.all[1].waited == [2]
    assert streams.held.used_by == [2, 1]


def test_nothing_waits_within_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    streams.capturing = True
    assert streams.use(1) == 1
    assert streams.all[1].waited == streams.held.used_by == []
    streams.capturing = False
    assert streams.use(2) == 2
    assert streams.all[2].waited == [0]


def test_a_device_on_the_host_has_one_stream() -> None:
    if ON_GPU:
        pytest.skip("of a device on the host")
    assert StreamOrder(place_for_test(), list).stream() == 0
