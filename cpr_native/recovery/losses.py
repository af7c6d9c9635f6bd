"""What the failures of a job cost it: lost lookups and the portion of lost lookups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpr_native.recovery.gang import ALONE, Agreement
from cpr_native.recovery.ledger import LookupLedger


class Losses:
    """Adds up lost lookups / all lookups of the job: what the paper's PLS is for a priority policy too.

    Saving everything, that is the paper's portion of lost samples but for how evenly the shards are used. It
    predicts the loss of quality better (docs/results/cpr.md), and a priority policy has no last complete save
    to count samples from. `ledger`: counts lookups; `total_samples`: of the whole job; `gang`: its processes
    count the lookups of their shard each, and enter every loss together.
    """

    def __init__(self, ledger: LookupLedger, *, total_samples: int, gang: Agreement = ALONE) -> None:
        self._ledger = ledger
        self._gang = gang
        self._total_samples = total_samples
        self._pls = 0.0

    @property
    def pls(self) -> float:
        """The portion lost so far."""
        return self._pls

    def shards_lost(self, failed: Sequence[int], *, samples: int) -> tuple[int, float]:
        """Enter a partial recovery after `samples` samples; return the lookups lost and what it added."""
        return self._add(self._ledger.lose(failed), samples)

    def enter(self, lookups: int, *, samples: int) -> float:
        """Enter the loss of `lookups` after `samples` samples; return the portion that it added."""
        return self._add(lookups, samples)[1]

    def own_shard_lost(self, info: Mapping[str, Any], *, at: int, samples: int) -> tuple[int, float]:
        """Enter the loss of the shard of this process, whose ledger died with it, after `samples` samples.

        `info`: of its newest commit, after `at` samples. Lookups since then are taken to have come as fast as
        those before: an estimate. Returns what `shards_lost` does.
        """
        total = info.get("lookups", 0)
        since = round(total / at * (samples - at)) if at else 0
        self._ledger.rewind(total + since)
        return self._add(info.get("unsaved_lookups", 0) + since, samples)

    def restarted(self, info: Mapping[str, Any], *, samples: int) -> tuple[int, float]:
        """Enter a restart from the commit with `info`; return what `shards_lost` does.

        Only lookups before that commit that no commit contains are lost: later ones are trained again.
        """
        self._pls = info["pls"]
        return self._add(info["unsaved_lookups"], samples)

    def reattached(self, pls: float) -> None:
        """Go on from a PLS of before: nothing was lost."""
        self._pls = pls

    def _add(self, lookups: int, samples: int) -> tuple[int, float]:
        of_all = self._gang.gather((lookups, self._ledger.total))
        lookups, total = (sum(each) for each in zip(*of_all, strict=True))
        pls = lookups / total * samples / self._total_samples if total else 0.0
        self._pls += pls
        return lookups, pls
