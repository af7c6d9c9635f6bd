"""What the failures of a job cost it: lost lookups and the portion of lost lookups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpr_native.recovery.ledger import LookupLedger


class Losses:
    """Adds up lost lookups / all lookups of the job: what the paper's PLS is for a priority policy too.

    Saving everything, that is the paper's portion of lost samples but for how evenly the shards are used. It
    predicts the loss of quality better (docs/results/cpr.md), and a priority policy has no last complete save
    to count samples from. `ledger`: counts lookups; `total_samples`: of the whole job.
    """

    def __init__(self, ledger: LookupLedger, *, total_samples: int) -> None:
        self._ledger = ledger
        self._total_samples = total_samples
        self._pls = 0.0

    @property
    def pls(self) -> float:
        """The portion lost so far."""
        return self._pls

    def shards_lost(self, failed: Sequence[int], *, samples: int) -> tuple[int, float]:
        """Enter a partial recovery after `samples` samples; return the lookups lost and what it added."""
        lookups = self._ledger.lose(failed)
        return lookups, self._add(lookups, samples)

    def restarted(self, info: Mapping[str, Any], *, samples: int) -> tuple[int, float]:
        """Enter a restart from the commit with `info`; return what `shards_lost` does.

        Only lookups before that commit that no commit contains are lost: later ones are trained again.
        """
        self._pls = info["pls"]
        lookups: int = info["unsaved_lookups"]
        return lookups, self._add(lookups, samples)

    def reattached(self, pls: float) -> None:
        """Go on from a PLS of before: nothing was lost."""
        self._pls = pls

    def _add(self, lookups: int, samples: int) -> float:
        pls = self._ledger.fraction(lookups) * samples / self._total_samples
        self._pls += pls
        return pls
