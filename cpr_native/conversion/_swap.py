"""A module takes over the class and the engine of another, as torch's parametrizations do with classes."""

from __future__ import annotations

from torch import nn

from cpr_native.modules import EngineModule

# What every torch.nn.Module keeps in its __dict__: parameters, buffers, children, hooks, the training flag.
_STATE_OF_ALL = frozenset(nn.Module().__dict__)


def check_swap(module: nn.Module, made: EngineModule) -> None:
    """Raise ValueError for an attribute of the user's (`forward` too) that would hide one of the new class.

    Raises TypeError where Python can't change the class.
    """
    object.__setattr__(object.__new__(type(module)), "__class__", type(made))
    own = {*module.__dict__, *module._parameters, *module._buffers, *module._modules} - _STATE_OF_ALL
    own -= {*made.__dict__, *made._parameters, *made._modules}
    hidden = sorted(name for name in own if hasattr(type(made), name))
    if hidden:
        raise ValueError(
            f"expected no attributes of the module's own named as those of {type(made).__name__}, got "
            f"{', '.join(hidden)}"
        )


def become(module: nn.Module, made: EngineModule) -> None:
    """Make `module` what `made` is; it keeps its parameters, which `made` was built around, and its hooks."""
    for key, value in made.__dict__.items():
        if key not in _STATE_OF_ALL:
            module.__dict__[key] = value
        elif isinstance(value, dict) and key not in ("_parameters", "_buffers"):
            # The same dict: handles of the user's hooks refer to it.
            module.__dict__.setdefault(key, {}).update(value)
    object.__setattr__(module, "__class__", type(made))
    assert isinstance(module, EngineModule)
    module._start(made.engine)
    module._adopt()
