"""The device that the tests of tables on devices run on, and memory that it can reach.

It is one that runs on the host, or with `CPR_TEST_DEVICE=cuda` the GPU (`make cuda-check`): the same tests
run on both. What a test reads or writes itself lies in memory of the host, which a GPU reaches at its own
address where it is pinned; what only the device uses, and all memory of `place_for_test`, lies on the device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe

if TYPE_CHECKING:
    from cpr_native._native import TensorRef
    from cpr_native.device.place import Place

ON_GPU = os.environ.get("CPR_TEST_DEVICE") == "cuda"
GPU_LANES = 8
LANES = (GPU_LANES,) if ON_GPU else (1, 8, 32)
UNWRITTEN = 0xAB  # byte of memory that nothing was written to


def host_device(lanes: int = GPU_LANES, seed: int = 0, *, deferred: bool = True) -> _native.Device:
    """Return a device on the host, or the GPU; skips the test in a build without, or of other `lanes`."""
    if ON_GPU:
        if lanes != GPU_LANES:
            pytest.skip(f"groups of a GPU have {GPU_LANES} lanes")
        return _native.cuda_device(0)
    if not hasattr(_native, "host_device"):
        pytest.skip("the module was built without CPR_HOST_DEVICE")
    return _native.host_device(lanes, seed, deferred=deferred)


def place_for_test(lanes: int = GPU_LANES, seed: int = 0) -> Place:
    """Return where the tables of a module under test lie: on the host, or on the GPU.

    Tensors of such a test are made on `place.torch_device`. Skips as `host_device` does.
    """
    from cpr_native.device.place import host_place, place_of

    if not ON_GPU:
        if not hasattr(_native, "host_device"):
            pytest.skip("the module was built without CPR_HOST_DEVICE")
        return host_place(lanes, seed)
    if lanes != GPU_LANES:
        pytest.skip(f"groups of a GPU have {GPU_LANES} lanes")
    place = place_of("cuda")
    assert place is not None
    return place


def reachable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself for a device on the host, for a GPU a copy in pinned memory."""
    if not ON_GPU:
        return array
    import torch

    memory = torch.empty(array.nbytes + 16, dtype=torch.uint8, pin_memory=True).numpy()
    copy: NDArray[Any] = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


class Scratch:
    """`size` bytes that only the device uses, aligned to 16, of no known contents."""

    def __init__(self, size: int) -> None:
        size = max(1, -(-size // 16)) * 16
        self.memory: Any
        if ON_GPU:
            import torch

            self.memory = torch.full((size,), UNWRITTEN, dtype=torch.uint8, device="cuda")
            self.ref: TensorRef = (self.memory.data_ptr(), (size,), "uint8")
        else:
            self.memory = np.full(size, UNWRITTEN, np.uint8)
            self.ref = describe(self.memory)
