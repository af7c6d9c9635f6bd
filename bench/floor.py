"""The memory-bandwidth floor: bytes that a step must move, and how fast this machine copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import numpy as np
import torch
from shapes import Shape
from torch import Tensor

_BUFFER = 1 << 28
_REPEATS = 9


def step_bytes(shape: Shape, ids: Tensor, *, metadata: int) -> int:
    """Return the bytes that a step on `ids` must read and write.

    With n ids, u different rows (a row met again comes from a cache), B bags a feature and D output columns:

        8 n + 8 (tables * B + 1)        ids and offsets, read
        + 4 dim u                       rows for the lookup, read
        + 4 B D + 4 B D                 output, written; its gradient, read
        + 2 (4 dim + metadata) u        rows and their metadata for the update, read and written
    """
    parts = ids.view(shape.tables, -1)
    unique = sum(len(part.unique()) for part in parts)
    row = 4 * shape.dim
    output = 4 * shape.batch * shape.tables * shape.dim
    offsets = 8 * (shape.tables * shape.batch + 1)
    return 8 * ids.numel() + offsets + row * unique + 2 * output + 2 * (row + metadata) * unique


def copy_bandwidth(threads: int, *, size: int = _BUFFER) -> float:
    """Return bytes read + bytes written a second of the fastest copy there is: memcpy or torch's.

    The buffers are far larger than any cache; each of `threads` threads copies its part.
    """
    source, target = np.full(size, 1, np.uint8), np.full(size, 2, np.uint8)  # written: pages of their own
    pairs = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    tensors = torch.from_numpy(source), torch.from_numpy(target)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with ThreadPoolExecutor(threads) as pool:

        def memcpy() -> None:
            for copied in [pool.submit(np.copyto, part, origin) for origin, part in pairs]:
                copied.result()

        def torch_copy() -> None:
            tensors[1].copy_(tensors[0])

        seconds = min(median(_seconds(copy) for _ in range(_REPEATS)) for copy in (memcpy, torch_copy))
    torch.set_num_threads(before)
    return 2 * size / seconds


def _seconds(copy: object) -> float:
    begin = perf_counter()
    copy()  # type: ignore[operator]
    return perf_counter() - begin
