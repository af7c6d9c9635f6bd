"""Who sends to shards, what was sent, and what became of it when a shard was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.handle import Pending
from cpr_native.cluster.messages import Ack, RowIds


@dataclass(frozen=True, kw_only=True)
class ShardLoss:
    """A life of a shard ended, and the next one goes on.

    `incarnation`: of the next one. `lost_steps`: steps of this rank that were acknowledged and are not in the
    rows of the next; `lost_lookups`: the lookups whose updates they were. `resent`: updates that were sent
    again, to be applied once, of `resent_lookups`. `seconds`: from when the loss was noticed.
    """

    shard: int
    incarnation: int
    lost_steps: int
    lost_lookups: int
    resent: int
    resent_lookups: int
    seconds: float


@dataclass(kw_only=True)
class Sender:
    """Who sends, and how long it waits; shared by the links of one trainer."""

    rank: int
    ranks: int
    generation: int
    step: int  # whose update is to be sent next
    timeout: float
    patience: float
    window: int
    resumes: bool
    on_lost: Callable[[ShardLoss], None] | None


@dataclass(eq=False)
class SentUpdate:
    """One step's update of one shard; `pending` is its answer's, None before it is sent."""

    step: int
    rows: RowIds
    gradient: NDArray[np.float32]
    multiplicity: NDArray[np.uint32]
    pending: Pending[Ack] | None = None
    acknowledged: bool = False
