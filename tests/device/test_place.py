"""`cpr_native.device.place`: which device tables lie on, and how its memory is named."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from cpr_native import _native, cuda
from cpr_native.device import Place, describe_on, host_place, place_of

REASON = "no NVIDIA driver: libcuda.so.1 was not found"


@pytest.fixture
def place() -> Place:
    if not hasattr(_native, "host_device"):
        pytest.skip("the module was built without CPR_HOST_DEVICE")
    return host_place()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "why_not", lambda _device=None: REASON)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_the_cpu_has_no_place(device: Any) -> None:
    assert place_of(device) is None


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 2), 0])
def test_a_gpu_that_cannot_be_used_says_why(no_gpu: None, device: Any) -> None:
    with pytest.raises(RuntimeError, match=f"device cuda.*{REASON}"):
        place_of(device)


def test_torch_needs_cuda_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "why_not", lambda _device=None: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="device cuda:1: torch has no CUDA"):
        place_of("cuda:1")


def test_there_is_one_native_device_a_gpu(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    made: list[int] = []

    def device(index: int) -> Any:
        made.append(index)
        return place.native

    monkeypatch.setattr(cuda, "why_not", lambda _device=None: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    monkeypatch.setattr(_native, "cuda_device", device, raising=False)
    monkeypatch.setattr("cpr_native.device.place._gpus", {})
    first = place_of("cuda")
    assert first is not None
    assert first.torch_device == torch.device("cuda", 7)
    assert [place_of("cuda:7"), place_of(7), place_of(first)] == [first] * 3
    assert made == [7]
    assert pickle.loads(pickle.dumps(first)) is first
    assert place_of("cuda:3") != first


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="device: expected cpu or cuda, got meta"):
        place_of("meta")


def test_the_host_place_is_itself_in_copies(place: Place) -> None:
    assert place_of(place) is place
    assert copy.deepcopy(place) is place
    assert copy.copy(place) is place
    again = pickle.loads(pickle.dumps(host_place(lanes=32, seed=5)))
    assert again.torch_device == torch.device("cpu")
    assert again.native.name == host_place(lanes=32, seed=5).native.name
    assert place.stream() == 0


@pytest.mark.parametrize("nbytes", [0, 1, 17, 4096])
def test_memory_is_aligned(place: Place, nbytes: int) -> None:
    memory = place.empty(nbytes)
    assert memory.data_ptr() % 16 == 0
    assert (memory.dtype, memory.shape) == (torch.uint8, (nbytes,))


def test_describe_on_names_memory(place: Place) -> None:
    x = torch.zeros(3, 4, dtype=torch.bfloat16)
    assert describe_on(place, x) == (x.data_ptr(), (3, 4), "bfloat16")


def test_describe_on_refuses_what_the_device_cannot_read(place: Place) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        describe_on(place, torch.zeros(3, 4).t())
    with pytest.raises(ValueError, match="expected a tensor on device cpu, got one on device meta"):
        describe_on(place, torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match="expected a torch tensor, got list"):
        describe_on(place, [1])  # type: ignore[arg-type]


def test_a_build_without_the_host_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_native, "host_device", raising=False)
    with pytest.raises(RuntimeError, match="CPR_HOST_DEVICE"):
        host_place()
