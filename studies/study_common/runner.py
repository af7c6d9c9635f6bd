"""Runs the units of a study, a process a core, with a progress bar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Unit = tuple[str, str, int]
"""Experiment, what it is of, and a number that tells its units apart."""
Key = TypeVar("Key")


def run_pending(
    pending: Mapping[Key, list[Unit]],
    work: Callable[[Unit], dict[str, Any]],
    write: Callable[[Unit, dict[str, Any]], None],
    *,
    total: int,
    processes: int,
) -> None:
    """Call `work` for the first of each list of units, and `write` with what it returned for all of them.

    The workers are forked, each with one thread, and inherit what is in memory. `total`: of all units,
    those that are done included. Raises what `work` or `write` raises.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    done = total - sum(len(same) for same in pending.values())
    with Progress(*columns) as progress:
        task = progress.add_task("study", total=total, completed=done)
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(
            processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            futures = {pool.submit(work, same[0]): same for same in pending.values()}
            for future in as_completed(futures):
                for unit in futures[future]:
                    write(unit, future.result())
                    progress.update(task, advance=1, description=" ".join(unit[:2]))
