"""All of a job that is not a table row: dense parameters, their optimizer, RNG and data position."""

from __future__ import annotations

import copy
import io
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from cpr_native.modules import EmbeddingFusedOptimizer
from cpr_native.recovery import optimizers
from cpr_native.recovery.gang import ALONE, Agreement
from cpr_native.recovery.optimizers import RowStates, class_of

_OF_EACH = ("rng", "position")  # of every process, the rest is the same in all


@runtime_checkable
class Stateful(Protocol):
    """What can be saved: a loader with its data position, a learning-rate scheduler, a GradScaler, ..."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of now (of a loader: after the batch handed out last)."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to a state of `state_dict`."""
        ...


def rng_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's (global) and torch's generators as plain values and tensors."""
    own = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is meant
    key = torch.from_numpy(own["state"]["key"].astype(np.int64))
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": {**own, "state": {**own["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put the generators back to a state of `rng_state`."""
    random.setstate(state["python"])
    own = state["numpy"]
    key = own["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**own, "state": {**own["state"], "key": key}})  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


class DenseState:
    """Captures and restores the dense side of a job.

    `model`: its parameters and buffers except `table_keys` (keys of `model.state_dict()` that the engine
    owns); `optimizer`: of the dense parameters, or None; `loader`: gives the data position, or None;
    `app_state`: whatever else has state, by name; `row_states`: torch optimizers whose state of a table row
    is saved with the row; one alone is the dense optimizer too where none is given; `gang`: the RNG and data
    position of each of its processes are saved, all else is the same in all. Raises TypeError for an
    `app_state` that isn't that, ValueError for a fused optimizer of tables among them: it is saved with the
    rows.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        table_keys: Iterable[str],
        *,
        optimizer: torch.optim.Optimizer | None,
        loader: Stateful | None,
        app_state: Mapping[str, Stateful] | None = None,
        row_states: RowStates | None = None,
        gang: Agreement = ALONE,
    ) -> None:
        check_optimizer(optimizer)
        check_app_state(app_state or {})
        self._model = model
        self._table_keys = frozenset(table_keys)
        self.optimizer = optimizer
        self.loader = loader
        self.app_state = dict(app_state or {})
        self._row_states = row_states
        self._gang = gang
        if optimizer is None and row_states is not None and len(row_states.optimizers) == 1:
            self.optimizer = row_states.optimizers[0]

    @property
    def table_optimizers(self) -> list[torch.optim.Optimizer]:
        """The torch optimizers of attached tables but the dense one, which may train tables too."""
        states = self._row_states
        return [] if states is None else [each for each in states.optimizers if each is not self.optimizer]

    def _parameters(self) -> dict[str, torch.Tensor]:
        state = self._model.state_dict()
        return {key: value.detach() for key, value in state.items() if key not in self._table_keys}

    def capture(self) -> dict[str, Any]:
        """Return a copy of everything as of now; nothing in it aliases model, optimizer, loader or others.

        Tensors of a GPU are copied to memory of the host: a save is written by another thread, later.
        """
        state = self.alone()
        if self._gang.shards > 1:
            state["shards"] = self._gang.gather({name: state[name] for name in _OF_EACH})
        return state

    def alone(self) -> dict[str, Any]:
        """Return what `capture` does, of this process alone."""
        return {**host_copy(self.aliased()), "rng": rng_state()}

    def own(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of `capture` with what is this process's own in the place of the first one's.

        Raises ValueError for one that was captured by fewer processes.
        """
        of_each = state.get("shards", [{}])
        if self._gang.shard >= len(of_each):
            raise ValueError(
                f"the checkpoint has the data position of {len(of_each)} processes, this one is number "
                f"{self._gang.shard}"
            )
        return {**state, **of_each[self._gang.shard]}

    def aliased(self) -> dict[str, Any]:
        """Return what `capture` copies, less the RNG, as it is: it changes with the next step."""
        position = None if self.loader is None else self.loader.state_dict()
        return {
            "model": self._parameters(),
            "optimizer": optimizers.capture(self.optimizer, self._row_states),
            "optimizer_class": class_of(self.optimizer),
            "table_optimizers": [
                (class_of(each), optimizers.capture(each, self._row_states)) for each in self.table_optimizers
            ],
            "position": position,
            "app_state": {name: member.state_dict() for name, member in self.app_state.items()},
            "app_state_classes": {name: class_of(member) for name, member in self.app_state.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put everything back, parameters in place.

        Raises what `check` raises, or the loader or a member of `app_state` for a state that it cannot take,
        with nothing changed.
        """
        self.check(state)
        loaded: list[tuple[Stateful, dict[str, Any]]] = []
        try:
            for name, member in self.app_state.items():
                before = copy.deepcopy(member.state_dict())
                member.load_state_dict(copy.deepcopy(state["app_state"][name]))
                loaded.append((member, before))
            if self.loader is not None:
                self.loader.load_state_dict(state["position"])
        except BaseException:
            for member, before in loaded:
                member.load_state_dict(before)
            raise
        if self.optimizer is not None:
            optimizers.restore(self.optimizer, state["optimizer"], self._row_states)
        for each, (_, saved) in zip(self.table_optimizers, state.get("table_optimizers", []), strict=True):
            optimizers.restore(each, saved, self._row_states)
        with torch.no_grad():
            for key, value in self._parameters().items():
                value.copy_(state["model"][key])
        set_rng_state(state["rng"])

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `state` has parameters, optimizer, position and app_state as here."""
        here, there = self._parameters(), state["model"]
        if here.keys() != there.keys():
            raise ValueError(
                "the checkpoint is of another model: dense entries "
                f"{sorted(there.keys() - here.keys())} only in the checkpoint, "
                f"{sorted(here.keys() - there.keys())} only in the model"
            )
        for key, value in here.items():
            got = there[key]
            if got.shape != value.shape or got.dtype != value.dtype:
                raise ValueError(
                    f"the checkpoint is of another model: {key} is {tuple(value.shape)} {value.dtype} here, "
                    f"{tuple(got.shape)} {got.dtype} in the checkpoint"
                )
        for name, owner in (("optimizer", self.optimizer), ("position", self.loader)):
            if (owner is None) != (state[name] is None):
                has, lacks = ("checkpoint", "manager") if owner is None else ("manager", "checkpoint")
                raise ValueError(f"the {has} has a dense {name} but the {lacks} has none")
        if self.optimizer is not None:
            optimizers.check("dense optimizer", self.optimizer, state["optimizer"], state["optimizer_class"])
        self._check_table_optimizers(state)
        self._check_app_state(state)

    def _check_app_state(self, state: Mapping[str, Any]) -> None:
        saved, classes = state.get("app_state", {}), state.get("app_state_classes", {})
        if saved.keys() != self.app_state.keys():
            raise ValueError(
                f"app_state: the manager has {sorted(self.app_state)}, the checkpoint {sorted(saved)}"
            )
        for name, member in self.app_state.items():
            if classes[name] != class_of(member):
                raise ValueError(
                    f"app_state[{name!r}] is a {class_of(member)} here, a {classes[name]} in the checkpoint"
                )

    def _check_table_optimizers(self, state: Mapping[str, Any]) -> None:
        saved, here = state.get("table_optimizers", []), self.table_optimizers
        if len(saved) != len(here):
            raise ValueError(
                f"the tables have {len(here)} torch optimizers here, {len(saved)} in the checkpoint"
            )
        for each, (saved_class, packed) in zip(here, saved, strict=True):
            optimizers.check("tables' optimizer", each, packed, saved_class)


def host_copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of `state` with its tensors, however nested, in memory of the host."""
    elsewhere = {id(tensor): tensor for tensor in _tensors(state) if not _on_host(tensor)}
    copies = {at: tensor.detach().to("cpu") for at, tensor in elsewhere.items()}
    return copy.deepcopy(state, copies)  # what is in its memo isn't copied again


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)


def check_optimizer(optimizer: object) -> None:
    """Raise ValueError for the fused optimizer of a module, which is saved with the rows."""
    if isinstance(optimizer, EmbeddingFusedOptimizer):
        raise ValueError("the tables' fused optimizer is saved with the rows: leave it out")


def check_app_state(app_state: Mapping[str, Any]) -> None:
    """Raise TypeError for a member without the methods of `Stateful`, ValueError for a fused optimizer."""
    for name, member in app_state.items():
        if not isinstance(name, str) or not isinstance(member, Stateful):
            raise TypeError(
                "app_state: expected names and objects with state_dict() and load_state_dict(), got "
                f"{name!r}: {type(member).__name__}"
            )
        check_optimizer(member)


def encode(state: Mapping[str, Any]) -> bytes:
    """Return `state` as bytes of `torch.save`; raises TypeError when `decode` could not read them."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    data = buffer.getvalue()
    if _is_plain(dict(state)):
        return data
    try:
        decode(data)
    except Exception as error:
        raise TypeError(
            "dense state (state_dict of optimizer, loader or app_state) holds objects that "
            f"torch.load(weights_only=True) refuses; use plain values and tensors: {error}"
        ) from error
    return data


def _is_plain(value: object) -> bool:
    """Whether `value` is of nothing but what `decode` reads for certain, so that it need not be tried."""
    kind = type(value)
    if kind is int:
        return -(2**63) <= value < 2**63  # type: ignore[operator]
    if kind in (bool, float, str, type(None)):
        return True
    if kind in (dict, OrderedDict):
        return all(_is_plain(key) and _is_plain(entry) for key, entry in value.items())  # type: ignore[attr-defined]
    if kind in (list, tuple):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided  # type: ignore[attr-defined]


def decode(data: bytes) -> dict[str, Any]:
    """Return the state in `data`, read with `weights_only=True`: no code in it is ever run."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    return state
