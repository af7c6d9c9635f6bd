"""Forward and backward of a collection, captured once and replayed with other ids: as the CPU module trains.

On a GPU they are a CUDA graph; on a device of the host the same calls are made again.
"""

from __future__ import annotations

import pytest
import torch
from device_memory import place_for_test
from device_timing import Replay
from device_twins import BATCH, FUSED, Shape, assert_bits, assert_same, twins

from cpr_native.device import DeviceEngine
from cpr_native.optim import FusedOptimizer

IDS_A_BAG = 7


@pytest.mark.parametrize("optimizer", FUSED, ids=lambda settings: settings.name)
def test_replays_train_as_the_cpu_does(optimizer: FusedOptimizer) -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, optimizer)
    features = len(shape.features)
    offsets = torch.arange(0, features * BATCH * IDS_A_BAG + 1, IDS_A_BAG)
    ids, grad = torch.zeros(int(offsets[-1]), dtype=torch.int64), torch.zeros(BATCH, 21)
    inputs = [x.to(place.torch_device, copy=True) for x in (ids, offsets, grad)]
    outs: list[torch.Tensor] = []

    def step() -> None:
        out = module(inputs[0], inputs[1])
        out.backward(inputs[2])
        outs[:] = [out.detach()]

    replay = Replay(place, step)
    assert isinstance(module.engine, DeviceEngine)
    for _ in range(module.engine.step):  # those before the first replay
        twin(ids, offsets).backward(grad)
    generator = torch.Generator().manual_seed(1)
    for number in range(5):
        if number == 3:
            for each in (module, twin):
                each.learning_rate = 0.01
            module.sync()  # a replay runs no Python: what changed is put in force here
        parts = [
            torch.randint(0, shape.rows[table], (BATCH * IDS_A_BAG,), generator=generator)
            for table in shape.features
        ]
        ids, grad = torch.cat(parts), torch.randn(BATCH, 21, generator=generator)
        inputs[0].copy_(ids)
        inputs[2].copy_(grad)
        module.engine.prepare_step(len(ids))
        replay()
        expected = twin(ids, offsets)
        expected.backward(grad)
        assert_bits(outs[0], expected)
    assert_same(module, twin)
