"""Nested state of plain values and tensors as one text and a flat list of tensors, many times a second."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

# Sequences of integers that are at least so long (the state of Python's generator) become a tensor.
_PACKED = 32


def flatten(state: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Return `state` as JSON and the tensors in it; those alias its own where they can.

    It may hold None, bool, int, float, str, bytes, dict, OrderedDict, list, tuple and tensors, and is exact.
    Raises TypeError for anything else.
    """
    tensors: list[torch.Tensor] = []
    return json.dumps(_out(state, tensors), separators=(",", ":")).encode(), tensors


def _out(value: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(value)
    if kind in (int, float, str, bool) or value is None:
        return value
    if kind is dict or kind is OrderedDict:
        pairs = [[_out(key, tensors), _out(entry, tensors)] for key, entry in value.items()]
        return {"d" if kind is dict else "o": pairs}
    if kind is list or kind is tuple:
        mark = "l" if kind is list else "t"
        if len(value) >= _PACKED and all(type(entry) is int for entry in value):
            packed = torch.tensor(value, dtype=torch.int64)
            return {mark + "n": _tensor(packed, tensors)}
        return {mark: [_out(entry, tensors) for entry in value]}
    if isinstance(value, torch.Tensor):
        return {"x": _tensor(value.detach(), tensors)}
    if kind is bytes:
        return {"b": value.decode("latin-1")}
    raise TypeError(
        "dense state (state_dict of optimizer, loader or app_state) holds an object of "
        f"{kind.__module__}.{kind.__qualname__}; use plain values and tensors"
    )


def _tensor(value: torch.Tensor, tensors: list[torch.Tensor]) -> list[Any]:
    flat = value.cpu().contiguous()
    tensors.append(flat)
    return [len(tensors) - 1, str(flat.dtype).removeprefix("torch."), list(flat.shape)]


def restored(text: bytes, data: Sequence[bytes]) -> Any:
    """Return the state that `flatten` made `text` of, from copies of its tensors' bytes; no code is run."""
    return _in(json.loads(text), data)


def _in(value: Any, data: Sequence[bytes]) -> Any:
    if type(value) is not dict:
        return value
    ((mark, held),) = value.items()
    if mark in ("d", "o"):
        pairs = ((_in(key, data), _in(entry, data)) for key, entry in held)
        return dict(pairs) if mark == "d" else OrderedDict(pairs)
    if mark in ("l", "t"):
        entries = [_in(entry, data) for entry in held]
        return entries if mark == "l" else tuple(entries)
    if mark == "b":
        return held.encode("latin-1")
    index, dtype, shape = held
    tensor = torch.frombuffer(bytearray(data[index] or b"\0" * 16), dtype=getattr(torch, dtype))
    tensor = tensor[:0].reshape(shape) if not data[index] else tensor.reshape(shape)
    if mark == "x":
        return tensor.clone()
    return tensor.tolist() if mark == "ln" else tuple(tensor.tolist())
