"""Where the tables of a module lie: as asked for, and as its parameters are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cpr_native._tensor import describe
from cpr_native.config import BaseEmbeddingConfig
from cpr_native.device import Place, describe_on, place_of
from cpr_native.modules._memory import data_type_of
from cpr_native.modules._plan import EnginePlan

Device = torch.device | str | int | Place | None

CPU = torch.device("cpu")


def place_for(device: Device, given: Sequence[Tensor] | None, *, host_memory: bool = False) -> Place | None:
    """The place of tables that are to lie on `device`; None: on that of the `given` weights, else the CPU.

    Raises:
        RuntimeError: there is no such GPU.
        ValueError: neither the CPU nor a GPU; `host_memory` without a GPU.
    """
    if device is None and given and given[0].is_cuda:
        device = given[0].device
    place = place_of(device)
    if host_memory and place is None:
        raise ValueError("host_memory: expected a GPU whose tables lie in memory of the host, got device cpu")
    return place


def placed(plan: EnginePlan, weights: Sequence[Tensor]) -> EnginePlan:
    """The plan with the place where the weights are now.

    Raises:
        ValueError: they are on several devices, or on one without an engine; names the table.
        RuntimeError: no engine of this build can use the GPU on which they are.
    """
    device = weights[0].device
    for config, weight in zip(plan.tables, weights, strict=True):
        where = f"table {config.name!r}: weight"
        if weight.device != device:
            raise ValueError(
                f"{where}: expected all tables on one device, {device}, got one on device {weight.device}"
            )
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"{where}: expected a tensor in CPU memory or on a GPU, got device {device}")
    place = plan.place
    if place is not None and device == (CPU if plan.host_memory else place.torch_device):
        return plan
    if place is None and device == CPU:
        return plan
    return replace(plan, place=place_of(device), host_memory=False)


def portable(plan: EnginePlan) -> EnginePlan:
    """The plan as it is pickled: without a GPU that `placed` finds again, so that weights decide."""
    place = plan.place
    found = place is not None and place.torch_device != CPU and not plan.host_memory
    return replace(plan, place=None) if found else plan


def check_weight(plan: EnginePlan, table: int, weight: Tensor) -> None:
    """Check the weight of a table, of any dtype that the engine has, where it is to be used as it is.

    Raises:
        TypeError: a dtype that the engine has no tables of.
        ValueError: another shape, not contiguous, or not where the plan's tables lie.
    """
    config = plan.tables[table]
    where = f"table {config.name!r}: weight"
    check_shape(where, config, weight)
    check_memory(where, weight, plan.place, host_memory=plan.host_memory)
    data_type_of(where, weight.dtype, fused=plan.optimizer is not None)


def check_shape(where: str, config: BaseEmbeddingConfig, weight: Tensor) -> None:
    """Raise ValueError unless `weight` has the shape of a table."""
    expected = (config.num_embeddings, config.embedding_dim)
    if tuple(weight.shape) != expected:
        raise ValueError(f"{where}: expected shape {expected}, got {tuple(weight.shape)}")


def check_memory(where: str, weight: Tensor, place: Place | None, *, host_memory: bool) -> None:
    """Raise ValueError, which begins with `where`, unless the engine can use the memory of `weight`."""
    try:
        if place is None or host_memory:
            describe(weight)
            if place is not None and place.torch_device.type == "cuda" and not weight.is_pinned():
                raise ValueError("expected pinned memory, which the GPU reaches, got memory that isn't")
        else:
            describe_on(place, weight)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
