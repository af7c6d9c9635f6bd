"""Engines on the CPU and on a device that go through the same steps and saves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from device_engine import DeviceEngine
from engine import Engine, Taken, drain

from cpr_native._native import Selection, Snapshot
from cpr_native._tensor import describe

KINDS = ("all", "dirty", "sampled", "most_used", "most_drifted", "rows", "none")


class Pair:
    """An engine, and one with the same tables on a device."""

    def __init__(
        self,
        rows: tuple[int, ...],
        lanes: int = 8,
        device_seed: int = 0,
        max_staging_bytes: int = 1 << 20,
        **options: Any,
    ) -> None:
        self.twin = Engine(rows=rows, **options)
        self.device = DeviceEngine(
            twin=self.twin, lanes=lanes, device_seed=device_seed, max_staging_bytes=max_staging_bytes
        )
        self.rows = rows

    def random_step(self, rng: np.random.Generator, bags: int, skew: float = 3.0) -> None:
        ids = np.concatenate([(n * rng.random(bags) ** skew).astype(np.int64) for n in self.rows])
        grad = rng.standard_normal((bags, self.twin.native.output_dim)).astype(np.float32)
        offsets = np.arange(len(ids) + 1)
        assert self.twin.step(ids, offsets, grad)
        _, batch = self.device.lookup(ids, offsets)
        self.device.update(batch, grad)

    def call(self, name: str, *arguments: Any, **options: Any) -> None:
        """Call a method of both."""
        for native in (self.twin.native, self.device.native):
            given = [describe(a) if isinstance(a, np.ndarray) else a for a in arguments]
            getattr(native, name)(*given, **options)

    def read(self, name: str, *arguments: Any) -> list[Any]:
        return [getattr(native, name)(*arguments) for native in (self.twin.native, self.device.native)]

    def begin(self, selections: list[Selection], **options: Any) -> tuple[Snapshot, Snapshot]:
        return (
            self.twin.native.begin(selections, **options),
            self.device.native.begin(selections, **options),
        )

    def assert_totals(self) -> None:
        """Rows, state and words are the same, and so is what is counted of them."""
        self.device.assert_same()
        for table in range(len(self.rows)):
            for name in (
                "sampled_rows",
                "count_histogram",
                "num_dirty",
                "drift_histogram",
                "state",
                "trackers",
            ):
                expected, found = self.read(name, table)
                assert (expected is None) == (found is None), name
                if expected is not None:
                    np.testing.assert_array_equal(found, expected, err_msg=name)


def selection(kind: str, rows: int, rng: np.random.Generator) -> Selection:
    """A selection of one kind for a table of `rows` rows."""
    if kind == "rows":
        return Selection.rows(rng.random(rows) < 0.2)
    if kind.startswith("most"):
        return getattr(Selection, kind)(max(1, rows // 8))  # type: ignore[no-any-return]
    return getattr(Selection, kind)()  # type: ignore[no-any-return]


class Reader:
    """Drains a snapshot in a thread of its own."""

    def __init__(self, snapshot: Snapshot, tables: int) -> None:
        self.found: list[list[Taken]] = []
        self.thread = threading.Thread(target=lambda: self.found.append(drain(snapshot, tables)))
        self.thread.start()

    def result(self) -> list[Taken]:
        self.thread.join()
        return self.found[0]


def assert_taken(found: list[Taken], expected: list[Taken]) -> None:
    """The same rows, each once, with the same bits."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)
        assert len(np.unique(a.rows)) == len(a.rows)
        for name in ("weight", "state", "count"):
            x, y = getattr(a, name), getattr(b, name)
            assert x.shape == y.shape
            np.testing.assert_array_equal(x, y, err_msg=name)
