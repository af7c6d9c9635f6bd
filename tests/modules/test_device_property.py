"""Random collections and steps: on a device and on the CPU, the same bits."""

from __future__ import annotations

from typing import Any

import torch
from device_memory import LANES, place_for_test
from device_twins import FUSED, Shape, assert_bits, assert_same, twins
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_native import DataType, PoolingType


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    tables = draw(st.integers(1, 3))
    features = [*range(tables), *draw(st.lists(st.integers(0, tables - 1), max_size=2))]
    return Shape(
        rows=tuple(draw(st.integers(1, 70)) for _ in range(tables)),
        dims=tuple(draw(st.integers(1, 70)) for _ in range(tables)),
        kind=draw(st.sampled_from([DataType.FP32, DataType.FP16, DataType.BF16])),
        pooling=draw(st.sampled_from([PoolingType.SUM, PoolingType.MEAN, PoolingType.MAX])),
        names=tuple("abc"[:tables]),
        features=sorted(features),
    )


@settings(max_examples=25)
@given(
    shape=shapes(),
    lanes=st.sampled_from(LANES),
    optimizer=st.sampled_from(FUSED),
    ids=st.sampled_from([torch.int32, torch.int64]),
    weighted=st.booleans(),
    longest=st.sampled_from([0, 3, 150]),
    frozen=st.integers(0, 3),
    host_memory=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_steps_are_those_of_the_cpu(
    shape: Shape,
    lanes: int,
    optimizer: Any,
    ids: torch.dtype,
    weighted: bool,
    longest: int,
    frozen: int,
    host_memory: bool,
    seed: int,
) -> None:
    place = place_for_test(lanes, seed)
    module, twin = twins(place, shape, optimizer, seed=seed, host_memory=host_memory)
    weighted = weighted and shape.pooling is PoolingType.SUM
    for number, step in enumerate(shape.steps(3, seed=seed, longest=longest)):
        outs = []
        for each in (module, twin):
            for table, weight in enumerate(each.parameters()):
                weight.requires_grad_(table != frozen or number == 1)
            tensors = [x.to(each.device) for x in (step.ids.to(ids), step.offsets, step.weights, step.grad)]
            out = each(tensors[0], tensors[1], tensors[2] if weighted else None)
            if out.requires_grad:
                out.backward(tensors[3])
            outs.append(out.detach())
        assert_bits(*outs)
    assert_same(module, twin)
