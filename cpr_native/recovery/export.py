"""A point of a checkpoint as one plain file of tensors: safetensors, or a `state_dict` of `torch.save`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cpr_native.errors import NoCheckpointError
from cpr_native.recovery.dense import decode
from cpr_native.store import RestorePoint, StoredRows
from cpr_native.store.segment import DTYPES

Format = Literal["safetensors", "state_dict"]

_CODES = {**{dtype: code for code, dtype in DTYPES.items()}, "bfloat16": "BF16"}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written: names of the tensors, bytes of the file, dense entries that are no tensors."""

    tensors: tuple[str, ...]
    bytes: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file: `dtype` by torch's name; `value` None for what comes from rows."""

    dtype: str
    shape: tuple[int, ...]
    value: NDArray[Any] | None = None

    @property
    def array_dtype(self) -> np.dtype[Any]:
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.array_dtype.itemsize


def export(
    point: RestorePoint,
    out: Path,
    *,
    form: Format = "safetensors",
    state: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Writes `<table>.weight` of every table, with `state` `<table>.state` too, and the dense entries.

    The dense entries of a `RecoveryManager`'s save are those of the model's `state_dict` that are no tables,
    under their names there; other bytes are left out and named. Rows go to the file as they are read; of the
    tables nothing is held in memory. `progress` is told of rows written and of all. `out` appears whole or
    not at all. Raises FileExistsError; NoCheckpointError for a chain without a base; ValueError for an entry
    called as a table's; CorruptionError, OSError.
    """
    if os.path.lexists(out):
        raise FileExistsError(17, "exists already", str(out))
    plan = point.plan()
    if not plan.complete:
        raise NoCheckpointError(f"{point.directory.path}: rows that were never saved can't be exported")
    plan.verify()
    dense, left_out = _dense(point)
    tensors = {**_tables(point, state=state)}
    for name, value in dense.items():
        if name in tensors:
            raise ValueError(f"dense entry {name!r} is called as a table's")
        tensors[name] = value
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    packed = out.with_name(f".{out.name}.{os.getpid()}.packed.tmp")
    try:
        data, views = _laid_out(temporary, tensors)
        for name, tensor in tensors.items():
            if tensor.value is not None:
                views[name][...] = tensor.value
        plan.apply(_Writer(views, plan.rows, progress))
        data.flush()
        if form == "state_dict":
            _pack(views, tensors, packed)
        _publish(packed if form == "state_dict" else temporary, out)
    finally:
        for path in (temporary, packed):
            with suppress(FileNotFoundError):
                path.unlink()
    return Exported(tensors=tuple(tensors), bytes=out.stat().st_size, left_out=left_out)


def _tables(point: RestorePoint, *, state: bool) -> dict[str, _Tensor]:
    tensors = {}
    for table in point.schema.tables:
        tensors[f"{table.name}.weight"] = _Tensor(table.dtype, (table.rows, table.dim))
        shape = table.state_shape(table.rows)
        if state and shape is not None:
            tensors[f"{table.name}.state"] = _Tensor("float32", shape)
    return tensors


def _dense(point: RestorePoint) -> tuple[dict[str, _Tensor], tuple[str, ...]]:
    """Returns the dense tensors of a point, and the names of its entries that are none."""
    found: dict[str, _Tensor] = {}
    left_out = []
    for name, value in point.dense().items():
        if isinstance(value, np.ndarray):
            found[name] = _Tensor(value.dtype.name, value.shape, value)
            continue
        model = _model(value) if name == "state" else None
        if model is None:
            left_out.append(name)
        for key, tensor in (model or {}).items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype in _CODES:
                plain = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
                found[key] = _Tensor(dtype, tuple(tensor.shape), plain.contiguous().numpy())
            else:
                left_out.append(key)
    return found, tuple(left_out)


def _model(data: bytes) -> dict[str, torch.Tensor] | None:
    """Returns the model's entries of what a manager saved; None for other bytes."""
    try:
        model = decode(data).get("model")
    except Exception:  # whatever torch.load says of bytes that it did not write
        return None
    return model if isinstance(model, dict) else None


def _laid_out(path: Path, tensors: dict[str, _Tensor]) -> tuple[np.memmap[Any, Any], dict[str, NDArray[Any]]]:
    """Makes a safetensors file of zeros; returns it, mapped, and views of its tensors."""
    header: dict[str, Any] = {}
    begin = 0
    for name in sorted(tensors, key=lambda name: -tensors[name].array_dtype.itemsize):
        tensor = tensors[name]
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + tensor.size],
        }
        begin += tensor.size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + begin)
    data = np.memmap(path, np.uint8, "r+")
    views: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        first, last = (8 + len(text) + offset for offset in entry["data_offsets"])
        views[name] = data[first:last].view(tensors[name].array_dtype).reshape(tensors[name].shape)
    return data, views


class _Writer:
    """Takes the rows of a plan into the views."""

    def __init__(
        self, views: dict[str, NDArray[Any]], total: int, progress: Callable[[int, int], None]
    ) -> None:
        self._views, self._total, self._progress = views, total, progress
        self._done = 0

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        """Writes rows in place."""
        for each in stored:
            found = each.read()
            self._views[f"{each.table}.weight"][found.rows] = found.weight
            if f"{each.table}.state" in self._views:
                self._views[f"{each.table}.state"][found.rows] = found.state
            self._done += each.count
            self._progress(self._done, self._total)


def _pack(views: dict[str, NDArray[Any]], tensors: dict[str, _Tensor], path: Path) -> None:
    """Writes tensors that alias the views by `torch.save`, which reads them from the file as it goes."""
    state = {}
    for name, tensor in tensors.items():
        view = torch.from_numpy(views[name].view(np.int16) if tensor.dtype == "bfloat16" else views[name])
        state[name] = view.view(torch.bfloat16) if tensor.dtype == "bfloat16" else view
    with path.open("xb") as file:
        torch.save(state, file)


def _publish(temporary: Path, out: Path) -> None:
    """Gives a file its name, which must not exist, once its bytes are durable."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.link(temporary, out)
    descriptor = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
