"""TorchRec's KeyedJaggedTensor in, its KeyedTensor and JaggedTensor out; TorchRec is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_HOME = "torchrec.sparse.jagged_tensor"


class KeyedJagged(Protocol):
    """What is read of a `torchrec.KeyedJaggedTensor`: bags of ids of several features (keys)."""

    def keys(self) -> list[str]: ...
    def values(self) -> Tensor: ...
    def offsets(self) -> Tensor: ...
    def weights_or_none(self) -> Tensor | None: ...
    def variable_stride_per_key(self) -> bool: ...
    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None: ...


class Jagged(Protocol):
    """What is used of a `torchrec.JaggedTensor`: one vector an id, and the number of ids of each bag."""

    def values(self) -> Tensor: ...
    def lengths(self) -> Tensor: ...
    def offsets(self) -> Tensor: ...


class Keyed(Protocol):
    """What is used of a `torchrec.KeyedTensor`: one column block a key."""

    def keys(self) -> list[str]: ...
    def values(self) -> Tensor: ...
    def length_per_key(self) -> list[int]: ...
    def to_dict(self) -> dict[str, Tensor]: ...
    def __getitem__(self, key: str) -> Tensor: ...


@dataclass(frozen=True)
class Bags:
    """Ids [n], feature-major, offsets [features * batch + 1] and weights [n] or None."""

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None


def is_keyed_jagged(value: object) -> TypeIs[KeyedJagged]:
    """Whether `value` is a KeyedJaggedTensor; nothing is imported: who has one has loaded TorchRec."""
    home = sys.modules.get(_HOME)
    return home is not None and isinstance(value, home.KeyedJaggedTensor)


def bags_of(jagged: KeyedJagged, features: Sequence[str], *, weighted: bool) -> Bags:
    """The bags of `features`, in that order; a feature may be named twice.

    Keys in the order of the features, without others between or before them, are not copied. A GPU is waited
    for, once, unless the keys are just the features.

    Raises:
        ValueError: a key is missing, there are no weights where `weighted` asks for them, or the batch size
            varies by key.
    """
    if jagged.variable_stride_per_key() or jagged.inverse_indices_or_none() is not None:
        raise ValueError(
            "KeyedJaggedTensor: expected one batch size for all keys, got one by key "
            "(stride_per_key_per_rank or inverse_indices)"
        )
    weights = jagged.weights_or_none() if weighted else None
    if weighted and weights is None:
        raise ValueError("KeyedJaggedTensor: expected weights, since is_weighted=True, got none")
    keys, ids, offsets = jagged.keys(), jagged.values(), jagged.offsets()
    if keys == features:
        return Bags(ids, offsets, weights)
    places = {key: place for place, key in enumerate(keys)}
    missing = [feature for feature in features if feature not in places]
    if missing:
        raise ValueError(f"KeyedJaggedTensor: no key {', '.join(map(repr, missing))}, got {keys}")
    batch, rest = divmod(offsets.shape[0] - 1, len(keys))
    if rest or batch < 0:
        raise ValueError(
            f"KeyedJaggedTensor: expected keys * batch + 1 offsets with {len(keys)} keys, got "
            f"{offsets.shape[0]}"
        )
    return _chosen(Bags(ids, offsets, weights), [places[feature] for feature in features], batch)


def _chosen(bags: Bags, chosen: list[int], batch: int) -> Bags:
    ids, offsets, weights = bags.ids, bags.offsets, bags.weights
    first, count = chosen[0], len(chosen)
    # Where the ids of each key begin, and the end.
    begins = offsets[::batch].tolist() if batch else [0] * (max(chosen) + 2)
    if chosen == list(range(first, first + count)):
        offsets = offsets[first * batch : (first + count) * batch + 1]
        begin, end = begins[first], begins[first + count]
        return Bags(
            ids[begin:end],
            offsets - begin if begin else offsets,
            None if weights is None else weights[begin:end],
        )
    spans = [(begins[key], begins[key + 1]) for key in chosen]
    lengths = torch.cat([offsets[k * batch : (k + 1) * batch + 1].diff() for k in chosen])
    bounds = offsets.new_zeros(lengths.shape[0] + 1)
    torch.cumsum(lengths, 0, out=bounds[1:])
    return Bags(
        torch.cat([ids[begin:end] for begin, end in spans]),
        bounds,
        None if weights is None else torch.cat([weights[begin:end] for begin, end in spans]),
    )


def keyed_tensor(keys: list[str], dims: list[int], values: Tensor) -> Keyed:
    """A KeyedTensor of `values` [batch, sum of dims], not copied."""
    made: Any = sys.modules[_HOME].KeyedTensor(keys=keys, length_per_key=dims, values=values)
    return made  # type: ignore[no-any-return]


def jagged_tensor(values: Tensor, lengths: Tensor, weights: Tensor | None) -> Jagged:
    """A JaggedTensor of `values` [n, ...] in bags of `lengths`, not copied."""
    made: Any = sys.modules[_HOME].JaggedTensor(values=values, lengths=lengths, weights=weights)
    return made  # type: ignore[no-any-return]
