"""How fast a base is copied, nothing else running, against copying as many bytes with all cores."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from checkpoints import table_of
from cores import CORES
from figures import Figures
from harness import Compare
from sides import Ours

from cpr_native._native import Collection, Selection

BYTES = 512 << 20
ROUNDS = 5


def copied_bytes(engine: Collection) -> int:
    """Check that a base holds every row, and return its bytes."""
    weight, state = engine.weight(0), engine.state(0)
    assert state is not None
    seen = np.zeros(len(weight), np.bool_)
    size = 0
    snapshot = engine.begin([Selection.all()], clears_dirty=True)
    for chunk in snapshot:
        assert np.array_equal(chunk.weight, weight[chunk.rows])
        assert np.array_equal(chunk.state, state[chunk.rows])
        seen[chunk.rows] = True
        size += chunk.rows.nbytes + chunk.weight.nbytes + 4 * len(chunk.rows) + chunk.count.nbytes
        chunk.close()
    snapshot.commit()
    assert seen.all()
    return size


@pytest.mark.parametrize("dim", [32, 128])
def test_base_copy_against_memcpy(compare: Compare, figures: Figures, dim: int) -> None:
    shape = table_of(BYTES // (4 * dim), compare.timed, dim=dim)
    ours = Ours(shape)
    ours.step(shape.batches(1)[0])
    engine = ours.module.engine
    source = np.ones(copied_bytes(engine), np.uint8)
    target = np.zeros_like(source)
    halves = list(zip(np.array_split(target, CORES), np.array_split(source, CORES), strict=True))

    def base(_: None) -> None:
        snapshot = engine.begin([Selection.all()], clears_dirty=True)
        for chunk in snapshot:
            chunk.close()
        snapshot.commit()

    with ThreadPoolExecutor(CORES) as pool:

        def memcpy(_: None) -> None:
            for done in [pool.submit(np.copyto, part, origin) for part, origin in halves]:
                done.result()

        times = compare(base, memcpy, itertools.repeat(None), rounds=ROUNDS, group=f"base copy, dim {dim}")
    if compare.timed:
        rate = source.nbytes / times.ours_ms / 1e6
        figures.put("snapshot", "base_copy", f"dim_{dim}", vs_memcpy=times.ratio, gb_per_s=rate)
        worst = min(entry["vs_memcpy"] for entry in figures.get("snapshot", "base_copy").values())
        figures.put("snapshot", copy_vs_memcpy=worst)
