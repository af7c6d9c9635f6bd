"""`Attachment`: an engine that tracks tables it doesn't own."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.attachment._lookups import ForwardHook, Lookups, without_padding
from cpr_native.attachment._owner import disown, own, owner_of
from cpr_native.attachment._state import RowState, pack, unpack
from cpr_native.attachment._steps import holder_of, step_begins, step_ended, weights_of
from cpr_native.attachment._tables import AttachedTable, EmbeddingModule
from cpr_native.errors import CprError, SnapshotInProgress
from cpr_native.modules._plan import EnginePlan
from cpr_native.modules._watch import watch_optimizers

if TYPE_CHECKING:
    from cpr_native.modules._base import UpdateObserver


class Attachment:
    """What `attach` returns: an engine that tracks the tables of a model without owning them.

    A table is an embedding weight by its rows or, with `blocks`, another parameter by blocks of its elements;
    "row" means either.

    Trackers run if and only if an update follows: a lookup counts when an optimizer's step has used its
    gradient, whatever `training` is; not under `no_grad`, without a backward, or for a step that AMP skipped.
    Rows become dirty as the step ends, those of the gradient (sparse indices, nonzero rows of a dense one)
    where the optimizer leaves all others alone for certain: SGD without momentum, Adagrad and SparseAdam,
    without weight decay and fused kernels. After any other step of any optimizer, a write that torch saw, or
    a weight or state tensor that was replaced, all rows of the table are dirty; `max_norm` marks the rows
    looked up. Writes that torch doesn't see (`weight.data`, NumPy views, a row of optimizer state) must be
    announced with `mark_dirty`.

    A copy of the model isn't attached. A context manager that detaches.
    """

    fused = False

    def __init__(
        self, tables: Sequence[AttachedTable], plan: EnginePlan, optimizers: tuple[Optimizer, ...] | None
    ) -> None:
        self._tables = tuple(tables)
        self._plan = plan
        given = optimizers or ()
        holders = [holder_of(table, given) for table in tables]
        self._states = [
            RowState(table, i, holders[i], untrained=optimizers == ()) for i, table in enumerate(tables)
        ]
        self._optimizers = [weakref.ref(o) for o in given if any(state.of(o) for state in self._states)]
        self._addresses, self._versions = [0] * len(tables), [0] * len(tables)
        self._lookups = [Lookups() for _ in tables]
        self._observer: UpdateObserver | None = None
        self._hooked: list[tuple[nn.Parameter, Callable[[], None]] | None] = [None] * len(tables)
        self._unwatch: Callable[[], None] | None = None
        self._engine = plan.collection()
        self.sync()
        for index, table in enumerate(tables):
            for module in table.modules:
                ForwardHook(functools.partial(self._looked_up, index)).put_on(module)
            for module in table.holding:
                own(module, self)
        self._unwatch = watch_optimizers(self, weights_of, step_ended, step_begins)

    @property
    def engine(self) -> _native.Collection:
        """The native engine; call `sync()` before handing it on if a weight may have changed."""
        return self._engine

    @property
    def plan(self) -> EnginePlan:
        """The settings from which the engine was built."""
        return self._plan

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The torch optimizers passed to `attach` that train tables, as far as they still exist."""
        alive = (reference() for reference in self._optimizers)
        return tuple(optimizer for optimizer in alive if optimizer is not None)

    @property
    def table_names(self) -> list[str]:
        """The tables in the engine's order: `encoder-items` for the weight of the embedding `encoder.items`.

        Other parameters are named as in `state_dict()`, with `-` for `.`; a short last block, `<name>-tail`.
        """
        return [table.name for table in self._tables]

    @property
    def looked_up(self) -> list[bool]:
        """Which tables are embedding weights, whose lookups are counted and sampled, in that order."""
        return [table.looked_up for table in self._tables]

    @property
    def attached(self) -> bool:
        """Whether the model is still tracked."""
        return self._unwatch is not None

    def memory(self) -> dict[str, int]:
        """Bytes the trackers take: `metadata` (8 a row), `ssu` and, at present, `staging`; `weight` is 0."""
        return self._engine.memory()

    def mark_dirty(self, table: str, rows: Tensor | Sequence[int] | None = None) -> None:
        """Announce that `rows` (ids, or None for all) of a table were written behind torch's back.

        Raises:
            KeyError: no such table.
            IndexError: a row out of range.
        """
        index = self._index(table)
        if rows is None:
            self._engine.mark_dirty(index)
            return
        ids = torch.as_tensor(rows, dtype=torch.int64, device="cpu").reshape(-1).contiguous()
        self._engine.mark_dirty(index, describe(ids))

    def keep_saved(self, keep: bool = True) -> None:
        """Keep a copy of all tables as they are now, for `changes`, or give its memory back.

        A manager with `Scar` does that itself. Every save that is committed enters its rows. Raises
        SnapshotInProgress while a save is in flight.
        """
        self.sync()
        for index in range(len(self._tables)):
            self._engine.keep_saved(index, keep)

    def changes(self, table: str, metric: Literal["l2", "l1", "tv"] = "l2") -> NDArray[np.float32]:
        """How far each row of a table is from its copy as last saved, by its weight, float32 [rows].

        `metric`: "l2", "l1", or "tv", the total variation 0.5 * sum |a / sum(a) - b / sum(b)|, for rows of
        numbers from 0 on (those of a row that sums to 0 count as 0). What isn't finite, and a row whose
        save failed, is the largest float. The same bits on every machine, for any number of threads.

        Raises:
            KeyError: no such table.
            ValueError: no copy is kept, which `keep_saved` or a manager with `Scar` does.
            SnapshotInProgress: a save is in flight.
        """
        index = self._index(table)
        self.sync()
        return self._engine.changes(index, metric, threads=len(os.sched_getaffinity(0)))

    def keys(self, model: nn.Module) -> frozenset[str]:
        """The entries of `model.state_dict()` that are tables, tied ones under every name."""
        weights = {id(table.synced_weight()) for table in self._tables}
        state = model.state_dict(keep_vars=True)
        return frozenset(key for key, value in state.items() if id(value) in weights)

    def incomplete_rows(self) -> str | None:
        """Why a row can't be restored alone, with its optimizer state; None if every table's can."""
        for table, state in zip(self._tables, self._states, strict=True):
            if state.layout is None:
                held = (
                    "an optimizer passed to attach() (or pass optimizer=(), if none trains the model)"
                    if state.optimizer is None
                    else "one whose state has rows (a known class, or its state there already when attached; "
                    "float32, dense momentum)"
                )
                return f"table {table.name!r} isn't trained by {held}"
        return None

    def sync(self) -> None:
        """Take weights and optimizer state as they are now, marking all rows of what was replaced or written.

        Raises:
            CprError: detached.
            ValueError, TypeError: a weight or state that can't be tracked any more.
        """
        if self._unwatch is None and any(self._addresses):
            raise CprError("the attachment was detached: attach the model anew")
        weights = [table.synced_weight() for table in self._tables]
        for index, weight in enumerate(weights):
            if weight.data_ptr() != self._addresses[index]:
                rows = self._tables[index].part(weight)
                self._engine.bind_weight(index, describe(rows), rows)
                self._addresses[index] = weight.data_ptr()
                self._engine.mark_dirty(index)
            elif weight._version != self._versions[index] or self._states[index].replaced():
                self._engine.mark_dirty(index)
            self._versions[index] = weight._version
        try:
            for state in self._states:
                state.bind(self._engine)
        except SnapshotInProgress:
            return  # it has its copies; the next one begins with a sync

    def observe_updates(self, observer: UpdateObserver | None) -> None:
        """Call `observer` with the lookups of each update and then what it returned; None ends it.

        The request holds the ids of every table as one bag of one feature.
        """
        self._observer = observer

    def optimizer_scalars(self) -> dict[str, Any]:
        """What the engine needs to go on, as JSON values: `step`."""
        return {"step": self._engine.step}

    def load_optimizer_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back what `optimizer_scalars` returned."""
        self._engine.step = scalars["step"]

    def pack(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[int, list[str]]]:
        """`optimizer.state_dict()` less the state saved by rows, and what that is, by parameter number."""
        return pack(optimizer, self._states)

    def unpack(self, optimizer: Optimizer, packed: dict[str, Any], rows: dict[int, list[str]]) -> None:
        """Load what `pack` returned into `optimizer`; the rows' state has memory then, but no values yet."""
        unpack(optimizer, self._states, packed, rows)

    def detach(self) -> None:
        """Stop tracking and remove every hook; a second call does nothing. The engine stays readable."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch = None
        for table in self._tables:
            for module in table.holding:
                if owner_of(module) is self:
                    disown(module)
                    ForwardHook.take_off(module)
        for hooked in self._hooked:
            if hooked is not None:
                hooked[1]()
        self._hooked = [None] * len(self._tables)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an attachment belongs to its model: attach the copy")

    def _index(self, table: str) -> int:
        if table not in self.table_names:
            raise KeyError(f"no table {table!r}, expected one of {self.table_names}")
        return self.table_names.index(table)

    def _looked_up(self, index: int, module: nn.Module, ids: Tensor, output: Any) -> None:
        assert isinstance(module, EmbeddingModule)
        weight = module._parameters.get("weight")
        if weight is None or weight.data_ptr() != self._addresses[index]:
            return  # not the table's: torch.func.functional_call, or moved and not yet taken over
        if module.max_norm is not None:
            self._renormalised(index, weight, ids)
        counted = self._plan.trackers[index].mfu or self._plan.trackers[index].ssu
        if counted and torch.is_grad_enabled() and weight.requires_grad and output.requires_grad:
            self._follow(index, weight)
            self._lookups[index].looked_up(weight, without_padding(ids, module.padding_idx), output)

    def _renormalised(self, index: int, weight: Tensor, ids: Tensor) -> None:
        if weight._version == self._versions[index] + 1:
            rows = ids.detach().reshape(-1).to(torch.int64).contiguous()
            self._engine.mark_dirty(index, describe(rows))
            self._versions[index] = weight._version

    def _follow(self, index: int, weight: nn.Parameter) -> None:
        """Hear of gradients that reach `weight`."""
        hooked = self._hooked[index]
        if hooked is not None and hooked[0] is weight:
            return
        if hooked is not None:
            hooked[1]()
        hook = self._lookups[index].accumulated
        handle = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._hooked[index] = (weight, handle.remove)
