from __future__ import annotations

import numpy as np
import pytest
from cpr_study import proxy
from scipy import stats
from study_records import proxy_records


def by_name(entries: list[dict]) -> dict[str, dict]:
    return {entry["name"]: entry for entry in entries}


@pytest.fixture(scope="module")
def entries() -> list[dict]:
    """Candidates judged on losses that follow the lost lookups."""
    return proxy.evaluate(proxy_records(40))


def test_the_measure_that_drives_the_loss_is_found(entries: list[dict]) -> None:
    found = by_name(entries)
    assert found["lookups"]["rank_correlation"] > 0.98
    assert found["lookups"]["within_rank_correlation"] > 0.98
    assert abs(found["pls"]["rank_correlation"]) < 0.3
    low, high = found["lookups"]["ci95"]
    assert low <= found["lookups"]["rank_correlation"] <= high
    judged = proxy.verdict(entries)
    assert judged["planner"] in {"lookups", "lookups_weighted"}
    assert "lookups" in judged["better"]


def test_what_dies_with_the_shard_is_not_for_the_planner(entries: list[dict]) -> None:
    only_dead = [entry for entry in entries if entry["name"] == "pls" or not entry["known_after_loss"]]
    judged = proxy.verdict(only_dead)
    assert "count_distance" in judged["better"]
    assert judged["planner"] is None


def test_the_planner_stays_with_pls_where_pls_drives_the_loss() -> None:
    entries = proxy.evaluate(proxy_records(40, driven_by="pls"))
    judged = proxy.verdict(entries)
    assert (judged["planner"], judged["better"]) == (None, [])
    assert "lookups" in judged["worse"]


def test_estimates_are_those_of_scipy() -> None:
    records = proxy_records(12)
    judged = by_name(proxy.evaluate(records))
    found = judged["lookups_so_far"]
    failures = proxy.read(records)
    x, y = failures.candidates["lookups_so_far"], failures.targets["progressive"]
    assert found["rank_correlation"] == pytest.approx(stats.spearmanr(x.ravel(), y.ravel()).statistic)
    within = [stats.spearmanr(x[:, p], y[:, p]).statistic for p in range(3)]
    assert found["within_rank_correlation"] == pytest.approx(np.mean(within))
    assert list(found["by_policy"].values()) == pytest.approx(within)
    assert found["above_pls"] == pytest.approx(found["rank_correlation"] - judged["pls"]["rank_correlation"])


def test_a_loss_weighted_by_time_finds_its_tau_on_other_seeds() -> None:
    """The target is a candidate times exp(-remaining / 0.2): the weighted one orders it exactly."""
    rng = np.random.default_rng(0)
    values, remaining = rng.uniform(0.9, 1.1, (60, 3)), rng.uniform(0.0, 1.0, 60)
    target = values * proxy.weights(remaining, 0.2)
    weighted, taus = proxy.cross_fitted(values, target, remaining)
    assert taus == [0.2] * proxy.FOLDS
    assert stats.spearmanr(weighted.ravel(), target.ravel()).statistic == pytest.approx(1.0)
    assert stats.spearmanr(values.ravel(), target.ravel()).statistic < 0.5


def test_a_fold_does_not_see_its_own_seeds() -> None:
    """Seeds of the first fold are planted with another tau; the tau of that fold is still the others'."""
    rng = np.random.default_rng(0)
    values, remaining = rng.uniform(0.9, 1.1, (60, 3)), rng.uniform(0.0, 1.0, 60)
    target = values * proxy.weights(remaining, 0.2)
    first = np.arange(60) % proxy.FOLDS == 0
    target[first] = values[first] * proxy.weights(remaining[first], 5.0)
    assert proxy.cross_fitted(values, target, remaining)[1][0] == 0.2


def test_targets_and_shares() -> None:
    records = proxy_records(3)
    failures = proxy.read(records)
    own = records[1]["cases"]["mfu"]
    mfu = failures.policies.index("mfu")
    remaining = 1 - own["failures"][0]["samples"] / records[1]["train_samples"]
    assert failures.targets["excess"][1, mfu] == pytest.approx(own["progressive"] * remaining)
    assert failures.targets["auc_loss"][1, mfu] == pytest.approx(0.75 - own["auc"])
    assert failures.candidates["lookups"][1, mfu] == pytest.approx(
        own["failures"][0]["lookups"] / (26 * 100_000)
    )
