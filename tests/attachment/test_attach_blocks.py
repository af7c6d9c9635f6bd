"""`attach(blocks=...)`: every parameter of a model becomes blocks, where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attachment.block_jobs import OPTIMIZERS, Cnn, Mlp, clean, dirty, step
from torch import nn

from cpr_native import Trackers
from cpr_native.attachment import attach


def tables(model: nn.Module, **options: Any) -> dict[str, tuple[int, int]]:
    with attach(model, **options) as attachment:
        return {t.name: (t.num_embeddings, t.embedding_dim) for t in attachment.engine.tables}


def test_blocks_are_rows_tensors_or_runs_of_elements() -> None:
    assert tables(Cnn(), blocks="rows") == {
        "features-0-weight": (5, 9), "features-0-bias": (1, 5), "features-1-weight": (1, 5),
        "features-1-bias": (1, 5), "out-weight": (2, 80), "out-bias": (1, 2),
    }  # fmt: skip
    assert tables(Mlp(), blocks="tensors") == {
        "scale": (1, 1), "inner-0-weight": (1, 54), "inner-0-bias": (1, 9), "inner-2-weight": (1, 54),
        "inner-2-bias": (1, 6), "again-bias": (1, 9), "out-weight": (1, 18), "out-bias": (1, 2),
    }  # fmt: skip
    assert tables(Cnn(), blocks=20, skip=["features.1"]) == {
        "features-0-weight": (2, 20), "features-0-weight-tail": (1, 5), "features-0-bias": (1, 5),
        "out-weight": (8, 20), "out-bias": (1, 2),
    }  # fmt: skip


def test_embedding_weights_keep_their_rows_and_their_lookups_are_counted() -> None:
    model = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, blocks="tensors", optimizer=optimizer)
    assert attachment.table_names == ["0", "2-weight", "2-bias"]
    assert attachment.looked_up == [True, False, False]
    assert attachment.plan.trackers[0] == Trackers()
    assert attachment.plan.trackers[1] == Trackers(mfu=False, ssu=False)
    assert attachment.keys(model) == set(model.state_dict())
    clean(attachment)
    model(torch.tensor([[1, 2], [2, 5]])).sum().backward()
    optimizer.step()
    assert dirty(attachment) == {"0": [1, 2, 5], "2-weight": [0], "2-bias": [0]}
    assert attachment.engine.counts(0).tolist()[:6] == [0, 1, 2, 0, 0, 1]


class OwnForward(nn.Embedding):
    """Looks up other ids than it gets."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input + 1)


def test_an_embedding_whose_ids_cannot_be_told_is_a_parameter_like_others() -> None:
    attachment = attach(nn.Sequential(OwnForward(12, 4)), blocks="rows")
    assert attachment.table_names == ["0-weight"]
    assert attachment.looked_up == [False]


@pytest.mark.parametrize("blocks", ["rows", "tensors", 7])
def test_memory_is_the_models_own_and_views_are_of_the_blocks(blocks: Any) -> None:
    model = Mlp()
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    attachment = attach(model, blocks=blocks)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before
    rows = sum(spec.num_embeddings for spec in attachment.engine.tables)
    assert attachment.memory() == {
        "weight": 0, "state": 0, "metadata": 8 * rows, "ssu": 0, "saved": 0, "staging": 0
    }  # fmt: skip
    found = [torch.from_numpy(attachment.engine.weight(i)) for i in range(len(attachment.table_names))]
    together = torch.cat([rows.reshape(-1) for rows in found])
    expected = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    assert torch.equal(together, expected.detach())
    assert {rows.data_ptr() for rows in found} >= set(before.values())


@pytest.mark.parametrize("blocks", ["rows", "tensors", 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_makes_the_blocks_dirty_that_it_may_change(name: str, blocks: Any) -> None:
    model = Cnn()
    optimizer = OPTIMIZERS[name](model)
    attachment = attach(model, blocks=blocks, optimizer=optimizer)
    everything = dirty(attachment)
    clean(attachment)
    assert dirty(attachment) == {}
    step(model, optimizer, 0)
    assert dirty(attachment) == everything
    clean(attachment)
    attachment.sync()
    assert dirty(attachment) == {}, "nothing is found changed afterwards"


def test_plain_sgd_marks_the_blocks_of_the_gradient_alone() -> None:
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, blocks=4, optimizer=optimizer)
    assert attachment.table_names == ["weight", "weight-tail", "bias", "bias-tail"]
    clean(attachment)
    for touched, expected in ((2, {"weight": [2, 3, 4]}), (4, {"weight": [6], "weight-tail": [0]})):
        model.weight.grad = torch.zeros(5, 6)
        model.weight.grad[touched, : 5 if touched == 2 else 6] = 1.0
        if touched == 2:
            model.weight.grad[touched - 1, 3:] = 1.0
        optimizer.step()
        assert dirty(attachment) == expected
        clean(attachment)


def test_frozen_parameters_never_become_dirty() -> None:
    model = Cnn()
    for parameter in model.features.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    attachment = attach(model, blocks="rows", optimizer=optimizer)
    assert attachment.incomplete_rows() is None
    clean(attachment)
    step(model, optimizer, 0)
    attachment.sync()
    assert dirty(attachment) == {"out-weight": [0, 1], "out-bias": [0]}


def test_what_is_written_under_no_grad_without_an_optimizer_is_dirty() -> None:
    """Alternating least squares, for one."""
    model = nn.ParameterDict({"left": torch.randn(7, 3), "right": torch.randn(5, 3)})
    attachment = attach(model, blocks="rows", optimizer=())
    assert attachment.incomplete_rows() is None
    clean(attachment)
    with torch.no_grad():
        model["left"].copy_(torch.randn(7, 3))
        model["right"][2] = 0.0
    attachment.sync()
    assert dirty(attachment) == {"left": list(range(7)), "right": list(range(5))}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model["right"].grad = torch.ones(5, 3)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(ValueError, match=r"another optimizer \(SGD\) updated it than none"):
        attachment.sync()


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def strided() -> nn.Module:
    model = nn.Linear(3, 4)
    model.weight = nn.Parameter(torch.randn(3, 4).t())
    return model


def two_in_one_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 2))
    model[1].weight = nn.Parameter(model[0].get_parameter("weight").detach()[1:])
    return model


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "lazy": (lazy, "rows", r"parameter '0.weight': it has no memory before.*skip=\['0.weight'\]"),
    "not contiguous": (strided, "rows", r"parameter 'weight': .*contiguous.*skip=\['weight'\]"),
    "complex": (lambda: nn.Linear(2, 2, dtype=torch.complex64), "rows", "expected one of float32.*skip="),
    "device": (lambda: nn.Linear(2, 2, device="meta"), "rows", "expected a tensor in CPU memory.*skip="),
    "two in one memory": (two_in_one_memory, "rows", "are different tensors in one memory"),
    "nothing": (nn.Identity, "rows", "no parameter to track"),
    "blocks": (
        lambda: nn.Linear(2, 2),
        "columns",
        "expected None, 'rows', 'tensors' or an int, got 'columns'",
    ),
    "bool": (lambda: nn.Linear(2, 2), True, "expected None, 'rows', 'tensors' or an int, got True"),
    "size": (lambda: nn.Linear(2, 2), 0, "expected at least 1 element a block, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_parameter_and_the_way_out(name: str) -> None:
    make, blocks, match = REFUSED[name]
    model = make()
    with pytest.raises((ValueError, TypeError), match=match):
        attach(model, blocks=blocks)
    assert all("_cpr_attachment" not in module.__dict__ for module in model.modules())


def test_skip_names_modules_and_parameters() -> None:
    attachment = attach(Mlp(), blocks="tensors", skip=["inner", "out.bias"])
    assert attachment.table_names == ["scale", "again-weight", "again-bias", "out-weight"]
    with pytest.raises(ValueError, match=r"skip: the model has no module or parameter \['nowhere'\]"):
        attach(Cnn(), blocks="tensors", skip=["nowhere"])
    with pytest.raises(ValueError, match="trackers: no table out-weight, expected some of"):
        attach(Cnn(), blocks="tensors", trackers={"out-weight": Trackers()})
