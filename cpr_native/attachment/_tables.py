"""Finds the embedding tables of a model and refuses those that can't be tracked."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpr_native.config import MAX_ROWS, DataType
from cpr_native.modules import EngineModule
from cpr_native.modules._memory import data_type_of, memory_of, span_of

EmbeddingModule = nn.Embedding | nn.EmbeddingBag


@dataclass(frozen=True, kw_only=True)
class AttachedTable:
    """One weight and the modules that look it up (several where it is tied); holds them weakly.

    `name`: path of the first module with `-` for `.`, `weight` for the model itself.
    """

    name: str
    rows: int
    dim: int
    data_type: DataType
    sparse: bool
    modules: tuple[weakref.ref[nn.Module], ...]

    def weight(self) -> nn.Parameter | None:
        """The parameter now, None when its modules are gone or have none."""
        for reference in self.modules:
            module = reference()
            if module is not None:
                return module._parameters.get("weight")
        return None

    def synced_weight(self) -> nn.Parameter:
        """The parameter now; raises ValueError or TypeError when it isn't that of the table any more."""
        weights = []
        for reference in self.modules:
            module = reference()
            weights.append(None if module is None else module._parameters.get("weight"))
        weight = weights[0]
        if weight is None or any(other is not weight for other in weights):
            raise ValueError(
                f"table {self.name!r}: its modules are gone or don't share their weight any more: "
                "detach and attach the model anew"
            )
        data_type = check_weight(f"table {self.name!r}: weight", weight)
        if tuple(weight.shape) != (self.rows, self.dim) or data_type is not self.data_type:
            raise ValueError(
                f"table {self.name!r}: weight: expected shape {(self.rows, self.dim)} and "
                f"{self.data_type.dtype}, got {tuple(weight.shape)} and {data_type.dtype}: detach and "
                "attach the model anew"
            )
        return weight


def find_tables(model: nn.Module, skip: Collection[str]) -> list[AttachedTable]:
    """The tables of all `nn.Embedding` and `nn.EmbeddingBag` modules of `model` but those named in `skip`.

    Raises ValueError: none, a name in `skip` that isn't one, a module or weight that can't be tracked, two
    tables of one name; TypeError: a weight of another dtype.
    """
    engines = [name for name, module in model.named_modules() if isinstance(module, EngineModule)]
    if engines:
        raise ValueError(f"attach: the model has a native engine already, in {engines}")
    found = {name: module for name, module in model.named_modules() if isinstance(module, EmbeddingModule)}
    unknown = sorted(set(skip) - set(found))
    if unknown:
        raise ValueError(f"attach: skip: no embedding module {unknown}, expected some of {sorted(found)}")
    by_weight: dict[int, list[tuple[str, EmbeddingModule]]] = {}
    for name, module in found.items():
        if name not in skip:
            by_weight.setdefault(id(_weight_of(name, module)), []).append((name, module))
    if not by_weight:
        raise ValueError("attach: the model has no nn.Embedding or nn.EmbeddingBag to track")
    tables = [_table(users) for users in by_weight.values()]
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"attach: two tables would be named {twice}: module names must differ in more than . and -"
        )
    _check_memory(model, tables)
    return tables


def check_weight(where: str, weight: Tensor) -> DataType:
    """Its data type; raises TypeError or ValueError if the engine can't take `weight` as a table's memory."""
    data_type = data_type_of(where, weight.dtype)
    if weight.layout != torch.strided:
        raise ValueError(f"{where}: expected a strided tensor, got {weight.layout}")
    memory_of(where, weight)
    return data_type


def _weight_of(name: str, module: EmbeddingModule) -> nn.Parameter:
    where = f"attach: module {name!r}"
    for kind in (nn.Embedding, nn.EmbeddingBag):
        if isinstance(module, kind) and type(module).forward is not kind.forward:
            raise ValueError(
                f"{where}: {type(module).__name__} has a forward of its own, whose ids can't be told; leave "
                f"it out with skip=[{name!r}], it is saved with the dense parameters then"
            )
    weight = module._parameters.get("weight")
    if weight is None:
        raise ValueError(f"{where}: its weight is no parameter of its own (parametrized or computed)")
    if not 1 <= weight.shape[0] <= MAX_ROWS or weight.shape[1] < 1:
        raise ValueError(
            f"{where}: weight: expected 1 to {MAX_ROWS} rows of at least 1 number, got {tuple(weight.shape)}"
        )
    check_weight(f"{where}: weight", weight)
    return weight


def _table(users: list[tuple[str, EmbeddingModule]]) -> AttachedTable:
    name, first = users[0]
    weight = first.weight
    return AttachedTable(
        name=name.replace(".", "-") or "weight",
        rows=weight.shape[0],
        dim=weight.shape[1],
        data_type=data_type_of(name, weight.dtype),
        sparse=any(module.sparse for _, module in users),
        modules=tuple(weakref.ref(module) for _, module in users),
    )


def _check_memory(model: nn.Module, tables: list[AttachedTable]) -> None:
    """Raise ValueError when another parameter or buffer lies in a table's memory."""
    weights = {id(weight): table.name for table in tables if (weight := table.weight()) is not None}
    spans = sorted((*span_of(tensor), name, id(tensor)) for name, tensor in _tensors(model) if tensor.is_cpu)
    end, holder, owner = -1, "", 0
    for begin, until, name, tensor in spans:
        if begin < end and tensor != owner and (tensor in weights or owner in weights):
            raise ValueError(
                f"attach: {holder!r} and {name!r} are different tensors in one memory; tie weights by using "
                "one parameter in both places"
            )
        if until > end:
            end, holder, owner = until, name, tensor


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
