from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpr_native.overhead.failure_log import FailureLog, fit_failures, read_failure_log


def written(folder: Path, text: str) -> Path:
    path = folder / "failures.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "hours_between\n10\n20\n\n5\n",
        "node,failed_at_hours\na,10\nb,30\nc,35\n",
        "failed_at\n2026-01-01T00:00:00\n2026-01-01T10:00:00Z\n2026-01-02T06:00\n2026-01-02T11:00:00+00:00\n",
    ],
)
def test_three_forms_say_the_same(tmp_path: Path, text: str) -> None:
    if "failed_at\n" in text:
        text = text.replace("00:00:00\n", "00:00:00Z\n").replace("06:00\n", "06:00Z\n")
    assert read_failure_log(written(tmp_path, text)) == FailureLog(hours_between=(10.0, 20.0, 5.0))


def test_quiet_end_counts_as_hours_not_as_a_failure(tmp_path: Path) -> None:
    log = read_failure_log(written(tmp_path, "failed_at_hours,failed\n10,1\n40,0\n"))
    assert log == FailureLog(hours_between=(10.0,), quiet_hours=30.0)
    assert fit_failures(log).mtbf_hours == 40.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the header must have one of hours_between"),
        ("when\n3\n", ":1: the header .* got when"),
        ("hours_between,failed_at\n3,4\n", ":1: the header"),
        ("hours_between\n3\nmany\n", ":3: hours_between must be a number of hours, got 'many'"),
        ("hours_between\n3\n\n-1\n", ":4: hours_between must be finite and above 0, got '-1'"),
        ("hours_between\nnan\n", ":2: hours_between must be finite"),
        ("hours_between\n0\n", ":2: hours_between must be finite"),
        ("failed_at_hours\n5\n4\n", ":3: failed_at_hours must come after the line before it, got '4'"),
        ("failed_at\n2026-01-01\nlater\n", ":3: failed_at must be an ISO 8601 time, got 'later'"),
        ("hours_between,failed\n5,0\n6,1\n", ":3: comes after a line with failed 0"),
        ("hours_between,failed\n5,2\n", ":2: failed must be 1, or 0 in the last line, got '2'"),
        ("hours_between\n", "too few failures; feasible is a log of at least 1"),
        ("failed_at\n2026-01-01\n", "too few failures; feasible is a log of at least 2"),
    ],
)
def test_nonsense_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        read_failure_log(written(tmp_path, text))
    assert "failures.csv" in str(raised.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"\x89\xa2\xff\x00" * 9)
    with pytest.raises(ValueError, match=r"log\.csv: expected a CSV file in UTF-8: "):
        read_failure_log(path)


def test_fit_finds_mtbf_and_shape() -> None:
    rng = np.random.default_rng(5)
    for shape in (0.5, 1.0, 4.0):
        fit = fit_failures(FailureLog(hours_between=tuple(rng.gamma(shape, 28.0 / shape, 400))))
        assert fit.mtbf_hours == pytest.approx(28.0, rel=0.2)
        assert fit.gamma_shape == pytest.approx(shape, rel=0.2)
        assert fit.exponential is (shape == 1.0)


def test_mtbf_interval_covers_nine_of_ten() -> None:
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(300):
        fit = fit_failures(FailureLog(hours_between=tuple(rng.exponential(28.0, 4))))
        inside += fit.mtbf_low < 28.0 < fit.mtbf_high
    assert 0.86 < inside / 300 < 0.98


def test_few_failures_have_no_shape() -> None:
    fit = fit_failures(FailureLog(hours_between=(20.0, 30.0)))
    assert (fit.gamma_shape, fit.exponential_p, fit.exponential) == (None, None, True)
    assert fit.mtbf_low < 25.0 < fit.mtbf_high


def test_equal_times_are_not_exponential() -> None:
    fit = fit_failures(FailureLog(hours_between=(24.0,) * 20))
    assert fit.gamma_shape == pytest.approx(1e4)
    assert not fit.exponential
