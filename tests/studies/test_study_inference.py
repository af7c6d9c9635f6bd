from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from study_common import inference


def test_summary_by_hand() -> None:
    """1, 2, 3, 4: mean 2.5, sd 1.29099, standard error 0.645497, t(3) 3.18245 and 2.35336."""
    found = inference.summary([1.0, 2.0, 3.0, 4.0])
    assert found["mean"] == 2.5
    assert found["ci95"] == pytest.approx([2.5 - 3.18245 * 0.645497, 2.5 + 3.18245 * 0.645497], rel=1e-5)
    assert found["upper95"] == pytest.approx(2.5 + 2.35336 * 0.645497, rel=1e-5)
    assert found["lower95"] == pytest.approx(2.5 - 2.35336 * 0.645497, rel=1e-5)


def test_one_seed_has_no_interval_and_proves_nothing() -> None:
    found = inference.summary([3.0])
    assert (found["mean"], found["ci95"], found["upper95"], found["seeds"]) == (3.0, None, None, 1)
    assert inference.p_above_zero([3.0]) == 1.0
    assert not inference.excludes_zero(None)


def test_no_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="no seed"):
        inference.summary([])


def test_holm_by_hand() -> None:
    """Ascending 0.01, 0.03, 0.04 are multiplied by 3, 2, 1 and made monotone; a p of 0.02 alone stays."""
    assert inference.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert inference.holm([0.02]) == [0.02]
    assert inference.holm([]) == []


def test_seeds_needed_are_those_of_the_power_formula() -> None:
    """(z(0.95) + z(0.8)) / 0.5 = 2.4865 / 0.5, squared 24.7; Student's t needs a little more."""
    assert inference.seeds_needed(0.5, 1.0) in (26, 27)
    assert inference.seeds_needed(0.5, 1.0, alpha=0.01) > 40
    assert inference.seeds_needed(-0.5, 1.0) is None
    assert inference.seeds_needed(0.001, 1.0) is None
    assert inference.seeds_needed(0.5, None) is None


def test_seeds_needed_are_the_least_that_suffice() -> None:
    seeds = inference.seeds_needed(0.3, 1.0)
    assert seeds is not None

    def power(n: int) -> float:
        return float(stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, 0.3 * np.sqrt(n)))

    assert power(seeds) >= 0.8 > power(seeds - 1)


def test_ranks_and_correlations_are_those_of_scipy() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.integers(5, size=(3, 40)).astype(float), rng.standard_normal((3, 40))
    found = inference.correlations(inference.ranks(x), inference.ranks(y))
    assert found == pytest.approx([stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)])
    assert inference.correlations(np.ones((1, 4)), y[:1, :4]) == pytest.approx([0.0])


def test_bootstrap_interval_covers() -> None:
    """The mean of 40 normal numbers lies in its interval in about 95 % of 200 trials."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        values = rng.standard_normal(40)
        low, high = inference.interval(values[inference.resamples(40, 500)].mean(axis=1))
        covered += low <= 0.0 <= high
    assert 176 <= covered <= 199
