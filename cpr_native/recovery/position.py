"""A loader with a data position, whatever the loader below it can do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

import torch

from cpr_native.recovery.dense import Stateful, rng_state, set_rng_state

Batch = TypeVar("Batch")


class ResumableLoader(Generic[Batch]):
    """Iterates `loader` for `epochs` epochs and can be put back to any position while a loop runs over it.

    A loader with `state_dict()` / `load_state_dict()` (torchdata's StatefulDataLoader) keeps its own
    position. Any other is counted in batches: going back starts its epoch again from the RNG state of that
    time and passes over the batches already seen, so it must give the same batches for the same RNG state.
    After `load_state_dict` the running loop goes on from the new position; opening the loader then leaves
    the RNG state as it was.
    """

    def __init__(self, loader: Iterable[Batch], *, epochs: int = 1) -> None:
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        self._loader = loader
        self._epochs = epochs
        self._epoch = 0
        self._batches = 0
        self._epoch_rng: dict[str, Any] | None = None
        self._rewinds = 0
        self._reopen = False

    def __iter__(self) -> Iterator[Batch]:
        while self._epoch < self._epochs:
            rewinds = self._rewinds
            for batch in self._open():
                self._batches += 1
                yield batch
                if rewinds != self._rewinds:
                    break
            else:
                self._epoch += 1
                self._batches = 0
                self._epoch_rng = None

    def _generator(self) -> torch.Generator | None:
        generator = getattr(self._loader, "generator", None)
        return generator if isinstance(generator, torch.Generator) else None

    def _open(self) -> Iterator[Batch]:
        """Open the loader at the position, with the RNG state untouched when going back."""
        reopen, self._reopen = self._reopen, False
        if isinstance(self._loader, Stateful):
            if not reopen:
                return iter(self._loader)
            now = rng_state()
            batches = iter(self._loader)
            set_rng_state(now)
            return batches
        generator = self._generator()
        if self._epoch_rng is None:
            own = None if generator is None else generator.get_state()
            self._epoch_rng = {**rng_state(), "generator": own}
            return iter(self._loader)
        now = rng_state()
        set_rng_state(self._epoch_rng)
        if generator is not None:
            generator.set_state(self._epoch_rng["generator"])
        batches = iter(self._loader)
        deque(islice(batches, self._batches), maxlen=0)
        set_rng_state(now)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch handed out last, as plain values and tensors."""
        generator = self._generator()
        return {
            "epoch": self._epoch,
            "batches": self._batches,
            "epoch_rng": self._epoch_rng,
            "generator": None if generator is None or self._epoch_rng else generator.get_state(),
            "loader": self._loader.state_dict() if isinstance(self._loader, Stateful) else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a position of `state_dict`; raises ValueError when a loader of another kind made it."""
        stateful = isinstance(self._loader, Stateful)
        if stateful != (state_dict["loader"] is not None):
            raise ValueError(f"the position was saved {'without' if stateful else 'with'} a stateful loader")
        self._epoch, self._batches = state_dict["epoch"], state_dict["batches"]
        self._epoch_rng = state_dict["epoch_rng"]
        generator = self._generator()
        if generator is not None and state_dict["generator"] is not None:
            generator.set_state(state_dict["generator"])
        if isinstance(self._loader, Stateful):
            self._loader.load_state_dict(state_dict["loader"])
        self._reopen = True
        self._rewinds += 1
