"""The sub-sampled used list against its reference: the same rows for any thread count, bounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import SampledList, sampled_positions

from cpr_native import SGD, EmbeddingBagCollection, EmbeddingBagConfig, Trackers

SEED = 11


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("period", [1, 2, 8])
def test_list_is_the_references(period: int, threads: int) -> None:
    sizes, fraction = {"small": 300, "large": 40_000}, 0.125
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=2, feature_names=[name])
        for name, rows in sizes.items()
    ]
    trackers = Trackers(ssu_fraction=fraction, ssu_period=period)
    collection = EmbeddingBagCollection(tables, optimizer=SGD(lr=0.1), seed=SEED, trackers=trackers)
    expected = [SampledList(rows, fraction, SEED, name) for name, rows in sizes.items()]
    generator = np.random.default_rng(period)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step in range(4):
            batch = 1500
            ids = [generator.integers(0, rows, batch) ** 2 // rows for rows in sizes.values()]
            sampled = sampled_positions(SEED, step, 2 * batch, period).reshape(2, batch)
            assert abs(sampled.mean() - 1 / period) < 0.05
            for table, reference in enumerate(expected):
                reference.update(ids[table][sampled[table]])
            flat = torch.from_numpy(np.concatenate(ids))
            collection(flat, torch.arange(2 * batch + 1)).sum().backward()
            for table, reference in enumerate(expected):
                rows = sorted(collection.engine.sampled_rows(table).tolist())
                assert rows == reference.rows()
                assert 0 < len(rows) <= fraction * tables[table].num_embeddings
    finally:
        torch.set_num_threads(before)
