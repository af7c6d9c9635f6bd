"""Parts of the study of SCAR: crossings, blocks, what policies have saved, draws, lag and spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scar import datasets
from scar.mlr import MLR
from scar.workload import Workload
from scar_study import arms, blocks, crossing, movement
from scar_study.blocks import BlockTable, bounds, draw_lost, tables_of
from scar_study.history import saved_at
from scar_study.trunk import Trunk, grow
from torch import nn

import cpr_native as cpr
from cpr_native.policy import Drift, Partial, RoundRobin, Scar


class Halving(Workload):
    """x[k+1] = J x[k] with a diagonal J: blocks of small rates move fast and then hardly at all."""

    name, data, iterations = "halving", "none", 40

    def __init__(self, rates: tuple[float, ...] = (0.9,) * 8) -> None:
        self._rates = torch.tensor(rates).unsqueeze(1)

    def model(self, forks: int | None = None) -> nn.Module:
        model = nn.Module()
        start = torch.ones(len(self._rates), 4)
        model.x = nn.Parameter(start.clone() if forks is None else start.expand(forks, -1, -1).clone())
        return model

    @torch.no_grad()
    def step(self, model: nn.Module, optimizer: object, number: int) -> None:
        model.x.mul_(self._rates)

    def objective(self, model: nn.Module) -> torch.Tensor:
        return model.x.square().sum((-2, -1))


def test_crossing_is_log_linear_between_two_iterations() -> None:
    values = 8.0 * 0.5 ** np.arange(10)
    assert crossing.crossing(values, 1.0, 0, stochastic=False) == pytest.approx(3.0)
    assert crossing.crossing(values, math.sqrt(2.0), 0, stochastic=False) == pytest.approx(2.5)
    assert crossing.crossing(values, 1e-9, 0, stochastic=False) is None
    assert crossing.crossing(values, 1.0, 5, stochastic=False) == 5.0, "below already as it is looked at"


def test_stochastic_crossing_is_of_medians_and_has_to_last() -> None:
    values = np.full(60, 2.0)
    values[10] = values[11] = 0.5  # two dips move no median of five
    values[20:24] = 0.5  # a median is below, but doesn't stay
    values[40:] = 0.5
    found = crossing.crossing(values, 1.0, 0, stochastic=True)
    assert found == pytest.approx(41.5)
    assert crossing.crossing(values[:50], 1.0, 0, stochastic=True) is None, "not yet known to stay"


@pytest.mark.parametrize("how", ["rows", "tensors", 7])
def test_blocks_are_those_of_attach(how: blocks.Blocks) -> None:
    model = nn.Module()
    model.a, model.b = nn.Parameter(torch.zeros(5, 3, 2)), nn.Parameter(torch.zeros(9))
    tables = tables_of({name: p.shape for name, p in model.named_parameters()}, how)
    with cpr.attach(model, blocks=how, optimizer=()) as attachment:
        real = [(t.num_embeddings, t.embedding_dim) for t in attachment.engine.tables]
        for number, table in enumerate(tables):
            flat = np.arange(model.get_parameter(table.name).numel(), dtype=np.float32)
            with torch.no_grad():
                model.get_parameter(table.name).copy_(
                    torch.from_numpy(flat).view_as(model.get_parameter(table.name))
                )
            assert np.array_equal(attachment.engine.weight(number), table.of(flat))
    assert [(table.rows, table.dim) for table in tables] == real


def test_lost_blocks_are_nested_and_those_of_aligned_tables_the_same() -> None:
    tables = [BlockTable(name="a", begin=0, rows=20, dim=2), BlockTable(name="b", begin=0, rows=20, dim=5)]
    lost = draw_lost(tables, (0.25, 0.5), (1, 2), aligned=False)
    assert [mask.sum() for mask in lost.values()] == [10, 20]
    assert not (lost[0.25] & ~lost[0.5]).any()
    assert not np.array_equal(lost[0.25][:20], lost[0.25][20:])
    aligned = draw_lost(tables, (0.25,), (1, 2), aligned=True)[0.25]
    assert aligned.sum() == 10
    assert np.array_equal(aligned[:20], aligned[20:])


def test_failures_are_within_the_run_and_geometric() -> None:
    failed = arms.failures(60, 2000)
    assert min(failed) >= 2
    assert max(failed) < 60
    weights = (1 - 2 / 60) ** np.arange(2, 60)
    mean = float((np.arange(2, 60) * weights).sum() / weights.sum())
    assert np.mean(failed) == pytest.approx(mean, abs=1.0)
    assert arms.failures(60, 20) == failed[:20], "more trials go on from fewer"


@pytest.fixture(scope="module")
def trunk() -> Trunk:
    return grow(Halving((0.9,) * 4 + (0.999,) * 4))


def test_round_robin_and_full_checkpoints_are_as_old_as_they_should_be(trunk: Trunk) -> None:
    turns = saved_at(trunk, RoundRobin(fraction=0.25), 4)
    assert turns[16].tolist() == [4, 4, 8, 8, 12, 12, 16, 16]
    assert turns[19].tolist() == turns[16].tolist()
    whole = saved_at(trunk, Partial(), 16)
    assert [set(row) for row in whole[[15, 16, 31, 32]].tolist()] == [{0}, {16}, {16}, {32}]


@pytest.mark.parametrize("policy", [Scar(fraction=0.25), Drift(fraction=0.25)])
def test_priority_saves_the_blocks_that_moved_farthest(trunk: Trunk, policy: cpr.Scar) -> None:
    saved = saved_at(trunk, policy, 1)
    assert saved[8, :4].min() >= 6, "the fast blocks, two at a time"
    assert saved[8, 4:].max() == 0
    distance = np.linalg.norm(
        trunk.weights["x"].reshape(-1, 8, 4)[8] - trunk.weights["x"].reshape(-1, 8, 4)[saved[8], range(8)],
        axis=1,
    )
    assert distance.max() < 0.5


def test_lag_is_the_number_of_steps_behind(trunk: Trunk) -> None:
    """All blocks go back by s steps of a nearly steady run: the lag is s; half of them: s / 2."""
    slow = grow(Halving((0.9999,) * 8))
    assert movement.lag(slow, {"x": slow.weights["x"][12]}, 20) == pytest.approx(8.0, rel=0.01)
    half = slow.weights["x"][20].copy()
    half[:16] = slow.weights["x"][12][:16]
    assert movement.lag(slow, {"x": half}, 20) == pytest.approx(4.0, rel=0.01)
    assert movement.spread(slow, 5) == pytest.approx(1.0)
    assert movement.spread(trunk, 5) == pytest.approx(0.5, abs=0.05)


def test_trunk_keeps_every_iterate_and_the_state_that_torch_makes_later() -> None:
    workload = MLR(datasets.generated_images(30), "mnist", iterations=5, lr=0.1, momentum=0.5)
    grown = grow(workload)
    assert grown.weights["weight"].shape == (7, 7850)
    momenta = grown.states["weight/momentum_buffer"]
    assert momenta.shape == (7, 7850)
    assert not momenta[0].any()
    steps = np.diff(grown.weights["weight"], axis=0)
    assert np.allclose(steps, -0.1 * momenta[1:], atol=1e-6)
    assert grown.reached == 5.0


def test_places_of_tables_follow_each_other() -> None:
    tables = tables_of({"a": (3, 2), "b": (4,)}, 3)
    assert [(place.start, place.stop) for place in bounds(tables)] == [(0, 2), (2, 3), (3, 4)]
