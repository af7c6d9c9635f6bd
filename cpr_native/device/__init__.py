"""Tables in memory of a device: where they lie, and their engine."""

from __future__ import annotations

from cpr_native.device.engine import DeviceEngine
from cpr_native.device.place import Place, describe_on, host_place, place_of

__all__ = ["DeviceEngine", "Place", "describe_on", "host_place", "place_of"]
