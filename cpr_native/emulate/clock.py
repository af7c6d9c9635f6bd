"""The virtual clock: samples of an emulated run as hours of a production job."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VirtualClock:
    """Maps samples trained to hours of useful work of the emulated job, linearly.

    Overhead does not advance this clock: it is accounted beside it, as in the equations of CPR
    (MLSys 2021, section 2), where every overhead is added to the time of the job without failures.

    Args:
        total_samples: samples of the whole run, at least 1.
        total_hours: hours of the whole job without overhead, positive (56 in CPR's emulation).

    Raises:
        ValueError: a value is out of range.
    """

    total_samples: int
    total_hours: float = 56.0

    def __post_init__(self) -> None:
        if self.total_samples < 1:
            raise ValueError(f"total_samples must be at least 1, got {self.total_samples}")
        if not (math.isfinite(self.total_hours) and self.total_hours > 0):
            raise ValueError(f"total_hours must be positive and finite, got {self.total_hours}")

    def hours(self, samples: int) -> float:
        """Hours of work in `samples` samples; a difference of two positions may be given too.

        Raises:
            ValueError: `samples` is negative.
        """
        if samples < 0:
            raise ValueError(f"samples must not be negative, got {samples}")
        return samples * self.total_hours / self.total_samples

    def samples(self, hours: float) -> int:
        """The smallest number of samples whose work takes at least `hours` hours.

        `samples(hours(n)) == n` for every n of the run.

        Raises:
            ValueError: `hours` is negative or not finite.
        """
        if not (math.isfinite(hours) and hours >= 0):
            raise ValueError(f"hours must be finite and not negative, got {hours}")
        guess = math.floor(hours * self.total_samples / self.total_hours)
        while guess > 0 and self.hours(guess - 1) >= hours:
            guess -= 1
        while self.hours(guess) < hours:
            guess += 1
        return guess
