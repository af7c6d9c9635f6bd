"""One call to many shards at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from cpr_native.cluster.handle import Pending, ShardHandle
from cpr_native.cluster.messages import CutMissed
from cpr_native.errors import CprError


def within(seconds: float) -> Callable[[], float]:
    """Return a function that says how many of `seconds` from now are left, at least 0."""
    limit = monotonic() + seconds
    return lambda: max(0.0, limit - monotonic())


def ask(
    handles: Sequence[ShardHandle],
    send: Callable[[ShardHandle], Pending[Any]],
    timeout: Callable[[], float],
    *,
    stops: Callable[[], None] | None = None,
) -> tuple[dict[int, Any], dict[int, Exception]]:
    """Return what each shard answers, or what was raised; all are asked before the first answer is awaited.

    `timeout()`: seconds for the next answer, see `within`; `stops`: called at the first error.
    """
    sent: dict[int, Pending[Any]] = {}
    answers: dict[int, Any] = {}
    errors: dict[int, Exception] = {}

    def failed(shard: int, error: Exception) -> None:
        if not errors and stops is not None:
            stops()
        errors[shard] = error

    for handle in handles:
        try:
            sent[handle.shard] = send(handle)
        except (CprError, OSError, ValueError) as error:
            failed(handle.shard, error)
    for shard, pending in sent.items():
        try:
            answers[shard] = pending.result(timeout())
        except Exception as error:
            failed(shard, error)
    return answers, errors


def raise_all(what: str, errors: Mapping[int, Exception], kind: type[CprError] = CutMissed) -> None:
    """Raise `kind`, or the ValueError or TypeError that a shard raised: those are the caller's."""
    for error in errors.values():
        if isinstance(error, ValueError | TypeError) and not isinstance(error, CprError):
            raise error
    reasons = "; ".join(f"shard {s}: {type(e).__name__}: {e}" for s, e in sorted(errors.items()))
    raise kind(f"{what}: {reasons}") from next(iter(errors.values()))
