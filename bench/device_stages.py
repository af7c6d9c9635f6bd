"""The stages of `device_speed.py` that time steps: each returns its figures.

`lookup_ms` and `update_ms` are times of the device alone, `step_ms` is that of a loop of steps with all that
the host does. `_of_copy`: the bytes that had to move in this time, as a part of the copy bandwidth.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from device_sides import METADATA, Module, Ours, Shape, Torchs, batches
from device_timing import WARM_UP, Replay, Timer, kernels_of
from torch import Tensor

from cpr_native.device.place import Place

BATCHES = 8
GIB = 1 << 30


class Bench:
    """What stages share: the place, its timer, the shapes, repeats, and the figures of the stages before."""

    def __init__(
        self, place: Place, shapes: dict[str, Shape], *, count: int = 20, copied: int = 4 * GIB
    ) -> None:
        self.place, self.timer, self.shapes = place, Timer(place), shapes
        self.count, self.copied = count, copied
        self.figures: dict[str, dict[str, Any]] = {}

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a copy on the device reads and writes, as the stage `copy` measured it."""
        return float(self.figures["copy"]["gb_s"]) * 1e9

    def memory(self) -> int:
        """Bytes that are free on the device; no bound on the host."""
        return torch.cuda.mem_get_info(self.place.torch_device)[0] if self.timer.on_gpu else 1 << 62

    def free(self) -> None:
        """Give back the memory of what was deleted."""
        gc.collect()
        if self.timer.on_gpu:
            torch.cuda.empty_cache()

    def batches(self, shape: Shape, count: int = BATCHES) -> list[Tensor]:
        """Different batches of ids on the device."""
        return batches(shape, self.place.torch_device, count)


def copy(bench: Bench) -> dict[str, Any]:
    """Copies on the device, and from and to pinned memory of the host, a quarter as long."""
    where, on_gpu = bench.place.torch_device, bench.timer.on_gpu
    source = torch.ones(bench.copied, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    part = target[: bench.copied // 4]
    host = torch.ones(part.numel(), dtype=torch.uint8, pin_memory=on_gpu)
    return {
        "gb_s": round(bench.timer.bandwidth(target, source) / 1e9, 3),
        "from_host_gb_s": round(bench.timer.bandwidth(part, host, 5) / 2e9, 3),
        "to_host_gb_s": round(bench.timer.bandwidth(host, part, 5) / 2e9, 3),
    }


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
    return gradients + shape.ids * 8 * 2 * passes + unique * 2 * (shape.dim * 4 + METADATA)


def of_copy(bench: Bench, nbytes: int, milliseconds: float) -> float:
    """What part of the copy bandwidth `nbytes` in this time are."""
    return round(nbytes / milliseconds * 1e3 / bench.bandwidth, 3)


def native_figures(bench: Bench, shape: Shape, ids: list[Tensor]) -> dict[str, Any]:
    """The native engine: lookup, update, steps in a loop, and a step as a CUDA graph that gets other ids."""
    timer, ours = bench.timer, Ours(shape, bench.place)
    lookup = timer.device_ms(lambda i: ours.lookup(ids[i % BATCHES]), bench.count)
    kept: list[Any] = [None]

    def look_up(i: int) -> None:
        kept[0] = ours.lookup(ids[i % BATCHES])

    update = timer.device_ms(lambda _: ours.update(kept[0]), bench.count, before=look_up)
    step = timer.loop_ms(lambda i: ours.step(ids[i % BATCHES]), bench.count)
    static = ids[0].clone()
    replay = Replay(bench.place, lambda: ours.step(static))
    replayed = timer.device_ms(
        lambda _: replay(), bench.count, before=lambda i: static.copy_(ids[i % BATCHES])
    )
    try:
        names = kernels_of(timer, replay)
    except (RuntimeError, OSError) as error:  # the profiler's trouble costs its figure alone
        names = None
        print(f"kernels are not counted: {error}", flush=True)
    ours.synchronize()
    return {
        "lookup_ms": round(lookup, 4),
        "update_ms": round(update, 4),
        "step_ms": round(step, 4),
        "replay_us": round(replayed * 1e3, 1),
        "kernels": len(names) if names else None,
        "kernel_names": names,
        "lookup_of_copy": of_copy(bench, lookup_bytes(shape), lookup),
        "update_of_copy": of_copy(bench, update_bytes(shape, ids[0]), update),
    }


def module_figures(bench: Bench, shape: Shape, ids: list[Tensor]) -> dict[str, Any]:
    """`EmbeddingBagCollection` on the device, with all that autograd and the module do on the host."""
    ours = Module(shape, bench.place)
    step = bench.timer.loop_ms(lambda i: ours.step(ids[i % BATCHES]), bench.count)
    ours.collection.synchronize()
    return {"module_step_ms": round(step, 4)}


def torch_figures(bench: Bench, shape: Shape, ids: list[Tensor]) -> dict[str, Any]:
    """Torch's `EmbeddingBag(sparse=True)` with sparse Adagrad."""
    theirs = Torchs(shape, bench.place.torch_device)
    count = max(2, bench.count // 4)
    return {
        "torch_lookup_ms": round(bench.timer.device_ms(lambda i: theirs.lookup(ids[i % BATCHES]), count), 4),
        "torch_step_ms": round(bench.timer.loop_ms(lambda i: theirs.step(ids[i % BATCHES]), count), 4),
    }


def shape_stage(name: str) -> Callable[[Bench], dict[str, Any]]:
    """The stage of one shape: the native engine, its module, then torch, which takes twice the memory."""

    def stage(bench: Bench) -> dict[str, Any]:
        shape = bench.shapes[name].within(int(bench.memory() / 2.6))
        ids = bench.batches(shape)
        found: dict[str, Any] = {"rows": shape.rows}
        for side in (native_figures, module_figures, torch_figures):
            found |= side(bench, shape, ids)
            bench.free()
        found["times_torch"] = round(found["torch_step_ms"] / found["step_ms"], 2)
        found["module_times_torch"] = round(found["torch_step_ms"] / found["module_step_ms"], 2)
        return found

    return stage


def tracking(bench: Bench) -> dict[str, Any]:
    """What trackers add to the steps of the large shape, with and without them in turn."""
    shape = bench.shapes["large"].within(int(bench.memory() / 2.6))
    ids = bench.batches(shape)
    sides = {tracked: Ours(shape, bench.place, tracked=tracked) for tracked in (True, False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for i in range(WARM_UP + bench.count):
        for tracked in (True, False) if i % 2 else (False, True):
            ours, given = sides[tracked], ids[i % BATCHES]
            times[tracked].append(bench.timer.span(lambda ours=ours, given=given: ours.step(given)))  # type: ignore[misc]
    on, off = (median(times[tracked][WARM_UP:]) for tracked in (True, False))
    return {
        "rows": shape.rows,
        "with_ms": round(on, 4),
        "without_ms": round(off, 4),
        "percent": round((on / off - 1) * 100, 2),
    }


def pinned(bench: Bench) -> dict[str, Any]:
    """Steps of S3 over rows in pinned memory of the host, beside the bandwidth of the link to it.

    Random rows cross the link: `lookup_of_link` counts those of a lookup, `update_of_link` the unique ones of
    an update, once in each direction, which the link carries at the same time.
    """
    shape = replace(bench.shapes["S3"], rows=min(bench.shapes["S3"].rows, 250_000))
    ids, timer = bench.batches(shape), bench.timer
    ours = Ours(shape, bench.place, pinned=True)
    lookup = timer.device_ms(lambda i: ours.lookup(ids[i % BATCHES]), bench.count)
    step = timer.device_ms(lambda i: ours.step(ids[i % BATCHES]), bench.count)
    ours.synchronize()
    unique = sum(int(table.unique().numel()) for table in ids[0].view(shape.tables, -1))
    link = bench.figures["copy"]["from_host_gb_s"] * 1e6  # bytes a millisecond
    row = shape.dim * 4
    return {
        "rows": shape.rows,
        "lookup_ms": round(lookup, 4),
        "update_ms": round(step - lookup, 4),
        "lookup_of_link": round(shape.ids * row / lookup / link, 3),
        "update_of_link": round(unique * row / max(step - lookup, 1e-6) / link, 3),
    }
