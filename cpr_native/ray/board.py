"""What a run says of itself in Ray's control store, for everyone who connects: JSON under its name.

It lives as long as the control store does; nothing is restored from it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_native.errors import CprError
from cpr_native.ray import internals
from cpr_native.ray.settings import ClusterSettings

_RUN, _PROGRESS = "run:", "progress:"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as launched: `shards`: their number; `store`: checkpoint directory; `rows`: of all tables."""

    settings: ClusterSettings
    shards: int
    store: str
    rows: int


def publish_run(record: RunRecord) -> None:
    """Write a run's record; raises CprError when there is one of that name."""
    value = json.dumps(dataclasses.asdict(record)).encode()
    if not internals.put(_RUN + record.settings.run, value, overwrite=False):
        raise CprError(f"run {record.settings.run!r} exists in this Ray cluster: attach to it, or stop it")


def read_run(run: str) -> RunRecord:
    """Return a run's record; raises CprError, naming the runs that exist, for an unknown one."""
    value = internals.get(_RUN + run)
    if value is None:
        raise CprError(f"run {run!r}: expected one of {runs()}, the runs of this Ray cluster")
    data = json.loads(value)
    return RunRecord(**{**data, "settings": ClusterSettings(**data["settings"])})


def runs() -> list[str]:
    """Return the names of all runs, sorted."""
    return [key[len(_RUN) :] for key in internals.keys(_RUN)]


def publish_progress(run: str, progress: Mapping[str, Any]) -> None:
    """Write what the trainer's side knows (JSON values), in place of what it wrote before.

    `cpr-native cluster status` shows `step`, `pls`, `target_pls`, `recoveries` and `lost_lookups` of it.
    """
    value = json.dumps(dict(progress)).encode()
    internals.put(_PROGRESS + run, value, overwrite=True)


def read_progress(run: str) -> dict[str, Any]:
    """Return what `publish_progress` wrote last, empty if nothing."""
    value = internals.get(_PROGRESS + run)
    found = {} if value is None else json.loads(value)
    return dict(found)


def remove_run(run: str) -> None:
    """Forget a run; unknown ones too."""
    for prefix in (_RUN, _PROGRESS):
        internals.delete(prefix + run)
