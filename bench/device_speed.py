"""Speed of the CUDA engine on the GPU of this machine, beside its copy bandwidth and torch.

    python bench/device_speed.py OUT.json

`make cuda-check` runs it. It writes, of each shape, the median times of lookup and update by CUDA events,
each with a batch of its own, and what part of the measured copy bandwidth their bytes come to; of a step as
a CUDA graph, the time of a replay and the number of its kernels; and the time of torch's
`EmbeddingBag(sparse=True)` with sparse Adagrad on the same ids. The answers are compared with torch's before
anything is timed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cpr_native import _native
from cpr_native._native import DeviceBatch, DeviceCollection, TableSpec

RATE, EPS = 0.05, 1e-8
BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`tables` tables of `rows` x `dim`; a batch has `batch` bags of `pooling` ids each, drawn evenly."""

    tables: int
    rows: int
    dim: int
    batch: int
    pooling: int

    @property
    def ids(self) -> int:
        """Ids of a batch."""
        return self.tables * self.batch * self.pooling


SHAPES = {
    "S1": Shape(tables=26, rows=100_000, dim=16, batch=2048, pooling=1),
    "S2": Shape(tables=26, rows=1_000_000, dim=64, batch=2048, pooling=1),
    "S3": Shape(tables=8, rows=500_000, dim=128, batch=2048, pooling=10),
    "large": Shape(tables=8, rows=10_000_000, dim=128, batch=65_536, pooling=10),
}


def describe(x: Tensor) -> _native.TensorRef:
    """Where a tensor lies, on any device."""
    assert x.is_contiguous()
    return x.data_ptr(), tuple(x.shape), str(x.dtype).removeprefix("torch.")


class Ours:
    """Tables under row-wise Adagrad in memory of a device; `where` is the torch device of that memory."""

    def __init__(self, shape: Shape, device: _native.Device, where: str, *, tracked: bool = True) -> None:
        self.shape, self.where = shape, where
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
            device=device,
            optimizer="row_wise_adagrad",
            learning_rate=RATE,
            eps=EPS,
        )
        self.weights = [torch.empty(shape.rows, shape.dim, device=where) for _ in specs]
        for t, weight in enumerate(self.weights):
            needs = self.native.needs(t)
            rest = [self.bytes(needs[name]) for name in ("metadata", "slots", "claims")]
            self.native.bind(t, describe(weight), [], *map(describe, rest), owner=rest)
        records = self.bytes(self.native.record_bytes)
        self.native.bind_records(describe(records), records, self.stream)
        self.native.initialise(self.stream)
        self.out = torch.empty(shape.batch, shape.tables * shape.dim, device=where)
        self.memory = self.bytes(self.native.batch_bytes(shape.ids, shape.batch, weighted=False))
        self.workspace = self.bytes(self.native.update_bytes(shape.ids))

    def bytes(self, size: int) -> Tensor:
        """Memory of the device, in whole words."""
        return torch.zeros(size // 4 + 4, dtype=torch.int32, device=self.where)

    @property
    def stream(self) -> int:
        """Torch's current stream."""
        return torch.cuda.current_stream().cuda_stream if self.where == "cuda" else 0

    def lookup(self, ids: Tensor) -> DeviceBatch:
        """Fill `out`; the batch is for one update, before the next lookup."""
        refs = (describe(ids), None, None, describe(self.out), describe(self.memory))
        batch = self.native.lookup(
            *refs, owner=self.memory, stream=self.stream, ids_per_bag=self.shape.pooling
        )
        assert batch is not None
        return batch

    def update(self, batch: DeviceBatch, grad: Tensor) -> None:
        """Update the rows of a batch by the gradient of `out`."""
        self.native.update(batch, describe(grad), describe(self.workspace), stream=self.stream)


class Torchs:
    """The same tables as `EmbeddingBag(sparse=True)`s under `torch.optim.Adagrad`."""

    def __init__(self, shape: Shape, where: str) -> None:
        self.shape = shape
        bags = (
            torch.nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True, device=where)
            for _ in range(shape.tables)
        )
        self.bags = torch.nn.ModuleList(bags)
        self.optimizer = torch.optim.Adagrad(self.bags.parameters(), lr=RATE, eps=EPS)

    def step(self, ids: Tensor, grad: Tensor) -> Tensor:
        """Forward, backward and update; returns the output."""
        per_table = ids.view(self.shape.tables, self.shape.batch, self.shape.pooling)
        out = torch.cat([bag(table) for bag, table in zip(self.bags, per_table, strict=True)], dim=1)
        self.optimizer.zero_grad()
        out.backward(grad)
        self.optimizer.step()
        return out.detach()


def batches(shape: Shape, where: str, count: int = BATCHES) -> list[Tensor]:
    """Ids of different batches, int64, feature-major."""
    generator = torch.Generator(where).manual_seed(1)
    return [
        torch.randint(0, shape.rows, (shape.ids,), generator=generator, device=where) for _ in range(count)
    ]


def gradient(shape: Shape, where: str) -> Tensor:
    """A gradient whose values are equal within a table's columns: then row-wise Adagrad and Adagrad agree."""
    generator = torch.Generator(where).manual_seed(7)
    values = torch.randn(shape.batch, shape.tables, generator=generator, device=where) * 0.01
    return values.repeat_interleave(shape.dim, dim=1).contiguous()


def assert_answers(shape: Shape, device: _native.Device, where: str) -> None:
    """Two steps of ours and of torch from the same rows end in the same rows, to rounding."""
    ours, theirs = Ours(shape, device, where), Torchs(shape, where)
    ours.native.synchronize(ours.stream)
    with torch.no_grad():
        for bag, weight in zip(theirs.bags, ours.weights, strict=True):
            bag.weight.copy_(weight)
    grad = gradient(shape, where)
    for ids in batches(shape, where, 2):
        batch = ours.lookup(ids)
        expected = theirs.step(ids, grad)
        ours.update(batch, grad)
        ours.native.synchronize(ours.stream)
        torch.testing.assert_close(ours.out, expected, rtol=1e-4, atol=1e-5)
    for bag, weight in zip(theirs.bags, ours.weights, strict=True):
        torch.testing.assert_close(weight, bag.weight.detach(), rtol=1e-4, atol=1e-5)
    assert ours.native.step(ours.stream) == 2


def lookup_bytes(shape: Shape) -> int:
    """Bytes that a lookup must move: each id, its row, and the output."""
    return shape.ids * (8 + shape.dim * 4) + shape.batch * shape.tables * shape.dim * 4


def update_bytes(shape: Shape, ids: Tensor) -> int:
    """Bytes that an update must move: the gradient, keys once through each pass of 8 bits of the sort, and
    each unique row with its metadata, read and written.
    """
    per_table = ids.view(shape.tables, -1)
    unique = sum(int(table.unique().numel()) for table in per_table)
    passes = -(-(shape.tables * shape.rows - 1).bit_length() // 8)
    gradients = shape.batch * shape.tables * shape.dim * 4
    return gradients + shape.ids * 8 * 2 * passes + unique * 2 * (shape.dim * 4 + 8)


def milliseconds(work: Callable[[int], object], count: int) -> float:
    """Median time on the GPU of `work(i)`, i < count, by events; the first two calls warm up."""
    times = []
    for i in range(count + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times[2:])


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda _: target.copy_(source), 10) * 1e3


def graph_of(ours: Ours, ids: Tensor, grad: Tensor) -> tuple[torch.cuda.CUDAGraph, int]:
    """One step as a graph, and the number of kernels that a replay runs."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.update(ours.lookup(ids), grad)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        graph.replay()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profile.events() if event.device_type == on_gpu]
    return graph, len([name for name in names if not name.startswith(("Memcpy", "Memset"))])


def ours_ms(shape: Shape, ids: list[Tensor], grad: Tensor, count: int) -> dict[str, float]:
    """Times of ours, and kernels a step."""
    ours = Ours(shape, _native.cuda_device(0), "cuda")
    lookup = milliseconds(lambda i: ours.lookup(ids[i % BATCHES]), count)
    both = milliseconds(lambda i: ours.update(ours.lookup(ids[i % BATCHES]), grad), count)
    graph, kernels = graph_of(ours, ids[0], grad)
    replay = milliseconds(lambda _: graph.replay(), count)
    ours.native.synchronize(ours.stream)
    return {"lookup": lookup, "update": both - lookup, "replay": replay, "kernels": kernels}


def torch_ms(shape: Shape, ids: list[Tensor], grad: Tensor, count: int) -> float:
    """Time of torch's step."""
    theirs = Torchs(shape, "cuda")
    return milliseconds(lambda i: theirs.step(ids[i % BATCHES], grad), count)


def measure(shape: Shape, bandwidth: float, count: int = 20) -> dict[str, Any]:
    """The figures of one shape."""
    ids, grad = batches(shape, "cuda"), gradient(shape, "cuda")
    ours = ours_ms(shape, ids, grad, count)
    torch.cuda.empty_cache()
    theirs = torch_ms(shape, ids, grad, 5)
    torch.cuda.empty_cache()
    moved = {"lookup": lookup_bytes(shape), "update": update_bytes(shape, ids[0])}
    return {
        **{f"{name}_ms": round(ours[name], 4) for name in ("lookup", "update", "replay")},
        **{f"{name}_of_copy": round(moved[name] / ours[name] * 1e3 / bandwidth, 3) for name in moved},
        "kernels": ours["kernels"],
        "torch_ms": round(theirs, 4),
        "times_torch": round(theirs / (ours["lookup"] + ours["update"]), 2),
    }


def main(path: Path) -> None:
    """Compare the answers, then measure every shape; writes what there is after each."""
    assert_answers(Shape(tables=3, rows=1000, dim=16, batch=64, pooling=5), _native.cuda_device(0), "cuda")
    bandwidth = copy_bandwidth()
    figures: dict[str, Any] = {"copy_gb_s": round(bandwidth / 1e9)}
    for name, shape in SHAPES.items():
        figures[name] = measure(shape, bandwidth)
        path.write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
