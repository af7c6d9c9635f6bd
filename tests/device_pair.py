"""A `Collection` and a `DeviceEngine` of the same tables, taken through the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from device_memory import place_for_test
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._native import Collection, TableSpec
from cpr_native._tensor import describe
from cpr_native.device import DeviceEngine, Place, describe_on


class EnginePair:
    """Both engines, `rows` a table. `spec`: of every table; `options`: of both constructors."""

    def __init__(
        self,
        rows: Sequence[int] = (300, 40),
        dim: int = 8,
        *,
        lanes: int = 8,
        place: Place | None = None,
        spec: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.specs = [
            TableSpec(
                name=f"t{t}",
                num_embeddings=n,
                embedding_dim=dim,
                **{"init_min": -0.5, "init_max": 0.5, **(spec or {})},
            )
            for t, n in enumerate(rows)
        ]
        self.rows, self.dim = tuple(rows), dim
        self.options = {
            "optimizer": "row_wise_adagrad",
            "learning_rate": 0.1,
            "seed": 3,
            "max_staging_bytes": 1 << 20,
            **options,
        }
        self.place = place or place_for_test(lanes)
        features = list(range(len(rows)))
        device_only = {name: self.options.pop(name) for name in ("weights", "host_memory") if name in options}
        self.cpu = Collection(self.specs, features, **self.options)
        self.device = DeviceEngine(self.specs, features, place=self.place, **self.options, **device_only)

    def on_device(self, array: NDArray[Any] | Tensor) -> Tensor:
        """A copy on the device."""
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
        return tensor.to(self.place.torch_device, copy=True)

    def lookup(
        self, ids: NDArray[Any], offsets: NDArray[Any], *, keep: bool = True
    ) -> tuple[Any, Any, Tensor, Tensor]:
        """Look up in both: their batches and outputs, that of the device read back."""
        bags = (len(offsets) - 1) // len(self.rows)
        outs, batches = [], []
        for engine in (self.cpu, self.device):
            outer = torch.float64 if self.specs[0].dtype == "float64" else torch.float32
            out = torch.full((bags, engine.output_dim), 3.0, dtype=outer)
            given = [torch.from_numpy(ids), torch.from_numpy(offsets), out]
            if engine is self.device:
                given = [self.on_device(x) for x in given]
                refs = [describe_on(self.place, x) for x in given]
            else:
                refs = [describe(x) for x in given]
            batches.append(engine.lookup(refs[0], refs[1], None, refs[2], threads=1, keep=keep))
            outs.append(given[2].cpu())
        return batches[0], batches[1], outs[0], outs[1]

    def step(self, rng: np.random.Generator, bags: int = 32) -> None:
        """One step of random bags with both."""
        ids = np.concatenate([(n * rng.random(bags) ** 3).astype(np.int64) for n in self.rows])
        batch, on_device, expected, found = self.lookup(ids, np.arange(len(ids) + 1))
        assert torch.equal(found, expected)
        grad = torch.from_numpy(rng.standard_normal((bags, self.cpu.output_dim)).astype(np.float32))
        assert self.cpu.update(batch, describe(grad), threads=1)
        copy = self.on_device(grad)
        assert self.device.update(on_device, describe_on(self.place, copy), threads=1)

    def assert_same(self) -> None:
        """Compare all that can be read, bit for bit."""
        self.device.synchronize()
        assert_engines_equal(self.device, self.cpu, drift=self.device_tracks_drift())

    def device_tracks_drift(self) -> bool:
        try:
            self.cpu.drift(0)
        except ValueError:
            return False
        return True


def assert_engines_equal(device: DeviceEngine, cpu: Collection, *, drift: bool = False) -> None:
    """Compare rows, state, trackers, step and settings bit for bit."""
    names = ["state", "trackers", "counts", "dirty", "num_dirty", "sampled_rows", "count_histogram"]
    for table in range(len(cpu.tables)):
        weight = np.ascontiguousarray(cpu.weight(table))
        found = device.weight(table).detach().cpu()
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
        np.testing.assert_array_equal(found.view(bits).numpy(), weight.view(f"i{weight.itemsize}"))
        for name in names + (["drift", "drift_histogram"] if drift else []):
            expected, got = getattr(cpu, name)(table), getattr(device, name)(table)
            assert (expected is None) == (got is None), name
            if expected is not None:
                assert np.asarray(got).dtype == np.asarray(expected).dtype, name
                np.testing.assert_array_equal(got, expected, err_msg=name)
    for name in ("step", "skipped_steps", "learning_rate", "eps", "beta1", "beta2", "weight_decay"):
        assert getattr(device, name) == getattr(cpu, name), name
