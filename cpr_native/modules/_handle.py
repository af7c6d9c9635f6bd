"""`FusedHandle`: what the optimizers inside backward have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from cpr_native.optim import FusedOptimizer, native_scalars

BETAS = "betas"


class FusedHandle(torch.optim.Optimizer):
    """The hyperparameters of an optimizer that backward runs, shaped as `torch.optim.Optimizer`.

    `param_groups` has one group and torch's keys: `lr`, `weight_decay`, and `eps` and `betas` where
    `settings` has them. A subclass's `_put` puts changed ones in force, with the names and values of
    `native_scalars`.
    """

    # As torch's fused optimizers: GradScaler.step() must look for no gradients, backward has used them up.
    _step_supports_amp_scaling = True

    def __init__(self, settings: FusedOptimizer) -> None:
        self._settings = settings
        defaults = group_of(settings)
        self._keys = tuple(key for key in defaults if key != BETAS)
        self._has_betas = BETAS in defaults
        super().__init__([{"params": []}], defaults)
        self._values = self._read(self.param_groups[0])

    def _put(self, changed: Mapping[str, float]) -> None:
        raise NotImplementedError

    def _read(self, group: Mapping[str, Any]) -> tuple[float, ...]:
        values = tuple([float(group[key]) for key in self._keys])
        if self._has_betas:
            beta1, beta2 = group[BETAS]
            values += (float(beta1), float(beta2))
        return values

    def _checked(self, values: tuple[float, ...]) -> FusedOptimizer:
        changed: dict[str, Any] = dict(zip(self._keys, values, strict=False))
        if self._has_betas:
            changed[BETAS] = values[-2:]
        return replace(self._settings, **changed)

    @property
    def settings(self) -> FusedOptimizer:
        """The optimizer with the group's hyperparameters; raises ValueError for one out of its range."""
        return self._checked(self._read(self.param_groups[0]))

    def push(self) -> None:
        """Put the group's values in force; cheap when none has changed.

        Raises:
            ValueError: a value out of its range; all old ones stay in force.
        """
        values = self._read(self.param_groups[0])
        if values != self._values:
            before, settings = native_scalars(self._settings), self._checked(values)
            scalars = native_scalars(settings)
            self._put({name: value for name, value in scalars.items() if value != before[name]})
            self._settings, self._values = settings, values

    def assign(self, **values: Any) -> None:
        """Write hyperparameters, named as in the group, to be in force from the next backward on.

        Raises:
            ValueError: a value out of its range; nothing is changed then.
        """
        self._checked(self._read({**self.param_groups[0], **values}))
        self.param_groups[0].update(values)

    def updated(self) -> None:
        """Note that a backward did a step: schedulers warn when theirs comes first."""
        self._opt_called = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing: backward has stepped already. Returns what `closure` returns, if there is one."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise NotImplementedError: the tables share their hyperparameters."""
        if self.param_groups:
            raise NotImplementedError("the tables of a fused optimizer share one parameter group")
        super().add_param_group(param_group)


def group_of(settings: FusedOptimizer) -> dict[str, Any]:
    """Return the hyperparameters of `settings` as the entries of a parameter group."""
    names = ("lr", BETAS, "eps", "weight_decay")
    return {name: getattr(settings, name) for name in names if hasattr(settings, name)}
