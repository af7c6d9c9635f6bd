"""What the failures of a job cost it: lost lookups and the portion of lost samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpr_native.overhead import PlsMeter
from cpr_native.recovery.ledger import LookupLedger


class Losses:
    """Adds up the portion of lost samples over a job.

    `ledger`: counts lookups; `total_samples`: of the whole job; `shards`: their number; `by_lookups`: the
    measure is lost lookups / all lookups of the job, as a priority policy has no last complete save;
    otherwise the paper's PLS.
    """

    def __init__(self, ledger: LookupLedger, *, total_samples: int, shards: int, by_lookups: bool) -> None:
        self._ledger = ledger
        self._meter = PlsMeter(total_samples=total_samples, shards=shards)
        self._by_lookups = by_lookups

    @property
    def pls(self) -> float:
        """The portion of lost samples so far."""
        return self._meter.value

    def shards_lost(self, failed: Sequence[int], *, samples: int, saved_samples: int) -> tuple[int, float]:
        """Enter a partial recovery; return the lookups lost and what it added to the PLS.

        `samples`: trained so far; `saved_samples`: the same at the last complete save.
        """
        lookups = self._ledger.lose(failed)
        if self._by_lookups:
            return lookups, self._add(lookups, samples)
        pls = self._meter.add(failed_shards=len(failed), samples_now=samples, samples_saved=saved_samples)
        return lookups, pls

    def restarted(self, info: Mapping[str, Any], *, samples: int) -> tuple[int, float]:
        """Enter a restart from the commit with `info`; return what `shards_lost` does.

        Only lookups before that commit that no commit contains are lost: later ones are trained again.
        """
        self._meter.value = info["pls"]
        lookups: int = info["unsaved_lookups"]
        return lookups, self._add(lookups, samples)

    def _add(self, lookups: int, samples: int) -> float:
        pls = self._ledger.fraction(lookups) * samples / self._meter.total_samples
        self._meter.value += pls
        return pls
