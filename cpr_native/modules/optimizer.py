"""`EmbeddingFusedOptimizer`: the optimizer inside a module's backward, shaped as `torch.optim.Optimizer`."""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from cpr_native.modules._handle import BETAS, FusedHandle, group_of
from cpr_native.modules._plan import Engine
from cpr_native.modules._row_state import joined_state, split_state, write_state
from cpr_native.optim import FusedOptimizer, native_scalars

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule

# Options of torch's optimizers that the engine doesn't have.
_UNSUPPORTED = ("amsgrad", "decoupled_weight_decay", "lr_decay", "maximize", "momentum", "nesterov")


class EmbeddingFusedOptimizer(FusedHandle):
    """The fused optimizer of a module: hyperparameters to schedule, state to save. See `fused_optimizer`.

    The update itself runs inside `backward`. `param_groups` has one group with all tables and torch's keys:
    `lr`, `weight_decay`, and `eps` and `betas` where the optimizer has them. They are read at each forward
    and backward, so that whatever wrote them (any `torch.optim.lr_scheduler`, an assignment, a tensor filled
    in place) is in force at the next backward. A value out of range raises ValueError there, before a row is
    written. `module.learning_rate` is the group's `lr`.

    `step()` and `zero_grad()` do nothing, so the usual loop works unchanged. `state_dict()` has torch's form
    and names. Where torch has the same optimizer (Adagrad, Adam) each loads what the other saved. A
    RecoveryManager needs none of this: it saves state with the rows, and the hyperparameters.

    The name and the property are those of TorchRec. It doesn't keep its module alive.
    """

    def __init__(self, module: EngineModule, settings: FusedOptimizer) -> None:
        self._module = weakref.ref(module)
        self._engine = module.engine
        # The module makes its parameters after its engine: `follow` enters them.
        super().__init__(settings)

    def follow(self, weights: list[torch.nn.Parameter]) -> None:
        """Take `weights`, one a table, for the group's parameters."""
        self.param_groups[0]["params"][:] = weights

    def _put(self, changed: Mapping[str, float]) -> None:
        for name, value in changed.items():
            setattr(self._engine, name, value)

    def rebind(self, engine: Engine) -> None:
        """Go on with another engine of the module, where the hyperparameters in force are put in force."""
        self._engine = engine
        self._put(native_scalars(self._settings))

    def assign(self, **values: Any) -> None:
        """Write hyperparameters, named as in the group, and put them in force.

        Raises:
            ValueError: a value out of its range; nothing is changed then.
        """
        super().assign(**values)
        self.push()

    def scalars(self) -> dict[str, Any]:
        """The hyperparameters in force as JSON values; `lr` is called `learning_rate`."""
        group = group_of(self.settings)
        scalars = {"learning_rate": group.pop("lr"), **group}
        return scalars | ({BETAS: list(group[BETAS])} if self._has_betas else {})

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back those that `scalars` returned, others stay; ValueError as `assign`."""
        values = {name: scalars[name] for name in self.defaults if name in scalars}
        if "learning_rate" in scalars:
            values["lr"] = scalars["learning_rate"]
        if BETAS in values:
            values[BETAS] = tuple(values[BETAS])
        self.assign(**values)

    def state_dict(self) -> dict[str, Any]:
        """Return the group and a copy of the state of all rows, in the form of torch's optimizers.

        Of each table `step` (steps of the module, a float32 scalar) and, float32: `sum` [rows, dim] of
        Adagrad, `sum` [rows] of RowWiseAdagrad, `exp_avg` [rows, dim] and `exp_avg_sq` [rows, dim] of Adam,
        with `exp_avg_sq` [rows] of PartialRowWiseAdam. In CPU memory, also of tables on a GPU.
        """
        self.push()
        try:
            for table, weight in enumerate(self.param_groups[0]["params"]):
                parts = split_state(self._settings, self._engine.state(table))
                self.state[weight] = {"step": torch.tensor(float(self._engine.step)), **parts}
            return super().state_dict()
        finally:
            self.state = defaultdict(dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict()` of this optimizer, or torch's of the same kind, has returned.

        A table without state gets that of rows that were never updated. All rows become dirty.

        Raises:
            ValueError: another number of tables, another optimizer's state or options; nothing is changed.
            TypeError: state that isn't made of tensors; nothing is changed.
        """
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        group = copy.deepcopy(_only_group(state_dict["param_groups"], len(self.param_groups[0]["params"])))
        values = self._check_group(group)
        step, states = self._loaded(group["params"], state_dict["state"])
        module = self._module()
        if module is not None:
            module.sync()
        weights = self.param_groups[0]["params"]
        for table, (weight, state) in enumerate(zip(weights, states, strict=True)):
            write_state(self._engine, table, weight, state)
        self._engine.step = step
        self.param_groups = [{**group, "params": weights}]
        self.assign(**values)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _check_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters of a loaded group."""
        missing = [key for key in self.defaults if key not in group]
        if missing:
            raise ValueError(f"param_groups[0]: no {', '.join(missing)}: the state of another optimizer")
        wanted = [key for key in _UNSUPPORTED if group.get(key)]
        if wanted:
            raise ValueError(f"param_groups[0]: {', '.join(wanted)}: the fused optimizers don't have it")
        self._checked(self._read(group))
        return {key: group[key] for key in self.defaults}

    def _loaded(self, ids: list[Any], state: Mapping[Any, Any]) -> tuple[int, list[Any]]:
        """Steps done, and for each table None (no state) or its state as the engine has it."""
        unknown = set(state) - set(ids)
        if unknown:
            raise ValueError(f"state: expected the parameters {ids}, got {sorted(unknown, key=str)} too")
        steps, states = set(), []
        for key, weight in zip(ids, self.param_groups[0]["params"], strict=True):
            entry = {name: value for name, value in state.get(key, {}).items() if value is not None}
            steps.add(int(entry.pop("step", 0)))
            states.append(joined_state(self._settings, weight.shape, entry, f"state[{key}]"))
        if len(steps) > 1:
            raise ValueError(f"state: the tables of a module have one step, got {sorted(steps)}")
        return steps.pop(), states

    def __reduce__(self) -> Any:
        module = self._module()
        if module is None:
            raise ReferenceError("the module of this optimizer is gone")
        extra = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return _optimizer_of, (module, extra)


def _optimizer_of(module: EngineModule, group: dict[str, Any]) -> EmbeddingFusedOptimizer:
    """Unpickle or copy: the optimizer of the module's copy, its group with what schedulers wrote there."""
    optimizer = module.fused_optimizer
    optimizer.param_groups[0].update(group)
    return optimizer


def _only_group(groups: list[dict[str, Any]], tables: int) -> dict[str, Any]:
    if len(groups) != 1 or len(groups[0]["params"]) != tables:
        sizes = [len(group["params"]) for group in groups]
        raise ValueError(f"param_groups: expected one group of {tables} tables, got groups of {sizes}")
    return groups[0]
