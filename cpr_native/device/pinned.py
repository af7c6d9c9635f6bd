"""Memory of the host that a GPU reads and writes at its own address."""

from __future__ import annotations

import mmap
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["empty_pinned"]

# cudaHostRegisterPortable | cudaHostRegisterMapped
_FLAGS = 3


def empty_pinned(nbytes: int, device: torch.device) -> Tensor:
    """Allocate uint8 [nbytes] in pinned memory of the host, of just as many pages; zeros.

    torch's own pinned memory comes in powers of two. The device is waited for before the memory goes, with
    the last tensor that lies in it.

    Raises:
        RuntimeError: so much can't be pinned.
    """
    memory = mmap.mmap(-1, max(1, nbytes))
    array = np.frombuffer(memory, np.uint8, nbytes)
    address = array.ctypes.data
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = int(runtime.cudaHostRegister(address, max(1, nbytes), _FLAGS))
    if status != 0:
        raise RuntimeError(f"pinned memory: {nbytes} bytes of the host were refused, CUDA's error {status}")
    # The tensor's storage holds the array, whose weak references are called before its memory goes.
    weakref.finalize(array, _unpin, address, device).atexit = False
    return torch.from_numpy(array)


def _unpin(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
