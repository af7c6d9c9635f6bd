from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.emulate import VirtualClock

TOTALS = st.integers(1, 10**10)
HOURS = st.floats(0.01, 1e5)


def test_ends_of_the_job() -> None:
    clock = VirtualClock(total_samples=1000)
    assert clock.hours(0) == 0
    assert clock.hours(1000) == 56.0
    assert clock.hours(500) == 28.0
    assert clock.samples(28.0) == 500


@given(total=TOTALS, hours=HOURS, data=st.data())
def test_samples_inverts_hours(total: int, hours: float, data: st.DataObject) -> None:
    clock = VirtualClock(total_samples=total, total_hours=hours)
    samples = data.draw(st.integers(0, total))
    assert clock.samples(clock.hours(samples)) == samples


@given(total=st.integers(1, 10**7), hours=HOURS, share=st.floats(0, 1))
def test_samples_is_the_smallest_that_reaches_the_hour(total: int, hours: float, share: float) -> None:
    clock = VirtualClock(total_samples=total, total_hours=hours)
    wanted = share * hours
    samples = clock.samples(wanted)
    assert clock.hours(samples) >= wanted
    assert samples == 0 or clock.hours(samples - 1) < wanted


@pytest.mark.parametrize("total", [0, -1])
def test_no_samples_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match="total_samples must be at least 1"):
        VirtualClock(total_samples=total)


@pytest.mark.parametrize("hours", [0.0, -1.0, float("inf"), float("nan")])
def test_hours_out_of_range_are_refused(hours: float) -> None:
    with pytest.raises(ValueError, match="total_hours must be positive"):
        VirtualClock(total_samples=1, total_hours=hours)


def test_negative_positions_are_refused() -> None:
    clock = VirtualClock(total_samples=10)
    with pytest.raises(ValueError, match="samples must not be negative, got -1"):
        clock.hours(-1)
    with pytest.raises(ValueError, match="hours must be finite and not negative"):
        clock.samples(float("nan"))
