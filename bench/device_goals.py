"""What the CUDA engine is to reach on a GPU, judged by the figures of `device_speed.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Figure `figure` of stage `stage` is to be at most, or at least, `limit`."""

    stage: str
    figure: str
    limit: float
    at_most: bool = False

    def judge(self, figures: Figures) -> dict[str, Any]:
        """Return the goal, what was measured (None: nothing) and whether it was held."""
        measured = figures.get(self.stage, {}).get(self.figure)
        return {
            "goal": f"{self.stage}: {self.figure} {'<=' if self.at_most else '>='} {self.limit:g}",
            "measured": measured,
            "held": measured is not None
            and (measured <= self.limit if self.at_most else measured >= self.limit),
        }


SMALL = ("S1", "S2", "S3")
GOALS = (
    Goal(stage="large", figure="lookup_of_copy", limit=0.8),
    Goal(stage="large", figure="update_of_copy", limit=0.6),
    Goal(stage="large", figure="times_torch", limit=3),
    *(Goal(stage=name, figure="kernels", limit=10, at_most=True) for name in SMALL),
    *(Goal(stage=name, figure="times_torch", limit=10) for name in SMALL),
    *(Goal(stage=name, figure="module_times_torch", limit=10) for name in SMALL),
    Goal(stage="tracking", figure="percent", limit=3, at_most=True),
    Goal(stage="begin", figure="host_us", limit=50, at_most=True),
    Goal(stage="begin", figure="stall_of_copy_time", limit=1.5, at_most=True),
)


def judge(figures: Figures) -> list[dict[str, Any]]:
    """Judge every goal."""
    return [goal.judge(figures) for goal in GOALS]
