"""What a `DeviceEngine` does to rows outside of updates, beside `Collection`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_memory import LANES
from device_pair import EnginePair

from cpr_native._tensor import describe
from cpr_native.device import describe_on


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_ids_are_counted_and_sampled(lanes: int, kind: torch.dtype) -> None:
    pair = EnginePair(optimizer="none", lanes=lanes)
    generator = torch.Generator().manual_seed(3)
    for number in (0, 5, 400):
        ids = torch.randint(0, 300, (number,), generator=generator).to(kind)
        pair.cpu.track(0, describe(ids))
        on_device = pair.on_device(ids)
        pair.device.track(0, describe_on(pair.place, on_device))
    pair.assert_same()
    ids = pair.on_device(torch.tensor([3, 300]))
    with pytest.raises(IndexError, match="got id 300 at position 1"):  # noqa: PT012
        pair.device.track(0, describe_on(pair.place, ids))
        pair.device.synchronize()
    pair.assert_same()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_scaled_down(lanes: int, norm_type: float, dtype: str) -> None:
    pair = EnginePair(lanes=lanes, spec={"dtype": dtype})
    rng = np.random.default_rng(7)
    pair.step(rng)
    ids = torch.from_numpy(rng.integers(0, 300, 200))
    scaled = pair.cpu.renormalise(0, describe(ids), 0.4, norm_type)
    assert (
        pair.device.renormalise(0, describe_on(pair.place, pair.on_device(ids)), 0.4, norm_type) == scaled > 0
    )
    pair.assert_same()
    pair.step(rng)
    pair.assert_same()


def test_what_cannot_be_scaled_is_refused() -> None:
    pair = EnginePair()
    ids = pair.on_device(torch.tensor([3, 300]))
    with pytest.raises(ValueError, match="norm_type"):
        pair.device.renormalise(0, describe_on(pair.place, ids), 0.4, 3.0)
    with pytest.raises(IndexError, match="got id 300 at position 1"):
        pair.device.renormalise(0, describe_on(pair.place, ids), 0.4, 2.0)
    pair.assert_same()
