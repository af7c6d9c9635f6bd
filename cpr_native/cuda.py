"""Whether there is a GPU that this build can use, and if not, why: named as in `torch.cuda`.

The first call that looks for devices initialises the NVIDIA driver, where there is one, in this process. A
child made by `os.fork` after that can't use the GPU; processes that are started anew (`spawn`) can.
"""

from __future__ import annotations

from cpr_native import _native

__all__ = [
    "device_count",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "is_available",
    "is_built",
    "why_not",
]


def is_built() -> bool:
    """Return whether this build of the package has the CUDA engine; looks for no device."""
    return _native.cuda_build()[0] != 0


def get_arch_list() -> list[str]:
    """Return the GPU generations that this build has machine code (`sm_90`) or PTX (`compute_90`) for."""
    targets = (target.split("-") for target in _native.cuda_build()[1])
    return [("compute_" if kind == "virtual" else "sm_") + number for number, kind in targets]


def device_count() -> int:
    """Return the number of GPUs that the driver shows to this process; 0 without the CUDA engine."""
    return len(_native.cuda_driver()[2])


def why_not(device: int | None = None) -> str | None:
    """Return why `device` can't be used, or with None why no GPU can; None if it can.

    `device`: CUDA's index, as in `torch.device("cuda", index)`.
    """
    _, reason, devices = _native.cuda_driver()
    if not devices:
        return reason
    if device is None:
        reasons = [f"GPU {index} ({found[0]}): {found[4]}" for index, found in enumerate(devices)]
        return None if any(not found[4] for found in devices) else "; ".join(reasons)
    if not 0 <= device < len(devices):
        return f"GPU {device}: expected an index below {len(devices)}, the number of GPUs"
    return f"GPU {device} ({devices[device][0]}): {devices[device][4]}" if devices[device][4] else None


def is_available() -> bool:
    """Return whether there is a GPU that this build can use; `why_not` tells why not."""
    return why_not() is None


def get_device_name(device: int = 0) -> str:
    """Return the name of a GPU.

    Raises:
        RuntimeError: there is no GPU; the message says why.
        IndexError: there is no GPU of this index.
    """
    return _device(device)[0]


def get_device_capability(device: int = 0) -> tuple[int, int]:
    """Return the compute capability of a GPU, (9, 0) say; raises as `get_device_name` does."""
    return _device(device)[1:3]


def _device(index: int) -> tuple[str, int, int, int, str]:
    _, reason, devices = _native.cuda_driver()
    if not devices:
        raise RuntimeError(reason)
    if not 0 <= index < len(devices):
        raise IndexError(f"device: expected an index below {len(devices)}, the number of GPUs, got {index}")
    return devices[index]
