"""KeyedJaggedTensors through shards, as through the local collection."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sharded.sharded_jobs import (
    check_same,
    gradient_for,
    local_of,
    settle,
    sharded_of,
    shards_of,
    spec_of,
    tables_of,
)
from torchrec_cases import jagged

# Keys in another order than the features, and more of them.
SIZES = {"unused": 3, "item": 40, "viewer": 61, "kind": 2, "owner": 61, "last": 2}


@pytest.mark.parametrize("weighted", [None, True, False])
def test_output_and_rows(tmp_path: Path, weighted: bool | None) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec, is_weighted=weighted)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec, is_weighted=weighted)
        assert sharded.is_weighted() == local.is_weighted()
        assert sharded.feature_names == local.feature_names
        batches = [jagged(SIZES, 6, weighted=True, seed=seed) for seed in range(4)]
        for seed, batch in enumerate(batches):
            outs = [module(batch) for module in (sharded, local)]
            assert outs[0].keys() == outs[1].keys()
            assert outs[0].length_per_key() == outs[1].length_per_key()
            assert torch.equal(outs[0].values(), outs[1].values())
            sharded.prefetch(batches[(seed + 1) % 4])
            ahead = sharded._ahead
            for out in outs:
                out.values().backward(gradient_for(out.values(), seed))
            assert ahead is not None
        settle(sharded)
        check_same(directory, local)


def test_missing_keys_and_offsets_beside_are_refused(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        short = jagged({"item": 40, "viewer": 61}, 6)
        for call in (sharded, sharded.prefetch):
            with pytest.raises(ValueError, match="no key 'owner', 'kind'"):
                call(short)
        with pytest.raises(TypeError, match="a KeyedJaggedTensor has its own"):
            sharded(jagged(SIZES, 6), torch.tensor([0]))
