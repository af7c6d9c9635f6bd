"""`DeviceSettings`: the optimizer's settings and step of tables on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpr_native._native import DeviceCollection
    from cpr_native.device.order import StreamOrder


class _Setting:
    """A setting of the optimizer, in force for the updates given to the device from then on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, settings: DeviceSettings, owner: type | None = None) -> float:
        value: float = getattr(settings._native, self._name)
        return value

    def __set__(self, settings: DeviceSettings, value: float) -> None:
        settings._native.set_optimizer(**{self._name: value}, stream=settings._order.stream())


class DeviceSettings:
    """The settings of `Collection`, each to be read and assigned; ValueError for one out of its range."""

    _native: DeviceCollection
    _order: StreamOrder

    learning_rate = _Setting()
    eps = _Setting()
    beta1 = _Setting()
    beta2 = _Setting()
    weight_decay = _Setting()

    @property
    def step(self) -> int:
        """As `Collection.step`; waits for the device."""
        return self._native.step(self._order.stream())

    @step.setter
    def step(self, value: int) -> None:
        self._native.set_step(value, self._order.stream())

    @property
    def max_stall_seconds(self) -> float:
        """As `Collection.max_stall_seconds`."""
        return self._native.max_stall_seconds

    @max_stall_seconds.setter
    def max_stall_seconds(self, value: float) -> None:
        self._native.max_stall_seconds = value

    @property
    def skipped_steps(self) -> int:
        """As `Collection.skipped_steps`; waits for the device."""
        return self._native.skipped_steps(self._order.stream())
