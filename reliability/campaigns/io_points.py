"""Stops a job after every system call of the store: nothing that was reported may be lost.

A workload runs on a disk in memory (`memory_disk`) that notes its state after every call. From each of these
states, as a killed process, a loss of power and a torn write leave it, the directory is opened again: it
must hold exactly the last commit that was reported or the one in flight, and take the next save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from campaigns.memory_disk import (
    MemoryDisk,
    Nodes,
    after_kill,
    after_power_loss,
    after_torn_writes,
)
from campaigns.small_job import PLACEMENT, SCHEMA, SHARDS, SmallJob, exact_state, loaded, of_shard
from cpr_native.errors import CprError, NoCheckpointError
from cpr_native.store import CheckpointStore, StoreWriter, system, verify

T = TypeVar("T")

PATH = Path("/jobs/checkpoints")
# What the job does, in three lives, each the saves that follow a step of training; between them the chains
# are folded.
LIVES = (
    ("base", "delta", "priority", "delta", "priority", "priority"),
    ("compact",),
    ("delta", "base", "priority", "delta", "delta"),
    ("delta", "base", "delta"),
)


@dataclass
class Attempt:
    """A save: what restores give after it, and the numbers of the calls when it began and was reported."""

    kind: str
    exact: bytes
    running: tuple[bytes, ...]
    began: int
    reported: int | None = None


@dataclass
class History:
    """The saves of a job, in order."""

    attempts: list[Attempt] = field(default_factory=list)

    def allowed(self, calls: int) -> list[Attempt]:
        """What may be found after `calls` calls: the last that was reported, and any begun after it."""
        begun = [attempt for attempt in self.attempts if attempt.began <= calls]
        last = max(
            (
                n
                for n, attempt in enumerate(begun)
                if attempt.reported is not None and attempt.reported <= calls
            ),
            default=-1,
        )
        return begun[max(last, 0) :]

    def is_reported(self, calls: int) -> bool:
        return any(a.reported is not None and a.reported <= calls for a in self.attempts)

    def exact_states(self, calls: int) -> set[bytes]:
        """What exact restores may give."""
        exact = [a for a in self.attempts if a.kind != "priority" and a.began <= calls]
        reported = [n for n, a in enumerate(exact) if a.reported is not None and a.reported <= calls]
        return {attempt.exact for attempt in exact[reported[-1] if reported else 0 :]}


def open_writer(keep: int = 2) -> StoreWriter:
    return CheckpointStore(PATH).writer(SCHEMA, PLACEMENT, keep=keep)


def work(
    lives: Sequence[Sequence[str]], history: History, calls: Callable[[], int], *, tolerate: bool
) -> None:
    """The workload; `tolerate`: an error of the system ends a save and not the job."""
    job, store = SmallJob(), CheckpointStore(PATH)
    for number, life in enumerate(lives):
        if life == ("compact",):
            persistently(lambda: store.compact(keep=2), tolerate)
            continue
        writer = persistently(open_writer, tolerate)
        with writer:
            if number:
                persistently(partial(go_back, job, store, writer, history, calls), tolerate)
            for kind in life:
                job.train()
                kind = kind if writer.permits(kind) else "base"
                attempt = Attempt(kind, *job.after(kind), began=calls())
                history.attempts.append(attempt)
                try:
                    job.save(writer, kind)
                    attempt.reported = calls()
                except OSError:
                    if not tolerate:
                        raise


def go_back(
    job: SmallJob, store: CheckpointStore, writer: StoreWriter, history: History, calls: Callable[[], int]
) -> None:
    """Goes on from the newest exact point: what was saved by priority since then is given up."""
    job.load(store.latest())
    attempt = Attempt("rollback", *job.after("delta"), began=calls())
    history.attempts.append(attempt)
    writer.rollback(store.latest())
    attempt.reported = calls()


def persistently(call: Callable[[], T], tolerate: bool) -> T:
    """Calls again after an error of the system, or of reading, which is over then."""
    try:
        return call()
    except (OSError, CprError):
        if not tolerate:
            raise
        return call()


@dataclass
class Recording:
    """A workload that nothing failed, and the state of its disk after each of its calls."""

    history: History
    states: list[Nodes]
    names: list[str]


def record(lives: Sequence[Sequence[str]]) -> Recording:
    """Runs the workload once."""
    states: list[Nodes] = []
    names: list[str] = []

    def before(call: str) -> None:
        states.append(dict(disk.nodes))
        names.append(call)

    disk, history = MemoryDisk(before=before), History()
    with system.use(disk):
        work(lives, history, lambda: len(states), tolerate=False)
    states.append(dict(disk.nodes))
    assert disk.open_files == 0
    return Recording(history, states, names)


def problem(nodes: Nodes, history: History, calls: int) -> str | None:
    """Opens a directory that a crash left; says what is wrong with it."""
    with system.use(MemoryDisk(nodes)):
        store = CheckpointStore(PATH)
        expected = history.exact_states(calls)
        try:
            if exact_state(store.latest()) not in expected:
                return "exact: neither the last commit reported nor one after it"
        except NoCheckpointError:
            if history.is_reported(calls):
                return "exact: lost"
            return None
        if found := running_problem(store, history, calls):
            return found
        if problems := verify(PATH):
            return f"verify: {problems}"
        return next_save_problem(store)


def running_problem(store: CheckpointStore, history: History, calls: int) -> str | None:
    allowed = history.allowed(calls)
    for shard in SHARDS:
        rows = of_shard(loaded(store.shard_plan(shard)), shard)
        if rows not in {attempt.running[shard] for attempt in allowed}:
            return f"running: shard {shard}: neither the last commit reported nor one after it"
    return None


def next_save_problem(store: CheckpointStore) -> str | None:
    """Goes on from the newest point and saves once more."""
    job = SmallJob()
    with open_writer() as writer:
        point = store.latest()
        writer.rollback(point)
        job.load(point)
        job.train()
        expected, _ = job.after("delta")
        job.save(writer, "delta")
    if exact_state(store.latest()) != expected:
        return "the next save is not what is restored"
    return f"verify after the next save: {problems}" if (problems := verify(PATH)) else None


def crash_points(seeds: int, processes: int = 1, lives: Sequence[Sequence[str]] = LIVES) -> dict[str, int]:
    """Every state that a crash can leave, `seeds` torn ones of each; raises AssertionError for a loss."""
    recording = record(lives)
    tried = 0
    different: dict[tuple[object, ...], tuple[Nodes, int, str]] = {}
    for calls, nodes in enumerate(recording.states):
        left = {"killed": after_kill(nodes), "without power": after_power_loss(nodes)}
        for seed in range(seeds):
            left[f"torn {seed}"] = after_torn_writes(nodes, Random(f"{calls} {seed}"))
        tried += len(left)
        name = recording.names[calls - 1] if calls else "nothing"
        for way, state in left.items():
            key = (fingerprint(state), *expectation(recording.history, calls))
            different.setdefault(key, (state, calls, f"{way} after call {calls} ({name})"))
    cases = list(different.values())
    if processes == 1:
        _check_states((recording.history, cases))
    else:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(_check_states, [(recording.history, cases[i::64]) for i in range(64)]))
    return {"calls": len(recording.names), "tried": tried, "different": len(different), "lost": 0}


def _check_states(given: tuple[History, list[tuple[Nodes, int, str]]]) -> None:
    history, cases = given
    for state, calls, what in cases:
        if wrong := problem(state, history, calls):
            raise AssertionError(f"{what}: {wrong}")


def fingerprint(nodes: Nodes) -> object:
    """The same for states that programs can't tell apart."""
    return frozenset(
        (number, node.data, None if node.entries is None else frozenset(node.entries.items()))
        for number, node in nodes.items()
    )


def expectation(history: History, calls: int) -> tuple[object, ...]:
    return frozenset(history.exact_states(calls)), len(history.allowed(calls)), history.is_reported(calls)
