"""`ChainsWriter`: what the writers of a checkpoint directory share, whichever of its chains they write."""

from __future__ import annotations

from contextlib import AbstractContextManager

from cpr_native.store.chain_writer import ChainWriter
from cpr_native.store.housekeeping import Housekeeping


class ChainsWriter:
    """The chains that one process writes, and their upkeep. Not shared between threads."""

    _chains: list[ChainWriter]
    housekeeping: Housekeeping

    def permits(self, kind: str) -> bool:
        """Whether a save of `kind` may be made now, as far as this process can tell.

        A base always, a delta only after a base of this history, a priority save in a fresh directory or once
        attached to its history by `rollback` or a base.
        """
        return all(chain.permits(kind) for chain in self._chains)

    def require_base(self) -> None:
        """Makes deltas be refused until the next base: after a restore whose plan was `broken`."""
        for chain in self._chains:
            chain.require_base()

    def go_on(self) -> None:
        """Attaches to the history as it is: memory holds its rows, and what changed since is dirty."""
        for chain in self._chains:
            chain.go_on()

    def paused(self) -> AbstractContextManager[None]:
        """In the block nothing is folded or removed in the background: for a restore from this directory."""
        return self.housekeeping.paused()
