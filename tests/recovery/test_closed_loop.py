"""The interval is planned anew after each save and each recovery; a restart goes on with that state."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery.jobs import BATCH, COSTS, JOB, OPTIMIZERS, STEPS, Net, adam, batches, manage, train_step

from cpr_native.config import Trackers
from cpr_native.overhead import ClosedLoop, LoopState
from cpr_native.policy import Full, Mfu, Partial, Policy
from cpr_native.recovery import RecoveryManager

LOOP = ClosedLoop(probability=0.8, measure_costs=False, least_interval_hours=1.0)


def net() -> Net:
    return Net(OPTIMIZERS["adagrad"], Trackers(ssu_fraction=0.25))


def closed(model: Net, path: Path, policy: Policy, loop: ClosedLoop = LOOP) -> RecoveryManager:
    return manage(model, path, policy, loop=loop, background=False, target_pls=0.2)


def state_of(manager: RecoveryManager) -> LoopState:
    assert manager.pace.loop is not None
    return manager.pace.loop


def train(manager: RecoveryManager, model: Net, begin: int, end: int) -> None:
    for batch in batches()[begin:end]:
        train_step(model, batch)
        manager.step(BATCH)


def test_first_interval_is_the_planned_one_not_the_papers(tmp_path: Path) -> None:
    model = net()
    with closed(model, tmp_path, Partial()) as manager:
        expected = LoopState(LOOP, JOB, COSTS, 0.2, recovery="partial")
        assert manager.interval_samples == round(expected.interval_hours * BATCH)
        assert manager.interval_samples < round(manager.plan.partial_interval_hours * BATCH)


def test_saves_come_at_the_interval_in_force(tmp_path: Path) -> None:
    model = net()
    with closed(model, tmp_path, Partial()) as manager:
        train(manager, model, 0, 1)
        planned = manager.interval_samples // BATCH
        train(manager, model, 1, planned + 1)
        due = [save for save in manager.saves if save.reason == "due"]
        assert [save.step for save in due] == [planned]
        assert state_of(manager).mtbf.observed_hours == pytest.approx(planned + 1)


def test_losses_are_fed_back(tmp_path: Path) -> None:
    model = net()
    with closed(model, tmp_path, Partial()) as manager:
        train(manager, model, 0, 10)
        before = state_of(manager).interval_hours
        manager.recover([0, 1])
        assert manager.pls > 0
        assert state_of(manager).mtbf.failures == 1
        assert state_of(manager).interval_hours < before
        assert manager.interval_samples == round(state_of(manager).interval_hours * BATCH)


def test_restart_goes_on_with_the_same_state(tmp_path: Path) -> None:
    model = net()
    manager = closed(model, tmp_path, Partial())
    train(manager, model, 0, 8)
    manager.recover([2])
    train(manager, model, 8, 12)
    manager.close()
    left = state_of(manager)
    other = net()
    resumed = closed(other, tmp_path, Partial())
    resumed.resume()
    loop = state_of(resumed)
    assert (loop.mtbf.failures, loop.mtbf.observed_hours) == (
        1,
        pytest.approx(left.mtbf.observed_hours, abs=4),
    )
    assert loop.position_hours == 12.0
    assert loop.save.hours == left.save.hours
    assert resumed.pls == manager.pls
    train(resumed, other, 12, STEPS)
    assert loop.mtbf.failures == 1
    resumed.close()


def test_full_recovery_keeps_what_it_has_learnt(tmp_path: Path) -> None:
    model = net()
    dense = adam(model)
    manager = manage(model, tmp_path, Full(), dense=dense, loop=LOOP, background=False)
    for batch in batches()[:8]:
        train_step(model, batch, dense)
        manager.step(BATCH)
    first = manager.interval_samples
    report = manager.recover([1])
    assert report.lost_samples > 0
    loop = state_of(manager)
    assert (loop.mtbf.failures, loop.mtbf.observed_hours) == (1, 8.0)
    assert loop.position_hours == report.samples / BATCH
    assert manager.interval_samples < first, "8 hours with a failure: the MTBF is thought shorter"
    manager.close()


def test_priority_saves_come_at_their_part_of_the_interval(tmp_path: Path) -> None:
    model = net()
    with closed(model, tmp_path, Mfu(fraction=0.25)) as manager:
        train(manager, model, 0, STEPS)
        assert state_of(manager).interval_hours <= JOB.total_hours
        assert manager.interval_samples == max(1, round(state_of(manager).interval_hours * 0.25 * BATCH))
        kinds = {save.kind for save in manager.saves if save.reason == "due"}
        assert kinds == {"priority"}


def test_costs_are_measured_unless_the_hours_are_emulated(tmp_path: Path) -> None:
    observed = []
    for measure in (True, False):
        model = net()
        loop = ClosedLoop(measure_costs=measure, least_interval_hours=1.0)
        with closed(model, tmp_path / str(measure), Partial(), loop) as manager:
            train(manager, model, 0, 12)
            manager.recover([0])
            state = state_of(manager)
            observed.append((state.save.observations > 0, state.load.observations > 0))
            assert (state.save.hours < COSTS.save) is measure
    assert observed == [(True, True), (False, False)]


def test_fixed_interval_writes_nothing_about_a_loop(tmp_path: Path) -> None:
    model = net()
    with manage(model, tmp_path, Partial(), background=False) as manager:
        train(manager, model, 0, 3)
        assert manager.pace.loop is None
        assert manager.pace.state_dict() == {}
