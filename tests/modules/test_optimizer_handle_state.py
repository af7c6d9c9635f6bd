"""`state_dict` of the fused optimizer: round trips, exchange with torch's optimizers, refusals."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_cases import collection, each_optimizer, rows_of, same, step

from cpr_native import SGD, Adagrad, Adam, EmbeddingBag, RowWiseAdagrad
from cpr_native.optim import FusedOptimizer


@each_optimizer
def test_state_dict_through_a_file_continues_bit_equal(optimizer: FusedOptimizer) -> None:
    module, other = collection(optimizer), collection(optimizer, seed=5)
    module.fused_optimizer.param_groups[0]["lr"] = 0.3
    for number in range(3):
        step(module, number)
    step(other, 9)
    file = io.BytesIO()
    torch.save([module.state_dict(), module.fused_optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    other.fused_optimizer.load_state_dict(state)
    assert other.learning_rate == 0.3
    assert other.engine.step == 3
    assert all(other.engine.dirty(table).all() for table in range(2))
    for table in range(2):
        other.engine.clear_trackers(table, 0, (20, 7)[table], dirty=False)
        module.engine.clear_trackers(table, 0, (20, 7)[table], dirty=False)
    for number in range(3, 6):
        step(module, number)
        step(other, number)
    assert same(module, other)


def test_loading_state_keeps_the_counts() -> None:
    module = collection(RowWiseAdagrad(lr=0.1))
    step(module, 0)
    counts = [module.engine.counts(table) for table in range(2)]
    module.fused_optimizer.load_state_dict(module.fused_optimizer.state_dict())
    assert [module.engine.counts(table).tolist() for table in range(2)] == [c.tolist() for c in counts]


@each_optimizer
def test_state_has_torchs_names_and_the_engines_values(optimizer: FusedOptimizer) -> None:
    module = collection(optimizer)
    step(module, 0)
    names = {
        "sgd": [],
        "row_wise_adagrad": ["sum"],
        "adagrad": ["sum"],
        "adam": ["exp_avg", "exp_avg_sq"],
        "partial_row_wise_adam": ["exp_avg", "exp_avg_sq"],
    }[optimizer.name]
    state = module.fused_optimizer.state_dict()["state"]
    for table, rows in enumerate((20, 7)):
        assert state[table].pop("step").item() == 1.0
        assert sorted(state[table]) == names
        if names:
            parts = [state[table][name].reshape(rows, -1).numpy() for name in names]
            own = module.engine.state(table)
            assert own is not None
            assert np.array_equal(np.concatenate(parts, axis=1), own.reshape(rows, -1))


def test_one_column_is_a_column() -> None:
    module = EmbeddingBag(6, 1, mode="sum", optimizer=Adagrad(lr=0.3))
    module(torch.tensor([[1, 2]])).sum().backward()
    state = module.fused_optimizer.state_dict()
    assert state["state"][0]["sum"].tolist() == [[0.0], [1.0], [1.0], [0.0], [0.0], [0.0]]
    other = EmbeddingBag(6, 1, mode="sum", optimizer=Adagrad(lr=0.3))
    other.fused_optimizer.load_state_dict(state)
    assert np.array_equal(other.engine.state(0), module.engine.state(0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "make"),
    [
        (Adagrad(lr=0.3), lambda weights: torch.optim.Adagrad(weights, lr=0.1)),
        (Adam(lr=0.3), lambda weights: torch.optim.Adam(weights, lr=0.1, weight_decay=0.01)),
        (SGD(lr=0.3), lambda weights: torch.optim.SGD(weights, lr=0.1)),
    ],
    ids=["adagrad", "adam", "sgd"],
)
def test_state_of_torchs_optimizer_is_taken_over_and_given_back(own: FusedOptimizer, make: Any) -> None:
    theirs = torch.nn.EmbeddingBag(6, 3, mode="sum")
    optimizer = make(theirs.parameters())
    ids = torch.arange(6).view(2, 3)

    def train(bag: torch.nn.Module, steps: range) -> None:
        for number in steps:
            optimizer.zero_grad()
            out = bag(ids)
            out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(number)))
            if bag is theirs:
                optimizer.step()

    train(theirs, range(3))
    mine = EmbeddingBag.from_pretrained(
        theirs.weight.detach().clone(), freeze=False, mode="sum", optimizer=own
    )
    mine.fused_optimizer.load_state_dict(optimizer.state_dict())
    assert mine.learning_rate == 0.1
    train(theirs, range(3, 6))
    train(mine, range(3, 6))
    torch.testing.assert_close(mine.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    if own.name != "sgd":
        back = make(theirs.parameters())
        back.load_state_dict({**optimizer.state_dict(), "state": mine.fused_optimizer.state_dict()["state"]})
        for entry, other in zip(back.state.values(), optimizer.state.values(), strict=True):
            for name, value in other.items():
                torch.testing.assert_close(entry[name], value, rtol=1e-5, atol=1e-9)


def test_state_of_an_optimizer_that_never_stepped_is_the_initial_one() -> None:
    mine = EmbeddingBag(6, 3, optimizer=Adagrad(lr=0.3, initial_accumulator=0.25))
    mine(torch.tensor([[1, 2]])).sum().backward()
    state = mine.fused_optimizer.state_dict()
    mine.fused_optimizer.load_state_dict({**state, "state": {}})
    assert mine.engine.step == 0
    loaded = mine.engine.state(0)
    assert loaded is not None
    assert (loaded == 0.25).all()


def broken(**changes: Any) -> Any:
    return lambda state: state["state"][0].update(changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken(exp_avg=torch.zeros(20, 5)), r"state\[0\]: exp_avg: expected shape \(20, 6\), got \(20, 5\)"),
        (broken(exp_avg=[0.0]), "expected a tensor, got list"),
        (broken(momentum_buffer=torch.zeros(20, 6)), "momentum_buffer"),
        (broken(step=torch.tensor(7.0)), r"one step, got \[1, 7\]"),
        (lambda state: state["state"].update({5: {}}), r"got \[5\] too"),
        (lambda state: state["param_groups"][0].pop("betas"), "no betas"),
        (lambda state: state["param_groups"][0].update(amsgrad=True), "amsgrad"),
        (lambda state: state["param_groups"][0].update(lr=-1.0), "lr: expected"),
        (lambda state: state["param_groups"][0].update(params=[0]), "one group of 2 tables, got groups of"),
        (lambda state: state["param_groups"].append({"params": []}), r"groups of \[2, 0\]"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_changes(spoil: Any, message: str) -> None:
    module = collection(Adam(lr=0.1))
    step(module, 0)
    state = module.fused_optimizer.state_dict()
    step(module, 1)
    spoil(state)
    before, group = rows_of(module), copy.copy(module.fused_optimizer.param_groups[0])
    with pytest.raises((ValueError, TypeError), match=message):
        module.fused_optimizer.load_state_dict(state)
    assert pickle.dumps(rows_of(module)) == pickle.dumps(before)
    assert module.engine.step == 2
    assert module.fused_optimizer.param_groups[0] == group


def test_hooks_of_state_dict_run_as_torchs() -> None:
    module = collection(Adam(lr=0.1))
    handle, seen = module.fused_optimizer, []
    handle.register_state_dict_post_hook(lambda _, state: seen.append(sorted(state["state"][0])))
    handle.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
    handle.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    step(module, 0)
    handle.load_state_dict(handle.state_dict())
    assert seen == [["exp_avg", "exp_avg_sq", "step"], "loaded"]
    assert module.engine.step == 0
