"""S1 to S5 against FBGEMM's CPU TBE: a training step of the tables, and the lookup alone as in evaluation."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from statistics import fmean

import pytest
import torch
from cores import CORES
from figures import Figures
from floor import copy_bandwidth, step_bytes
from harness import Compare
from shapes import TIMED, Shape, shape_of
from sides import METADATA, Fbgemm, Ours, assert_same_training

ROUNDS = 40
BUILDS = {"S1": 3}  # small tables are as fast as the memory that they happen to get


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides with the same rows, for the step and then for the lookup."""

    name: str
    shape: Shape
    ours: Ours
    fbgemm: Fbgemm


@pytest.fixture(
    scope="module", params=[f"{name} build {build}" for name in TIMED for build in range(BUILDS.get(name, 1))]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    gc.collect()  # the tables of the shape before
    name: str = request.param.split()[0]
    shape = shape_of(name, timed=not request.config.getoption("benchmark_disable"))
    ours = Ours(shape)
    return Pair(name=name, shape=shape, ours=ours, fbgemm=Fbgemm(shape, ours.weights()))


def test_step_against_fbgemm(compare: Compare, figures: Figures, pair: Pair) -> None:
    batches = pair.shape.batches(3 + compare.inputs(ROUNDS))
    assert_same_training(pair.ours, pair.fbgemm, batches[:3])
    assert pair.ours.module.engine.memory()["metadata"] == METADATA * sum(pair.shape.rows)
    times = compare(
        pair.ours.step, pair.fbgemm.step, iter(batches[3:]), rounds=ROUNDS, group=f"{pair.name} step"
    )
    if compare.timed:
        size = fmean(step_bytes(pair.shape, ids, metadata=METADATA) for ids in batches[3:9])
        bandwidth = copy_bandwidth(CORES)
        figures.sample(
            "engine",
            pair.name,
            vs_fbgemm=times.ratio,
            floor_share=size / bandwidth / (times.ours_ms / 1e3),
            step_ms=times.ours_ms,
            fbgemm_step_ms=times.yardstick_ms,
            floor_ms=size / bandwidth * 1e3,
            step_mb=size / 1e6,
            copy_gb_per_s=bandwidth / 1e9,
        )


def test_forward_against_fbgemm(compare: Compare, figures: Figures, pair: Pair) -> None:
    batches = pair.shape.batches(3 + compare.inputs(ROUNDS), seed=1)
    for mine, other in zip(pair.ours.weights(), pair.fbgemm.weights(), strict=True):
        other.copy_(mine)
    for ids in batches[:3]:
        torch.testing.assert_close(pair.ours.forward(ids), pair.fbgemm.forward(ids))
    times = compare(
        pair.ours.forward, pair.fbgemm.forward, iter(batches[3:]), rounds=ROUNDS, group=f"{pair.name} forward"
    )
    if compare.timed:
        figures.sample(
            "engine",
            pair.name,
            vs_fbgemm_forward=times.ratio,
            forward_ms=times.ours_ms,
            fbgemm_forward_ms=times.yardstick_ms,
        )
