from __future__ import annotations

import json

import pytest

from cpr_native.overhead import KAGGLE, ClosedLoop, Costs, Job, LoopState, optimal_full_interval

JOB, COSTS = KAGGLE.job, KAGGLE.costs


def loop(recovery: str = "partial", **settings: float) -> LoopState:
    mode = "full" if recovery == "full" else "partial"
    return LoopState(ClosedLoop(**settings), JOB, COSTS, 0.1, recovery=mode)


def test_first_plan_is_shorter_for_a_higher_probability() -> None:
    hours = [loop(probability=probability).interval_hours for probability in (0.5, 0.8, 0.95)]
    assert hours == sorted(hours, reverse=True)
    assert hours[0] > 2 * hours[2]
    assert all(round(56.0 / value) == pytest.approx(56.0 / value) for value in hours)


def test_losses_shorten_the_interval_and_quiet_hours_lengthen_it() -> None:
    state = loop(probability=0.9)
    planned = state.interval_hours
    state.advance(20.0)
    quiet = state.replan(age_hours=0.0, pls=0.0)
    assert quiet > planned
    state.mtbf.failed()
    assert state.replan(age_hours=10.0, pls=0.06) < planned
    assert state.feasible


def test_target_that_is_lost_returns_to_the_papers_interval() -> None:
    state = loop()
    state.advance(20.0)
    assert state.replan(age_hours=3.0, pls=0.2) == pytest.approx(44.8)
    assert not state.feasible


def test_full_recovery_follows_estimated_costs_and_failures() -> None:
    state = loop("full")
    assert state.interval_hours == pytest.approx(optimal_full_interval(JOB, COSTS))
    for _ in range(10_000):
        state.save.observe(0.2)
    state.advance(50.0)
    for _ in range(4):
        state.mtbf.failed()
    estimated = Job(total_hours=56.0, mtbf_hours=(56.0 + 50.0) / 6, shards=8)
    expected = optimal_full_interval(estimated, Costs(save=0.2, load=0.0, reschedule=0.0))
    assert state.replan(age_hours=0.0, pls=0.0) == pytest.approx(expected, rel=1e-3)


def test_risk_is_spent_only_beyond_the_budget() -> None:
    state = loop(probability=0.5)
    state.advance(20.0)
    assert state.risk_spent == 0, "the budget is 44.8 hours of age, no single failure can break it yet"
    state.replan(age_hours=20.0, pls=0.095)
    state.advance(21.0)
    assert state.risk_spent == pytest.approx(state.mtbf.rate * 1.0, rel=0.02)


def test_state_survives_json_and_plans_the_same() -> None:
    state, other = loop(), loop()
    state.advance(12.0)
    state.mtbf.failed()
    state.save.observe(0.2)
    state.replan(age_hours=4.0, pls=0.03)
    other.load_state_dict(json.loads(json.dumps(state.state_dict(), allow_nan=False)))
    assert other.state_dict() == state.state_dict()
    for each in (state, other):
        each.replan(age_hours=4.0, pls=0.03)
        each.advance(15.0)
        each.replan(age_hours=7.0, pls=0.05)
    assert other.state_dict() == state.state_dict()


def test_bad_state_and_positions_are_refused() -> None:
    state = loop()
    state.advance(5.0)
    with pytest.raises(ValueError, match=r"position_hours must be finite and at least 5\.0, got 4\.0"):
        state.advance(4.0)
    with pytest.raises(ValueError, match="risk_spent must be"):
        state.load_state_dict({**state.state_dict(), "risk_spent": -1.0})
    state.rewind(3.0)
    state.advance(4.0)
    assert state.mtbf.observed_hours == pytest.approx(6.0), "work that is done again can fail again"


@pytest.mark.parametrize(
    ("name", "value"),
    [("probability", 1.0), ("probability", 0.0), ("mtbf_weight", 0.0), ("least_interval_hours", -1.0)],
)
def test_settings_out_of_range_raise(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        ClosedLoop(**{name: value})
