"""The torch optimizer's state of a table's rows: bound to the engine, left out of state dicts."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cpr_native._native import Collection
from cpr_native._tensor import describe
from cpr_native.attachment._layout import Layout, layout_of
from cpr_native.attachment._tables import AttachedTable
from cpr_native.modules._memory import memory_of
from cpr_native.modules._watch import group_of


class RowState:
    """The state of one table's rows in the torch optimizer that trains it.

    `layout` None: it may have rows nobody knows of (see `layout_of`), so all of it stays in the dense state.
    Torch makes state at the first step; until then its initial value is what the engine saves. `untrained`:
    no optimizer steps the weight. Holds the optimizer weakly.
    """

    def __init__(
        self, table: AttachedTable, index: int, optimizer: Optimizer | None, *, untrained: bool
    ) -> None:
        weight = table.synced_weight()
        group = None if optimizer is None else group_of(optimizer, weight)
        self._table, self._index = table, index
        self._optimizer = None if optimizer is None or group is None else weakref.ref(optimizer)
        self.layout: Layout | None = None
        if optimizer is not None and group is not None:
            self.layout = layout_of(optimizer, group, weight, sparse=table.sparse)
        elif untrained or not weight.requires_grad:
            self.layout = ()
        self._untrained = untrained
        self._stranger: str | None = None
        self._seen: list[Tensor | None] = []
        self._bound: list[int] | None = None

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that has this state; None without one.

        Raises ValueError when it is gone.
        """
        if self._optimizer is None:
            return None
        optimizer = self._optimizer()
        if optimizer is None:
            raise ValueError(
                f"table {self._table.name!r}: the optimizer it was attached with is gone: detach and attach "
                "the model with the new one"
            )
        return optimizer

    def of(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` has this state."""
        return self._optimizer is not None and self._optimizer() is optimizer

    def stepped(self, optimizer: Optimizer) -> None:
        """Note that `optimizer` updated the weight; `bind` raises when it isn't the one with this state."""
        if (self._untrained or self._optimizer is not None) and not self.of(optimizer):
            self._stranger = type(optimizer).__name__

    def replaced(self, *, by_step: bool = False) -> bool:
        """Whether torch's tensors are others than at the last call, so that any row may have changed.

        `by_step`: a step has just run; those that it made, where there were none, don't count.
        """
        now, before = self.tensors(), self._seen
        self._seen = now
        return any(
            _address(new) != _address(old) and not (by_step and old is None)
            for new, old in itertools.zip_longest(now, before)
        )

    def tensors(self) -> list[Tensor | None]:
        """Torch's state tensors in the layout's order; None for one that isn't there yet."""
        weight = self._table.weight()
        optimizer = None if self._optimizer is None else self._optimizer()
        if not self.layout or weight is None or optimizer is None:
            return []
        entry = optimizer.state.get(weight, {})
        return [entry.get(column.name) for column in self.layout]

    def bind(self, engine: Collection) -> None:
        """Make torch's tensors the engine's state of the rows; initial values where there are none yet.

        Raises ValueError when the state isn't what the layout says.
        """
        self._check_layout()
        given = self.tensors()
        addresses = [_address(tensor) for tensor in given]
        if not self.layout or addresses == self._bound:
            return
        weight = self._table.synced_weight()
        states = []
        for column, tensor in zip(self.layout, given, strict=True):
            if tensor is None:
                rows = self._table.part(weight)
                states.append(
                    torch.full_like(rows, column.initial) if column.initial else torch.zeros_like(rows)
                )
            else:
                self._check_tensor(column.name, tensor, weight)
                states.append(self._table.part(tensor))
        engine.bind_state(self._index, [describe(state) for state in states], states)
        self._bound = addresses

    def _check_layout(self) -> None:
        optimizer = self.optimizer
        if self._stranger is not None:
            told = "none that" if optimizer is None else f"the {type(optimizer).__name__}"
            raise ValueError(
                f"table {self._table.name!r}: another optimizer ({self._stranger}) updated it than {told} "
                "it was attached with: detach and attach the model with the new one"
            )
        if optimizer is None or self.layout is None:
            return
        weight = self._table.synced_weight()
        group = group_of(optimizer, weight)
        if group is None:
            raise ValueError(
                f"table {self._table.name!r}: the optimizer doesn't hold its weight any more: detach and "
                "attach the model anew"
            )
        now = layout_of(optimizer, group, weight, sparse=self._table.sparse)
        expected = [column.name for column in self.layout]
        names = None if now is None else [column.name for column in now]
        if names != expected:
            raise ValueError(
                f"table {self._table.name!r}: optimizer state: expected {expected} as when it was attached, "
                f"got {names}: its options changed, detach and attach the model anew"
            )

    def _check_tensor(self, name: str, tensor: object, weight: Tensor) -> None:
        where = f"table {self._table.name!r}: optimizer state {name!r}"
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dtype != torch.float32:
            raise ValueError(
                f"{where}: expected a dense float32 tensor, got {getattr(tensor, 'dtype', tensor)!r}"
            )
        if tensor.shape != weight.shape:
            raise ValueError(f"{where}: expected shape {tuple(weight.shape)}, got {tuple(tensor.shape)}")
        memory_of(where, tensor)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def pack(optimizer: Optimizer, states: Sequence[RowState]) -> tuple[dict[str, Any], dict[int, list[str]]]:
    """`optimizer.state_dict()` without the state that the engine saves by rows, and what was left out.

    The second is the names left out for each number of a parameter. Values alias the optimizer's.
    """
    packed = optimizer.state_dict()
    entries = dict(packed["state"])
    rows: dict[int, list[str]] = {}
    for number, state in _numbered(optimizer, states):
        names = {column.name for column in state.layout or ()}
        entry = entries.get(number)
        if entry is not None and names:
            entries[number] = {key: value for key, value in entry.items() if key not in names}
            rows[number] = sorted(key for key, value in entry.items() if key in names and value is not None)
    return {**packed, "state": entries}, rows


def unpack(
    optimizer: Optimizer, states: Sequence[RowState], packed: dict[str, Any], rows: dict[int, list[str]]
) -> None:
    """Load what `pack` returned; left-out state keeps its memory, or gets some, and holds no values yet."""
    entries = dict(packed["state"])
    for number, state in _numbered(optimizer, states):
        weight = state._table.synced_weight()
        current = optimizer.state.get(weight, {})
        for name in rows.get(number, []):
            tensor = current.get(name)
            entries[number] = {
                **entries[number],
                name: torch.zeros_like(weight) if tensor is None else tensor,
            }
    optimizer.load_state_dict({**packed, "state": entries})


def _numbered(optimizer: Optimizer, states: Sequence[RowState]) -> list[tuple[int, RowState]]:
    """A state of each weight that `optimizer` has, with the weight's number in its state dict."""
    parameters = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    by_number = {
        parameters.index(id(state._table.synced_weight())): state for state in states if state.of(optimizer)
    }
    return list(by_number.items())
