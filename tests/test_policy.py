from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native._native import Selection
from cpr_native.data import KAGGLE_TABLE_SIZES
from cpr_native.overhead import KAGGLE, plan
from cpr_native.policy import (
    Delta,
    Drift,
    Full,
    Mfu,
    Partial,
    Policy,
    Random,
    RoundRobin,
    Scar,
    Ssu,
    _complete,
    _contract,
    _priority,
    clears_dirty,
    exact_selections,
    prioritised_tables,
)

PLAN = plan(KAGGLE.job, KAGGLE.costs)


@dataclass(frozen=True)
class Rows:
    num_embeddings: int
    embedding_dim: int = 1


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
    def none() -> str:
        return "none"

    @staticmethod
    def most_used(rows: int) -> str:
        return f"most_used {rows}"

    @staticmethod
    def most_drifted(rows: int) -> str:
        return f"most_drifted {rows}"

    @staticmethod
    def rows(mask: NDArray[np.bool_]) -> str:
        return f"rows {np.flatnonzero(mask).tolist()} of {len(mask)}"


@dataclass(frozen=True)
class Ranked:
    number: int = 0
    tables: tuple[tuple[float, ...], ...] = ()

    def changes(self, table: int) -> NDArray[np.float32]:
        return np.array(self.tables[table], np.float32)


PRIORITY = (Mfu(), Ssu(), Scar(), Drift(), Random(), RoundRobin())
POLICIES: tuple[Policy, ...] = (
    Full(),
    Delta(),
    Delta(recovery="partial"),
    Partial(),
    Partial(small_tables_fraction=0.125),
    *PRIORITY,
)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_contract, _complete, _priority):
        monkeypatch.setattr(module, "Selection", Named)


def tables(*rows: int) -> list[Rows]:
    return [Rows(count) for count in rows]


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_follow_the_protocol(policy: Policy) -> None:
    assert isinstance(policy, Policy)


def test_names_and_recovery() -> None:
    kinds = {policy.name: policy.recovery for policy in POLICIES}
    assert kinds == {
        "full": "full",
        "delta": "full",
        "delta_partial": "partial",
        "partial": "partial",
        "partial_small": "partial",
        "mfu": "partial",
        "ssu": "partial",
        "scar": "partial",
        "drift": "partial",
        "random": "partial",
        "round_robin": "partial",
    }


def test_intervals_come_from_the_plan() -> None:
    assert Full().interval_hours(PLAN) == PLAN.full_interval_hours
    assert Delta().interval_hours(PLAN) == PLAN.full_interval_hours
    assert Partial().interval_hours(PLAN) == PLAN.partial_interval_hours
    assert Mfu().interval_hours(PLAN) == PLAN.partial_interval_hours / 8
    assert Ssu(fraction=0.25).interval_hours(PLAN) == PLAN.partial_interval_hours / 4
    for policy in PRIORITY:
        assert policy.interval_hours(PLAN) == PLAN.partial_interval_hours / 8
    eighth = Delta(recovery="partial", interval_fraction=0.125)
    assert eighth.interval_hours(PLAN) == PLAN.partial_interval_hours / 8
    assert Delta(recovery="partial").interval_hours(PLAN) == PLAN.partial_interval_hours
    small = Partial(small_tables_fraction=0.125)
    assert small.interval_hours(PLAN) == PLAN.partial_interval_hours / 8
    assert Partial(small_tables_fraction=0.3).interval_hours(PLAN) == PLAN.partial_interval_hours / 3


def test_kinds() -> None:
    assert [Full().kind(number) for number in range(2)] == ["base", "base"]
    assert [Partial().kind(number) for number in range(2)] == ["base", "base"]
    assert [Delta(base_every=3).kind(number) for number in range(6)] == ["delta", "delta", "base"] * 2
    assert {policy.kind(number) for policy in PRIORITY for number in range(9)} == {"priority"}
    small = Partial(small_tables_fraction=1 / 3)
    assert [small.kind(number) for number in range(6)] == ["priority", "priority", "base"] * 2
    assert [Partial(small_tables_fraction=1.0).kind(number) for number in range(2)] == ["base", "base"]


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
    for policy in POLICIES:
        assert len(policy.selections(tables(5, 500), kind, Ranked())) == 2


@pytest.mark.usefixtures("named")
def test_selections_of_each_kind() -> None:
    chosen = tables(4, 1000)
    assert exact_selections(chosen, "base") == ["all", "all"]
    assert exact_selections(chosen, "delta") == ["dirty", "dirty"]
    assert Mfu().selections(chosen, "priority", Ranked()) == ["all", "most_used 125"]
    assert Ssu().selections(chosen, "priority", Ranked()) == ["all", "sampled"]
    assert Drift().selections(chosen, "priority", Ranked()) == ["all", "most_drifted 125"]
    small = Partial(small_tables_fraction=0.5)
    assert small.selections(chosen, "priority", Ranked()) == ["all", "none"]
    assert Delta(recovery="partial").selections(chosen, "delta", Ranked()) == ["dirty", "dirty"]


@pytest.mark.usefixtures("named")
def test_scar_takes_the_farthest_rows_and_none_that_stayed() -> None:
    policy = Scar(fraction=0.5, row_share=1.0)
    changes = ((0.5, 3.0, 0.0, 3.0, 1.0, 2.0), (0.0, 0.0, 7.0, 0.0), (4.0, 1.0, 4.0, 4.0))
    assert policy.selections(tables(6, 4, 4), "priority", Ranked(0, changes)) == [
        "rows [1, 3, 5] of 6",
        "rows [2] of 4",
        "rows [0, 2] of 4",
    ]


@pytest.mark.usefixtures("named")
def test_random_rows_depend_on_seed_number_and_table_alone() -> None:
    chosen = tables(40, 40)

    def rows(seed: int, number: int) -> list[Selection]:
        return Random(seed=seed, row_share=1.0).selections(chosen, "priority", Ranked(number))

    first = rows(1, 0)
    assert first == rows(1, 0)
    assert first[0] != first[1]
    assert len({str(rows(seed, number)[0]) for seed in range(3) for number in range(3)}) == 9


@pytest.mark.usefixtures("named")
def test_round_robin_goes_on_where_the_save_before_ended() -> None:
    policy = RoundRobin(fraction=0.4, row_share=1.0)
    saves = [policy.selections(tables(10), "priority", Ranked(number))[0] for number in range(4)]
    assert saves == [
        "rows [0, 1, 2, 3] of 10",
        "rows [4, 5, 6, 7] of 10",
        "rows [0, 1, 8, 9] of 10",
        "rows [2, 3, 4, 5] of 10",
    ]
    whole = RoundRobin(fraction=1.0)
    assert whole.selections(tables(3), "priority", Ranked(5)) == ["rows [0, 1, 2] of 3"]


@pytest.mark.usefixtures("named")
def test_quota_is_rounded_down_and_at_least_one() -> None:
    assert Mfu().selections(tables(15, 15), "priority", Ranked()) == ["most_used 1"] * 2
    assert Mfu().selections(tables(3), "priority", Ranked()) == ["most_used 1"]


def test_policies_without_ranking_refuse_priority() -> None:
    for policy in (Full(), Delta(), Delta(recovery="partial"), Partial()):
        with pytest.raises(ValueError, match="needs a policy that ranks rows"):
            policy.selections(tables(5), "priority", Ranked())


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5])
@pytest.mark.parametrize("name", ["fraction", "row_share"])
@pytest.mark.parametrize("kind", [type(policy) for policy in PRIORITY])
def test_bad_fractions_raise(kind: type[Mfu], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}: {name} must be in \(0, 1\]"):
        kind(**{name: value})


def test_name_and_recovery_are_of_the_kind_of_policy() -> None:
    with pytest.raises(TypeError, match="recovery"):
        Mfu(recovery="full")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="name"):
        Full(name="mine")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_every": 0}, "base_every must be at least 1, got 0"),
        ({"recovery": "none"}, "recovery must be 'full' or 'partial', got 'none'"),
        (
            {"recovery": "partial", "interval_fraction": 0.0},
            r"interval_fraction must be in \(0, 1\], got 0.0",
        ),
        ({"interval_fraction": 0.5}, "full recovery has its own and takes 1, got 0.5"),
    ],
)
def test_bad_settings_of_delta_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Delta(**settings)


def test_other_bad_settings_raise() -> None:
    with pytest.raises(ValueError, match=r"Partial: small_tables_fraction must be in \(0, 1\], got 2"):
        Partial(small_tables_fraction=2)
    with pytest.raises(ValueError, match=r"Partial: row_share must be in \(0, 1\], got 0"):
        Partial(row_share=0)
    with pytest.raises(ValueError, match="Random: seed must be at least 0, got -1"):
        Random(seed=-1)
