from __future__ import annotations

from dataclasses import dataclass

import pytest

import cpr_native.policy
from cpr_native.data import KAGGLE_TABLE_SIZES
from cpr_native.overhead import KAGGLE, plan
from cpr_native.policy import (
    Delta,
    Full,
    Mfu,
    Partial,
    Policy,
    Ssu,
    clears_dirty,
    exact_selections,
    prioritised_tables,
)

PLAN = plan(KAGGLE.job, KAGGLE.costs)


@dataclass(frozen=True)
class Rows:
    num_embeddings: int


class Named:
    """Stands for `Selection`, whose contents only the engine can read."""

    @staticmethod
    def all() -> str:
        return "all"

    @staticmethod
    def dirty() -> str:
        return "dirty"

    @staticmethod
    def sampled() -> str:
        return "sampled"

    @staticmethod
    def most_used(rows: int) -> str:
        return f"most_used {rows}"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpr_native.policy, "Selection", Named)


def tables(*rows: int) -> list[Rows]:
    return [Rows(count) for count in rows]


@pytest.mark.parametrize("policy", [Full(), Delta(), Partial(), Mfu(), Ssu()])
def test_policies_follow_the_protocol(policy: Policy) -> None:
    assert isinstance(policy, Policy)


def test_names_and_recovery() -> None:
    kinds = {policy.name: policy.recovery for policy in (Full(), Delta(), Partial(), Mfu(), Ssu())}
    assert kinds == {
        "full": "full",
        "delta": "full",
        "partial": "partial",
        "mfu": "partial",
        "ssu": "partial",
    }


def test_intervals_come_from_the_plan() -> None:
    assert Full().interval_hours(PLAN) == PLAN.full_interval_hours
    assert Delta().interval_hours(PLAN) == PLAN.full_interval_hours
    assert Partial().interval_hours(PLAN) == PLAN.partial_interval_hours
    assert Mfu().interval_hours(PLAN) == PLAN.partial_interval_hours / 8
    assert Ssu(fraction=0.25).interval_hours(PLAN) == PLAN.partial_interval_hours / 4


def test_kinds() -> None:
    assert [Full().kind(number) for number in range(2)] == ["base", "base"]
    assert [Partial().kind(number) for number in range(2)] == ["base", "base"]
    assert [Delta(base_every=3).kind(number) for number in range(6)] == ["delta", "delta", "base"] * 2
    assert [Mfu().kind(0), Ssu().kind(1)] == ["priority", "priority"]


def test_only_priority_keeps_dirty_bits() -> None:
    assert [clears_dirty(kind) for kind in ("base", "delta", "priority")] == [True, True, False]


def test_prioritised_tables_hold_the_share() -> None:
    largest = sorted(range(26), key=lambda table: -KAGGLE_TABLE_SIZES[table])
    rows = tables(*KAGGLE_TABLE_SIZES)
    assert prioritised_tables(rows, 0.995) == sorted(largest[:7])
    assert sum(KAGGLE_TABLE_SIZES[table] for table in largest[:7]) / sum(KAGGLE_TABLE_SIZES) == pytest.approx(
        0.9958, abs=5e-5
    )
    assert prioritised_tables(rows) == sorted(largest[:6])
    assert prioritised_tables(tables(1, 990, 9)) == [1]
    assert prioritised_tables(tables(10, 10, 10)) == [0, 1, 2]
    assert prioritised_tables(tables(10, 10, 10), 0.5) == [0, 1]
    assert prioritised_tables(tables(5)) == [0]


@pytest.mark.parametrize("kind", ["base", "delta"])
def test_exact_saves_take_every_table(kind: str) -> None:
    for policy in (Full(), Delta(), Partial(), Mfu(), Ssu()):
        assert len(policy.selections(tables(5, 500), kind)) == 2


@pytest.mark.usefixtures("named")
def test_selections_of_each_kind() -> None:
    chosen = tables(4, 1000)
    assert exact_selections(chosen, "base") == ["all", "all"]
    assert exact_selections(chosen, "delta") == ["dirty", "dirty"]
    assert Mfu().selections(chosen, "priority") == ["all", "most_used 125"]
    assert Ssu().selections(chosen, "priority") == ["all", "sampled"]


@pytest.mark.usefixtures("named")
def test_quota_is_rounded_down_and_at_least_one() -> None:
    assert Mfu().selections(tables(15, 15), "priority") == ["most_used 1"] * 2
    assert Mfu().selections(tables(3), "priority") == ["most_used 1"]


def test_policies_without_ranking_refuse_priority() -> None:
    for policy in (Full(), Delta(), Partial()):
        with pytest.raises(ValueError, match="needs a policy that ranks rows"):
            policy.selections(tables(5), "priority")


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5])
@pytest.mark.parametrize("name", ["fraction", "row_share"])
@pytest.mark.parametrize("kind", [Mfu, Ssu])
def test_bad_fractions_raise(kind: type[Mfu] | type[Ssu], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}: {name} must be in \(0, 1\]"):
        kind(**{name: value})


def test_name_and_recovery_are_of_the_kind_of_policy() -> None:
    with pytest.raises(TypeError, match="recovery"):
        Mfu(recovery="full")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="name"):
        Full(name="mine")  # type: ignore[call-arg]


def test_base_every_must_be_positive() -> None:
    with pytest.raises(ValueError, match="base_every must be at least 1, got 0"):
        Delta(base_every=0)
