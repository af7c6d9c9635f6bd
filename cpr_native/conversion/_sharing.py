"""Weights that several modules hold, and tensors that share memory."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cpr_native.conversion._sites import Site, join, title
from cpr_native.modules import EngineModule
from cpr_native.modules._memory import span_of


def check_sharing(model: nn.Module, sites: list[Site], *, fused: bool) -> None:
    """Raise ValueError unless every table's weight is a plain Parameter that the engine can keep track of.

    The same Parameter in several modules is fine without fused optimizers. Another tensor in the same memory
    is not: what is written through it changes neither the version nor the gradient of the Parameter.
    """
    owners = _owners(model)
    for path, table in (pair for site in sites for pair in site.tables.items()):
        weight, name = table._parameters.get("weight"), title(join(path, "weight"))
        if type(weight) is not nn.Parameter:
            raise ValueError(f"{name}: expected a plain Parameter, got {type(weight).__name__}")
        held = {other: module for other, module in owners[id(weight)][1].items() if module is not table}
        fuses = fused or any(isinstance(module, EngineModule) and module.fused for module in held.values())
        if held and fuses:
            raise ValueError(
                f"{name}: is {', '.join(held)} too: a fused optimizer would lose the gradient of one; "
                "expected optimizer=None for tied weights"
            )
        for tensor, places in owners.values():
            if tensor is not weight and _overlap(tensor, weight):
                raise ValueError(f"{name}: expected memory of its own, shares it with {next(iter(places))}")


def _owners(model: nn.Module) -> dict[int, tuple[Tensor, dict[str, nn.Module]]]:
    """Every parameter and buffer by id, with the modules that hold it by the tensor's path there."""
    owners: dict[int, tuple[Tensor, dict[str, nn.Module]]] = {}
    for module_name, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                owners.setdefault(id(tensor), (tensor, {}))[1][join(module_name, name)] = module
    return owners


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.device != b.device or a.is_meta or is_lazy(a) or is_lazy(b):
        return False
    (first, end), (other, other_end) = span_of(a), span_of(b)
    return first < other_end and other < end
