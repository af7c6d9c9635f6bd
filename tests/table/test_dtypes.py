"""Tables of float16, bfloat16 and float64: lookups, initial rows, rounding, rows in and out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from reference import as_floats, ordered_sum, table_key
from reference.halves import cut_with_noise, nearest, same, stored_as
from reference.rounding import element_bits, rounding_key
from reference.trackers import hash2

from cpr_native._native import Selection

HALVES = ["float16", "bfloat16"]
DTYPES = [*HALVES, "float64"]
PATTERNS = np.arange(1 << 16, dtype=np.uint16)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 65519.9, 65520.0, 3.3895e38, 6e-8, 2.0**-14,
     2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-133, 1e-45, 1.0, 1 / 3],
    np.float32,
)  # fmt: skip


def loaded(patterns: np.ndarray[Any, Any], dtype: str, **options: Any) -> Engine:
    """A table whose rows are bit patterns [n, dim]."""
    options = {"optimizer": "sgd", "learning_rate": 1.0, **options}
    engine = Engine(rows=(len(patterns),), dim=patterns.shape[1], spec={"dtype": dtype}, **options)
    engine.call("load_rows", 0, np.arange(len(patterns)), stored_as(patterns, dtype), None)
    return engine


def bits_of(engine: Engine) -> np.ndarray[Any, Any]:
    return engine.native.weight(0).view(np.uint16)


@pytest.mark.parametrize("dim", [1, 16, 33])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_widened_exactly(dtype: str, dim: int) -> None:
    """All 65,536 values, one to a row or side by side, through lookups of one-id bags."""
    patterns = np.resize(PATTERNS, (-(-len(PATTERNS) // dim), dim))
    engine = loaded(patterns, dtype)
    assert np.array_equal(bits_of(engine), patterns)
    ids = np.arange(len(patterns))
    out, _ = engine.lookup(ids, np.arange(len(ids) + 1))
    expected = as_floats(stored_as(patterns, dtype), dtype)
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    assert same(out, expected)


@pytest.mark.parametrize("dim", [1, 5, 16, 33])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bags_are_pooled_in_the_wider_type(dtype: str, dim: int) -> None:
    engine = Engine(rows=(300,), dim=dim, optimizer="none", spec={"dtype": dtype})
    weight = engine.native.weight(0)
    wide = weight if dtype == "float64" else as_floats(weight, dtype)
    rng = np.random.default_rng(dim)
    ids = rng.integers(0, 300, 700)
    bounds = np.array([0, 1, 1, 4, 36, 37, 700])
    scale = rng.random(700).astype(wide.dtype)
    for per_sample in (None, scale):
        out, _ = engine.lookup(ids, bounds, per_sample)
        assert out.dtype == wide.dtype
        for bag, (begin, end) in enumerate(itertools.pairwise(bounds)):
            items = wide[ids[begin:end]]
            items = items if per_sample is None else items * per_sample[begin:end, None]
            assert np.array_equal(out[bag], in_order(items))


def in_order(items: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The ordered sum, also of float64."""
    if items.dtype == np.float32:
        return ordered_sum(items)
    while len(items) > 1:
        sums = []
        for begin in range(0, len(items), 32):
            total = items[begin]
            for item in items[begin + 1 : begin + 32]:
                total = total + item
            sums.append(total)
        items = np.stack(sums)
    return items[0] if len(items) else np.zeros(items.shape[1:])


def initial(rows: int, dim: int, low: float, high: float) -> np.ndarray[Any, Any]:
    """Initial rows of table t0 with the seed of `Engine`, before they are rounded."""
    key = table_key(3, "t0")
    bits = np.array([[element_bits(hash2(key, r), c) >> 8 for c in range(dim)] for r in range(rows)])
    unit = bits.astype(np.float32) * np.float32(2.0**-24)
    return np.float32(low) + unit * (np.float32(high) - np.float32(low))


@pytest.mark.parametrize("span", [(-0.5, 0.5), (-6e-7, 6e-7), (-7e-8, 7e-8), (-2e5, 2e5), (0.25, 0.25)])
@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_initial_rows_are_rounded_to_nearest(dtype: str, span: tuple[float, float]) -> None:
    """Also denormal halves and values beyond the largest."""
    spec = {"dtype": dtype, "init_min": span[0], "init_max": span[1]}
    for rows, dim in ((1, 1), (130, 7)):
        engine = Engine(rows=(rows,), dim=dim, optimizer="none", spec=spec)
        expected = initial(rows, dim, *span)
        weight = engine.native.weight(0)
        if dtype in HALVES:
            assert np.array_equal(weight.view(np.uint16), nearest(expected, dtype))
        else:
            assert np.array_equal(weight, expected)
            assert weight.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_scaled_rows_are_rounded_to_nearest(dtype: str) -> None:
    """max_norm on every finite half: also of results that are denormal, zero or ties."""
    patterns = PATTERNS[:, None]
    wide = as_floats(stored_as(patterns, dtype), dtype)
    with np.errstate(invalid="ignore"):
        norms = np.abs(wide[:, 0]).astype(np.float64)
    for max_norm in (1.0, 3e-5, 2.0**-24, 1e-7, 1e-30):
        engine = loaded(patterns, dtype)
        changed = engine.call("renormalise", 0, np.arange(len(patterns)), max_norm, 2.0)
        with np.errstate(invalid="ignore"):
            scaled = norms > max_norm
            scale = (max_norm / (norms + 1e-7)).astype(np.float32)[:, None]
            expected = np.where(scaled[:, None], nearest(wide * scale, dtype), patterns)
        assert changed == scaled.sum()
        assert same(stored_as_floats(engine, dtype), as_floats(stored_as(expected, dtype), dtype))


def stored_as_floats(engine: Engine, dtype: str) -> np.ndarray[Any, Any]:
    return as_floats(stored_as(bits_of(engine), dtype), dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_nearest_is_not_rounded_twice(dtype: str) -> None:
    """A hair above a tie between two denormal halves: 2^-25 (1 + 2^-23)."""
    hair = float(np.nextafter(np.float32(2.0**-25), np.float32(1.0)))
    spec = {"dtype": dtype, "init_min": hair, "init_max": hair}
    engine = Engine(rows=(20,), dim=3, optimizer="none", spec=spec)
    assert (bits_of(engine) == nearest(np.array([hair], np.float32), dtype)).all()


@pytest.mark.parametrize("dim", [1, 7, 16, 40])
@pytest.mark.parametrize("dtype", HALVES)
def test_updates_round_by_the_hash_of_step_row_and_column(dtype: str, dim: int) -> None:
    """Bit for bit, for normal and denormal results and those beyond the largest half."""
    rows = 90
    engine = loaded(np.zeros((rows, dim), np.uint16), dtype)
    rng = np.random.default_rng(dim)
    for step in range(4):
        # From 0 at rate 1, a step of -x leaves x rounded.
        exponents = rng.uniform(-40.0, 20.0, (rows, dim))
        x = (rng.choice([-1.0, 1.0], (rows, dim)) * 2.0**exponents).astype(np.float32)
        x[:2] = np.resize(SPECIAL[np.isfinite(SPECIAL)], (2, dim))
        engine.call("load_rows", 0, np.arange(rows), stored_as(np.zeros((rows, dim), np.uint16), dtype), None)
        assert engine.step(np.arange(rows), np.arange(rows + 1), -x)
        key = rounding_key(table_key(3, "t0"), step)
        noise = np.array(
            [[element_bits(hash2(key, row), column) for column in range(dim)] for row in range(rows)],
            dtype=np.uint32,
        )
        positive = 0.0 + x  # 0 - (-(-0)) is 0
        assert np.array_equal(bits_of(engine), cut_with_noise(positive, noise, dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_keeps_the_expected_value(dtype: str) -> None:
    """Steps of a sixteenth of the last place add up."""
    rows, steps = 2000, 32
    engine = loaded(nearest(np.ones((rows, 1), np.float32), dtype), dtype)
    unit = 2.0**-10 if dtype == "float16" else 2.0**-7
    grad = np.full((rows, 1), -unit / 16, np.float32)
    for _ in range(steps):
        assert engine.step(np.arange(rows), np.arange(rows + 1), grad)
    moved = (stored_as_floats(engine, dtype).mean() - 1.0) / unit
    assert abs(moved - steps / 16) < 0.15  # 5 standard deviations


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (50, 1), (50, 7), (9, 33)])
def test_rows_of_special_values_go_through_a_snapshot_and_back(dtype: str, rows: int, dim: int) -> None:
    values = np.resize(SPECIAL, (rows, dim))
    stored = values.astype(np.float64) / 3 if dtype == "float64" else stored_as(nearest(values, dtype), dtype)
    source, target = (
        Engine(rows=(rows,), dim=dim, optimizer="none", spec={"dtype": dtype}, seed=s) for s in (1, 2)
    )
    source.call("load_rows", 0, np.arange(rows), stored, None, dirty=True)
    snapshot = source.begin(Selection.dirty(), clears_dirty=True, blocking=True)
    taken = drain(snapshot, 1)[0]
    snapshot.commit()
    assert taken.weight.dtype == target.native.weight(0).dtype
    assert taken.weight.tobytes() == stored.tobytes()
    target.call("load_rows", 0, taken.rows, taken.weight, None)
    assert target.native.weight(0).tobytes() == stored.tobytes()
    target.native.discard_rows(0, 0, rows - 1)
    weight = target.native.weight(0)
    wide = weight if dtype == "float64" else as_floats(weight, dtype)
    assert np.isnan(wide[:-1]).all()
    assert weight[-1].tobytes() == stored[-1].tobytes()
    target.native.reset_rows(0, 0, rows)
    fresh = Engine(rows=(rows,), dim=dim, optimizer="none", spec={"dtype": dtype}, seed=2)
    assert np.array_equal(target.native.weight(0), fresh.native.weight(0))


@pytest.mark.parametrize(
    ("dtype", "given"), [("float16", "uint16"), ("float64", "float32"), ("bfloat16", "float16")]
)
def test_rows_of_another_dtype_are_refused(dtype: str, given: str) -> None:
    engine = Engine(rows=(3,), dim=2, optimizer="none", spec={"dtype": dtype})
    before = engine.native.weight(0).copy()
    with pytest.raises(TypeError, match=f"weight: expected dtype {dtype}.*got {given}"):
        engine.call("load_rows", 0, np.arange(3), np.ones((3, 2), given), None)
    assert np.array_equal(engine.native.weight(0), before)


def test_float64_tables_stand_alone() -> None:
    with pytest.raises(ValueError, match="float64 is supported with optimizer none only"):
        Engine(rows=(3,), spec={"dtype": "float64"})
    engine = Engine(rows=(3,), optimizer="none", spec={"dtype": "float64"})
    ids, offsets, out = np.array([1]), np.arange(2), np.zeros((1, 8), np.float32)
    with pytest.raises(TypeError, match="out: expected dtype float64, got float32"):
        engine.call("lookup", ids, offsets, None, out, threads=1, keep=False)
    with pytest.raises(ValueError, match="dtype"):
        Engine(rows=(3,), spec={"dtype": "float8"})
