"""Ids that stand for several accesses, because their gradients were summed already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import Engine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference import (
    MAX_COUNT,
    ReferenceCollection,
    SampledList,
    row_gradients,
    sampled_positions,
    sampled_repeats,
)

from cpr_native._native import supported_isas

ROWS = (60, 7)

PROGRAM = """
import hashlib, sys
import numpy as np
from engine import Engine

digest = hashlib.sha256()
rng = np.random.default_rng(0)
engine = Engine(rows=(60_000, 97), threads=int(sys.argv[1]), spec={"drift": True, "ssu_period": 4})
for _ in range(3):
    ids = np.concatenate([rng.integers(0, n, 20_000) for n in engine.rows])
    out, batch = engine.lookup(ids, np.arange(len(ids) + 1))
    multiplicity = rng.geometric(0.3, len(ids)).astype(np.uint32)
    multiplicity[rng.integers(0, len(ids), 50)] = 100_000
    grad = rng.standard_normal(out.shape).astype(np.float32)
    assert engine.call("update", batch, grad, threads=engine.threads, multiplicity=(
        multiplicity.ctypes.data, multiplicity.shape, "uint32"))
for table in range(2):
    for values in (*engine.rows_of(table), engine.native.sampled_rows(table), engine.native.drift(table)):
        digest.update(values.tobytes())
    digest.update(engine.native.count_histogram(table).tobytes())
print(digest.hexdigest())
"""


def ref(values: NDArray[Any]) -> tuple[int, tuple[int, ...], str]:
    return values.ctypes.data, values.shape, str(values.dtype)


def update(
    engine: Engine,
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    grad: NDArray[np.float32],
    multiplicity: NDArray[np.uint32] | None,
) -> None:
    _, batch = engine.lookup(ids, offsets)
    given = None if multiplicity is None else ref(multiplicity)
    assert engine.call("update", batch, grad, threads=engine.threads, multiplicity=given)


def state_of(engine: Engine) -> list[bytes]:
    return [
        values.tobytes()
        for table in range(len(engine.rows))
        for values in (
            *(v for v in engine.rows_of(table) if v is not None),
            engine.native.sampled_rows(table),
            engine.native.count_histogram(table),
        )
    ]


def draw_bags(rng: np.random.Generator, bags: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = rng.integers(0, 4, bags * len(ROWS))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    per_table = [offsets[(t + 1) * bags] - offsets[t * bags] for t in range(len(ROWS))]
    ids = np.concatenate([rng.integers(0, n, count) for n, count in zip(ROWS, per_table, strict=True)])
    return ids, offsets


@given(seed=st.integers(0, 2**32 - 1), period=st.sampled_from([1, 2, 8, 64]), threads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_counts_rows_and_samples_are_those_of_the_reference(seed: int, period: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    engine = Engine(rows=ROWS, threads=threads, spec={"ssu_period": period})
    slow = ReferenceCollection(
        [engine.native.weight(t) for t in range(2)], [0, 1], optimizer="row_wise_adagrad", lr=0.1
    )
    lists = [SampledList(n, 0.125, engine.seed, f"t{t}") for t, n in enumerate(ROWS)]
    for step in range(3):
        ids, offsets = draw_bags(rng, 5)
        multiplicity = rng.geometric(0.2, len(ids)).astype(np.uint32)
        multiplicity[rng.random(len(ids)) < 0.1] = rng.integers(60, 200)
        grad = rng.standard_normal((5, 16)).astype(np.float32)
        update(engine, ids, offsets, grad, multiplicity)
        slow.update(ids, offsets, grad, multiplicity=multiplicity)
        sampled = sampled_positions(engine.seed, step, len(ids), period)
        sampled |= sampled_repeats(engine.seed, step, multiplicity, period)
        for table, listed in enumerate(lists):
            span = slice(offsets[5 * table], offsets[5 * table + 5])
            listed.update(ids[span][sampled[span]])
    for table in range(2):
        assert engine.native.weight(table).tobytes() == slow.weights[table].tobytes()
        np.testing.assert_array_equal(engine.native.counts(table), slow.counts[table])
        np.testing.assert_array_equal(engine.native.dirty(table), slow.dirty[table])
        assert engine.native.sampled_rows(table).tolist() == lists[table].rows()


def test_ones_are_as_no_multiplicity() -> None:
    engines = [Engine(rows=ROWS), Engine(rows=ROWS)]
    rng = np.random.default_rng(1)
    for _ in range(4):
        ids, offsets = draw_bags(rng, 30)
        grad = rng.standard_normal((30, 16)).astype(np.float32)
        update(engines[0], ids, offsets, grad, None)
        update(engines[1], ids, offsets, grad, np.ones(len(ids), np.uint32))
    assert state_of(engines[0]) == state_of(engines[1])


@pytest.mark.parametrize("optimizer", ["sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"])
def test_summed_rows_with_their_multiplicity_are_as_the_whole_batch(optimizer: str) -> None:
    """Weights, state, counts and dirty bits; the accesses are drawn by position, so not the list."""
    whole, summed = Engine(rows=(40,), optimizer=optimizer), Engine(rows=(40,), optimizer=optimizer)
    rng = np.random.default_rng(2)
    for _ in range(4):
        ids = rng.integers(0, 12, 500)
        grad = rng.standard_normal((500, 8)).astype(np.float32)
        update(whole, ids, np.arange(501), grad, None)
        rows, sums = row_gradients(ids, grad)
        _, counts = np.unique(ids, return_counts=True)
        update(summed, rows, np.arange(len(rows) + 1), sums, counts.astype(np.uint32))
    assert whole.native.weight(0).tobytes() == summed.native.weight(0).tobytes()
    if whole.native.state(0) is not None:
        assert whole.native.state(0).tobytes() == summed.native.state(0).tobytes()
    np.testing.assert_array_equal(whole.native.counts(0), summed.native.counts(0))
    np.testing.assert_array_equal(whole.native.dirty(0), summed.native.dirty(0))


def test_a_row_that_comes_from_several_trainers_has_their_accesses_and_saturates() -> None:
    engine = Engine(rows=(10,), spec={"ssu_period": 1 << 20})
    ids, grad = np.array([3, 4, 3]), np.ones((3, 8), np.float32)
    update(engine, ids, np.arange(4), grad, np.array([2, 1, 40], np.uint32))
    assert engine.native.counts(0).tolist() == [0, 0, 0, 42, 1, 0, 0, 0, 0, 0]
    huge = np.array([2**32 - 1, 1, 2**32 - 1], np.uint32)
    update(engine, ids, np.arange(4), grad, huge)
    assert engine.native.counts(0)[3:5].tolist() == [MAX_COUNT, 2]
    assert engine.native.sampled_rows(0).tolist() == [3]


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    engine = Engine(rows=ROWS)
    ids, offsets = draw_bags(np.random.default_rng(3), 4)
    out, batch = engine.lookup(ids, offsets)
    before = state_of(engine)
    n = len(ids)
    for bad, error, message in (
        (np.ones(n - 1, np.uint32), ValueError, rf"multiplicity: expected shape \[{n}\], got \[{n - 1}\]"),
        (np.ones(n, np.int64), TypeError, "multiplicity: expected dtype uint32, got int64"),
        (np.arange(n, dtype=np.uint32)[::-1].copy(), ValueError, f"at least 1, got 0 at position {n - 1}"),
    ):
        with pytest.raises(error, match=message):
            engine.call("update", batch, out, threads=1, multiplicity=ref(bad))
    assert state_of(engine) == before
    assert engine.call("update", batch, out, threads=1, multiplicity=ref(np.ones(n, np.uint32)))


@pytest.mark.parametrize("isa", supported_isas())
def test_the_same_bits_on_any_number_of_threads_and_instruction_set(isa: str) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "tests"), *sys.path])
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, threads],
            env={**os.environ, "CPR_ISA": level, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for level, threads in (("base", "1"), (isa, "1"), (isa, "2"), (isa, "5"))
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65
