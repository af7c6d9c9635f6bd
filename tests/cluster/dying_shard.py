"""Shards that die on purpose, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from typing import Any

from cpr_native.cluster.messages import Tag
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.cluster.tables import RowGradients


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Deadly:
    lookup = staticmethod(_die)


def _die_within(spec: ClusterSpec, shard: int, updates: list[Any], when: str) -> None:
    server = ShardServer(spec, shard)
    tables = server._tables
    done = tables.update

    def update(parts: list[RowGradients]) -> bool:
        if tables.scalars()["step"] + 1 == len(updates):
            if when == "before":
                _die()
            if when == "middle":  # the tables of the first dim are written, those of the second are not
                first, second = tables._groups
                tables._groups = [first, replace(second, engine=_Deadly())]  # type: ignore[arg-type]
        done(parts)
        if tables.scalars()["step"] == len(updates):
            assert when == "after"
            _die()
        return True

    tables.update = update  # type: ignore[method-assign]
    for step, sent in enumerate(updates, 1):
        server.update(Tag(1, step, 0, server.incarnation), *sent)
    os._exit(3)  # it should be dead


def die_within(spec: ClusterSpec, shard: int, updates: list[Any], when: str) -> None:
    """Apply `updates` in a process that kills itself in the last: "before", in the "middle" or "after"."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_die_within, args=(spec, shard, updates, when))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL
