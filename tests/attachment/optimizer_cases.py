"""Every torch optimizer with its options, and a slow way to tell which rows a step changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment import Attachment

ROWS, DIM = 12, 3
STEPS = [torch.tensor([[1, 2], [2, 5]]), torch.tensor([[5, 7]]), torch.tensor([[2, 2]])]

BOTH: dict[type[Optimizer], list[dict[str, Any]]] = {
    torch.optim.SGD: [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
        {"maximize": True},
        {"lr": 0.0},
        {"lr": torch.tensor(0.1)},
    ],
    torch.optim.Adagrad: [
        {},
        {"initial_accumulator_value": 0.1, "lr_decay": 0.1},
        {"maximize": True},
        {"lr": 0.0},
        {"lr": torch.tensor(0.1)},
    ],
}
SPARSE: dict[type[Optimizer], list[dict[str, Any]]] = {
    **BOTH,
    torch.optim.SparseAdam: [{}, {"maximize": True}, {"lr": torch.tensor(0.1)}],
}
FUSED = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW)
PLAIN = [
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
]
DENSE: dict[type[Optimizer], list[dict[str, Any]]] = {
    **{kind: [{}] for kind in PLAIN},
    **{kind: list(options) for kind, options in BOTH.items()},
    torch.optim.LBFGS: [{"lr": 0.1, "max_iter": 2}],
}
# Not in every version of torch that is supported.
if hasattr(torch.optim, "Adafactor"):
    DENSE[torch.optim.Adafactor] = [{}]
if hasattr(torch.optim, "Muon"):
    DENSE[torch.optim.Muon] = [{}, {"weight_decay": 0.0}]
for kind in PLAIN:
    DENSE[kind] += [{"foreach": True}, {"foreach": True, "maximize": True}]
    if kind is not torch.optim.Rprop:
        DENSE[kind] += [{"weight_decay": 0.1}, {"weight_decay": 0.1, "foreach": True}]
    if kind in FUSED:
        DENSE[kind].append({"fused": True})
for kind in (torch.optim.Adam, torch.optim.AdamW):
    DENSE[kind] += [{"amsgrad": True}, {"fused": True, "amsgrad": True}, {"betas": (0.0, 0.0)}]
for kind in (torch.optim.NAdam, torch.optim.RAdam):
    DENSE[kind].append({"weight_decay": 0.1, "decoupled_weight_decay": True})
DENSE[torch.optim.RMSprop] += [{"momentum": 0.9}, {"centered": True}, {"momentum": 0.9, "centered": True}]

CASES = [
    pytest.param(kind, options, sparse, id=f"{kind.__name__}-{options}-{'sparse' if sparse else 'dense'}")
    for sparse, table in ((True, SPARSE), (False, DENSE))
    for kind, each in table.items()
    for options in each
]

# What the rows of the gradient are known to bound: see `keeps_other_rows`.
EXACT = {"lr", "maximize", "foreach", "initial_accumulator_value", "lr_decay"}


class Model(nn.Module):
    """One table under a bag and a plain lookup, and a dense layer."""

    def __init__(self, *, sparse: bool, kind: type[nn.Module] = nn.EmbeddingBag) -> None:
        super().__init__()
        self.table = kind(ROWS, DIM, sparse=sparse)
        self.top = nn.Linear(DIM, 1, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(self.table(ids).sin())
        return out


def make_optimizers(model: Model, kind: type[Optimizer], options: dict[str, Any]) -> list[Optimizer]:
    dense_only = kind is torch.optim.SparseAdam or any(name == "fused" for name in options)
    if dense_only or model.table.sparse:
        tables = kind(list(model.table.parameters()), **options)
        return [tables, torch.optim.SGD(model.top.parameters(), lr=0.1)]
    return [kind(list(model.parameters()), **options)]


def step(model: nn.Module, optimizers: list[Optimizer], ids: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss: torch.Tensor = model(ids).sum()
        loss.backward()
        return loss

    if isinstance(optimizers[0], torch.optim.LBFGS):
        optimizers[0].step(closure)  # type: ignore[no-untyped-call]
    else:
        closure()
        for optimizer in optimizers:
            optimizer.step()


def rows_of(optimizer: Optimizer, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Copies of the weight and of every state tensor with a row for each of its rows."""
    rows = {"weight": weight.detach().clone()}
    for name, value in optimizer.state.get(weight, {}).items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape:
            rows[name] = value.detach().to_dense().clone()
    return rows


def initial_rows(optimizer: Optimizer, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Like `rows_of`, with what torch is going to begin with in place of state that isn't there yet."""
    lr = float(optimizer.param_groups[0]["lr"])
    absent = {"step_size": torch.full_like(weight, lr)}
    zeros = torch.zeros_like(weight)

    class Rows(dict[str, torch.Tensor]):
        def __missing__(self, name: str) -> torch.Tensor:
            return absent.get(name, zeros)

    return Rows(rows_of(optimizer, weight))


def changed_rows(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[int]:
    changed = torch.zeros(ROWS, dtype=torch.bool)
    for name, values in after.items():
        bits = (tensor.contiguous().view(torch.int32) for tensor in (before[name], values))
        changed |= (next(bits) != next(bits)).any(dim=1)
    return set(changed.nonzero().reshape(-1).tolist())


def dirty_rows(attachment: Attachment, table: int = 0) -> set[int]:
    return set(attachment.engine.dirty(table).nonzero()[0].tolist())


def clean(attachment: Attachment) -> None:
    attachment.sync()
    for table, spec in enumerate(attachment.engine.tables):
        attachment.engine.clear_trackers(table, 0, spec.num_embeddings, dirty=True)


def twins(sparse: bool) -> tuple[Model, Model]:
    torch.manual_seed(0)
    alone = Model(sparse=sparse)
    torch.manual_seed(0)
    return alone, Model(sparse=sparse)
