"""Native collections on a device that runs on the host, beside the `Engine` that each has to agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from device_memory import Scratch, host_device, reachable
from engine import Engine
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._native import DeviceBatch, DeviceCollection
from cpr_native._tensor import describe

STATELESS = {"none", "sgd"}


@dataclass(kw_only=True)
class DeviceEngine:
    """The tables of `twin` on a device, with its initial rows."""

    twin: Engine
    lanes: int = 8
    device_seed: int = 0
    features: list[int] | None = None
    max_staging_bytes: int = 1 << 23
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        tables = self.twin.native.tables
        self.device = host_device(self.lanes, self.device_seed)
        self.native = DeviceCollection(
            self.table_specs(),
            self.features or list(range(len(tables))),
            device=self.device,
            optimizer=self.twin.optimizer,
            learning_rate=self.twin.learning_rate,
            seed=self.twin.seed,
            **self.twin.settings,
        )
        self.memory = [self.allocate(table) for table in range(len(tables))]
        records = Scratch(self.native.record_bytes)
        self.native.bind_records(records.ref, records)
        self.native.initialise()
        staging = Scratch(self.native.snapshot_bytes(self.max_staging_bytes))
        self.native.bind_snapshot(staging.ref, self.max_staging_bytes, staging)

    def table_specs(self) -> list[_native.TableSpec]:
        spec = {"init_min": -0.5, "init_max": 0.5, **self.twin.spec}
        return [
            _native.TableSpec(
                name=f"t{t}", num_embeddings=n, embedding_dim=self.twin.dim, pooling=self.twin.pooling, **spec
            )
            for t, n in enumerate(self.twin.rows)
        ]

    def allocate(self, table: int) -> dict[str, Any]:
        needs = self.native.needs(table)
        weight = reachable(np.full_like(self.twin.native.weight(table), 7))
        arrays = [reachable(np.full(size // 4, np.nan, np.float32)) for size in needs["arrays"]]
        rest = {
            name: reachable(np.full(needs[name] // 4, 7, np.uint32))
            for name in ("metadata", "slots", "claims")
        }
        self.native.bind(
            table,
            describe(weight),
            [describe(array) for array in arrays],
            describe(rest["metadata"]),
            describe(rest["slots"]),
            describe(rest["claims"]),
            # Not self: the collection would keep itself. `kept`: given up, a snapshot runs what still waits.
            owner=[weight, *arrays, *rest.values(), self.kept],
        )
        return {"weight": weight, "arrays": arrays, **rest}

    def lookup(
        self,
        ids: NDArray[Any],
        offsets: NDArray[Any] | None,
        weights: NDArray[Any] | None = None,
        *,
        batch_size: int | None = None,
        ids_per_bag: int = 0,
    ) -> tuple[NDArray[Any], DeviceBatch]:
        """Look up for an update; the output is there after `synchronize`."""
        if batch_size is None:
            assert offsets is not None
            features = len(self.features or self.twin.rows)
            batch_size = (len(offsets) - 1) // features if self.twin.pooling != "none" else len(ids)
        dtype = np.float64 if self.twin.spec.get("dtype") == "float64" else np.float32
        out = reachable(np.full((batch_size, self.native.output_dim), 3, dtype=dtype))
        memory = Scratch(self.native.batch_bytes(len(ids), batch_size, weighted=weights is not None))
        given = (*(None if x is None else reachable(x) for x in (ids, offsets, weights)), out)
        self.kept.append((given, memory))
        refs = [None if array is None else describe(array) for array in given]
        batch = self.native.lookup(*refs, memory.ref, memory, ids_per_bag=ids_per_bag)  # type: ignore[arg-type]
        assert batch is not None
        return out, batch

    def weight_grad(self, batch: DeviceBatch, grad: NDArray[Any]) -> NDArray[Any]:
        """Return the gradient of the per-sample weights, which is there after `synchronize`."""
        grad, out = reachable(grad), reachable(np.full(batch.num_ids, 3, grad.dtype))
        self.kept.append((grad, out))
        self.native.per_sample_weight_grad(batch, describe(grad), describe(out))
        return out

    def update(self, batch: DeviceBatch, grad: NDArray[np.float32], **options: Any) -> None:
        """Update; rows are there after `synchronize`."""
        grad, memory = reachable(grad), Scratch(self.native.update_bytes(batch.num_ids))
        self.kept.append((grad, memory))
        self.native.update(batch, describe(grad), memory.ref, **options)

    def gradient(
        self, batch: DeviceBatch, grad: NDArray[Any], table: int
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the unique rows of a table and their gradients; waits."""
        n, memory = batch.num_ids, Scratch(self.native.gradient_bytes(batch.num_ids))
        rows, count = reachable(np.full(n, -1, np.int64)), reachable(np.full(1, -1, np.int64))
        values = reachable(np.full((n, self.twin.dim), 3, grad.dtype))
        grad = reachable(grad)
        self.native.gradient(
            batch,
            describe(grad),
            table=table,
            rows=describe(rows),
            values=describe(values),
            count=describe(count),
            memory=memory.ref,
        )
        self.native.synchronize()
        assert (rows[count[0] :] == -1).all()
        return rows[: count[0]], values[: count[0]]

    def state(self, table: int) -> NDArray[np.float32] | None:
        """Optimizer state as `Collection.state` has it; after `synchronize`."""
        rows = self.twin.rows[table]
        columns = [array.reshape(rows, -1) for array in self.memory[table]["arrays"]]
        if self.twin.optimizer in {"row_wise_adagrad", "partial_row_wise_adam"}:
            columns.append(self.memory[table]["metadata"].view(np.float32).reshape(rows, -1)[:, :1])
        if not columns:
            return None
        state = np.concatenate(columns, axis=1)
        return state[:, 0] if state.shape[1] == 1 else state

    def assert_same(self) -> None:
        """Compare rows, state, words, lists and drifts with the twin's, bit for bit."""
        self.native.synchronize()
        for table in range(len(self.twin.rows)):
            weight = self.twin.native.weight(table)
            np.testing.assert_array_equal(bits(self.memory[table]["weight"]), bits(weight))
            state, expected = self.state(table), self.twin.native.state(table)
            assert (state is None) == (expected is None)
            if state is not None and expected is not None:
                np.testing.assert_array_equal(bits(state), bits(expected))
            words = self.native.trackers(table)
            np.testing.assert_array_equal(words, self.twin.native.trackers(table))
            if self.twin.spec.get("ssu", True):
                assert self.listed(table) == self.twin.native.sampled_rows(table).tolist()
            if self.twin.spec.get("drift"):
                cells = self.memory[table]["metadata"].reshape(-1, 4)
                drift = np.where(cells[:, 1] >> 28 & 1, np.float32(0), cells[:, 2].view(np.float32))
                np.testing.assert_array_equal(bits(drift), bits(self.twin.native.drift(table)))

    def listed(self, table: int) -> list[int]:
        slots = self.memory[table]["slots"]
        held = slots[slots != 0xFFFFFFFF].astype(np.int64)
        words = self.native.trackers(table)
        return sorted((held[words[held] >> 29 & 1 == 1] + self.twin.spec.get("row_offset", 0)).tolist())


def skewed_bags(
    rng: np.random.Generator, rows: tuple[int, ...], bags: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and offsets of `bags` bags a table, of up to `longest` ids each; low rows are hot."""
    lengths = rng.integers(0, longest + 1, len(rows) * bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    sizes = np.diff(offsets[::bags])
    ids = [(n * rng.random(size) ** 4).astype(np.int64) for n, size in zip(rows, sizes, strict=True)]
    return np.concatenate(ids), offsets


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """The bits of an array, so that equal means equal, NaN and zeros too."""
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))
