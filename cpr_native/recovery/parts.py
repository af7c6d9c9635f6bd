"""The engines of a model, each by the place of its module, and what their tables are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cpr_native.attachment import attachments_of
from cpr_native.modules import EngineModule
from cpr_native.modules._memory import span_of
from cpr_native.optim import Adagrad, FusedOptimizer, RowWiseAdagrad

if TYPE_CHECKING:
    from cpr_native.modules._base import UpdateObserver
    from cpr_native.modules._plan import Engine, EnginePlan


class Tracked(Protocol):
    """What an `EngineModule` and an `Attachment` have in common."""

    @property
    def engine(self) -> Engine:
        """The native collection, or the engine of tables on a device."""
        ...

    @property
    def plan(self) -> EnginePlan:
        """Its settings."""
        ...

    @property
    def fused(self) -> bool:
        """Whether the engine itself writes the rows, so that it can copy them beside training."""
        ...

    def sync(self) -> None:
        """Take the parameters as they are now."""
        ...

    def observe_updates(self, observer: UpdateObserver | None) -> None:
        """Call `observer` for each update."""
        ...

    def optimizer_scalars(self) -> dict[str, Any]:
        """Return what the update depends on and is not of one row, as JSON values."""
        ...

    def load_optimizer_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back what `optimizer_scalars` returned."""
        ...


@dataclass(frozen=True)
class Part:
    """One engine of a model.

    `path`: of its module in the model, "" is the model itself; `module`: it, or the attachment; `engine`: at
    the time; `names`: of its tables, unique in the model; `keys`: its entries of `model.state_dict()`.
    """

    path: str
    module: Tracked
    engine: Engine
    names: tuple[str, ...]
    keys: frozenset[str]


def find_parts(model: torch.nn.Module) -> tuple[Part, ...]:
    """Return every engine of `model` once, in the order of its modules.

    The tables of a single one have their own names; of several, the path of their weight in the model
    without `.weight`. Raises ValueError for none, or for an attachment beside anything else.
    """
    paths: dict[EngineModule, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, EngineModule):
            paths.setdefault(module, []).append(path)
    attached = attachments_of(model)
    if (attached and (paths or len(attached) > 1)) or not (attached or paths):
        found = [places[0] for places in paths.values()] + [f"attached {a.table_names}" for a in attached]
        raise ValueError(
            "expected a model with an EmbeddingBagCollection, EmbeddingCollection, EmbeddingBag or "
            f"Embedding of cpr_native, or attached as a whole, got {found}; convert the model or attach it"
        )
    if attached:
        names = tuple(attached[0].table_names)
        return (Part("", attached[0], attached[0].engine, names, attached[0].keys(model)),)
    return tuple(_part(module, places, alone=len(paths) == 1) for module, places in paths.items())


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _part(module: EngineModule, places: Sequence[str], *, alone: bool) -> Part:
    keys = frozenset(_join(place, key) for place in places for key in module.state_dict())
    names = tuple(config.name for config in module.plan.tables)
    if not alone:
        of = {id(weight): key for key, weight in module.named_parameters(remove_duplicate=False)}
        names = tuple(
            _join(places[0], of[id(weight)]).removesuffix(".weight") for weight in module._weights()
        )
    return Part(places[0], module, module.engine, names, keys)


def check_parts(parts: Sequence[Part]) -> None:
    """Raise ValueError unless one checkpoint can hold all of `parts`.

    Under fused optimizers every table's memory is its own, as what one engine writes another would not save.
    """
    _check_same(parts, "optimizers", lambda part: optimizer_of(part.module.plan.optimizer)[0])
    _check_same(parts, "initial accumulators", lambda part: optimizer_of(part.module.plan.optimizer)[1])
    spans = [
        (*span_of(weight), name, weight, part.module.fused)
        for part in parts
        if isinstance(part.module, EngineModule)
        for name, weight in zip(part.names, part.module._weights(), strict=True)
    ]
    for left, right in pairwise(sorted(spans, key=lambda span: span[:2])):
        tied = left[3] is right[3] and not left[4]
        if right[0] < left[1] and not tied:
            raise ValueError(
                f"tables {left[2]!r} and {right[2]!r} share memory: expected one module of them, or one "
                "Parameter and optimizer=None"
            )


def _check_same(parts: Sequence[Part], what: str, value_of: Callable[[Part], object]) -> None:
    first: dict[object, str] = {}
    for part in parts:
        first.setdefault(value_of(part), part.path)
    if len(first) > 1:
        got = ", ".join(f"{value} of module {path!r}" for value, path in first.items())
        raise ValueError(
            f"the {what} of the model's embedding modules differ: expected one for all, as a checkpoint has "
            f"one, got {got}"
        )


def optimizer_of(optimizer: FusedOptimizer | None) -> tuple[str, float]:
    """Return the name of a fused optimizer ("none" for None) and what its state begins with."""
    if isinstance(optimizer, RowWiseAdagrad | Adagrad):
        return optimizer.name, optimizer.initial_accumulator
    return "none" if optimizer is None else optimizer.name, 0.0


def seed_of(parts: Sequence[Part]) -> int:
    """Return the seed of all `parts`, or, where they differ, a number that stands for theirs in order."""
    seeds = [part.module.plan.seed for part in parts]
    if len(set(seeds)) == 1:
        return seeds[0]
    digest = blake2b(",".join(str(seed) for seed in seeds).encode(), digest_size=6)
    return int.from_bytes(digest.digest(), "big")
