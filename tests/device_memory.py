"""The device that the tests of tests/device run on, and memory that it can reach.

It is one that runs on the host, or with `CPR_TEST_DEVICE=cuda` the GPU (`make cuda-check`), which reaches
arrays in pinned memory of the host at their own address: so the same tests run on both.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native import _native

ON_GPU = os.environ.get("CPR_TEST_DEVICE") == "cuda"
GPU_LANES = 8


def host_device(lanes: int, seed: int, *, deferred: bool = True) -> _native.Device:
    """Return a device on the host, or the GPU; skips the test in a build without, or of other `lanes`."""
    if ON_GPU:
        if lanes != GPU_LANES:
            pytest.skip(f"groups of a GPU have {GPU_LANES} lanes")
        return _native.cuda_device(0)
    if not hasattr(_native, "host_device"):
        pytest.skip("the module was built without CPR_HOST_DEVICE")
    return _native.host_device(lanes, seed, deferred=deferred)


def reachable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself for a device on the host, for a GPU a copy in pinned memory."""
    if not ON_GPU:
        return array
    import torch

    memory = torch.empty(array.nbytes + 16, dtype=torch.uint8, pin_memory=True).numpy()
    copy: NDArray[Any] = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
