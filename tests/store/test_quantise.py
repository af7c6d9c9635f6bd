"""Codes of rows: within their bound, the same bytes everywhere; what does not fit is written as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from store_cases import Model, flip, manifest_path, place, rewrite, segment_path

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.store import CheckpointStore, CollectionSchema, Placement, TableSchema, segment, verify
from cpr_native.store.quantise import (
    bits_of,
    code_bytes,
    dequantise,
    quantise,
    saves_bytes,
    within_bound,
)

DTYPES = ("float32", "float16", "bfloat16", "float64")


def table(dim: int, dtype: str = "float32") -> TableSchema:
    return TableSchema(name="t", rows=100, dim=dim, init_min=0.0, init_max=1.0, dtype=dtype)


def as_float64(weight: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return torch.from_numpy(weight.view(np.int16)).view(torch.bfloat16).double().numpy()
    return weight.astype(np.float64)


@st.composite
def rows(draw: st.DrawFn) -> tuple[TableSchema, NDArray[Any]]:
    dtype, dim = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([33, 16, 40]))
    shape = (draw(st.integers(0, 5)), dim)
    bits = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}[dtype]
    kind = draw(st.sampled_from(["any", "bits", "near", "constant"]))
    if kind == "bits" or dtype == "bfloat16":
        raw = draw(hnp.arrays(f"uint{bits}", shape))  # nan, inf, subnormal, -0.0 as they come
        weight = raw if dtype == "bfloat16" else raw.view(dtype)
    elif kind == "any":
        weight = draw(hnp.arrays(dtype, shape, elements=st.floats(width=bits)))  # type: ignore[arg-type]
    elif kind == "near":
        weight = draw(hnp.arrays(dtype, shape, elements=st.floats(-1, 1, width=bits)))  # type: ignore[arg-type]
    else:
        weight = np.full(shape, draw(st.floats(width=bits)), dtype)  # type: ignore[arg-type]
    return table(dim, dtype), weight


@given(rows(), st.sampled_from([8, 4]))
def test_rows_are_within_their_bound_or_left_out(case: tuple[TableSchema, NDArray[Any]], bits: int) -> None:
    schema, weight = case
    before = weight.tobytes()
    found, fits = quantise(weight, schema, bits)
    assert weight.tobytes() == before
    assert found.codes.shape == (int(fits.sum()), code_bytes(schema.dim, bits))
    assert (found.codes.dtype, found.range.dtype, found.bound.dtype) == ("uint8", "float32", "float32")
    back = dequantise(found, schema, bits)
    assert back.dtype == weight.dtype
    exact = as_float64(weight[fits], schema.dtype)
    assert np.isfinite(exact).all()
    error = np.abs(as_float64(back, schema.dtype) - exact)
    assert (error <= found.bound[:, None]).all()
    assert within_bound(found.range, found.bound, schema.dtype, bits).all()
    constant = (exact == exact[:, :1]).all(axis=1) if len(exact) else np.zeros(0, np.bool_)
    if schema.dtype != "float64":
        assert (found.bound[constant] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4])
def test_ordinary_rows_fit(dtype: str, bits: int) -> None:
    random = torch.from_numpy(np.random.default_rng(0).standard_normal((500, 64)))
    kind = getattr(torch, dtype)
    values = random.to(kind)
    weight = values.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else values.numpy()
    found, fits = quantise(weight, table(64, dtype), bits)
    assert fits.all()
    assert float(found.bound.max()) < 0.6 * 8 / (2**bits - 1)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([np.nan] + [0.0] * 31, "nan"),
        ([np.inf] + [0.0] * 31, "inf"),
        ([-np.inf, np.inf] + [0.0] * 30, "both"),
        ([1e-45, 3e-45, 0.0] + [0.0] * 29, "range too small for a step"),
    ],
)
def test_rows_that_are_left_out(row: list[float], why: str) -> None:
    weight = np.array([[0.5] * 32, row, [1.0, -1.0] * 16], np.float32)
    found, fits = quantise(weight, table(32), 8)
    assert fits.tolist() == [True, False, True], why
    assert len(found.codes) == 2


def test_float64_beyond_float32_is_left_out() -> None:
    _, fits = quantise(np.array([[1e300, -1e300] * 8, [1.0] * 16]), table(16, "float64"), 8)
    assert fits.tolist() == [False, True]


def test_the_bytes_never_change() -> None:
    mixed = np.arange(70 * 33, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    weight = (mixed.astype(np.float32) / np.float32(2**31) - 1).reshape(70, 33)
    crcs = []
    for bits in (8, 4):
        found, _ = quantise(weight, table(33), bits)
        for array in (found.codes, found.range, found.bound, dequantise(found, table(33), bits)):
            crcs.append(f"{_native.crc32c(describe(array)):08x}")
    assert crcs == [
        "db58d405",
        "d9ec1b21",
        "60f2a5a8",
        "a64c4196",
        "6a4d7032",
        "794b9d3e",
        "062dbd9e",
        "7bd8903c",
    ]


def test_which_tables_are_worth_it() -> None:
    assert next(dim for dim in range(1, 40) if saves_bytes(table(dim), 8)) == 5
    assert next(dim for dim in range(1, 40) if saves_bytes(table(dim), 4)) == 4
    assert next(dim for dim in range(1, 40) if saves_bytes(table(dim, "float16"), 8)) == 13
    for dim in range(1, 200):
        for bits in (8, 4):
            if saves_bytes(table(dim), bits):
                assert bits_of(table(dim), code_bytes(dim, bits)) == bits
    assert bits_of(table(32), 31) is None


SCHEMA = CollectionSchema(
    tables=(
        TableSchema(name="wide", rows=40, dim=24, init_min=-0.5, init_max=0.5),
        TableSchema(name="thin", rows=7, dim=2, init_min=0.0, init_max=1.0),
    ),
    optimizer="row_wise_adagrad",
    seed=7,
)
PLACEMENT = Placement.contiguous(SCHEMA, 2)


def saved(path: Path, bits: int | None, *kinds: str) -> Model:
    model = Model(0, SCHEMA, PLACEMENT)
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT, quantise=bits) as writer:
        for kind in kinds:
            model.train_some()
            if kind == "delta":
                row = min(model.dirty["wide"])
                model.weight["wide"][row, 3] = np.nan  # written as it is
            model.save(writer, kind)
    return model


@pytest.mark.parametrize("bits", [8, 4])
def test_increments_are_smaller_and_near(tmp_path: Path, bits: int) -> None:
    model = saved(tmp_path / "codes", bits, "base", "delta", "priority")
    saved(tmp_path / "exact", None, "base", "delta", "priority")
    sizes = {
        name: [sum(f.stat().st_size for f in (tmp_path / name).rglob(f"{n:012d}-*")) for n in (2, 3, 4)]
        for name in ("codes", "exact")
    }
    assert sizes["codes"][0] == sizes["exact"][0]
    there = Model(9, SCHEMA, PLACEMENT)
    CheckpointStore(tmp_path / "codes").latest("running").plan().apply(there)
    wide = there.weight["wide"]
    assert np.nanmax(np.abs(wide - model.weight["wide"])) <= 0.51 / (2**bits - 1)
    assert np.isnan(wide).tolist() == np.isnan(model.weight["wide"]).tolist()
    for name in ("wide", "thin"):
        assert there.state[name].tobytes() == model.state[name].tobytes()
    assert there.weight["thin"].tobytes() == model.weight["thin"].tobytes()
    assert verify(tmp_path / "codes") == []
    plan = CheckpointStore(tmp_path / "codes").latest("running").plan()
    assert len(plan.segments) > len(CheckpointStore(tmp_path / "exact").latest("running").plan().segments)


def test_base_is_exact_and_a_base_of_codes_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path, 8, "base")
    there = Model(9, SCHEMA, PLACEMENT)
    CheckpointStore(tmp_path).latest().plan().apply(there)
    assert there.rows() == model.rows()
    saved(tmp_path / "more", 8, "base", "delta")
    path = tmp_path / "more"
    for chain in ("shards/0", "shards/1", "global"):
        rewrite(manifest_path(path, chain, 3), lambda body: body.update(kind="base", exact_parent=None))
    assert any("tensor 'wide.weight'" in problem for problem in verify(path))


def test_a_bound_that_was_changed_is_found(tmp_path: Path) -> None:
    saved(tmp_path, 8, "base", "delta")
    path = segment_path(tmp_path, "shards/0", 3)
    flip(path, place(path, "wide.weight_bound") + 3)
    assert any("wide.weight_bound" in problem for problem in verify(tmp_path))
    assert CheckpointStore(tmp_path).latest().kind == "base"


def test_a_bound_that_is_too_large_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        rows, fits = quantise(*arguments)
        return replace(rows, bound=rows.bound * np.float32(3)), fits

    monkeypatch.setattr(segment, "quantise", wrong)
    saved(tmp_path, 8, "base", "delta")
    assert any("beyond their bound" in problem for problem in verify(tmp_path))
    assert CheckpointStore(tmp_path).latest().kind == "base"


def test_wrong_bits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="8 or 4 bits, got 6"):
        CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT, quantise=6)
    assert not list(tmp_path.iterdir())
