"""The torch optimizers of a job as parts of its dense state, less what is saved with the table rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer


class RowStates(Protocol):
    """Whose optimizers' state of a row is saved with the row (an `Attachment`)."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that train the tables."""
        ...

    def pack(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[int, list[str]]]:
        """Return the state dict without the rows' state, and what was left out."""
        ...

    def unpack(self, optimizer: Optimizer, packed: dict[str, Any], rows: dict[int, list[str]]) -> None:
        """Load what `pack` returned."""
        ...


def capture(optimizer: Optimizer | None, rows: RowStates | None) -> dict[str, Any] | None:
    """Return the state of `optimizer` that is not of table rows; values alias the optimizer's."""
    if optimizer is None:
        return None
    if rows is None:
        return optimizer.state_dict()
    state, left_out = rows.pack(optimizer)
    return {**state, "rows": left_out}


def restore(optimizer: Optimizer, state: Mapping[str, Any], rows: RowStates | None) -> None:
    """Load what `capture` returned; state of table rows has memory then, but no values yet."""
    packed = dict(state)
    left_out = packed.pop("rows", {})
    if rows is None:
        optimizer.load_state_dict(packed)
    else:
        rows.unpack(optimizer, packed, left_out)


def check(what: str, optimizer: Optimizer, state: Mapping[str, Any], saved_class: str) -> None:
    """Raise ValueError unless `state`, of an optimizer of `saved_class`, fits `optimizer`."""
    expected = class_of(optimizer)
    if saved_class != expected:
        raise ValueError(f"the {what} is a {expected} here, a {saved_class} in the checkpoint")
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (optimizer.param_groups, state["param_groups"])
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the {what}'s groups have {sizes[0]} parameters here, {sizes[1]} in the checkpoint")


def class_of(member: object) -> str | None:
    """Return the full name of its class, None for None."""
    return None if member is None else f"{type(member).__module__}.{type(member).__qualname__}"
