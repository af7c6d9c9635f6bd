from __future__ import annotations

import pytest
from cpr_study import quality
from study_records import PAPER_LOSSES, STRESS_LOSSES, quality_records

from cpr_native.overhead import KAGGLE, TERABYTE

NULL = {"partial": 0.0, "random": 0.0, "mfu": 0.0, "ssu": 0.0, "scar": 0.0, "drift": 0.0}


def by_pair(found: list[dict]) -> dict[tuple[str, str], dict]:
    return {(entry["lower"], entry["higher"]): entry for entry in found}


@pytest.mark.parametrize(("preset", "percent"), [(KAGGLE, 0.53), (TERABYTE, 0.68)])
@pytest.mark.parametrize("policy", [*quality.PRIORITY, "random", "round_robin", "partial"])
def test_formula_gives_the_published_overhead(preset: object, percent: float, policy: str) -> None:
    assert round(quality.formula_percent(preset, policy), 2) == percent


def test_formula_of_full_recovery_is_the_published_one() -> None:
    assert [round(quality.formula_percent(p, "full"), 1) for p in (KAGGLE, TERABYTE)] == [8.5, 8.2]


def test_policies_without_a_formula_are_charged_by_bytes() -> None:
    """Kaggle: 0.18 h of loads and reschedules; 0.094 * 56 / 44.8 = 0.1175 h of saves, twice that here."""
    assert quality.formula_percent(KAGGLE, "delta_partial") is None
    assert quality.formula_percent(KAGGLE, "delta_partial", 2.0) == pytest.approx(100 * (0.18 + 0.235) / 56)


def test_table_has_a_row_for_every_policy_and_configuration() -> None:
    cells = {
        "paper": quality_records(PAPER_LOSSES, 6, cell="paper"),
        "stress": quality_records(STRESS_LOSSES, 6),
    }
    rows = quality.table(cells, {"kaggle": {"mfu": 0.3}})
    keys = [(row["config"], row["setup"], row["policy"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {setup for config, setup, _ in keys if config == "terabyte"} == {None}
    assert [policy for config, _, policy in keys if config == "terabyte"] == list(quality.POLICIES)
    mfu = rows[keys.index(("kaggle", "stress", "mfu"))]
    assert mfu["overhead_measured_percent"] == 0.3
    assert mfu["seeds"] == 6
    assert mfu["progressive_delta"] == pytest.approx(1e-4, abs=5e-5)
    assert mfu["auc_delta"] == pytest.approx(-2 * mfu["progressive_delta"])
    assert rows[keys.index(("kaggle", "paper", "full"))]["auc_delta"] is None
    assert rows[keys.index(("terabyte", None, "mfu"))]["overhead_measured_percent"] is None


def test_upper_bound_of_the_loss_is_above_its_mean() -> None:
    figures = quality.measures(quality_records({"mfu": 1e-4}, 20), "mfu")
    assert -figures["auc_delta"] < figures["auc_loss_upper95"] < -figures["auc_ci95"][0]


def test_planted_ranking_is_found() -> None:
    found = by_pair(quality.ranking(quality_records(STRESS_LOSSES, 16)))
    assert list(found) == [(name, "random") for name in quality.PRIORITY] + [("random", "partial")]
    assert all(entry["resolved"] and entry["mean"] > 0 for entry in found.values())
    assert found["mfu", "random"]["mean"] == pytest.approx(4e-4, abs=3e-5)
    assert found["random", "partial"]["p_holm"] >= found["random", "partial"]["p"]


def test_a_null_effect_is_hardly_ever_claimed() -> None:
    """Of 10 studies in which no policy differs, nearly none claims anything after the correction."""
    records = quality_records(NULL, 10 * 13)
    studies = [records[start : start + 13] for start in range(0, len(records), 13)]
    claimed = sum(any(entry["resolved"] for entry in quality.ranking(study)) for study in studies)
    assert claimed <= 1


def test_an_effect_the_other_way_round_is_not_resolved_by_any_number_of_seeds() -> None:
    records = quality_records({**NULL, "mfu": 3e-4}, 16)
    entry = by_pair(quality.ranking(records))["mfu", "random"]
    assert (entry["resolved"], entry["wrong_way"], entry["seeds_needed"]) == (False, True, None)


def test_unresolved_differences_say_the_seeds_they_would_take() -> None:
    records = quality_records({**NULL, "random": 4e-6}, 16)
    entries = [e for e in quality.ranking(records) if not e["resolved"] and not e["wrong_way"]]
    assert entries
    assert all(entry["seeds_needed"] > 16 for entry in entries if entry["seeds_needed"])


def test_sensitivity_needs_vanilla_above_zero() -> None:
    paper = quality_records(PAPER_LOSSES, 10, cell="paper")
    found = quality.sensitive({"paper": paper, "stress": quality_records(NULL, 10)})
    assert (found["paper"]["passed"], found["stress"]["passed"]) == (True, False)
    assert not quality.sensitive({"paper": paper})["stress"]["passed"]


@pytest.mark.parametrize(
    ("loss", "spread", "verdict"),
    [(1e-5, 2e-5, "reached"), (5e-4, 2e-5, "missed"), (5e-5, 1e-3, "undecided")],
)
def test_non_inferiority(loss: float, spread: float, verdict: str) -> None:
    """The planted AUC loss is twice `loss`."""
    records = quality_records({"mfu": loss, "ssu": 1e-5}, 12, spread=spread)
    found = quality.non_inferior(records, "mfu")
    assert found["verdict"] == verdict
    assert (found["upper95"] < quality.MARGIN) == (verdict == "reached")


def test_an_interval_that_includes_zero_is_no_non_inferiority() -> None:
    found = quality.non_inferior(quality_records({"mfu": 0.0}, 12, spread=1e-3), "mfu")
    assert found["ci95"][0] < 0 < found["ci95"][1]
    assert found["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("spread", "seeds", "expected"), [(1e-5, 10, True), (1e-3, 10, False), (1e-3, 80, True), (1e-5, 1, False)]
)
def test_decided_asks_for_more_seeds_until_there_are_80(spread: float, seeds: int, expected: bool) -> None:
    records = quality_records({"mfu": 1e-5, "ssu": 1e-5}, seeds, cell="paper", spread=spread)
    assert quality.decided({"paper": records}) is expected
    assert not quality.decided({})


def test_part_of_the_small_tables() -> None:
    """Vanilla 9e-4, small tables often 7e-4, MFU 1e-4: a quarter of the gain."""
    records = quality_records(STRESS_LOSSES, 40 * 24)
    found = [quality.small_tables(records[start : start + 24]) for start in range(0, len(records), 24)]
    assert [entry["share"] for entry in found] == pytest.approx([0.25] * 40, abs=0.03)
    assert sum(low < 0.25 < high for low, high in (entry["ci95"] for entry in found)) >= 34
    assert quality.small_tables(quality_records({**NULL, "partial_small": 0.0}, 24))["share"] is None
    assert quality.small_tables(quality_records(PAPER_LOSSES, 4)) is None


def test_zeroed_state_is_compared_in_both_measures() -> None:
    records = quality_records(STRESS_LOSSES, 12)
    (found,) = quality.pairs(records, [("mfu", "mfu_zeroed"), ("mfu", "absent")])
    assert found["progressive"]["mean"] == pytest.approx(5e-4, abs=5e-5)
    assert found["auc_loss"]["mean"] == pytest.approx(10e-4, abs=1e-4)
    assert found["progressive"]["resolved"]
