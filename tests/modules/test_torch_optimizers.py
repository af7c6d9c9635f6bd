"""With `optimizer=None` torch's optimizers train the table exactly, and every row they change is dirty."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from cpr_native import EmbeddingBag

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ROWS, DIM = 12, 3
STEPS = [torch.tensor([[1, 2], [2, 5]]), torch.tensor([[5, 7]]), torch.tensor([[2, 2]])]

SPARSE: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sparse_adam": lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
}
DENSE: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "weight_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=1),
}
CASES = [(name, True, make) for name, make in SPARSE.items()] + [
    (name, False, make) for name, make in DENSE.items()
]
EXACT = {("sgd", True), ("adagrad", True), ("sparse_adam", True), ("sgd", False), ("adagrad", False)}


def step(module: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = module(ids).sin().sum()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    else:
        closure()
        optimizer.step()


@pytest.mark.parametrize(("name", "sparse", "make"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_trains_as_torch_and_never_misses_a_changed_row(name: str, sparse: bool, make: Make) -> None:
    torch.manual_seed(0)
    theirs = nn.EmbeddingBag(ROWS, DIM, sparse=sparse)
    torch.manual_seed(0)
    ours = EmbeddingBag(ROWS, DIM, sparse=sparse)
    optimizers = [make(module.parameters()) for module in (theirs, ours)]
    for ids in STEPS:
        ours.sync()
        ours.engine.clear_trackers(0, 0, ROWS, dirty=True)
        before = ours.weight.detach().clone()
        step(theirs, optimizers[0], ids)
        step(ours, optimizers[1], ids)
        ours.sync()
        torch.testing.assert_close(ours.weight, theirs.weight)
        changed = set((ours.weight != before).any(dim=1).nonzero().reshape(-1).tolist())
        dirty = set(ours.engine.dirty(0).nonzero()[0].tolist())
        assert changed <= dirty
        if (name, sparse) in EXACT or (name, sparse) == ("sgd_foreach", False):
            assert dirty == set(ids.reshape(-1).tolist())


def test_clean_between_backward_and_step() -> None:
    """A save may fall between a backward and its step: the rows are marked by the step as well."""
    module = EmbeddingBag(ROWS, DIM, sparse=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.tensor([[1, 2]])).sum().backward()
    module.engine.clear_trackers(0, 0, ROWS, dirty=True)
    optimizer.step()
    assert module.engine.dirty(0).nonzero()[0].tolist() == [1, 2]


def test_write_before_the_step_marks_everything() -> None:
    module = EmbeddingBag(ROWS, DIM, sparse=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.tensor([[1, 2]])).sum().backward()
    module.engine.clear_trackers(0, 0, ROWS, dirty=True)
    with torch.no_grad():
        module.weight[9] += 1
    optimizer.step()
    assert module.engine.dirty(0).all()


def test_other_models_steps_mark_nothing() -> None:
    module, other = EmbeddingBag(ROWS, DIM), nn.Linear(2, 2)
    module.engine.clear_trackers(0, 0, ROWS, dirty=True)
    optimizer = torch.optim.Adam([*other.parameters(), *module.parameters()])
    other(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not module.engine.dirty(0).any()


@pytest.mark.parametrize("sparse", [False, True])
def test_accumulation_and_retained_graph_as_in_torch(sparse: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.EmbeddingBag(ROWS, DIM, sparse=sparse)
    torch.manual_seed(0)
    ours = EmbeddingBag(ROWS, DIM, sparse=sparse)
    grads: list[Any] = []
    for module in (theirs, ours):
        out = module(STEPS[0]).sin().sum()
        out.backward(retain_graph=True)
        out.backward()
        module(STEPS[1]).sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
        assert module.weight.grad is not None
        grads.append(module.weight.grad.to_dense())
    torch.testing.assert_close(*grads)


def test_write_before_a_step_whose_closure_drops_the_gradient() -> None:
    """The step writes nothing, so the one write that is counted is the user's."""
    module = EmbeddingBag(ROWS, DIM)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.step()
    module.sync()
    module.engine.clear_trackers(0, 0, ROWS, dirty=True)
    module(STEPS[1]).sum().backward()
    with torch.no_grad():
        module.weight[3].add_(1.0)

    def closure() -> float:
        optimizer.zero_grad()
        return 0.0

    optimizer.step(closure)
    module.sync()
    assert module.engine.dirty(0)[3]


def test_gradients_flow_in_eval_as_in_torch() -> None:
    module = EmbeddingBag(ROWS, DIM).eval()
    module(STEPS[1]).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.any(dim=1).nonzero().reshape(-1).tolist() == [5, 7]


def test_frozen_weight_gets_no_gradient() -> None:
    module = EmbeddingBag(ROWS, DIM).requires_grad_(False)
    assert not module(STEPS[0]).requires_grad


def test_dropped_module_leaves_no_hook() -> None:
    from torch.optim import optimizer as torch_optimizer

    hooks = torch_optimizer._global_optimizer_post_hooks
    before = len(hooks)
    module = EmbeddingBag(ROWS, DIM)
    assert len(hooks) == before + 1
    del module
    assert len(hooks) == before
