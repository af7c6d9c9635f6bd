"""What a manager saves beside the tables, as properties that can be set until it starts."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import torch

from cpr_native.recovery.dense import DenseState, Stateful, check_app_state, check_optimizer


class DenseMembers(abc.ABC):
    """The part of a manager that holds the objects of a `DenseState`."""

    _dense: DenseState

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """Whether it has started or resumed and is not closed."""

    @property
    def loader(self) -> Stateful | None:
        """The loader whose data position is saved; may be set until it starts."""
        return self._dense.loader

    @loader.setter
    def loader(self, loader: Stateful) -> None:
        self._check_replaced("loader", loader is self._dense.loader)
        self._dense.loader = loader

    @property
    def dense_optimizer(self) -> torch.optim.Optimizer | None:
        """The dense parameters' optimizer, whose state is saved; may be set until it starts."""
        return self._dense.optimizer

    @dense_optimizer.setter
    def dense_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._check_replaced("dense optimizer", optimizer is self._dense.optimizer)
        check_optimizer(optimizer)
        self._dense.optimizer = optimizer

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """All torch optimizers whose state is saved: the dense one and those of attached tables."""
        dense = self._dense.optimizer
        return (*([] if dense is None else [dense]), *self._dense.table_optimizers)

    @property
    def app_state(self) -> Mapping[str, Stateful]:
        """What else is saved, by name: schedulers, a GradScaler, ...; a copy; may be set until it starts."""
        return dict(self._dense.app_state)

    @app_state.setter
    def app_state(self, app_state: Mapping[str, Stateful]) -> None:
        same = {name: id(value) for name, value in app_state.items()}
        self._check_replaced("app_state", same == {n: id(v) for n, v in self._dense.app_state.items()})
        check_app_state(app_state)
        self._dense.app_state = dict(app_state)

    def _check_replaced(self, name: str, same: Any) -> None:
        if self.running and not same:
            raise ValueError(f"the {name} of a started manager cannot be replaced")
