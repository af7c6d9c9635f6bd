"""`attach` finds the tables, refuses what it can't track, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attachment.attach_cases import DIM, ROWS, Nested, clean, dirty_rows, global_hooks, train
from torch import nn
from torch.nn.utils import parametrize

import cpr_native
from cpr_native import Trackers
from cpr_native.attachment import attach, attachments_of


def test_finds_nested_and_tied_tables() -> None:
    model = Nested()
    attachment = cpr_native.attach(model)
    assert attachment.table_names == ["tower-0", "bag"]
    assert attachment.keys(model) == {"tower.0.weight", "out.weight", "bag.weight", "again.weight"}
    assert [(t.num_embeddings, t.embedding_dim) for t in attachment.engine.tables] == [(ROWS, DIM), (30, DIM)]
    assert attachments_of(model) == [attachment]
    assert attachments_of(model.bag) == [attachment]
    assert attachments_of(nn.Linear(1, 1)) == []


def test_a_table_alone_is_named_weight() -> None:
    assert attach(nn.Embedding(ROWS, DIM)).table_names == ["weight"]


def test_tied_weights_are_one_table_all_of_whose_uses_count() -> None:
    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    clean(attachment)
    train(model, optimizer)
    assert dirty_rows(attachment, 0) == list(range(ROWS)), "the output layer has a gradient for every row"
    assert attachment.engine.counts(0).tolist()[:6] == [0, 1, 2, 0, 0, 1]
    assert dirty_rows(attachment, 1) == [1, 2, 5, 7, 8, 11]
    assert attachment.engine.counts(1)[[1, 2, 5, 7, 8, 11]].tolist() == [1, 2, 1, 1, 2, 1]


def test_memory_is_that_of_the_trackers() -> None:
    model = nn.Embedding(1000, 64)
    memory = attach(model, trackers=Trackers(ssu_fraction=0.125)).memory()
    assert memory == {"weight": 0, "state": 0, "metadata": 8000, "ssu": 500, "saved": 0, "staging": 0}
    assert attach(nn.Embedding(1000, 64), trackers=Trackers(ssu=False)).memory()["ssu"] == 0


def test_weights_stay_where_they_are() -> None:
    model = Nested()
    before = {name: (parameter.data_ptr(), id(parameter)) for name, parameter in model.named_parameters()}
    with attach(model):
        pass
    after = {name: (parameter.data_ptr(), id(parameter)) for name, parameter in model.named_parameters()}
    assert before == after


def test_trackers_by_table() -> None:
    model = Nested()
    attachment = attach(model, trackers={"bag": Trackers(ssu=False)})
    assert [trackers.ssu for trackers in attachment.plan.trackers] == [True, False]
    with pytest.raises(ValueError, match="no table tower"):
        attach(Nested(), trackers={"tower": Trackers()})


def test_skipped_modules_are_left_alone() -> None:
    model = Nested()
    attachment = attach(model, skip=["tower.0"])
    assert attachment.table_names == ["bag"]
    assert attachment.keys(model) == {"bag.weight", "again.weight"}
    assert not model.tower[0]._forward_hooks


class OwnForward(nn.Embedding):
    """Looks up other ids than it gets."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input + 1)


def strided() -> nn.Module:
    model = nn.Embedding(ROWS, DIM)
    model.weight = nn.Parameter(torch.randn(DIM, ROWS).t())
    return model


def parametrized() -> nn.Module:
    model = nn.Embedding(ROWS, DIM)
    parametrize.register_parametrization(model, "weight", nn.Identity())
    return model


def two_in_one_memory() -> nn.Module:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, ROWS))
    model[1].weight = nn.Parameter(model[0].weight.detach()[2:])
    return model


def two_dtypes() -> nn.Module:
    return nn.Sequential(nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM, dtype=torch.float64))


def clashing() -> nn.Module:
    return nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Embedding(2, 2)}), "a-b": nn.Embedding(2, 2)})


def native() -> nn.Module:
    return nn.Sequential(cpr_native.EmbeddingBag(ROWS, DIM), nn.Embedding(ROWS, DIM))


REFUSED: dict[str, tuple[Any, str]] = {
    "no table": (lambda: nn.Linear(2, 2), "no nn.Embedding or nn.EmbeddingBag"),
    "native": (native, r"has a native engine already, in \['0'\]"),
    "own forward": (lambda: OwnForward(ROWS, DIM), "OwnForward has a forward of its own.*skip="),
    "not contiguous": (strided, "expected a contiguous tensor"),
    "parametrized": (parametrized, "no parameter of its own"),
    "two in one memory": (two_in_one_memory, "'0.weight' and '1.weight' are different tensors in one memory"),
    "dtypes": (two_dtypes, "float64"),
    "names": (clashing, r"two tables would be named \['a-b'\]"),
    "device": (lambda: nn.Embedding(ROWS, DIM, device="meta"), "expected a tensor in CPU memory"),
    "dtype": (lambda: nn.Embedding(ROWS, DIM, dtype=torch.complex64), "expected one of float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_leave_the_model_as_it_was(name: str) -> None:
    make, match = REFUSED[name]
    model, hooks = make(), global_hooks()
    before = global_hooks()
    with pytest.raises((ValueError, TypeError), match=match):
        attach(model)
    assert global_hooks() == before >= hooks - 1
    assert all(not module._forward_hooks for module in model.modules())


def test_wrong_arguments() -> None:
    model = nn.Embedding(ROWS, DIM)
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with pytest.raises(ValueError, match="its weight is in 2 of the optimizers"):
        attach(model, optimizer=[one, two])
    with pytest.raises(TypeError, match=r"expected torch\.optim\.Optimizer, got str"):
        attach(model, optimizer=["sgd"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        attach(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no embedding module"):
        attach(model, skip=["nowhere"])
    with pytest.raises(KeyError, match="no table 'other'"):
        attach(model).mark_dirty("other")
