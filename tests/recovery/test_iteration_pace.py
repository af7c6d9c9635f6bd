"""Interval and fraction follow the losses and the rows' movement; a restart goes on with that state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cpr_native as cpr
from cpr_native.iteration_cost import IterationLoop
from cpr_native.policy import Mfu, Scar
from cpr_native.recovery import RecoveryManager
from cpr_native.recovery.iterations import IterationPace, SavedAges
from cpr_native.shard import RowRange, Shard
from cpr_native.store import CheckpointStore

ROWS, STEPS = 64, 400
# One hour is one step.
JOB = cpr.Job(total_hours=float(STEPS), mtbf_hours=50.0, shards=4)
COSTS = cpr.Costs(save=0.5, load=0.1, reschedule=0.1)
LOOP = IterationLoop(measure_costs=False, fractions=(0.125, 0.25, 0.5, 1.0))


class Quadratic(torch.nn.Module):
    """Rows go straight to zero, some with far to go: loss = |w|^2 / 2, which SGD shrinks by 1 - lr."""

    def __init__(self) -> None:
        super().__init__()
        config = cpr.EmbeddingBagConfig(
            name="rows", num_embeddings=ROWS, embedding_dim=4, feature_names=["all"]
        )
        self.tables = cpr.EmbeddingBagCollection([config], optimizer=cpr.SGD(lr=0.05))
        with torch.no_grad():
            scale = torch.logspace(0, -3, ROWS)[:, None]
            self.tables.embedding_bags["rows"].weight.copy_(torch.ones(ROWS, 4) * scale)

    def forward(self) -> torch.Tensor:
        looked_up: torch.Tensor = self.tables(torch.arange(ROWS), torch.arange(ROWS + 1))
        return looked_up.square().sum() / 2


def manage(model: torch.nn.Module, path: Path, **options: Any) -> RecoveryManager:
    given = {"policy": Scar(fraction=0.25), "loop": LOOP, "background": False, "target_pls": 0.05, **options}
    return RecoveryManager(model, CheckpointStore(path), job=JOB, costs=COSTS, total_samples=STEPS, **given)


def pace_of(manager: RecoveryManager) -> IterationPace:
    assert isinstance(manager.pace, IterationPace)
    return manager.pace


def train(manager: RecoveryManager, model: Quadratic, steps: int, losses: bool = True) -> None:
    for _ in range(steps):
        loss = model()
        loss.backward()  # type: ignore[no-untyped-call]
        if losses:
            manager.observe(loss.item())
        manager.step(1)


def test_interval_and_fraction_are_chosen_from_the_training(tmp_path: Path) -> None:
    model = Quadratic()
    with manage(model, tmp_path) as manager:
        planned = manager.interval_samples
        train(manager, model, 120)
        loop = pace_of(manager).loop
        assert loop.contraction.c.value == pytest.approx(0.95, rel=1e-3)
        assert loop.choice is not None
        assert manager.interval_samples == loop.choice.interval != planned
        assert manager.policy == Scar(fraction=loop.choice.fraction)
        last = manager.saves[-1]
        assert (last.kind, last.rows) == ("priority", int(loop.choice.fraction * ROWS))
        due = [save.step for save in manager.saves if save.reason == "due"]
        assert due[-1] - due[-2] == loop.choice.interval


def test_distance_to_the_optimum_is_what_is_left_to_go(tmp_path: Path) -> None:
    model = Quadratic()
    with manage(model, tmp_path) as manager:
        train(manager, model, 100)
        pace = pace_of(manager)
        saved_at = manager.saves[-1].step
        movement = pace._ages.movement()
        assert movement is not None
        left = float(model.tables.embedding_bags["rows"].weight.detach().norm())
        there = left * 0.95 ** -(manager.steps - saved_at)
        assert movement.distance(0.95) == pytest.approx(there, rel=0.02)


def test_rarer_failures_are_met_with_fewer_saves(tmp_path: Path) -> None:
    rates = []
    for mtbf in (20.0, 2000.0):
        model = Quadratic()
        job = cpr.Job(total_hours=float(STEPS), mtbf_hours=mtbf, shards=4)
        manager = RecoveryManager(
            model,
            CheckpointStore(tmp_path / str(mtbf)),
            policy=Scar(fraction=0.25),
            job=job,
            costs=COSTS,
            total_samples=STEPS,
            loop=LOOP,
            background=False,
            target_pls=0.02,
        )
        with manager:
            train(manager, model, 150)
            rates.append(manager.policy.fraction / manager.interval_samples)
    assert rates[0] > rates[1]


def test_saves_stay_as_planned_without_losses(tmp_path: Path) -> None:
    model = Quadratic()
    with manage(model, tmp_path) as manager:
        planned = manager.interval_samples
        train(manager, model, 100, losses=False)
        assert (manager.interval_samples, manager.policy) == (planned, Scar(fraction=0.25))
        assert "0 of 8 observations" in pace_of(manager).loop.contraction.reason


def test_a_failure_counts_and_the_loop_goes_on(tmp_path: Path) -> None:
    model = Quadratic()
    with manage(model, tmp_path) as manager:
        train(manager, model, 80)
        before = pace_of(manager).loop.contraction
        manager.recover([1])
        assert pace_of(manager).mtbf.failures == 1
        train(manager, model, 60)
        after = pace_of(manager).loop.contraction
        assert after is not before
        assert after.c.value == pytest.approx(0.95, rel=1e-3)


def test_restart_goes_on_with_the_same_saves(tmp_path: Path) -> None:
    model = Quadratic()
    manager = manage(model, tmp_path)
    train(manager, model, 80)
    manager.recover([2])
    train(manager, model, 40)
    manager.close()
    other = Quadratic()
    resumed = manage(other, tmp_path)
    resumed.resume()
    noted = pace_of(manager)
    pace = pace_of(resumed)
    assert pace.mtbf.failures == 1
    assert pace.mtbf.observed_hours == pytest.approx(noted.mtbf.observed_hours, abs=40)
    assert (resumed.policy, resumed.interval_samples) == (manager.policy, manager.interval_samples)
    assert pace.loop.contraction.supported
    train(resumed, other, 40)
    assert pace.mtbf.failures == 1
    resumed.close()


def test_it_needs_scar(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the distances of a Scar policy, got Mfu"):
        manage(Quadratic(), tmp_path, policy=Mfu())
    with pytest.raises(ValueError, match="planned in place of a partial policy: "):
        manage(Quadratic(), tmp_path, target_pls=0.005)


def test_it_needs_l2_distances(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Otherwise(Scar):
        distance: str = "l1"

    with pytest.raises(ValueError, match=r"predicts from L2 distances, got .*'l1'"):
        manage(Quadratic(), tmp_path, policy=Otherwise())


def test_fit_tells_the_losses(tmp_path: Path) -> None:
    model = Quadratic()
    manager = manage(model, tmp_path)
    batches = [torch.zeros(1)] * 30
    cpr.fit(model, [(batch,) for batch in batches], manager, loss_fn=lambda net, batch: net())
    estimator = pace_of(manager).loop.state_dict()["estimator"]
    assert len(estimator["losses"]["means"]) == 30
    manager.close()


class Rows:
    embedding_dim = 1

    def __init__(self, rows: int = 10) -> None:
        self.num_embeddings = rows


def shards() -> list[Shard]:
    class Half:
        def __init__(self, begin: int) -> None:
            self.ranges = (RowRange(name="rows", table=0, begin=begin, end=begin + 5),)

    return [Half(0), Half(5)]  # type: ignore[list-item]


def test_ages_follow_what_is_saved() -> None:
    ages = SavedAges([Rows()], Scar(fraction=0.3), shards())
    assert ages.movement() is None
    away = np.arange(10, dtype=np.float32)
    ages.seen(0, away, step=4, fraction=0.3)  # saves rows 7, 8 and 9
    first = ages.movement()
    assert first is not None
    assert first.ages.tolist() == [4] * 10
    ages.seen(0, away, step=6, fraction=0.3)
    second = ages.movement()
    assert second is not None
    assert second.ages.tolist() == [6] * 7 + [2] * 3
    ages.restored([0], 8)
    never_saved = away.copy()
    never_saved[9] = np.finfo(np.float32).max
    ages.seen(0, never_saved, step=9, fraction=0.3)
    third = ages.movement()
    assert third is not None
    assert third.ages.tolist() == [1] * 5 + [9] * 2 + [3] * 2
    assert third.distances.tolist() == away[:9].tolist()
    ages.all_saved(9)
    assert ages.movement() is None


def test_of_a_few_rows_those_were_saved_that_are_nearer_than_before() -> None:
    """Of two rows a fraction of a quarter is less than one: other tables' rows may be taken instead."""
    ages = SavedAges([Rows(2)], Scar(fraction=0.25), [])
    for step, away in ((4, [1.0, 3.0]), (6, [1.4, 0.9]), (8, [1.7, 1.6])):
        ages.seen(0, np.array(away, np.float32), step=step, fraction=0.25)
    movement = ages.movement()
    assert movement is not None
    assert movement.ages.tolist() == [8, 4], "row 1 was saved at 4"
