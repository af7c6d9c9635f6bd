"""One engine's work in the order in which it was given, whatever torch's current stream is at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_native.device.place import Place


class StreamOrder:
    """Gives the stream for the next call: torch's current one, after what the last one was given.

    `held`: the engine's memory, which torch's allocator may not hand out again before the work of every
    stream that used it has ended. One thread at a time. In the capture of a CUDA graph nothing waits: what
    was given before the capture has ended, and replays are ordered by who replays.
    """

    def __init__(self, place: Place, held: Callable[[], Sequence[Tensor]]) -> None:
        self._place = place
        self._held = held
        self._last: torch.cuda.Stream | None = None
        if place.torch_device.type == "cuda":
            self._last = torch.cuda.current_stream(place.torch_device)

    def stream(self) -> int:
        """Return the address of torch's current stream, 0 on the host."""
        if self._last is None:
            return 0
        current = torch.cuda.current_stream(self._place.torch_device)
        if current != self._last and not torch.cuda.is_current_stream_capturing():
            current.wait_stream(self._last)
            for tensor in self._held():
                tensor.record_stream(current)
            self._last = current
        return current.cuda_stream
