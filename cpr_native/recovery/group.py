"""Several engine modules of a model as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpr_native.combined import CombinedEngine
from cpr_native.recovery.parts import Part


class ModuleGroup:
    """What a manager asks of a model's one engine module, answered by several."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self.engine = CombinedEngine(
            [part.engine for part in parts], [name for part in parts for name in part.names]
        )

    @property
    def fused(self) -> bool:
        """Whether the engines write the rows; all of them or none."""
        return self._parts[0].module.fused

    def sync(self) -> None:
        """Take the parameters of every module as they are now."""
        for part in self._parts:
            part.module.sync()

    def observe_updates(self, observer: None) -> None:
        """End what was observed of the modules."""
        for part in self._parts:
            part.module.observe_updates(observer)

    def optimizer_scalars(self) -> dict[str, Any]:
        """Return those of each module by its path, as `modules`."""
        return {"modules": {part.path: part.module.optimizer_scalars() for part in self._parts}}

    def load_optimizer_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back what `optimizer_scalars` returned; when that raises, every module has what it had."""
        saved = scalars["modules"]
        before = [part.module.optimizer_scalars() for part in self._parts]
        try:
            for part in self._parts:
                part.module.load_optimizer_scalars(saved[part.path])
        except BaseException:
            for part, own in zip(self._parts, before, strict=True):
                part.module.load_optimizer_scalars(own)
            raise
