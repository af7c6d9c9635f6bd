"""A sequence of any length in bounded memory: means of equally many consecutive values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Series:
    """Means of `stride` consecutive values, fewer than `capacity` of them; the stride doubles when full.

    What is kept is a function of the sequence alone, however it was handed over. `capacity`: even.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 16 or capacity % 2:
            raise ValueError(f"window must be an even number of at least 16, got {capacity}")
        self._capacity = capacity
        self._means: list[float] = []
        self._open: list[float] = []
        self.stride = 1

    def __len__(self) -> int:
        """Return the number of values seen."""
        return len(self._means) * self.stride + len(self._open)

    def extend(self, values: Iterable[float]) -> None:
        """Add values in order."""
        for value in values:
            self._open.append(value)
            if len(self._open) == self.stride:
                self._means.append(sum(self._open) / self.stride)
                self._open = []
                if len(self._means) == self._capacity:
                    self._means = [
                        (a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)
                    ]
                    self.stride *= 2

    @property
    def means(self) -> NDArray[np.float64]:
        """The means of the full strides, in order."""
        return np.array(self._means)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"means": list(self._means), "open": list(self._open), "stride": self.stride}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError for anything else, with nothing changed."""
        means, rest = [float(v) for v in state["means"]], [float(v) for v in state["open"]]
        stride = int(state["stride"])
        fits = stride >= 1 and len(rest) < stride and len(means) < self._capacity
        if not fits or not np.isfinite([*means, *rest]).all():
            raise ValueError(
                f"not the state of a series of {self._capacity}: {len(means)} means, {len(rest)} open, "
                f"stride {stride}"
            )
        self._means, self._open, self.stride = means, rest, stride
