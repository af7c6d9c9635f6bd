from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from cpr_native.data import SyntheticClicks, auc, kaggle_table_sizes
from cpr_native.data.skew import measured_skew, rank_quantiles
from cpr_native.data.synthetic import CLICK_RATE

SIZES = kaggle_table_sizes(0.01)


def clicks(**options: int) -> SyntheticClicks:
    return SyntheticClicks(**{"end": 1000, "batch_size": 128, **options}, table_sizes=SIZES)


def ids_of(source: SyntheticClicks, samples: int) -> np.ndarray:
    return source.batch(0, samples).ids.numpy().reshape(26, samples)


def test_samples_depend_on_seed_and_index_only() -> None:
    whole = clicks().batch(0, 1000)
    part = clicks(begin=500, end=600, batch_size=7).batch(331, 344)
    assert torch.equal(whole.dense[331:344], part.dense)
    assert torch.equal(whole.labels[331:344], part.labels)
    assert torch.equal(whole.ids.view(26, -1)[:, 331:344], part.ids.view(26, -1))
    other = clicks(seed=1).batch(0, 1000)
    assert not torch.equal(whole.dense, other.dense)
    assert not torch.equal(whole.ids, other.ids)


def test_batches_have_the_layout_of_the_collection() -> None:
    batches = list(clicks())
    assert [len(batch) for batch in batches] == [128] * 7 + [104]
    assert sum(1 for _ in SyntheticClicks(end=1000, batch_size=128, table_sizes=SIZES, drop_last=True)) == 7
    batch = batches[0]
    assert (batch.dense.shape, batch.dense.dtype) == ((128, 13), torch.float32)
    assert batch.dense.is_contiguous()
    assert (batch.ids.shape, batch.ids.dtype) == ((26 * 128,), torch.int64)
    assert torch.equal(batch.offsets, torch.arange(26 * 128 + 1))
    assert (batch.labels.shape, batch.labels.dtype) == ((128,), torch.float32)
    assert set(batch.labels.tolist()) == {0.0, 1.0}


def test_every_position_resumes_bit_exactly() -> None:
    source = clicks()
    batches, states = [], [source.state_dict()]
    for batch in source:
        batches.append(batch)
        states.append(json.loads(json.dumps(source.state_dict())))
    for done, state in enumerate(states):
        resumed = clicks()
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert len(rest) == len(batches) - done
        for mine, other in zip(rest, batches[done:], strict=True):
            for name in ("dense", "ids", "labels"):
                assert torch.equal(getattr(mine, name), getattr(other, name))


def test_ids_are_in_range_and_missing_values_in_row_0() -> None:
    ids = ids_of(clicks(), 50_000)
    assert (ids >= 0).all()
    assert (ids < np.array(SIZES)[:, None]).all()
    for table, counts in enumerate(measured_skew()):
        if counts.missing:
            assert (ids[table] == 0).mean() == pytest.approx(counts.missing, abs=0.01)


def test_skew_is_the_measured_one() -> None:
    ids = ids_of(SyntheticClicks(end=1, batch_size=1), 100_000)  # full size
    for table, counts in enumerate(measured_skew()):
        values = ids[table] if counts.missing == 0 else ids[table][ids[table] > 0]
        used = np.sort(np.unique(values, return_counts=True)[1])[::-1] / 100_000
        assert used[0] == pytest.approx(counts.share[0], abs=0.01)
        assert used[:20].sum() == pytest.approx(counts.share[:20].sum(), abs=0.02)
    # 131,072 real samples touch 305,052 rows.
    assert sum(len(np.unique(row)) for row in ids_of(SyntheticClicks(end=1, batch_size=1), 131_072)) == (
        pytest.approx(305_052, rel=0.1)
    )


def test_contiguous_shards_get_like_shares_of_the_lookups() -> None:
    ids = ids_of(clicks(), 20_000)
    shard = ids * 8 // np.array(SIZES)[:, None]
    share = np.bincount(shard.reshape(-1), minlength=8) / shard.size
    assert share.max() < 0.3  # missing values alone give shard 0 a tenth
    assert share.min() > 0.05


@pytest.mark.parametrize("table", [2, 8, 19, 22])
def test_rank_to_row_is_a_bijection(table: int) -> None:
    source = clicks()
    ranks = np.zeros((26, SIZES[table]), dtype=np.int64)
    first = int(source._missing_rank[table, 0])
    ranks[table] = np.arange(first, first + SIZES[table])
    rows = source._rows(ranks)[table]
    assert sorted(rows) == list(range(SIZES[table]))


@pytest.mark.parametrize("rows", [2, 3, 10, 100, 1000, 100_000, 10_131_227])
def test_quantiles_cover_any_table_size(rows: int) -> None:
    for counts in measured_skew():
        quantiles = rank_quantiles(counts, rows, 4096)
        assert quantiles.shape == (4097,)
        assert (np.diff(quantiles) >= 0.0).all()
        assert quantiles[0] == (0.0 if counts.missing else 1.0)
        assert quantiles[-1] <= rows + (0 if counts.missing else 1)
        assert (quantiles < 1.0).mean() == pytest.approx(counts.missing, abs=1e-3)


def test_tiny_tables_stay_in_range() -> None:
    source = SyntheticClicks(end=1, batch_size=1, table_sizes=[2] * 26)
    assert set(ids_of(source, 500).reshape(-1)) == {0, 1}


def test_labels_follow_the_planted_signal() -> None:
    source = clicks()
    labels, logits = source.batch(0, 40_000).labels.numpy(), source.true_logits(0, 40_000)
    assert labels.mean() == pytest.approx(CLICK_RATE, abs=0.01)
    assert auc(labels, logits) == pytest.approx(0.80, abs=0.015)
    order = np.argsort(logits)
    for group in np.array_split(order, 10):
        expected = (1.0 / (1.0 + np.exp(-logits[group]))).mean()
        assert labels[group].mean() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"begin": 5, "end": 5}, "begin and end"),
        ({"begin": -1}, "begin and end"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clicks(**options)
    with pytest.raises(ValueError, match="26 entries"):
        SyntheticClicks(end=10, batch_size=1, table_sizes=[10])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample": 1001}, r"must be in 100 \.\. 1000"),
        ({"sample": 99}, r"must be in 100 \.\. 1000"),
        ({"sample": 100.5}, r"must be in 100 \.\. 1000"),
        ({"seed": 3}, "seed 3"),
        ({"more": 1}, "keys"),
    ],
)
def test_wrong_state_changes_nothing(change: dict[str, float], message: str) -> None:
    source = clicks(begin=100)
    before = source.state_dict()
    with pytest.raises(ValueError, match=message):
        source.load_state_dict({**before, **change})
    assert source.state_dict() == before
