"""The tables of an attached model: embedding weights, and other parameters as blocks of their elements."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from cpr_native.config import MAX_ROWS, DataType
from cpr_native.modules import EngineModule
from cpr_native.modules._memory import data_type_of, memory_of, span_of

EmbeddingModule = nn.Embedding | nn.EmbeddingBag
Blocks = Literal["rows", "tensors"] | int


@dataclass(frozen=True, kw_only=True)
class AttachedTable:
    """A weight, or a part of it, as `rows` blocks of `dim` elements, from `first` of the flattened weight.

    `name`: path of the first embedding module with `-` for `.` (`weight` for the model itself), of other
    parameters their own; `shape`: of the weight; `holders`: modules that have it and what they call it,
    several where it is tied, held weakly; `looked_up`: they are embedding modules.
    """

    name: str
    shape: tuple[int, ...]
    rows: int
    dim: int
    data_type: DataType
    holders: tuple[tuple[weakref.ref[nn.Module], str], ...]
    looked_up: bool = False
    sparse: bool = False
    first: int = 0

    @property
    def holding(self) -> list[nn.Module]:
        """The modules that have the weight, as far as they still exist."""
        alive = (reference() for reference, _ in self.holders)
        return [module for module in alive if module is not None]

    @property
    def modules(self) -> list[nn.Module]:
        """Those that look it up."""
        return self.holding if self.looked_up else []

    def weight(self) -> nn.Parameter | None:
        """The parameter now, None when its modules are gone or have none."""
        for reference, name in self.holders:
            module = reference()
            if module is not None:
                return module._parameters.get(name)
        return None

    def synced_weight(self) -> nn.Parameter:
        """The parameter now; raises ValueError or TypeError when it isn't that of the table any more."""
        weights = []
        for reference, name in self.holders:
            module = reference()
            weights.append(None if module is None else module._parameters.get(name))
        weight = weights[0]
        if weight is None or any(other is not weight for other in weights):
            raise ValueError(
                f"table {self.name!r}: its modules are gone or don't share their weight any more: "
                "detach and attach the model anew"
            )
        data_type = check_weight(f"table {self.name!r}: weight", weight)
        if tuple(weight.shape) != self.shape or data_type is not self.data_type:
            raise ValueError(
                f"table {self.name!r}: weight: expected shape {self.shape} and "
                f"{self.data_type.dtype}, got {tuple(weight.shape)} and {data_type.dtype}: detach and "
                "attach the model anew"
            )
        return weight

    def part(self, tensor: Tensor) -> Tensor:
        """This table's elements of a contiguous tensor of the weight's shape, [rows, dim], aliased."""
        flat = tensor.detach().view(-1)
        return flat[self.first : self.first + self.rows * self.dim].view(self.rows, self.dim)

    def gradient(self, grad: Tensor) -> Tensor | None:
        """The rows of a gradient of the weight; None if they can't be told from its indices (sparse)."""
        if grad.layout == torch.strided:
            return self.part(grad.contiguous())
        return grad if self.shape == (self.rows, self.dim) else None


def find_tables(model: nn.Module, skip: Collection[str], blocks: Blocks | None) -> list[AttachedTable]:
    """The tables of `model` but those in `skip`: of embedding modules; with `blocks` of all parameters.

    Raises ValueError: none, a name in `skip` that isn't one, a module or weight that can't be tracked, two
    tables of one name; TypeError: a weight of another dtype.
    """
    engines = [name for name, module in model.named_modules() if isinstance(module, EngineModule)]
    if engines:
        raise ValueError(f"attach: the model has a native engine already, in {engines}")
    found = {name: module for name, module in model.named_modules() if isinstance(module, EmbeddingModule)}
    if blocks is None:
        tables = _embeddings(found, skip)
        if not tables:
            raise ValueError("attach: the model has no nn.Embedding or nn.EmbeddingBag to track")
    else:
        _check_skip(model, skip)
        lookups = {name: module for name, module in found.items() if _looks_up(module)}
        tables = _embeddings(lookups, [name for name in lookups if _skipped(f"{name}.weight", skip)])
        tables += _parameters(model, skip, blocks, {id(table.weight()) for table in tables})
        if not tables:
            raise ValueError("attach: the model has no parameter to track")
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


def _embeddings(found: dict[str, EmbeddingModule], skip: Collection[str]) -> list[AttachedTable]:
    unknown = sorted(set(skip) - set(found))
    if unknown:
        raise ValueError(f"attach: skip: no embedding module {unknown}, expected some of {sorted(found)}")
    by_weight: dict[int, list[tuple[str, EmbeddingModule]]] = {}
    for name, module in found.items():
        if name not in skip:
            by_weight.setdefault(id(_weight_of(name, module)), []).append((name, module))
    return [_table(users) for users in by_weight.values()]


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
        shape=tuple(weight.shape),
        rows=weight.shape[0],
        dim=weight.shape[1],
        data_type=data_type_of(name, weight.dtype),
        holders=tuple((weakref.ref(module), "weight") for _, module in users),
        looked_up=True,
        sparse=any(module.sparse for _, module in users),
    )


def _looks_up(module: EmbeddingModule) -> bool:
    """Whether its ids and its weight are those of torch's module."""
    kind = nn.Embedding if isinstance(module, nn.Embedding) else nn.EmbeddingBag
    return type(module).forward is kind.forward and module._parameters.get("weight") is not None


def _skipped(name: str, skip: Collection[str]) -> bool:
    """Whether a parameter, or a module that it is in, is named in `skip`."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in skip for end in range(1, len(parts) + 1))


def _check_skip(model: nn.Module, skip: Collection[str]) -> None:
    known = {name for name, _ in model.named_modules()} | {
        name for name, _ in model.named_parameters(remove_duplicate=False)
    }
    unknown = sorted(set(skip) - known)
    if unknown:
        raise ValueError(f"attach: skip: the model has no module or parameter {unknown}")


def _parameters(
    model: nn.Module, skip: Collection[str], blocks: Blocks, known: Collection[int]
) -> list[AttachedTable]:
    """The tables of all parameters but those of `known` ids, in the order of the model."""
    places: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for name, weight in module._parameters.items():
            full = f"{path}.{name}" if path else name
            if weight is not None and id(weight) not in known and not _skipped(full, skip):
                places.setdefault(id(weight), []).append((full, module, name))
    return [table for users in places.values() for table in _blocks_of(users, blocks)]


def _blocks_of(users: Sequence[tuple[str, nn.Module, str]], blocks: Blocks) -> list[AttachedTable]:
    """The table of one parameter, two with a short last block, none of an empty one."""
    full, holder, attribute = users[0]
    weight = holder._parameters[attribute]
    assert weight is not None
    where = f"attach: parameter {full!r}"
    try:
        if nn.parameter.is_lazy(weight):
            raise ValueError(f"{where}: it has no memory before the first forward")
        data_type = check_weight(where, weight)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error}; leave it out with skip=[{full!r}]") from None
    name, size = full.replace(".", "-"), weight.numel()
    if not size:
        return []
    dim = size
    if blocks == "rows" and weight.dim() > 1:
        dim = size // weight.shape[0]
    elif isinstance(blocks, int):
        dim = min(blocks, size)
    parts = [(name, 0, size // dim, dim)]
    if size % dim:
        parts.append((f"{name}-tail", size - size % dim, 1, size % dim))
    return [
        AttachedTable(
            name=part,
            shape=tuple(weight.shape),
            rows=rows,
            dim=length,
            data_type=data_type,
            holders=tuple((weakref.ref(module), called) for _, module, called in users),
            first=first,
        )
        for part, first, rows, length in parts
    ]


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
