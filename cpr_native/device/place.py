"""Where tables in device memory lie: torch's device, and the native one that runs the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cpr_native import _native, cuda
from cpr_native._tensor import dtype_name
from cpr_native.device.pinned import empty_pinned

if TYPE_CHECKING:
    from cpr_native._native import Device, TensorRef

__all__ = ["Place", "describe_on", "host_place", "place_of"]

# Bytes: what native code asks of the memory of tables and batches.
_ALIGNMENT = 16

# GPUs by CUDA's index: one native device each.
_gpus: dict[int, Place] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Place:
    """A device of torch and the native device that works on its memory; any thread may use it.

    Copies are the place itself, also in another process: what is pickled is how it is made.
    """

    torch_device: torch.device
    native: Device = field(compare=False, repr=False)
    _made: tuple[Callable[..., Place | None], tuple[Any, ...]] = field(repr=False)

    def stream(self) -> int:
        """The address of torch's current stream of this device, 0 on the host."""
        if self.torch_device.type != "cuda":
            return 0
        return torch.cuda.current_stream(self.torch_device).cuda_stream

    def empty(self, nbytes: int) -> Tensor:
        """Allocate uint8 [nbytes] with torch's allocator, aligned to 16 bytes; not initialised."""
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)
        if memory.data_ptr() % _ALIGNMENT == 0:
            return memory
        memory = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=self.torch_device)
        begin = -memory.data_ptr() % _ALIGNMENT
        return memory[begin : begin + nbytes]

    def empty_host(self, nbytes: int) -> Tensor:
        """Allocate uint8 [nbytes] in memory of the host that the device reads and writes where it lies.

        Raises:
            RuntimeError: so much can't be pinned.
        """
        if self.torch_device.type == "cuda":
            return empty_pinned(nbytes, self.torch_device)
        return self.empty(nbytes)

    def __copy__(self) -> Place:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Place:
        return self

    def __reduce__(self) -> Any:
        return self._made


def place_of(device: torch.device | str | int | Place | None) -> Place | None:
    """Return the place of a device; None for the CPU, whose tables have an engine of their own.

    `device`: as torch takes it (an int is a GPU, "cuda" torch's current one), None for the CPU, or a place.

    Raises:
        RuntimeError: there is no such GPU, or none that this build can use; the message says why.
        ValueError: a device that is neither the CPU nor a GPU of CUDA.
    """
    if device is None or isinstance(device, Place):
        return device
    asked = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if asked.type == "cpu":
        return None
    if asked.type != "cuda":
        raise ValueError(f"device: expected cpu or cuda, got {asked}")
    reason = cuda.why_not(asked.index)
    if reason is None and not torch.cuda.is_available():
        reason = "torch has no CUDA, or finds no GPU"
    if reason is not None:
        raise RuntimeError(f"device {asked}: {reason}")
    return _gpu(torch.cuda.current_device() if asked.index is None else asked.index)


def _gpu(index: int) -> Place:
    with _lock:
        if index not in _gpus:
            torch_device = torch.device("cuda", index)
            torch.cuda.init()  # type: ignore[no-untyped-call]
            _gpus[index] = Place(torch_device, _native.cuda_device(index), (place_of, (str(torch_device),)))
        return _gpus[index]


def host_place(lanes: int = 8, seed: int = 0) -> Place:
    """Return a place whose kernels run on the host, over CPU memory: what tests hand on as `device`.

    Groups have 1, 8 or 32 `lanes`; `seed`: of the order in which they run.

    Raises:
        RuntimeError: a build without the host device.
    """
    if not hasattr(_native, "host_device"):
        raise RuntimeError("host_place: this build has no device on the host (CPR_HOST_DEVICE=ON)")
    native = _native.host_device(lanes, seed, deferred=False)
    return Place(torch.device("cpu"), native, (host_place, (lanes, seed)))


def describe_on(place: Place, x: Tensor) -> TensorRef:
    """Return `(address, shape, dtype name)` of `x`, memory of the place's device; nothing is copied.

    Work that is given the reference needs the memory until it has ended.

    Args:
        place: where `x` must lie.
        x: C-contiguous tensor, any shape.

    Raises:
        TypeError: `x` isn't a tensor.
        ValueError: not contiguous, or on another device.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a torch tensor, got {type(x).__name__}")
    if x.device != place.torch_device:
        raise ValueError(f"expected a tensor on device {place.torch_device}, got one on device {x.device}")
    if not x.is_contiguous():
        raise ValueError(f"expected a contiguous tensor, got layout {x.layout}, shape {tuple(x.shape)}")
    return x.data_ptr(), x.shape, dtype_name(x.dtype)
