"""Stochastic rounding of float16 and bfloat16 rows: unbiased, another for every step, row and column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import Engine
from numpy.typing import NDArray
from reference import as_floats

each_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
ONE = {"float16": np.float16(1).view(np.uint16), "bfloat16": np.uint16(0x3F80)}
# From 1 to the next larger number.
SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def table_of_ones(dtype: str, rows: int, dim: int, **options: Any) -> Engine:
    engine = Engine(rows=(rows,), dim=dim, optimizer="sgd", spec={"dtype": dtype}, **options)
    engine.native.weight(0).view(np.uint16)[:] = ONE[dtype]
    engine.native.mark_dirty(0)
    return engine


def add(engine: Engine, amount: float) -> None:
    """Add `amount` to every element, before rounding."""
    rows = engine.rows[0]
    engine.native.learning_rate = amount
    grad = np.full((rows, engine.dim), -1.0, dtype=np.float32)
    assert engine.step(np.arange(rows), np.arange(rows + 1), grad)


def values(engine: Engine) -> NDArray[np.float32]:
    return as_floats(engine.native.weight(0), engine.spec["dtype"])


@each_dtype
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
def test_rounds_up_with_the_probability_of_the_remainder(dtype: str, share: float) -> None:
    engine = table_of_ones(dtype, 500, 60)
    add(engine, share * SPACING[dtype])
    moved = values(engine) - 1
    assert set(np.unique(moved)) == {np.float32(0), np.float32(SPACING[dtype])}
    ups = (moved > 0).mean()
    assert abs(ups - share) < 4 * np.sqrt(share * (1 - share) / moved.size)


@each_dtype
def test_many_tiny_updates_add_up(dtype: str) -> None:
    """Rounding to nearest would leave every element at 1."""
    engine = table_of_ones(dtype, 200, 20)
    share, steps = 0.02, 1000
    for _ in range(steps):
        add(engine, share * SPACING[dtype])
    moved = (values(engine) - 1) / SPACING[dtype]
    expected, variance = share * steps, share * (1 - share) * steps
    assert abs(moved.mean() - expected) < 4 * np.sqrt(variance / moved.size)
    assert 0.9 < moved.var() / variance < 1.1


@each_dtype
def test_what_needs_no_rounding_is_exact(dtype: str) -> None:
    engine = table_of_ones(dtype, 50, 8)
    add(engine, SPACING[dtype])
    assert (values(engine) == 1 + SPACING[dtype]).all()
    before = values(engine).copy()
    add(engine, 0.0)
    assert (values(engine) == before).all()


@each_dtype
def test_choices_differ_by_step_row_column_and_seed(dtype: str) -> None:
    def choices(engine: Engine) -> NDArray[np.bool_]:
        before = values(engine).copy()
        add(engine, 0.5 * SPACING[dtype])
        return values(engine) != before

    engine, again, other = (table_of_ones(dtype, 64, 64, seed=seed) for seed in (3, 3, 4))
    first = choices(engine)
    assert (choices(again) == first).all()
    second = choices(engine)
    for left, right in [
        (first, second),
        (first, choices(other)),
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
    ]:
        assert abs((left == right).mean() - 0.5) < 0.05


@each_dtype
def test_choices_are_of_the_global_row(dtype: str) -> None:
    """A shard that holds some rows of a table rounds them as the whole table does."""
    whole = table_of_ones(dtype, 40, 16)
    part = Engine(rows=(15,), dim=16, optimizer="sgd", spec={"dtype": dtype, "row_offset": 25})
    part.native.weight(0).view(np.uint16)[:] = ONE[dtype]
    for engine in (whole, part):
        engine.native.learning_rate = 0.5 * SPACING[dtype]
    rows = np.arange(25, 40)
    grad = -np.ones((15, 16), dtype=np.float32)
    assert whole.step(rows, np.arange(16), grad)
    assert part.step(rows - 25, np.arange(16), grad)
    assert (whole.native.weight(0)[25:].view(np.uint16) == part.native.weight(0).view(np.uint16)).all()


@each_dtype
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_state_stays_float32(dtype: str, optimizer: str) -> None:
    """The state of a half table is that of a float32 table with the same gradients."""
    states = []
    for kind in (dtype, "float32"):
        engine = Engine(rows=(30,), dim=4, optimizer=optimizer, spec={"dtype": kind})
        rng = np.random.default_rng(0)
        for _ in range(4):
            engine.random_step(rng, 50)
        states.append(engine.native.state(0))
    np.testing.assert_array_equal(*states)


@each_dtype
def test_special_values(dtype: str) -> None:
    engine = table_of_ones(dtype, 4, 1)
    largest = {"float16": 0x7BFF, "bfloat16": 0x7F7F}[dtype]
    bits = engine.native.weight(0).view(np.uint16)
    bits[:, 0] = [largest, largest | 0x8000, 0, 0x8000]
    step = {"float16": 1e5, "bfloat16": 3e38}[dtype]
    engine.native.learning_rate = 1.0
    grad = np.array([[-step], [step], [0.0], [0.0]], dtype=np.float32)
    assert engine.step(np.arange(4), np.arange(5), grad)
    after = values(engine)[:, 0]
    assert after[0] == np.inf
    assert after[1] == -np.inf
    assert after[2] == after[3] == 0.0
