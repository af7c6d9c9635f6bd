"""`EmbeddingBag` and `Embedding` beside torch's: dtypes, norms, frequencies, copies, derivatives."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, Embedding, EmbeddingBag, RowWiseAdagrad

ROWS, DIM = 20, 5
IDS, OFFSETS = torch.tensor([3, 1, 3, 19, 0, 3, 2, 2]), torch.tensor([0, 3, 3, 5])
MODES = pytest.mark.parametrize("mode", ["sum", "mean", "max"])
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def bags(**options: Any) -> tuple[nn.EmbeddingBag, EmbeddingBag]:
    torch.manual_seed(7)
    theirs = nn.EmbeddingBag(ROWS, DIM, **options)
    torch.manual_seed(7)
    return theirs, EmbeddingBag(ROWS, DIM, **options)


def embeddings(**options: Any) -> tuple[nn.Embedding, Embedding]:
    torch.manual_seed(7)
    theirs = nn.Embedding(ROWS, DIM, **options)
    torch.manual_seed(7)
    return theirs, Embedding(ROWS, DIM, **options)


def run(module: nn.Module, *inputs: Any) -> tuple[Tensor, Tensor]:
    out = module(*inputs)
    out.backward(torch.arange(out.numel(), dtype=torch.float64).view(out.shape).cos().to(out.dtype))
    grad = module.get_parameter("weight").grad
    assert grad is not None
    return out.detach(), grad.to_dense()


@MODES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_row20_dtypes(mode: str, dtype: torch.dtype) -> None:
    theirs, ours = bags(mode=mode, dtype=dtype, padding_idx=0)
    assert torch.equal(ours.weight, theirs.weight)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    results = [run(module, IDS, OFFSETS) for module in (theirs, ours)]
    assert results[1][0].dtype == results[1][1].dtype == dtype
    torch.testing.assert_close(results[1], results[0], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_row20_per_sample_weights_have_the_weights_dtype(dtype: torch.dtype) -> None:
    pair = bags(mode="sum", dtype=dtype)
    weights = [torch.linspace(-1, 1, len(IDS), dtype=dtype).requires_grad_() for _ in pair]
    results = [run(module, IDS, OFFSETS, own) for module, own in zip(pair, weights, strict=True)]
    torch.testing.assert_close(results[1], results[0], rtol=3e-2, atol=3e-2)
    torch.testing.assert_close(weights[1].grad, weights[0].grad, rtol=3e-2, atol=3e-2)
    with pytest.raises(TypeError, match=f"{dtype}".removeprefix("torch.")):
        pair[1](IDS, OFFSETS, torch.ones(len(IDS)))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_row20_dtypes_of_embedding(dtype: torch.dtype, sparse: bool) -> None:
    pair = embeddings(dtype=dtype, sparse=sparse, padding_idx=0)
    results = [run(module, IDS.view(2, 4)) for module in pair]
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=2e-2)


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.half() if dtype == torch.float16 else module.to(dtype)


@HALVES
@pytest.mark.parametrize("optimizer", [SGD(lr=0.5), RowWiseAdagrad(lr=0.5)])
def test_row20_half_precision_trains_on_after_a_change_of_dtype(dtype: torch.dtype, optimizer: Any) -> None:
    torch.manual_seed(0)
    bag = EmbeddingBag(ROWS, DIM, mode="sum", optimizer=optimizer)
    control = copy.deepcopy(bag)
    for module in (bag, control):
        module(IDS, OFFSETS).sum().backward()
    bag.engine.clear_trackers(0, 0, ROWS, dirty=True)
    bag.learning_rate = control.learning_rate = 0.25
    converted(bag, dtype)
    bag.sync()
    assert bag.engine.dirty(0).all()
    for module in (bag, control):
        module(IDS, OFFSETS).sum().backward()
    assert bag.weight.dtype == dtype
    assert bag.weight.data_ptr() == bag.engine.weight(0).ctypes.data
    torch.testing.assert_close(bag.weight.float(), control.weight, rtol=2e-2, atol=2e-2)
    state = [module.engine.state(0) for module in (bag, control)]
    assert (state[0] is None) == (state[1] is None)
    if state[0] is not None:
        torch.testing.assert_close(torch.tensor(state[0]), torch.tensor(state[1]))
    assert bag.engine.step == 2
    bag.float()
    assert bag(IDS, OFFSETS).dtype == torch.float32
    assert copy.deepcopy(bag).engine.step == 2


def test_row20_a_refused_dtype_leaves_the_module_usable() -> None:
    bag = EmbeddingBag(ROWS, DIM, optimizer=SGD(lr=1.0))
    before = bag.weight.detach().clone()
    bag.double()
    with pytest.raises(TypeError, match=r"fused.*float64"):
        bag(IDS, OFFSETS)
    bag.float()
    torch.testing.assert_close(bag(IDS, OFFSETS).detach(), nn.functional.embedding_bag(IDS, before, OFFSETS))


def test_dtype_changed_under_an_observer_raises() -> None:
    bag = EmbeddingBag(ROWS, DIM, optimizer=SGD(lr=1.0))
    bag.observe_updates(lambda _request, _frozen: lambda: None)
    bag.half()
    with pytest.raises(RuntimeError, match="RecoveryManager"):
        bag(IDS, OFFSETS)


@MODES
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_v4_row19_max_norm(mode: str, norm_type: float) -> None:
    theirs, ours = bags(mode=mode, max_norm=1.0, norm_type=norm_type, padding_idx=3)
    with torch.no_grad():
        for module in (theirs, ours):
            module.weight[3] = 5.0
    ours.sync()
    ours.engine.clear_trackers(0, 0, ROWS, dirty=True)
    before, version = ours.weight.detach().clone(), ours.weight._version
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(IDS, OFFSETS), theirs.eval()(IDS, OFFSETS))
    torch.testing.assert_close(ours.weight, theirs.weight)
    changed = (ours.weight != before).any(dim=1).nonzero().reshape(-1).tolist()
    assert 3 in changed
    assert ours.engine.dirty(0).nonzero()[0].tolist() == changed
    assert not ours.engine.counts(0).any()
    assert ours.weight._version > version
    ours.sync()
    assert ours.engine.dirty(0).nonzero()[0].tolist() == changed
    results = [run(module.train(), IDS, OFFSETS) for module in (theirs, ours)]
    torch.testing.assert_close(results[1], results[0])
    with pytest.raises(IndexError, match="position 1"):
        ours(torch.tensor([3, ROWS]), torch.tensor([0]))


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_v4_row19_max_norm_of_embedding(padding_idx: int | None) -> None:
    theirs, ours = embeddings(max_norm=0.5, padding_idx=padding_idx)
    with torch.no_grad():
        for module in (theirs, ours):
            module.weight[3] = 5.0
    results = [run(module, IDS) for module in (theirs, ours)]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_offsets_that_do_not_fit_renormalise_nothing() -> None:
    bag = EmbeddingBag(ROWS, DIM, max_norm=0.1)
    before = bag.weight.detach().clone()
    with pytest.raises(ValueError, match="offsets"):
        bag(IDS, torch.tensor([0, 9]))
    assert torch.equal(bag.weight, before)


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_scale_grad_by_freq_of_embedding(padding_idx: int | None) -> None:
    pair = embeddings(scale_grad_by_freq=True, padding_idx=padding_idx)
    results = [run(module, IDS) for module in pair]
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_scale_grad_by_freq(mode: str, padding_idx: int | None) -> None:
    """Torch's CPU kernel divides by the count of some other row: it is right for rows named equally often."""
    twice, ends = torch.tensor([3, 1, 3, 19, 0, 1, 19, 0]), torch.tensor([0, 3, 3, 5])
    pair = bags(mode=mode, scale_grad_by_freq=True, padding_idx=padding_idx)
    results = [run(module, twice, ends) for module in pair]
    torch.testing.assert_close(results[1], results[0])
    plain, ours = bags(mode=mode, padding_idx=padding_idx)[0], pair[1]
    ours.zero_grad()
    counts = torch.bincount(IDS, minlength=ROWS).clamp(min=1).unsqueeze(1)
    torch.testing.assert_close(run(ours, IDS, OFFSETS)[1], run(plain, IDS, OFFSETS)[1] / counts)


def test_ties_of_max_go_to_the_first() -> None:
    theirs, ours = bags(mode="max")
    with torch.no_grad():
        for module in (theirs, ours):
            module.weight[:] = torch.arange(DIM).remainder(2)
    results = [run(module, torch.tensor([[5, 2, 9], [7, 7, 1]])) for module in (theirs, ours)]
    torch.testing.assert_close(results[1], results[0])


def saved(module: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved,
}


@pytest.mark.parametrize("way", list(COPIES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_row21_copies(way: str, dtype: torch.dtype) -> None:
    theirs, ours = (COPIES[way](module) for module in bags(mode="max", padding_idx=3, dtype=dtype))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]
    assert torch.equal(ours.weight, theirs.weight)
    torch.testing.assert_close(run(ours, IDS, OFFSETS), run(theirs, IDS, OFFSETS), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("make", [bags, embeddings])
def test_row21_state_dict_loads_strictly_both_ways(make: Any) -> None:
    theirs, ours = make()
    assert [name for name, _ in ours.named_parameters()] == ["weight"]
    assert not list(ours.named_buffers())
    with torch.no_grad():
        theirs.weight += 1
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert torch.equal(ours.weight, theirs.weight)
    with torch.no_grad():
        ours.weight += 1
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(ours.weight, theirs.weight)
    with pytest.raises(RuntimeError, match="size mismatch"):
        ours.load_state_dict({"weight": torch.zeros(ROWS + 1, DIM)})


@pytest.mark.parametrize("sparse", [False, True])
def test_row23_double_backward_of_neither(sparse: bool) -> None:
    for bag in bags(sparse=sparse):
        out = bag(IDS, OFFSETS).pow(2).sum()
        (grad,) = torch.autograd.grad(out, [bag.weight], create_graph=True)
        with pytest.raises(RuntimeError, match=r"differentiable|differentiate twice|not implemented"):
            grad.to_dense().sum().backward()


@MODES
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_gradcheck(mode: str, padding_idx: int | None) -> None:
    bag = EmbeddingBag(6, 3, mode=mode, padding_idx=padding_idx, dtype=torch.float64)
    ids, offsets = torch.tensor([1, 3, 5, 0, 1]), torch.tensor([0, 3, 3])

    own = torch.rand(5, dtype=torch.float64).requires_grad_() if mode == "sum" else None
    # It perturbs the parameter in place.
    assert torch.autograd.gradcheck(lambda _weight, own: bag(ids, offsets, own), (bag.weight, own))


def test_functional_call() -> None:
    theirs, ours = bags(mode="sum")
    weight = torch.randn(ROWS, DIM, requires_grad=True)
    grads = list[Tensor]()
    for module in (theirs, ours):
        weight.grad = None
        torch.func.functional_call(module, {"weight": weight}, (IDS, OFFSETS)).pow(2).sum().backward()
        assert weight.grad is not None
        assert module.weight.grad is None
        grads.append(weight.grad)
    torch.testing.assert_close(grads[1], grads[0])
    own = torch.rand(len(IDS), requires_grad=True)
    out = torch.func.functional_call(ours, {"weight": weight}, (IDS, OFFSETS, own))
    with pytest.raises(RuntimeError, match="replaced since their forward"):
        out.sum().backward()
