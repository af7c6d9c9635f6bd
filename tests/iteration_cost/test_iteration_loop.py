"""The state of a predictive loop: what it learns, when it chooses, and its restart."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from cpr_native.iteration_cost import IterationLoop, IterationLoopState, Movement, SaveCostEstimate

MOVEMENT = Movement(np.geomspace(1e-3, 1.0, 100), np.full(100, 8))
PACE = {"mtbf_seconds": 1000.0, "seconds_per_iteration": 1.0}


def state(**settings: Any) -> IterationLoopState:
    return IterationLoopState(
        IterationLoop(**settings),
        save_seconds=2.0,
        reload_seconds=1.0,
        lost_share=0.25,
        interval=20,
        fraction=0.125,
    )


def converging(loop: IterationLoopState, steps: int = 60) -> None:
    for k in range(steps):
        loop.observe(1 + 0.95 ** (2 * k))


def test_nothing_changes_while_the_losses_say_nothing() -> None:
    loop = state()
    for _ in range(50):
        loop.observe(1.0)
    assert loop.replan(MOVEMENT, **PACE) is None
    assert (loop.interval, loop.fraction, loop.choice) == (20, 0.125, None)
    assert "flat" in loop.contraction.reason


def test_choice_follows_the_losses_and_movement() -> None:
    loop = state(fractions=(0.25, 1.0))
    converging(loop)
    choice = loop.replan(MOVEMENT, **PACE)
    assert choice is not None
    assert (loop.interval, loop.fraction) == (choice.interval, choice.fraction)
    assert choice.fraction in (0.25, 1.0)
    assert loop.contraction.c.value == pytest.approx(0.95, rel=1e-4)
    assert choice.iterations.high < 100
    often = state(fractions=(0.25, 1.0))
    converging(often)
    often.replan(MOVEMENT, mtbf_seconds=50.0, seconds_per_iteration=1.0)
    assert often.fraction / often.interval > loop.fraction / loop.interval


def test_interval_stays_within_its_limits() -> None:
    loop = state(least_interval=7, most_interval=9)
    converging(loop)
    loop.replan(MOVEMENT, **PACE)
    assert 7 <= loop.interval <= 9


def test_no_save_is_due_before_the_last_can_be_written() -> None:
    loop = state()
    converging(loop)
    often = {"mtbf_seconds": 20.0, "seconds_per_iteration": 1.0}
    loop.replan(MOVEMENT, **often)
    assert loop.interval <= 6
    loop.replan(MOVEMENT, writing_seconds=6.5, **often)
    assert loop.interval == 7


def test_a_recovery_begins_the_losses_anew_and_keeps_the_last_estimate() -> None:
    loop = state()
    converging(loop)
    loop.replan(MOVEMENT, **PACE)
    before = loop.contraction
    loop.perturbed()
    loop.observe(5.0)
    assert loop.replan(MOVEMENT, **PACE) is not None
    assert loop.contraction is before


def test_losses_that_are_not_finite_are_left_out() -> None:
    loop = state()
    loop.observe(math.nan)
    loop.observe(math.inf)
    converging(loop)
    loop.replan(MOVEMENT, **PACE)
    assert loop.contraction.observations == 60


def test_blocks_that_do_not_move_leave_the_saves_alone() -> None:
    loop = state()
    converging(loop)
    assert loop.replan(Movement(np.zeros(4), np.ones(4)), **PACE) is None


def test_restart_goes_on_with_the_same_state() -> None:
    loop = state()
    converging(loop)
    loop.save.observe(0.125, 0.5)
    loop.replan(MOVEMENT, **PACE)
    kept = json.loads(json.dumps(loop.state_dict()))
    other = state()
    other.load_state_dict(kept)
    assert (other.interval, other.fraction, other.save.cost) == (loop.interval, loop.fraction, loop.save.cost)
    assert repr(other.contraction) == repr(loop.contraction)
    for each in (loop, other):
        each.observe(1.001)
        each.replan(MOVEMENT, **PACE)
    assert loop.state_dict() == other.state_dict()
    with pytest.raises(ValueError, match="not the state of an IterationLoop"):
        other.load_state_dict({**kept, "interval": 0})


def test_costs_are_a_line_in_the_fraction() -> None:
    costs = SaveCostEstimate(10.0, fixed_share=0.2, weight=4.0)
    assert costs.cost.seconds(1.0) == pytest.approx(10.0)
    assert costs.cost.fixed == pytest.approx(2.0) or costs.cost.seconds(0.0) == pytest.approx(2.0)
    for _ in range(2000):
        costs.observe(0.125, 1.5)
        costs.observe(1.0, 5.0)
    assert costs.cost.seconds(0.125) == pytest.approx(1.5, rel=0.01)
    assert costs.cost.seconds(1.0) == pytest.approx(5.0, rel=0.01)
    with pytest.raises(ValueError, match="fraction must be in"):
        costs.observe(1.5, 1.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fractions": ()}, "fractions must be in"),
        ({"fractions": (0.0, 1.0)}, "fractions must be in"),
        ({"least_interval": 0}, "least_interval must be at least 1"),
        ({"least_interval": 5, "most_interval": 4}, "most_interval must be at least 5"),
        ({"confidence": 1.0}, "confidence must be in"),
        ({"window": 7}, "even number of at least 16"),
        ({"fixed_share": 1.0}, "fixed_share must be in"),
        ({"cost_weight": 0.0}, "cost_weight must be"),
    ],
)
def test_bad_settings_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterationLoop(**changed)
