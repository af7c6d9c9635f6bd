"""What torch's optimizers keep for every row: the part of a row's record beside its weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer


class Column(NamedTuple):
    """A state tensor of the weight's shape, and the value torch fills a new one with."""

    name: str
    initial: float = 0.0


Layout = tuple[Column, ...]
_Options = dict[str, Any]


def _moments(second: str) -> Callable[[_Options], Layout]:
    def columns(group: _Options) -> Layout:
        maximum = (Column("max_exp_avg_sq"),) if group.get("amsgrad") else ()
        return (Column("exp_avg"), Column(second), *maximum)

    return columns


def _sgd(group: _Options) -> Layout:
    return (Column("momentum_buffer"),) if group["momentum"] else ()


def _adagrad(group: _Options) -> Layout:
    return (Column("sum", float(group["initial_accumulator_value"])),)


def _rmsprop(group: _Options) -> Layout:
    momentum = (Column("momentum_buffer"),) if group["momentum"] > 0 else ()
    centered = (Column("grad_avg"),) if group["centered"] else ()
    return (Column("square_avg"), *momentum, *centered)


def _adadelta(_group: _Options) -> Layout:
    return (Column("square_avg"), Column("acc_delta"))


def _asgd(_group: _Options) -> Layout:
    return (Column("ax"),)


def _rprop(group: _Options) -> Layout:
    return (Column("prev"), Column("step_size", float(group["lr"])))


_LAYOUTS: dict[type[Optimizer], Callable[[_Options], Layout]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.SparseAdam: _moments("exp_avg_sq"),
    torch.optim.Adam: _moments("exp_avg_sq"),
    torch.optim.AdamW: _moments("exp_avg_sq"),
    torch.optim.NAdam: _moments("exp_avg_sq"),
    torch.optim.RAdam: _moments("exp_avg_sq"),
    torch.optim.Adamax: _moments("exp_inf"),
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adadelta: _adadelta,
    torch.optim.ASGD: _asgd,
    torch.optim.Rprop: _rprop,
}


_MOST_COLUMNS = 4  # that the engine binds
# They look at the whole weight, whatever the shape of what they keep.
_WHOLE = tuple(
    getattr(torch.optim, name) for name in ("LBFGS", "Adafactor", "Muon") if hasattr(torch.optim, name)
)


def layout_of(optimizer: Optimizer, group: _Options, weight: Tensor, *, sparse: bool) -> Layout | None:
    """The state tensors of a weight with an element for each of its elements, all of its state but scalars.

    Of a class of torch's it is what the options say, before there is any; of another what is there now.
    None where that can't be said: LBFGS, Adafactor and Muon look at the whole weight, other classes may have
    no state yet, some of other shapes, or more than four tensors; weights that aren't float32; momentum of
    sparse gradients, which torch keeps as a sparse tensor.
    """
    make = _LAYOUTS.get(type(optimizer))
    columns = _found(optimizer, weight) if make is None else make(group)
    if columns and weight.dtype != torch.float32:
        return None
    if sparse and type(optimizer) is torch.optim.SGD and columns:
        return None
    return columns


def _found(optimizer: Optimizer, weight: Tensor) -> Layout | None:
    state = optimizer.state.get(weight)
    if not state or isinstance(optimizer, _WHOLE):
        return None
    columns = []
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == weight.shape and name != "step":
            if value.layout != torch.strided or value.dtype != torch.float32:
                return None
            columns.append(Column(name))
        elif not (
            isinstance(value, bool | int | float | None) or (isinstance(value, Tensor) and value.numel() == 1)
        ):
            return None
    return tuple(columns) if len(columns) <= _MOST_COLUMNS else None
