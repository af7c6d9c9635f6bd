"""The rows of one shard: looked up, updated and saved without knowing who asks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Batch, Collection, Region, Selection, Snapshot
from cpr_native._tensor import describe
from cpr_native.cluster.engines import build_engine
from cpr_native.cluster.memory import RecycledFloats
from cpr_native.cluster.messages import RowIds
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.combined import CombinedEngine, CombinedSnapshot
from cpr_native.optim import native_scalars
from cpr_native.shard import RowRange


@dataclass(frozen=True, eq=False)
class RowGradients:
    """What one rank sends of one step, see `ShardHandle.update`."""

    rows: RowIds
    gradient: NDArray[np.float32]
    multiplicity: NDArray[np.uint32]


@dataclass(frozen=True)
class _Group:
    """Tables of one embedding dim, which share a collection; `members` are their numbers in the spec."""

    engine: Collection
    members: tuple[int, ...]
    dim: int


class ShardTables:
    """The engine of a shard. No two methods that write may run at once; `lookup` may run beside any.

    `region`: shared memory that the rows lie in; those that an earlier process left there are as they were.
    Tables of which the shard has no row are in no engine.
    """

    def __init__(self, spec: ClusterSpec, shard: int, region: Region | None = None) -> None:
        self.spec = spec
        self.shard = shard
        self.threads = spec.threads or len(os.sched_getaffinity(0))
        self._answers = RecycledFloats()
        self._dims = spec.dims
        self._sizes = spec.sizes(shard)
        begins = spec.begins(shard)
        self._settings: dict[str, float] = native_scalars(spec.optimizer)
        held = [index for index in range(len(spec.tables)) if self._sizes[index]]
        groups: dict[int, list[int]] = {}
        for index in held:
            groups.setdefault(spec.tables[index].embedding_dim, []).append(index)
        self._groups = [
            _Group(build_engine(spec, members, begins, self._sizes, region), tuple(members), dim)
            for dim, members in groups.items()
        ]
        order = [index for group in self._groups for index in group.members]
        names = [spec.tables[index].name for index in order]
        self.engine = CombinedEngine([group.engine for group in self._groups], names)
        self.ranges = tuple(
            RowRange(
                name=spec.tables[index].name,
                table=number,
                begin=int(begins[index]),
                end=int(begins[index] + self._sizes[index]),
            )
            for number, index in enumerate(order)
        )

    @property
    def engines(self) -> list[Collection]:
        """The collections, in the order of `engine.tables`."""
        return [group.engine for group in self._groups]

    @property
    def names(self) -> list[list[str]]:
        """The tables of each of them."""
        return [[self.spec.tables[index].name for index in group.members] for group in self._groups]

    def home(self, name: str) -> tuple[Collection, int] | None:
        """Return the collection of a table and its number there; None for a table without rows here.

        Raises KeyError.
        """
        for engine, number, index in self.members:
            if self.spec.tables[index].name == name:
                return engine, number
        if name not in [table.name for table in self.spec.tables]:
            raise KeyError(name)
        return None

    def check(self, rows: RowIds) -> None:
        """Raise ValueError, TypeError or IndexError unless `rows` are of this shard, as `RowIds` says."""
        counts, ids = rows.counts, rows.rows
        if counts.dtype != np.int64 or counts.shape != self._sizes.shape:
            raise ValueError(
                f"counts: expected int64 {list(self._sizes.shape)}, got {counts.dtype} {list(counts.shape)}"
            )
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise TypeError(f"rows: expected int32 in one dimension, got {ids.dtype} {list(ids.shape)}")
        if counts.min(initial=0) < 0 or counts.sum() != len(ids):
            raise ValueError(f"counts: expected them to add up to {len(ids)}, got {counts.tolist()}")
        offsets = rows.offsets
        some = np.flatnonzero(counts)
        firsts, lasts = ids[offsets[some]], ids[offsets[some + 1] - 1]
        beyond = (firsts < 0) | (lasts >= self._sizes[some])
        if beyond.any():
            at = int(some[np.argmax(beyond)])
            raise IndexError(
                f"rows of table {self.spec.tables[at].name!r}: shard {self.shard} has {self._sizes[at]}, got "
                f"{ids[offsets[at]]}..{ids[offsets[at + 1] - 1]}"
            )
        ascending = np.diff(ids) > 0
        ascending[offsets[some[1:]] - 1] = True
        if not ascending.all():
            at = int(np.searchsorted(offsets, int(np.argmin(ascending)), side="right")) - 1
            raise ValueError(
                f"rows of table {self.spec.tables[at].name!r}: expected ascending ones, each once"
            )

    def check_gradients(self, sent: RowGradients) -> None:
        """Raise as `check`, and for a gradient or multiplicity of another shape or dtype."""
        self.check(sent.rows)
        for name, array, dtype, size in (
            ("gradient", sent.gradient, np.float32, sent.rows.size(self._dims)),
            ("multiplicity", sent.multiplicity, np.uint32, len(sent.rows)),
        ):
            if array.dtype != dtype:
                raise TypeError(f"{name}: expected {np.dtype(dtype)}, got {array.dtype}")
            if array.shape != (size,):
                raise ValueError(f"{name}: expected [{size}], got {list(array.shape)}")
        if sent.multiplicity.min(initial=1) < 1:
            raise ValueError("multiplicity: expected at least 1 of each row, got 0")

    def lookup(self, rows: RowIds) -> NDArray[np.float32]:
        """Return the rows, float32, flat, table after table; `rows` were checked."""
        out = self._answers.take(rows.size(self._dims))
        if len(self._groups) == 1:
            group = self._groups[0]
            _look_up(group, rows.rows, self._offsets(group, rows), out, self.threads, keep=False)
            return out
        ids, numbers = rows.offsets, self._numbers(rows)
        for group in self._groups:
            wanted = np.concatenate([rows.rows[ids[t] : ids[t + 1]] for t in group.members])
            found = np.empty(len(wanted) * group.dim, np.float32)
            _look_up(group, wanted, self._offsets(group, rows), found, self.threads, keep=False)
            at = 0
            for t in group.members:
                size = int(numbers[t + 1] - numbers[t])
                out[numbers[t] : numbers[t + 1]] = found[at : at + size]
                at += size
        return out

    def update(self, parts: Sequence[RowGradients]) -> bool:
        """Do one optimizer step with what some ranks sent, in their order; all were checked.

        A row that several sent gets one step with the sum of its gradients, added up in that order. False
        if a gradient was not finite: the tables of its embedding dim are then as before.
        """
        done = True
        for group in self._groups:
            ids, offsets, gradient, multiplicity = self._joined(group, parts)
            batch = _look_up(group, ids, offsets, None, self.threads, keep=True)
            assert batch is not None
            done &= group.engine.update(
                batch,
                describe(gradient.reshape(-1, group.dim)),
                threads=self.threads,
                multiplicity=describe(multiplicity),
            )
        return done

    def _joined(
        self, group: _Group, parts: Sequence[RowGradients]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32], NDArray[np.uint32]]:
        """Return ids, offsets, gradients and multiplicities of a group: table by table, rank by rank."""
        if len(parts) == 1 and len(self._groups) == 1:
            only = parts[0]
            return only.rows.rows, self._offsets(group, only.rows), only.gradient, only.multiplicity
        ids = [part.rows.offsets for part in parts]
        numbers = [self._numbers(part.rows) for part in parts]
        pieces = [(t, p) for t in group.members for p in range(len(parts))]
        slices = [slice(int(ids[p][t]), int(ids[p][t + 1])) for t, p in pieces]
        flat = [slice(int(numbers[p][t]), int(numbers[p][t + 1])) for t, p in pieces]
        counts = sum(part.rows.counts[list(group.members)] for part in parts)
        offsets = np.zeros(len(group.members) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return (
            np.concatenate([parts[p].rows.rows[s] for (_, p), s in zip(pieces, slices, strict=True)]),
            offsets,
            np.concatenate([parts[p].gradient[s] for (_, p), s in zip(pieces, flat, strict=True)]),
            np.concatenate([parts[p].multiplicity[s] for (_, p), s in zip(pieces, slices, strict=True)]),
        )

    def _offsets(self, group: _Group, rows: RowIds) -> NDArray[np.int64]:
        offsets = np.zeros(len(group.members) + 1, np.int64)
        np.cumsum(rows.counts[list(group.members)], out=offsets[1:])
        return offsets

    def _numbers(self, rows: RowIds) -> NDArray[np.int64]:
        """Return where each table's numbers begin in a flat array, [tables + 1]."""
        offsets = np.zeros(len(self._dims) + 1, np.int64)
        np.cumsum(rows.counts * self._dims, out=offsets[1:])
        return offsets

    def begin(self, selections: Sequence[Selection], *, clears_dirty: bool) -> Snapshot | CombinedSnapshot:
        """Begin a snapshot of `selections`, one for each of `engine.tables`; as `Collection.begin`.

        Its walk begins with the first call of `walk`, or of `CombinedSnapshot.add_to`.
        """
        if len(self._groups) == 1:
            return self._groups[0].engine.begin(selections, clears_dirty=clears_dirty, walk=False)
        return self.engine.begin(selections, clears_dirty=clears_dirty, shard_rows=(), blocking=False)

    @property
    def members(self) -> list[tuple[Collection, int, int]]:
        """Of each table: its collection, its number there and its number in the spec."""
        groups = self._groups
        return [(group.engine, i, index) for group in groups for i, index in enumerate(group.members)]

    def scalars(self) -> dict[str, Any]:
        """Return what the update depends on and is not of one row, as JSON values of a commit.

        Hyperparameters as float64, named as in `native_scalars`, and `step`: optimizer steps done.
        """
        steps = {group.engine.step for group in self._groups}
        return {**self._settings, "step": max(steps, default=0)}

    def pass_over(self, steps: int) -> None:
        """Count `steps` that this shard lost: Adam's t stays that of the job, as in a partial recovery."""
        for engine in self.engines:
            engine.step += steps

    def check_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Raise ValueError for hyperparameters that the optimizer hasn't."""
        unknown = sorted(set(scalars) - set(self._settings))
        if unknown:
            raise ValueError(f"scalars: expected some of {[*self._settings]}, got {unknown}")

    def set_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back some of what `scalars` returned; others stay as they are. Raises ValueError."""
        self.check_scalars({name: value for name, value in scalars.items() if name != "step"})
        self._settings.update({name: value for name, value in scalars.items() if name != "step"})
        for engine in self.engines:
            for name, value in scalars.items():
                setattr(engine, name, value)


def _look_up(
    group: _Group,
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    out: NDArray[np.float32] | None,
    threads: int,
    *,
    keep: bool,
) -> Batch | None:
    return group.engine.lookup(
        describe(ids),
        describe(offsets),
        None,
        None if out is None else describe(out.reshape(-1, group.dim)),
        threads=threads,
        keep=keep,
    )
