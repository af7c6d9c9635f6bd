"""`EmbeddingBag` beside `torch.nn.EmbeddingBag`, row by row of what torch really does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, EmbeddingBag

ROWS, DIM = 20, 5


def pair(**options: Any) -> tuple[nn.EmbeddingBag, EmbeddingBag]:
    torch.manual_seed(7)
    theirs = nn.EmbeddingBag(ROWS, DIM, **options)
    torch.manual_seed(7)
    return theirs, EmbeddingBag(ROWS, DIM, **options)


def compare(
    options: dict[str, Any], ids: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None
) -> None:
    """Outputs, the weight's gradient and the per-sample weights' gradient of both modules are close."""
    results = []
    for module in pair(**options):
        own = None if weights is None else weights.clone().requires_grad_()
        out = module(ids, offsets, own)
        grad = torch.arange(out.numel(), dtype=torch.float32).view(out.shape).cos()
        out.backward(grad)
        assert module.weight.grad is not None
        weight_grad = (
            module.weight.grad.coalesce().to_dense() if options.get("sparse") else module.weight.grad
        )
        results.append((out, weight_grad, None if own is None else own.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


MODES = pytest.mark.parametrize("mode", ["sum", "mean", "max"])
LAYOUTS = pytest.mark.parametrize(
    ("mode", "sparse"), [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("max", False)]
)


def test_initial_weights_and_attributes_are_torchs() -> None:
    theirs, ours = pair(padding_idx=-2)
    assert torch.equal(theirs.weight, ours.weight)
    assert repr(ours) == repr(theirs)
    names = (
        "num_embeddings embedding_dim max_norm norm_type scale_grad_by_freq mode sparse include_last_offset"
    )
    for name in [*names.split(), "padding_idx"]:
        assert getattr(ours, name) == getattr(theirs, name)


@LAYOUTS
@pytest.mark.parametrize("offsets", [[0, 3, 3, 5], [0], [0, 0, 8], [0, 8]])
def test_one_dimension_with_offsets(mode: str, sparse: bool, offsets: list[int]) -> None:
    ids = torch.tensor([3, 1, 3, 19, 0, 3, 2, 2])
    compare({"mode": mode, "sparse": sparse}, ids, torch.tensor(offsets))


@LAYOUTS
def test_two_dimensions(mode: str, sparse: bool) -> None:
    compare({"mode": mode, "sparse": sparse}, torch.randint(0, ROWS, (6, 4)))


@MODES
def test_include_last_offset(mode: str) -> None:
    ids = torch.tensor([3, 1, 3, 19])
    compare({"mode": mode, "include_last_offset": True}, ids, torch.tensor([0, 1, 1, 4]))


@MODES
@pytest.mark.parametrize("padding_idx", [3, -1])
def test_row15_padding_idx(mode: str, padding_idx: int) -> None:
    ids = torch.tensor([3, 1, 3, 19, 3, 3, 2, 19])
    options = {"mode": mode, "padding_idx": padding_idx}
    compare(options, ids, torch.tensor([0, 4, 6]))
    compare(options, ids.view(2, 4))
    ours = pair(**options)[1]
    ours(ids.view(2, 4)).sum().backward()
    assert ours.engine.counts(0)[padding_idx] == 0
    assert int(ours.engine.counts(0).sum()) == int((ids != padding_idx % ROWS).sum())


def test_row15_padding_row_is_not_dirty() -> None:
    bag = EmbeddingBag(ROWS, DIM, padding_idx=3)
    bag.engine.clear_trackers(0, 0, ROWS, dirty=True)
    bag(torch.tensor([[3, 1]])).sum().backward()
    assert bag.engine.dirty(0).nonzero()[0].tolist() == [1]


@pytest.mark.parametrize("include_last_offset", [False, True])
def test_row15_padding_and_per_sample_weights(include_last_offset: bool) -> None:
    ids = torch.tensor([3, 1, 3, 19])
    offsets = torch.tensor([0, 2, 4] if include_last_offset else [0, 2])
    options = {"mode": "sum", "padding_idx": 3, "include_last_offset": include_last_offset}
    compare(options, ids, offsets, torch.tensor([0.5, 2.0, -1.0, 3.0]))


@pytest.mark.parametrize("sparse", [False, True])
def test_per_sample_weights_and_their_gradient(sparse: bool) -> None:
    weights = torch.tensor([0.5, 2.0, -1.0, 3.0, 0.0, 1.0])
    options = {"mode": "sum", "sparse": sparse}
    compare(options, torch.tensor([3, 1, 3, 19, 0, 3]), torch.tensor([0, 4]), weights)
    compare(options, torch.tensor([[3, 1, 3], [19, 0, 3]]), None, weights.view(2, 3))


@MODES
def test_row1_and_row2_empty_bags_and_no_bags(mode: str) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    compare({"mode": mode}, torch.tensor([4]), torch.tensor([0, 0, 1]))
    compare({"mode": mode}, empty, torch.tensor([0, 0, 0]))
    compare({"mode": mode}, empty, empty)
    compare({"mode": mode, "include_last_offset": True}, empty, torch.tensor([0]))


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("bad", [-1, ROWS, 2**31 - 1])
def test_row3_id_out_of_range(bad: int, padding_idx: int | None) -> None:
    bag = EmbeddingBag(ROWS, DIM, padding_idx=padding_idx)
    before = bag.weight.detach().clone()
    with pytest.raises(IndexError, match=rf"(?s)(?=.*\b{ROWS}\b)(?=.*{bad}\b)(?=.*position 2\b)"):
        bag(torch.tensor([2, 1, bad, 5]), torch.tensor([0, 2]))
    assert not bag.engine.counts(0).any()
    assert torch.equal(bag.weight, before)


@pytest.mark.parametrize(
    ("last", "ids", "offsets"),
    [
        (True, [1, 2, 3], [0, 4]),  # row 4
        (True, [1, 2, 3], [0, 2]),  # row 5
        (False, [1, 2, 3], []),  # row 6
        (True, [1, 2, 3], []),
        (True, [1, 2, 3], [0]),  # row 7
        (False, [1, 2, 3], [1, 2]),  # row 8
        (False, [1, 2, 3], [0, 2, 1]),  # row 9
        (False, [1, 2, 3], [0, 4]),
        (False, [1, 2, 3], [0, -1, 2]),
    ],
)
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_rows4_to_9_offsets_that_do_not_fit(
    last: bool, ids: list[int], offsets: list[int], padding_idx: int | None
) -> None:
    bag = EmbeddingBag(ROWS, DIM, include_last_offset=last, padding_idx=padding_idx)
    for dtype in (torch.int32, torch.int64):
        with pytest.raises(ValueError, match="offsets"):
            bag(torch.tensor(ids, dtype=dtype), torch.tensor(offsets, dtype=dtype))


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("offsets_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_row10_mixed_integer_types(
    ids_dtype: torch.dtype, offsets_dtype: torch.dtype, padding_idx: int | None
) -> None:
    ids = torch.tensor([3, 1, 3, 19], dtype=ids_dtype)
    for last, offsets in ((False, [0, 3]), (True, [0, 3, 4])):
        options = {"include_last_offset": last, "padding_idx": padding_idx}
        compare(options, ids, torch.tensor(offsets, dtype=offsets_dtype))


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32, torch.bool])
def test_row11_other_id_types(dtype: torch.dtype) -> None:
    bag = EmbeddingBag(ROWS, DIM)
    with pytest.raises(TypeError, match="input: expected int32 or int64"):
        bag(torch.ones(2, 2, dtype=dtype))
    with pytest.raises(TypeError, match="offsets: expected int32 or int64"):
        bag(torch.ones(2, dtype=torch.int64), torch.zeros(1, dtype=dtype))
    with pytest.raises(TypeError, match="list"):
        bag([[1, 2]])


def test_row12_no_columns_gives_zeros() -> None:
    bag = EmbeddingBag(ROWS, DIM)
    out = bag(torch.zeros(3, 0, dtype=torch.int64))
    out.sum().backward()
    assert torch.equal(out, torch.zeros(3, DIM))


@MODES
def test_row13_strided_inputs(mode: str) -> None:
    ids = torch.randint(0, ROWS, (6, 4))
    compare({"mode": mode}, ids.t())
    compare({"mode": mode}, ids.reshape(-1)[::2], torch.tensor([0, 9, 2, 9, 5, 9])[::2])
    if mode == "sum":
        compare({"mode": mode}, ids.t(), None, torch.rand(6, 4).t())


def test_row14_per_sample_weights_that_do_not_fit() -> None:
    ids, bag = torch.tensor([[1, 2]]), EmbeddingBag(ROWS, DIM, mode="sum")
    with pytest.raises(TypeError, match="float32"):
        bag(ids, None, torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="shape"):
        bag(ids, None, torch.ones(2))
    for mode in ("mean", "max"):
        with pytest.raises(ValueError, match=mode):
            EmbeddingBag(ROWS, DIM, mode=mode)(ids, None, torch.ones(1, 2))


def test_row16_sparse_gradient_has_one_entry_a_row() -> None:
    bag = EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    bag(torch.tensor([[3, 1, 3]])).sum().backward()
    assert bag.weight.grad is not None
    assert bag.weight.grad._indices().tolist() == [[1, 3]]
    assert bag.weight.grad._values()[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "max", "sparse": True}, ValueError, "max"),  # row 17
        ({"scale_grad_by_freq": True, "sparse": True}, ValueError, "scale_grad_by_freq"),
        ({"scale_grad_by_freq": True, "mode": "max"}, ValueError, "scale_grad_by_freq"),
        ({"mode": "median"}, ValueError, "median"),  # row 18
        ({"max_norm": -1.0}, ValueError, "max_norm"),
        ({"max_norm": float("nan")}, ValueError, "max_norm"),
        ({"norm_type": 0.0}, ValueError, "norm_type"),
        ({"padding_idx": ROWS}, ValueError, "padding_idx"),
        ({"padding_idx": -ROWS - 1}, ValueError, "padding_idx"),
        ({"dtype": torch.complex64}, TypeError, "complex64"),
        ({"dtype": torch.float64, "optimizer": SGD(lr=0.1)}, TypeError, "float64"),  # row 20
        ({"device": "meta"}, ValueError, "meta"),
        ({"_weight": torch.zeros(ROWS, DIM + 1)}, ValueError, "_weight"),
        ({"_weight": torch.zeros(ROWS, DIM, dtype=torch.int64)}, TypeError, "int64"),
        ({"_weight": torch.zeros(DIM, ROWS).t()}, ValueError, "contiguous"),
        ({"optimizer": "sgd"}, TypeError, "optimizer"),
    ],
)
def test_refused_at_construction(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EmbeddingBag(ROWS, DIM, **options)


@pytest.mark.parametrize(
    ("shape", "offsets"), [((), None), ((2, 2, 2), None), ((4,), None), ((2, 2), [0]), ((4,), [[0], [1]])]
)
def test_wrong_number_of_dimensions(shape: tuple[int, ...], offsets: Any) -> None:
    bag = EmbeddingBag(ROWS, DIM)
    with pytest.raises(ValueError, match="-D"):
        bag(torch.ones(shape, dtype=torch.int64), None if offsets is None else torch.tensor(offsets))


@pytest.mark.parametrize("freeze", [True, False])
def test_from_pretrained_shares_the_tensor(freeze: bool) -> None:
    table = torch.randn(ROWS, DIM)
    ours = EmbeddingBag.from_pretrained(table, freeze, None, 2.0, False, "sum")
    theirs = nn.EmbeddingBag.from_pretrained(table, freeze, None, 2.0, False, "sum")
    assert ours.weight.data_ptr() == table.data_ptr()
    assert ours.weight.requires_grad == theirs.weight.requires_grad == (not freeze)
    ids = torch.tensor([[1, 2], [3, 4]])
    torch.testing.assert_close(ours(ids), theirs(ids))
    assert ours(ids).requires_grad == (not freeze)
    with pytest.raises(ValueError, match="2-D"):
        EmbeddingBag.from_pretrained(torch.zeros(3))
