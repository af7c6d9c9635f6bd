"""The order of updates by itself."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_native.cluster.messages import QueueFull, StepGap
from cpr_native.cluster.order import StepOrder


def drained(order: StepOrder) -> list[tuple[int, list[Any]]]:
    found = []
    while (due := order.due()) is not None:
        found.append(due)
        order.done(due[0])
    return found


def test_steps_in_turn_and_ranks_in_turn() -> None:
    order = StepOrder([0, 0, 0], 8)
    for rank, steps in ((2, (1, 2)), (0, (1,)), (1, (1, 2))):
        for step in steps:
            order.put(rank, step, f"{step}.{rank}")  # type: ignore[arg-type]
    assert drained(order) == [(1, ["1.0", "1.1", "1.2"])]
    assert (order.watermarks, order.received, order.missing()) == ((1, 1, 1), (1, 2, 2), [0])
    order.put(0, 2, "2.0")  # type: ignore[arg-type]
    assert drained(order) == [(2, ["2.0", "2.1", "2.2"])]


def test_ranks_that_are_ahead_have_no_part_in_a_step() -> None:
    order = StepOrder([2, 4, 2], 8)
    for rank, step in ((0, 3), (2, 3), (0, 4), (2, 4), (0, 5), (1, 5), (2, 5)):
        order.put(rank, step, f"{step}.{rank}")  # type: ignore[arg-type]
    assert drained(order) == [
        (3, ["3.0", "3.2"]),
        (4, ["4.0", "4.2"]),
        (5, ["5.0", "5.1", "5.2"]),
    ]


def test_gaps_and_full_queues_take_nothing() -> None:
    order = StepOrder([3, 3], 2)
    for step in (3, 5):
        with pytest.raises(StepGap, match=rf"expected the update of step 4 next, got step {step}"):
            order.put(0, step, None)  # type: ignore[arg-type]
    order.put(0, 4, None)  # type: ignore[arg-type]
    order.put(0, 5, None)  # type: ignore[arg-type]
    with pytest.raises(QueueFull, match=r"rank 0: 2 of its updates wait for step 4 of ranks \[1\]"):
        order.put(0, 6, None)  # type: ignore[arg-type]
    assert order.received == (5, 3)
    assert [order.is_known(0, step) for step in (3, 4, 5, 6)] == [True, True, True, False]


def test_steps_that_a_rank_has_lost_are_counted_once() -> None:
    order = StepOrder([2, 2], 8)
    assert order.skip(0, 5) == 3
    assert order.skip(0, 5) == 0
    assert order.skip(0, 1) == 0  # acknowledged here, the answer was lost: the rank sends it again
    assert (order.watermarks, order.applied) == ((5, 2), 2)
    order.put(0, 6, "6.0")  # type: ignore[arg-type]
    assert order.skip(0, 6) == 1  # what waits is dropped, as it counts as applied
    assert order.received == (6, 2)
    with pytest.raises(StepGap):
        order.put(0, 6, "6.0")  # type: ignore[arg-type]
    order.restart([7])
    assert (order.ranks, order.received) == (1, (7,))
