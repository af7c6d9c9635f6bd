"""`cpr_native.device.pinned`: memory is registered with the GPU as long as a tensor lies in it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from device_memory import place_for_test

from cpr_native.device import Place


@dataclass
class Runtime:
    """CUDA's run-time library as far as it is called; `status`: what registering returns."""

    status: int = 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.calls.append(("register", address, nbytes, flags))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.calls.append(("wait", device)))
    monkeypatch.setattr(torch.cuda, "device", lambda _device: torch.no_grad())
    return found


def gpu() -> Place:
    return Place(torch.device("cuda", 1), place_for_test().native, (place_for_test, ()))


def test_memory_is_registered_while_a_tensor_lies_in_it(runtime: Runtime) -> None:
    memory = gpu().empty_host(12_345)
    address = memory.data_ptr()
    assert (memory.dtype, memory.shape, memory.device.type) == (torch.uint8, (12_345,), "cpu")
    assert address % 4096 == 0
    view = memory[:12_344].view(torch.float32)
    view.fill_(1.0)
    assert runtime.calls == [("register", address, 12_345, 3)]
    del memory
    gc.collect()
    assert len(runtime.calls) == 1
    assert float(view.sum()) == 12_344 / 4
    del view
    gc.collect()
    assert runtime.calls[1:] == [("wait", torch.device("cuda", 1)), ("unregister", address)]


def test_memory_that_cannot_be_pinned_says_so(runtime: Runtime) -> None:
    runtime.status = 2
    with pytest.raises(RuntimeError, match="4096 bytes of the host were refused, CUDA's error 2"):
        gpu().empty_host(4096)
    gc.collect()
    assert [call[0] for call in runtime.calls] == ["register"]


def test_nothing_is_memory_too(runtime: Runtime) -> None:
    assert gpu().empty_host(0).shape == (0,)


def test_the_device_on_the_host_reaches_all_of_it() -> None:
    place = place_for_test()
    memory = place.empty_host(64)
    assert (memory.device.type, memory.data_ptr() % 16) == ("cpu", 0)
