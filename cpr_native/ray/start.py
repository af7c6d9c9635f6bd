"""Starting a Ray cluster of this process's own, or connecting to one that runs."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray

from cpr_native.errors import CprError
from cpr_native.ray import internals
from cpr_native.ray.settings import HealthProfile


def connect(address: str = "auto", *, health: HealthProfile | None = None, ip: str | None = None) -> str:
    """Connect this process to the Ray cluster at `address` unless it is connected; returns its address.

    "auto": the one of this machine or of the environment (RAY_ADDRESS); "local": a new one of one node, which
    ends with the process. `health`: for "local", and how soon this process hears of dead ones; nodes of
    other clusters have what `ray start` was given (`HealthProfile.environment`). `ip`: of this process's
    node where that has several; 127.0.0.1 is not taken, other addresses of 127.0.0.0/8 are.
    Raises CprError when there is no such cluster or its token is missing.
    """
    if not ray.is_initialized():
        for name, value in (health or HealthProfile()).environment().items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        internals.read_environment()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        if address == "local":
            options["include_dashboard"] = False
        if ip is not None:
            options["_node_ip_address"] = ip
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
            raise CprError(f"Ray cluster {address!r}: {type(error).__name__}: {error}") from error
    return str(ray.get_runtime_context().gcs_address)
