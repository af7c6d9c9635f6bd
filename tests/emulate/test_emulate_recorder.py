"""What the recorder counts is compared with what the files of the run say, read by other means."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation_cases import EMULATION, RECIPE, SAMPLES, SIZES, TinySource
from safetensors.numpy import load_file

from cpr_native.emulate import RunResult
from cpr_native.emulate.runner import run_emulation
from cpr_native.emulate.settings import STRATEGIES

SHARDS = EMULATION.job.shards
SAVING = [strategy for strategy in STRATEGIES if strategy != "none"]


@dataclass(frozen=True)
class Commit:
    """One global commit: the (table, row) in its segments."""

    kind: str
    samples: int
    rows: frozenset[tuple[int, int]]


def manifests(chain: Path) -> dict[int, dict[str, Any]]:
    texts = [path.read_text().rsplit("crc32c ", 1)[0] for path in (chain / "manifests").iterdir()]
    found = {manifest["sequence"]: manifest for manifest in map(json.loads, texts)}
    return {sequence: found[sequence] for sequence in sorted(found)}


def commits_of(directory: Path) -> list[Commit]:
    """The saves of a run in the order they were made."""
    found = []
    shards = {shard: manifests(directory / "shards" / str(shard)) for shard in range(SHARDS)}
    for whole in manifests(directory / "global").values():
        if whole["kind"] not in ("base", "delta", "priority"):
            continue
        names = {table["name"]: index for index, table in enumerate(whole["schema"]["tables"])}
        rows: set[tuple[int, int]] = set()
        for shard, ref in whole["commits"].items():
            for segment in shards[int(shard)][ref["sequence"]]["segments"]:
                tensors = load_file(directory / "shards" / shard / "segments" / segment["name"])
                for name in segment["rows"]:
                    rows |= {(names[name], int(row)) for row in tensors[f"{name}.rows"]}
        found.append(Commit(whole["kind"], whole["samples"], frozenset(rows)))
    return found


def lookups_until(samples: int) -> Counter[tuple[int, int]]:
    counter: Counter[tuple[int, int]] = Counter()
    seen = 0
    for batch in TinySource().train(RECIPE.batch_size):
        if seen >= samples:
            break
        seen += len(batch)
        for table, ids in enumerate(batch.ids.reshape(len(SIZES), -1).tolist()):
            counter.update((table, row) for row in ids)
    return counter


def lost_rows(shards: Sequence[int]) -> list[tuple[int, int]]:
    blocks = [-(-size // SHARDS) for size in SIZES]
    return [
        (table, row) for table, size in enumerate(SIZES) for row in range(size)
        if row // blocks[table] in shards
    ]  # fmt: skip


def copy_of(row: tuple[int, int], commits: Sequence[Commit], until: int) -> int:
    """Samples trained at the newest copy of a row: an exact commit without it says that it is unchanged."""
    copies = [
        commit.samples for commit in commits
        if commit.samples <= until and (commit.kind != "priority" or row in commit.rows)
    ]  # fmt: skip
    return max(copies, default=0)


def histogram(rows: Sequence[tuple[int, int]], value: dict[tuple[int, int], int],
              lookups: Counter[tuple[int, int]]) -> dict[int, tuple[int, int]]:  # fmt: skip
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for row in rows:
        counts[value[row]] += 1
        sums[value[row]] += lookups[row]
    return {key: (counts[key], sums[key]) for key in sorted(counts)}


@pytest.fixture(scope="module", params=SAVING)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunResult, list[Commit]]:
    folder = tmp_path_factory.mktemp("recorded")
    (run,) = run_emulation(EMULATION, TinySource(), (request.param,), checkpoints=folder).runs
    return run, commits_of(folder / request.param)


def test_times_saved_are_those_of_the_files(recorded: tuple[RunResult, list[Commit]]) -> None:
    run, commits = recorded
    times = Counter(row for commit in commits for row in commit.rows)
    lookups = lookups_until(SAMPLES)
    assert sum(lookups.values()) == len(SIZES) * SAMPLES
    for part, tables in zip(run.rows_saved, ((0, 1), (2,)), strict=True):
        rows = [(table, row) for table in tables for row in range(SIZES[table])]
        expected = histogram(rows, {row: times[row] for row in rows}, lookups)
        assert part.tables == len(tables)
        assert dict(zip(part.times, zip(part.rows, part.lookups, strict=True), strict=True)) == expected
    assert len(commits) == run.commits


def test_ages_at_failures_are_those_of_the_files(recorded: tuple[RunResult, list[Commit]]) -> None:
    run, commits = recorded
    assert len(run.failures) == 2
    for failure in run.failures:
        step = -(-failure.hour * SAMPLES / EMULATION.job.total_hours // RECIPE.batch_size)
        struck = int(step) * RECIPE.batch_size
        lookups = lookups_until(struck)
        if failure.mode == "full":
            exact = max(c.samples for c in commits if c.kind != "priority" and c.samples <= struck)
            expected = {struck - exact: (sum(SIZES), sum(lookups.values()))}
        else:
            rows = lost_rows(failure.shards)
            ages = {row: struck - copy_of(row, commits, struck) for row in rows}
            expected = histogram(rows, ages, lookups)
        age = failure.row_age
        assert dict(zip(age.samples, zip(age.rows, age.lookups, strict=True), strict=True)) == expected
        assert np.allclose(age.hours, np.array(age.samples) * EMULATION.job.total_hours / SAMPLES)


def test_priority_saves_what_is_looked_up() -> None:
    (run,) = run_emulation(EMULATION, TinySource(), ("mfu",)).runs
    part = run.rows_saved[0]
    often = [index for index, times in enumerate(part.times) if times >= 4]
    rows = sum(part.rows[index] for index in often) / sum(part.rows)
    lookups = sum(part.lookups[index] for index in often) / sum(part.lookups)
    assert 0 < rows < 0.5 < lookups
