"""The stages of `device_speed.py` that save: the cost of `begin`, and of a save beside steps."""

from __future__ import annotations

import threading
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

from device_sides import METADATA, Ours, Shape
from device_stages import BATCHES, Bench

from cpr_native._native import Selection, Snapshot

ROUNDS = 8
HEAD = 16  # bytes before the row of a record, see csrc/cuda/snapshot_args.hpp
# Of the staging memory three eighths are for each piece of a walk (csrc/table/device_staging.cpp).
WALK_SHARE = 3 / 8


def record_bytes(shape: Shape) -> int:
    """Bytes of a row in a snapshot's memory; row-wise Adagrad's state takes one number."""
    return HEAD + -(-shape.dim * 4 // 16) * 16 + 16


def drain(snapshot: Snapshot) -> int:
    """Read and commit; returns the number of rows."""
    rows = 0
    for chunk in snapshot:
        rows += len(chunk.rows)
        chunk.close()
    snapshot.commit()
    return rows


def stall_bytes(shape: Shape, rows: int) -> int:
    """Bytes that must move while `begin` selects and gathers `rows` rows: every row's metadata is read, and
    each of these is read and written.
    """
    return shape.tables * shape.rows * METADATA + rows * 2 * record_bytes(shape)


def begin(bench: Bench) -> dict[str, Any]:
    """`begin` on the large tables with the rows of one step of 8,192 samples dirty, which fit into staging.

    `host_us`: its time on the host, beside a busy GPU; `stall_ms`: what it gives to the training stream.
    """
    shape = bench.shapes["large"].within(bench.memory() // 2)
    shape = replace(shape, batch=min(shape.batch, 8192))
    staging = int(shape.ids * record_bytes(shape) / WALK_SHARE * 1.02) + (1 << 20)
    ours, ids = Ours(shape, bench.place, staging=staging), bench.batches(shape)
    host, device, rows = [], [], []
    for i in range(ROUNDS + 2):
        ours.step(ids[i % BATCHES])
        ours.synchronize()
        taken: list[Snapshot] = []

        def take(taken: list[Snapshot] = taken) -> None:
            begun = perf_counter()
            taken.append(ours.begin(Selection.dirty()))
            host.append((perf_counter() - begun) * 1e6)

        device.append(bench.timer.span(take))
        rows.append(drain(taken[0]))
    stall, found = median(device[2:]), rows[-1]
    copy_time = stall_bytes(shape, found) / bench.bandwidth * 1e3
    return {
        "table_rows": shape.rows,
        "saved_rows": found,
        "host_us": round(median(host[2:]), 1),
        "stall_ms": round(stall, 4),
        "stall_of_copy_time": round(stall / copy_time, 3),
    }


def save(bench: Bench) -> dict[str, Any]:
    """A save of all rows of S3 in pieces, read by a thread, while steps go on.

    `added_ms`: what the steps beside it took more than as many alone. `stalled_ms`: as the snapshot counts.
    """
    shape = bench.shapes["S3"]
    total = shape.tables * shape.rows * record_bytes(shape)
    staging = max(1 << 20, total // 8)
    ours, ids = Ours(shape, bench.place, staging=staging), bench.batches(shape)
    alone = bench.timer.loop_ms(lambda i: ours.step(ids[i % BATCHES]), bench.count * 5)
    bench.timer.synchronize()
    begun, steps = perf_counter(), 0
    snapshot = ours.begin(Selection.all())
    taken: list[int] = []
    reader = threading.Thread(target=lambda: taken.append(drain(snapshot)))
    reader.start()
    while reader.is_alive():
        ours.step(ids[steps % BATCHES])
        steps += 1
    reader.join()
    bench.timer.synchronize()
    seconds = perf_counter() - begun
    if taken != [shape.tables * shape.rows]:
        raise RuntimeError(f"save: expected {shape.tables * shape.rows} rows, got {taken}")
    return {
        "saved_gb": round(total / 1e9, 3),
        "seconds_taken": round(seconds, 3),
        "steps": steps,
        "added_ms": round(seconds * 1e3 - steps * alone, 2),
        "stalled_ms": round(snapshot.stall_seconds * 1e3, 2),
        "copy_time_ms": round(stall_bytes(shape, taken[0]) / bench.bandwidth * 1e3, 3),
    }
