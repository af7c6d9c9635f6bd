"""Steps that are unlike others: unknown optimizers, hooks, closures, AMP, writes between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import pytest
import torch
from attachment.optimizer_cases import (
    DIM,
    ROWS,
    SPARSE,
    STEPS,
    changed_rows,
    clean,
    dirty_rows,
    initial_rows,
    make_optimizers,
    rows_of,
    step,
    twins,
)
from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment import attach

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")

Make = Callable[[Iterable[nn.Parameter]], Optimizer]


class Unknown(torch.optim.SGD):
    """A subclass, whose step might do anything."""


class Everywhere(Optimizer):
    """Somebody's optimizer that moves all rows, behind torch's back."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Shrink every row."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data *= 0.5


ALL_ROWS: dict[str, Make] = {
    "subclass": lambda p: Unknown(p, lr=0.1),
    "unknown": Everywhere,
    "infinite learning rate": lambda p: torch.optim.SGD(p, lr=float("inf")),
    "eps of 0": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=0.0),
    "eps that rounds to 0": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-50),
}


@pytest.mark.parametrize("name", ALL_ROWS)
def test_all_rows_where_others_cannot_be_ruled_out(name: str) -> None:
    _, model = twins(False)
    optimizer = ALL_ROWS[name](model.parameters())
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    before = initial_rows(optimizer, model.table.weight)
    step(model, [optimizer], STEPS[0])
    assert changed_rows(before, rows_of(optimizer, model.table.weight)) <= dirty_rows(attachment)
    assert dirty_rows(attachment) == set(range(ROWS))


def test_all_rows_for_adagrad_of_half_whose_eps_rounds_to_0() -> None:
    table = nn.Embedding(ROWS, DIM, dtype=torch.float16)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    attachment = attach(table, optimizer=optimizer)
    clean(attachment)
    table(STEPS[0]).sum().backward()
    optimizer.step()
    assert table.weight.isnan().any(dim=1).sum() > 3, "torch divides 0 by 0 in rows without a gradient"
    assert dirty_rows(attachment) == set(range(ROWS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_other_dtypes(dtype: torch.dtype, sparse: bool) -> None:
    table = nn.Embedding(ROWS, DIM, dtype=dtype, sparse=sparse)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    attachment = attach(table, optimizer=optimizer)
    clean(attachment)
    table(STEPS[0]).sum().backward()
    optimizer.step()
    assert dirty_rows(attachment) == {1, 2, 5}
    assert attachment.incomplete_rows() is None


def test_option_switched_on_later_is_noticed_at_the_step() -> None:
    _, model = twins(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    step(model, [optimizer], STEPS[1])
    assert dirty_rows(attachment) == {5, 7}
    optimizer.param_groups[0]["weight_decay"] = 0.1
    step(model, [optimizer], STEPS[1])
    assert dirty_rows(attachment) == set(range(ROWS))


def test_each_group_has_its_own_options() -> None:
    model = nn.ModuleList([nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)])
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "momentum": 0.9}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    (model[0](STEPS[1]) + model[1](STEPS[1])).sum().backward()
    optimizer.step()
    assert [len(dirty_rows(attachment, table)) for table in (0, 1)] == [2, ROWS]


def test_optimizers_that_were_not_passed_are_watched_too() -> None:
    _, model = twins(True)
    attachment = attach(model)
    clean(attachment)
    step(model, make_optimizers(model, torch.optim.Adagrad, {}), STEPS[1])
    assert dirty_rows(attachment) == {5, 7}
    assert attachment.engine.counts(0)[7] == 1


@pytest.mark.parametrize("sparse", [False, True])
def test_clipping_and_zero_grad_around_the_step(sparse: bool) -> None:
    model = nn.Embedding(ROWS, DIM, sparse=sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    model(STEPS[0]).sum().backward()
    optimizer.zero_grad()
    model(STEPS[1]).sum().backward()
    if sparse:
        model.weight.grad.mul_(0.1)  # type: ignore[union-attr]
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    assert dirty_rows(attachment) == {5, 7}
    assert attachment.engine.counts(0).sum() == 2


def test_gradient_rewritten_by_a_hook_of_the_step() -> None:
    """A step hook of the user's runs before ours and wipes what would tell the rows."""
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    for wipe in (
        functools.partial(optimizer.zero_grad, set_to_none=False),
        functools.partial(optimizer.zero_grad, set_to_none=True),
    ):
        clean(attachment)
        handle = optimizer.register_step_post_hook(lambda *_, wipe=wipe: wipe())  # type: ignore[misc]
        model(STEPS[1]).sum().backward()
        optimizer.step()
        handle.remove()
        assert {5, 7} <= dirty_rows(attachment)


def test_closure_that_makes_the_gradient_marks_everything() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)

    def closure() -> float:
        loss = model(STEPS[1]).sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    assert dirty_rows(attachment) == set(range(ROWS))


def test_step_that_raises_leaves_nothing_behind() -> None:
    """SparseAdam refuses a dense gradient; that gradient is none of the next step's."""
    model = nn.Embedding(ROWS, DIM, sparse=True)
    other = nn.Parameter(torch.zeros(ROWS, DIM))
    optimizer = torch.optim.SparseAdam([model.weight, other], lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    model.weight.grad = torch.ones(ROWS, DIM)
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        optimizer.step()
    optimizer.zero_grad()
    other.grad = torch.sparse_coo_tensor(torch.tensor([[2]]), torch.ones(1, DIM), (ROWS, DIM))
    optimizer.step()
    assert dirty_rows(attachment) == set()


@pytest.mark.parametrize("fused", [False, True])
def test_step_skipped_by_the_grad_scaler_changes_nothing(fused: bool) -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(STEPS[1]).sum() * factor).backward()
        before = model.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        skipped = factor > 1.0
        assert torch.equal(model.weight, before) is skipped
        assert (dirty_rows(attachment) == set()) is skipped
        assert attachment.engine.counts(0).sum() == (0 if skipped else 2)


def test_write_before_or_after_the_step_marks_everything() -> None:
    for early in (True, False):
        model = nn.Embedding(ROWS, DIM, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attachment = attach(model, optimizer=optimizer)
        clean(attachment)
        model(STEPS[1]).sum().backward()
        if not early:
            optimizer.step()
        with torch.no_grad():
            model.weight[9] += 1
        if early:
            optimizer.step()
        attachment.sync()
        assert dirty_rows(attachment) == set(range(ROWS))


def test_state_loaded_between_steps_marks_everything() -> None:
    model = nn.Embedding(ROWS, DIM, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    model(STEPS[0]).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"] = {0: {k: v * 2 for k, v in state["state"][0].items()}}
    clean(attachment)
    optimizer.load_state_dict(state)
    optimizer.step()
    assert dirty_rows(attachment) == set(range(ROWS))
    attachment.sync()
    assert torch.equal(
        torch.from_numpy(attachment.engine.state(0))[:, :DIM], optimizer.state[model.weight]["exp_avg"]
    )


@pytest.mark.parametrize("kind", SPARSE)
def test_v27_empty_batch_changes_nothing(kind: type[Optimizer]) -> None:
    model = nn.Embedding(ROWS, DIM, sparse=True)
    optimizer = kind(list(model.parameters()), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    before = model.weight.detach().clone()
    model(torch.zeros(0, dtype=torch.int64)).sum().backward()
    optimizer.step()
    attachment.sync()
    assert torch.equal(model.weight, before)
    assert dirty_rows(attachment) == set()
    with torch.no_grad():
        model.weight[3] = 0.0
    optimizer.step()
    assert dirty_rows(attachment) == set(range(ROWS)), "a write is never taken for the step's own"


def test_state_loaded_before_the_first_step_marks_everything() -> None:
    def job() -> tuple[nn.Embedding, torch.optim.SparseAdam]:
        model = nn.Embedding(ROWS, DIM, sparse=True)
        return model, torch.optim.SparseAdam(list(model.parameters()), lr=0.1)

    other, trained = job()
    other(torch.arange(ROWS)).sum().backward()
    trained.step()
    model, optimizer = job()
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    optimizer.load_state_dict(trained.state_dict())
    model(STEPS[1]).sum().backward()
    optimizer.step()
    assert dirty_rows(attachment) == set(range(ROWS))


def test_write_by_a_hook_of_the_step_marks_everything() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)

    def limit(*_: object) -> None:
        with torch.no_grad():
            model.weight.clamp_(-0.5, 0.5)

    optimizer.register_step_post_hook(limit)
    model(STEPS[1]).sum().backward()
    optimizer.step()
    assert dirty_rows(attachment) == set(range(ROWS))
