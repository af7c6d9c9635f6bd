"""The same bits for every instruction set, thread count and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine import Engine
from reference import ReferenceCollection, ordered_sum

from cpr_native._native import Collection, TableSpec, supported_isas
from cpr_native._tensor import describe

PROGRAM = """
import hashlib, itertools, sys
import numpy as np
from engine import Engine, drain
from cpr_native._native import Selection, isa

digest = hashlib.sha256()
threads = int(sys.argv[1])
rng = np.random.default_rng(0)


def bags(rows):
    # 3,000 a table, with a long one, and enough ids for a large table to be split among threads.
    lengths = rng.integers(0, 4, 3 * 3000)
    lengths[7], lengths[3001] = 5000, 1025
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([
        rng.integers(0, n, offsets[(t + 1) * 3000] - offsets[t * 3000]) for t, n in enumerate(rows)
    ])
    return ids, offsets


def train(steps, **options):
    engine = Engine(rows=(60_000, 97, 1), threads=threads, **options)
    for table in range(3):
        engine.native.keep_saved(table, True)
    for step in range(steps):
        ids, offsets = bags(engine.rows)
        weights = None
        if step == 1 and engine.pooling == "sum":
            weights = rng.random(len(ids)).astype(np.float64 if is_wide(options) else np.float32)
        out, batch = engine.lookup(ids, offsets, weights)
        digest.update(out.tobytes())
        grad = rng.standard_normal(out.shape).astype(out.dtype)
        if engine.optimizer == "none":
            for table in range(3):
                rows, values = engine.call("gradient", batch, grad, table=table, threads=threads)
                digest.update(rows.tobytes() + values.tobytes())
        else:
            assert engine.call("update", batch, grad, threads=threads, grad_scale=(1.0, 0.7)[step % 2])
        if weights is not None:
            out = np.empty_like(weights)
            _, batch = engine.lookup(ids, offsets, weights)
            engine.call("per_sample_weight_grad", batch, grad, out, threads=threads)
            digest.update(out.tobytes())
    return engine


def is_wide(options):
    return options.get("spec", {}).get("dtype") == "float64"


def changes(engine):
    for table, metric in itertools.product(range(3), ("l2", "l1", "tv")):
        digest.update(engine.native.changes(table, metric, threads=threads).tobytes())


def finish(engine):
    changes(engine)
    kinds = ["most_used", "most_drifted"] if engine.spec.get("drift") else ["most_used"]
    for kind in kinds:
        snapshot = engine.begin(*(getattr(Selection, kind)(20) for _ in range(3)), clears_dirty=False)
        for taken in drain(snapshot, 3):
            digest.update(taken.rows.tobytes() + taken.count.tobytes() + taken.weight.tobytes())
        snapshot.abort()
    for table in range(3):
        engine.call("renormalise", table, np.arange(engine.rows[table]), 0.8, 2.0)
        weight, state, words = engine.rows_of(table)
        digest.update(weight.tobytes() + words.tobytes())
        digest.update(b"" if state is None else state.tobytes())
        digest.update(engine.native.sampled_rows(table).tobytes())
        if engine.spec.get("drift"):
            digest.update(engine.native.drift(table).tobytes())


{cases}
print(isa(), digest.hexdigest())
"""

# Dimensions with kernels of their own and others.
DIMENSIONS = """
for dim in (1, 3, 4, 8, 16, 17, 32, 40, 64, 128):
    for optimizer, pooling in (("sgd", "sum"), ("row_wise_adagrad", "mean")):
        finish(train(3, dim=dim, optimizer=optimizer, pooling=pooling))
long = Engine(rows=(3, 1, 2), dim=70_001, optimizer="none")
for table in range(3):
    long.native.keep_saved(table, True)
    long.native.weight(table)[:] *= rng.random(70_001, np.float32)
changes(long)
"""

# Everything that chooses a kernel, the dimensions in turn.
KINDS = """
optimizers = ("none", "sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam")
dims = itertools.cycle((1, 8, 17, 16, 5, 40, 32))
for dtype, optimizer in itertools.product(("float32", "float16", "bfloat16", "float64"), optimizers):
    if dtype == "float64" and optimizer != "none":
        continue
    for number, pooling in enumerate(("sum", "mean", "max")):
        spec = {"dtype": dtype, "drift": optimizer != "none", "scale_grad_by_freq": number == 1}
        settings = {"weight_decay": 0.01 * number, "eps": 1e-4}
        finish(train(2, dim=next(dims), optimizer=optimizer, pooling=pooling, spec=spec, settings=settings))
"""


def digest_of(cases: str, isa: str, threads: int) -> str:
    environment = {**os.environ, "CPR_ISA": isa}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{cases}", cases), str(threads)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    used, digest = done.stdout.split()
    assert used == isa
    return digest


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cases", [DIMENSIONS, KINDS], ids=["dimensions", "every_kernel"])
def test_same_bits_on_every_instruction_set_and_thread_count(cases: str) -> None:
    runs = [(isa, 1) for isa in supported_isas()] + [(supported_isas()[-1], n) for n in (2, 5)]
    digests = {run: digest_of(cases, *run) for run in runs}
    assert len(set(digests.values())) == 1, digests


def test_an_unknown_instruction_set_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cpr_native._native"],
        env={**os.environ, "CPR_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "CPR_ISA: expected one of base" in done.stderr


def test_levels_end_with_the_best() -> None:
    assert supported_isas()[0] == "base"


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_shared_tables_and_long_bags(pooling: str) -> None:
    """A hot row of many chunks and several features of one table, against the reference."""
    import numpy as np

    tables = [
        TableSpec(name=f"t{t}", num_embeddings=n, embedding_dim=dim, init_min=-1, init_max=1, pooling=pooling)
        for t, (n, dim) in enumerate([(50, 5), (7, 16)])
    ]
    features = [0, 1, 0]
    native = Collection(tables, features, optimizer="row_wise_adagrad", learning_rate=0.1, seed=1)
    reference = ReferenceCollection(
        [native.weight(t).copy() for t in range(2)],
        features,
        optimizer="row_wise_adagrad",
        lr=0.1,
        poolings=[pooling] * 2,
    )
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 5, 3 * 30)
    lengths[3], lengths[40], lengths[70] = 33, 1100, 65
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    bounds = offsets[::30]
    ids = np.concatenate(
        [
            (tables[t].num_embeddings * rng.random(bounds[f + 1] - bounds[f]) ** 4).astype(np.int64)
            for f, t in enumerate(features)
        ]
    )
    for _ in range(2):
        out = np.empty((30, 26), np.float32)
        batch = native.lookup(describe(ids), describe(offsets), None, describe(out), threads=2, keep=True)
        assert batch is not None
        assert np.array_equal(out, reference.lookup(ids, offsets))
        grad = rng.standard_normal(out.shape).astype(np.float32)
        assert native.update(batch, describe(grad), threads=2)
        reference.update(ids, offsets, grad)
        for t in range(2):
            assert np.array_equal(native.weight(t), reference.weights[t])
            assert np.array_equal(native.state(t), reference.states[t])
            assert np.array_equal(native.counts(t), reference.counts[t])


@pytest.mark.parametrize("length", [992, 993, 1023, 1024, 2017, 2047, 31_749, 32_767, 32_768, 32_769])
def test_sums_whose_last_chunks_are_full_or_not(length: int) -> None:
    """Long bags and hot rows at the edges of the 32-ary tree."""
    engine = Engine(rows=(3,), dim=4, optimizer="sgd", learning_rate=1.0)
    rng = np.random.default_rng(length)
    ids = rng.integers(0, 3, length)
    out, _ = engine.lookup(ids, np.array([0, length]))
    assert np.array_equal(out[0], ordered_sum(engine.native.weight(0)[ids]))
    before = engine.native.weight(0)[1].copy()
    grad = rng.standard_normal((length, 4)).astype(np.float32)
    assert engine.step(np.ones(length, np.int64), np.arange(length + 1), grad)
    assert np.array_equal(engine.native.weight(0)[1], before - ordered_sum(grad))
