"""The sides that `device_speed.py` compares on one device: the native engine, its modules and torch.

Each has `step(ids)`: lookup, backward and one update by the same gradient, with a batch of ids per call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import shapes
import torch
from torch import Tensor

from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad, _native
from cpr_native._native import DeviceBatch, DeviceCollection, Snapshot, TableSpec
from cpr_native.device.place import Place, describe_on

RATE, EPS = 0.05, 1e-8
METADATA = 8  # bytes a row with dirty bit, count and list


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`tables` tables of `rows` x `dim`; a batch has `batch` bags of `pooling` ids each.

    `zipf`: ids follow the law of the benchmarks on the CPU (`shapes.py`), otherwise they are drawn evenly.
    """

    tables: int
    rows: int
    dim: int
    batch: int
    pooling: int
    zipf: bool = False

    @property
    def ids(self) -> int:
        """Ids of a batch."""
        return self.tables * self.batch * self.pooling

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tables, in float32."""
        return self.tables * self.rows * self.dim * 4

    def within(self, nbytes: int) -> Shape:
        """Return the shape with its rows halved until its tables take at most `nbytes`."""
        shape = self
        while shape.weight_bytes > nbytes:
            shape = replace(shape, rows=shape.rows // 2)
        return shape


SHAPES = {
    "S1": Shape(tables=26, rows=100_000, dim=16, batch=2048, pooling=1, zipf=True),
    "S2": Shape(tables=26, rows=1_000_000, dim=64, batch=2048, pooling=1, zipf=True),
    "S3": Shape(tables=8, rows=500_000, dim=128, batch=2048, pooling=10, zipf=True),
    "large": Shape(tables=8, rows=10_000_000, dim=128, batch=65_536, pooling=10),
}


def batches(shape: Shape, where: torch.device, count: int) -> list[Tensor]:
    """Ids of different batches: int64 [ids], feature-major, on `where`."""
    if shape.zipf:
        rows = (shape.rows,) * shape.tables
        host = shapes.Shape(rows=rows, dim=shape.dim, batch=shape.batch, pooling=shape.pooling)
        return [ids.to(where) for ids in host.batches(count, seed=1)]
    generator = torch.Generator(where).manual_seed(1)
    return [
        torch.randint(0, shape.rows, (shape.ids,), generator=generator, device=where) for _ in range(count)
    ]


def gradient(shape: Shape, where: torch.device) -> Tensor:
    """A gradient whose values are equal within a table's columns: then row-wise Adagrad and Adagrad agree.

    float32 [batch, tables * dim], on `where`.
    """
    generator = torch.Generator(where).manual_seed(7)
    values = torch.randn(shape.batch, shape.tables, generator=generator, device=where) * 0.01
    return values.repeat_interleave(shape.dim, dim=1).contiguous()


class Ours:
    """Tables of `_native.DeviceCollection` under row-wise Adagrad, in memory of a place.

    `tracked`: with dirty bits, counts and the sampled list. `pinned`: rows in pinned memory of the host.
    `staging`: bytes of snapshots' memory on the device, and as much on the host; 0: no snapshots.
    """

    def __init__(
        self, shape: Shape, place: Place, *, tracked: bool = True, pinned: bool = False, staging: int = 0
    ) -> None:
        self.shape, self.place = shape, place
        trackers = {"dirty": tracked, "mfu": tracked, "ssu": tracked}
        specs = [
            TableSpec(
                name=f"t{t}",
                num_embeddings=shape.rows,
                embedding_dim=shape.dim,
                init_min=-0.5,
                init_max=0.5,
                **trackers,
            )
            for t in range(shape.tables)
        ]
        self.native = DeviceCollection(
            specs,
            list(range(shape.tables)),
            device=place.native,
            optimizer="row_wise_adagrad",
            learning_rate=RATE,
            eps=EPS,
        )
        empty = place.empty_host if pinned else place.empty
        nbytes = shape.weight_bytes // shape.tables
        self.weights = [empty(nbytes).view(torch.float32).view(shape.rows, shape.dim) for _ in specs]
        self._bind(staging)
        self.grad = gradient(shape, place.torch_device)
        self.out = torch.empty_like(self.grad)
        self.memory = place.empty(self.native.batch_bytes(shape.ids, shape.batch, weighted=False))
        self.workspace = place.empty(self.native.update_bytes(shape.ids))

    def _bind(self, staging: int) -> None:
        place, stream = self.place, self.place.stream()
        for t, weight in enumerate(self.weights):
            needs = self.native.needs(t)
            rest = [place.empty(max(16, needs[name])) for name in ("metadata", "slots", "claims")]
            refs = [describe_on(place, memory) for memory in rest]
            # Its address is the device's too where it is pinned.
            given = (weight.data_ptr(), tuple(weight.shape), "float32")
            self.native.bind(t, given, [], *refs, owner=rest)
        records = place.empty(self.native.record_bytes)
        self.native.bind_records(describe_on(place, records), records, stream)
        self.native.initialise(stream)
        if staging:
            memory = place.empty(self.native.snapshot_bytes(staging))
            self.native.bind_snapshot(describe_on(place, memory), staging, memory, stream)

    def lookup(self, ids: Tensor) -> DeviceBatch:
        """Fill `out`; the batch is for one update, before the next lookup."""
        given, out, memory = (describe_on(self.place, x) for x in (ids, self.out, self.memory))
        batch = self.native.lookup(
            given,
            None,
            None,
            out,
            memory,
            owner=self.memory,
            stream=self.place.stream(),
            ids_per_bag=self.shape.pooling,
        )
        assert batch is not None
        return batch

    def update(self, batch: DeviceBatch) -> None:
        """Update the rows of a batch by `grad`."""
        grad, workspace = (describe_on(self.place, x) for x in (self.grad, self.workspace))
        self.native.update(batch, grad, workspace, stream=self.place.stream())

    def step(self, ids: Tensor) -> Tensor:
        """One lookup and update; returns `out`, which the next lookup overwrites."""
        self.update(self.lookup(ids))
        return self.out

    def begin(self, selection: _native.Selection) -> Snapshot:
        """A snapshot of all tables that clears dirty bits."""
        return self.native.begin(
            [selection] * self.shape.tables, clears_dirty=True, stream=self.place.stream()
        )

    def synchronize(self) -> None:
        """Wait, and raise what lookups found."""
        self.native.synchronize(self.place.stream())


class Module:
    """The same tables as an `EmbeddingBagCollection` on the place, trained by autograd."""

    def __init__(self, shape: Shape, place: Place, *, host_memory: bool = False) -> None:
        tables = [
            EmbeddingBagConfig(
                name=f"t{t}",
                num_embeddings=shape.rows,
                embedding_dim=shape.dim,
                feature_names=(f"f{t}",),
                weight_init_min=-0.5,
                weight_init_max=0.5,
            )
            for t in range(shape.tables)
        ]
        self.collection = EmbeddingBagCollection(
            tables,
            optimizer=RowWiseAdagrad(lr=RATE, eps=EPS),
            device=place,
            host_memory=host_memory,
            max_staging_bytes=1 << 26,
        )
        where = place.torch_device
        self.offsets = torch.arange(0, shape.ids + 1, shape.pooling, device=where)
        self.grad = gradient(shape, where)

    def step(self, ids: Tensor) -> Tensor:
        """Forward and backward, which updates; returns the output."""
        out: Tensor = self.collection(ids, self.offsets)
        out.backward(self.grad)
        return out.detach()


class Torchs:
    """The same tables as `EmbeddingBag(sparse=True)`s under `torch.optim.Adagrad`."""

    def __init__(self, shape: Shape, where: torch.device) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # its default, but said: else it warns
        self.shape = shape
        bags = (
            torch.nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True, device=where)
            for _ in range(shape.tables)
        )
        self.bags = torch.nn.ModuleList(bags)
        self.optimizer = torch.optim.Adagrad(self.bags.parameters(), lr=RATE, eps=EPS)
        self.grad = gradient(shape, where)

    def _pool(self, ids: Tensor) -> Tensor:
        per_table = ids.view(self.shape.tables, self.shape.batch, self.shape.pooling)
        return torch.cat([bag(table) for bag, table in zip(self.bags, per_table, strict=True)], dim=1)

    def lookup(self, ids: Tensor) -> Tensor:
        """The pooled rows alone."""
        with torch.no_grad():
            return self._pool(ids)

    def step(self, ids: Tensor) -> Tensor:
        """Forward, backward and update; returns the output."""
        out = self._pool(ids)
        self.optimizer.zero_grad()
        out.backward(self.grad)
        self.optimizer.step()
        return out.detach()
