"""S1 to S5 with all trackers against none, the whole step."""

from __future__ import annotations

import pytest
import torch
from figures import Figures
from harness import Compare
from shapes import TIMED, Shape, shape_of
from sides import NO_TRACKERS, Ours
from torch import Tensor

ROUNDS = 60


def check(shape: Shape, tracked: Ours, untracked: Ours, batches: list[Tensor]) -> None:
    """Both must train to the same bits, and the counts and dirty bits must be those of the ids."""
    for ids in batches:
        assert torch.equal(tracked.step(ids), untracked.step(ids))
    for mine, other in zip(tracked.weights(), untracked.weights(), strict=True):
        assert torch.equal(mine, other)
    engine = tracked.module.engine
    for table, rows in enumerate(shape.rows):
        touched = torch.cat([ids.view(shape.tables, -1)[table] for ids in batches])
        counts = torch.bincount(touched, minlength=rows)
        assert torch.equal(torch.from_numpy(engine.counts(table).astype("int64")), counts)
        assert torch.equal(torch.from_numpy(engine.dirty(table)), counts > 0)


def share_rows(tracked: Ours, untracked: Ours) -> None:
    """Let both train the same memory: where a process gets its rows matters more than the trackers do."""
    with torch.no_grad():
        for mine, other in zip(tracked.module.parameters(), untracked.module.parameters(), strict=True):
            other.data = mine.data


@pytest.mark.parametrize("build", ["tracked first", "untracked first"])
@pytest.mark.parametrize("name", list(TIMED))
def test_step_with_trackers_against_without(
    compare: Compare, figures: Figures, name: str, build: str
) -> None:
    """Both orders of building: the metadata lies where the process gets memory."""
    shape = shape_of(name, compare.timed)
    batches = shape.batches(3 + compare.inputs(ROUNDS))
    if build == "tracked first":
        tracked, untracked = Ours(shape), Ours(shape, NO_TRACKERS)
    else:
        untracked, tracked = Ours(shape, NO_TRACKERS), Ours(shape)
    check(shape, tracked, untracked, batches[:3])
    share_rows(tracked, untracked)
    times = compare(
        tracked.step, untracked.step, iter(batches[3:]), rounds=ROUNDS, group=f"{name} step, trackers"
    )
    if compare.timed:
        figures.sample(
            "engine",
            name,
            tracking_cost=1.0 / times.ratio - 1.0,
            tracked_step_ms=times.ours_ms,
            untracked_step_ms=times.yardstick_ms,
        )
