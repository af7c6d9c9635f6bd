"""The cells of the study: which policies meet which failures, for which seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cpr_native.config import Trackers
from cpr_native.emulate.failures import Failure, Times, draw_failures
from cpr_native.overhead import FailureLog, Job, partial_interval
from cpr_native.policy import Delta, Drift, Mfu, Partial, Policy, Random, RoundRobin, Scar, Ssu
from cpr_study.paper_list import PaperSsu
from cpr_study.runs import Case
from cpr_study.setups import PAPER, STRESS, TERABYTE_SETUP, SetUp

GOLDEN = 0.6180339887498949
POLICIES = (
    "partial",
    "partial_small",
    "delta_partial",
    "mfu",
    "ssu",
    "scar",
    "drift",
    "random",
    "round_robin",
)
COMPARED = ("partial", "mfu", "ssu")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration of one experiment.

    `settings`: what is varied, as the page shows it; `cases`: made from (setup, job, seed) when it runs;
    `failures`: of a seed.
    """

    experiment: str
    name: str
    setup: SetUp
    job: Job
    seeds: range
    cases: Callable[[int], dict[str, Case]]
    failures: Callable[[int], tuple[Failure, ...]]
    settings: tuple[tuple[str, float | str], ...] = ()
    noise: bool = False


def case_of(
    name: str, job: Job, *, target_pls: float = 0.1, fraction: float = 0.125, seed: int = 0,
    period: int = 2, capacity: float | None = None, interval: float | None = None, row_share: float = 0.99,
) -> Case:  # fmt: skip
    """Return a policy by its name, with the interval that the plan gives it.

    `capacity`: of the SSU list, None for `fraction`; `interval`: of a delta, in T_save, None for `fraction`;
    `row_share`: of all rows, in the prioritised tables.
    """
    cover = partial_interval(job, target_pls)[0]
    if name == "partial":
        return Case(policy=Partial(), hours=cover)
    step = cover * fraction
    trackers = Trackers(ssu_fraction=capacity or fraction, ssu_period=period)
    if name == "ssu":
        return Case(policy=Ssu(fraction=fraction, row_share=row_share), hours=step, trackers=trackers)
    if name == "ssu_paper":
        return Case(policy=PaperSsu(fraction=fraction, period=period, seed=seed), hours=step)
    if name == "delta_partial":
        share = interval or fraction
        return Case(policy=Delta(recovery="partial", interval_fraction=share), hours=cover * share)
    if name.endswith("_zeroed"):
        named = case_of(name.removesuffix("_zeroed"), job, target_pls=target_pls, fraction=fraction)
        return replace(named, state="zeroed")
    policies: dict[str, Policy] = {
        "partial_small": Partial(small_tables_fraction=fraction, row_share=row_share),
        "mfu": Mfu(fraction=fraction, row_share=row_share),
        "scar": Scar(fraction=fraction, row_share=row_share),
        "drift": Drift(fraction=fraction, row_share=row_share),
        "random": Random(fraction=fraction, row_share=row_share, seed=seed),
        "round_robin": RoundRobin(fraction=fraction, row_share=row_share),
    }
    return Case(policy=policies[name], hours=step)


def stratified(job: Job, count: int, lost: int, seed: int) -> tuple[Failure, ...]:
    """Return `count` failures, one in each equal part of the job, at hours that fill it evenly over seeds.

    The lost shards rotate with the seed.
    """
    failures = []
    for number in range(count):
        place = ((seed + 1) * GOLDEN + number * GOLDEN**2) % 1.0
        hour = (number + place) * job.total_hours / count
        failures.append(Failure(hour=max(hour, 1e-3), shards=_rotated(job, lost, seed, number)))
    return tuple(failures)


def _rotated(job: Job, lost: int, seed: int, number: int) -> tuple[int, ...]:
    first = seed + 3 * number
    return tuple(sorted((first + i) % job.shards for i in range(lost)))


def drawn(job: Job, lost: int, times: Times, shape: float, seed: int) -> tuple[Failure, ...]:
    """Return failures of a renewal process of mean `job.mtbf_hours`, at least one."""
    for attempt in range(1000):
        schedule = draw_failures(
            1000 * seed + attempt, total_hours=job.total_hours, num_shards=job.shards, times=times,
            mtbf=job.mtbf_hours, gamma_shape=shape, lost_fraction=lost / job.shards,
        )  # fmt: skip
        if len(schedule):
            return tuple(schedule)
    raise ValueError(f"no failure in {job.total_hours} h at an MTBF of {job.mtbf_hours} h")


def recorded(job: Job, lost: int, log: FailureLog, seed: int) -> tuple[Failure, ...]:
    """Return the failures of a stretch of `log`, its hours scaled to a mean of `job.mtbf_hours`.

    The log goes round. Seeds begin at hours that fill it evenly; where the job would end before the next
    failure, that one strikes at an hour that fills the job evenly over seeds.
    """
    gaps = np.asarray(log.hours_between)
    scale = job.mtbf_hours / gaps.mean()
    hours, length = np.cumsum(gaps) * scale, gaps.sum() * scale
    start = (seed + 1) * GOLDEN % 1.0 * length
    laps = np.concatenate([hours, hours + length]) - start
    ahead = laps[laps > 0]
    quiet = ahead[0] >= job.total_hours
    skipped = ahead[0] - (seed + 1) * GOLDEN**2 % 1.0 * job.total_hours if quiet else 0.0
    struck = ahead[ahead - skipped < job.total_hours] - skipped
    return tuple(
        Failure(hour=max(float(hour), 1e-3), shards=_rotated(job, lost, seed, number))
        for number, hour in enumerate(struck)
    )


def paired(job: Job, lost: int, seed: int) -> tuple[Failure, ...]:
    """Return two failures, each followed after six minutes by one of as many other shards."""
    twice = []
    for failure in stratified(job, 2, lost, seed):
        others = tuple(sorted((shard + lost) % job.shards for shard in failure.shards))
        twice += [failure, Failure(hour=min(failure.hour + 0.1, job.total_hours - 1e-3), shards=others)]
    return tuple(twice)


def _cases(names: Sequence[str], job: Job, seed: int, **settings: float) -> dict[str, Case]:
    return {name: case_of(name, job, seed=seed, **settings) for name in names}  # type: ignore[arg-type]


def _cell(
    experiment: str, name: str, setup: SetUp, seeds: range, names: Sequence[str], *, job: Job | None = None,
    lost: int | None = None, failures: Callable[[int], tuple[Failure, ...]] | None = None,
    settings: tuple[tuple[str, float | str], ...] = (), noise: bool = False, **values: float,
) -> Cell:  # fmt: skip
    job = job or setup.job
    count = max(1, round(job.failures))
    shards = setup.lost if lost is None else lost
    return Cell(
        experiment=experiment, name=name, setup=setup, job=job, seeds=seeds, settings=settings, noise=noise,
        cases=lambda seed: _cases(names, job, seed, **values),
        failures=failures or partial(stratified, job, count, shards),
    )  # fmt: skip


def quality(paper_seeds: int, stress_seeds: int, terabyte_seeds: int) -> Iterator[Cell]:
    """Paper's set-up with the models of Kaggle and Terabyte, and the stress set-up."""
    names = ("partial", "random", "mfu", "ssu")
    yield _cell("quality", "paper", PAPER, range(paper_seeds), names, noise=True)
    yield _cell("quality", "terabyte", TERABYTE_SETUP, range(terabyte_seeds), names, noise=True)
    stress = (*POLICIES, "ssu_paper", "mfu_zeroed", "partial_zeroed")
    yield _cell("quality", "stress", STRESS, range(stress_seeds), stress, noise=True)


# Share of the stress set-up's rows that the tables which reach its cap hold.
CAPPED_SHARE = 0.77
# Its T_save is 28 h, so that the job ends with a save.
WHOLE_PLS = 0.0625


def controls(seeds: int) -> Iterator[Cell]:
    """Stress set-up: only the tables that reach the cap prioritised; and a job of two whole T_save."""
    names = ("partial", "partial_small", "random", "mfu", "ssu")
    yield _cell("controls", "capped", STRESS, range(seeds), names, row_share=CAPPED_SHARE)
    yield _cell("controls", "whole", STRESS, range(seeds), names, target_pls=WHOLE_PLS)


def proxies(seeds: int) -> Iterator[Cell]:
    """Single failures of 1/8 to 1/2 of the shards, over the whole run."""
    names = ("partial", "partial_small", "random", "ssu", "scar", "drift", "mfu")
    job = STRESS.job
    yield _cell(
        "proxy", "single", STRESS, range(seeds), names,
        failures=lambda seed: stratified(job, 1, 1 + seed % 4, seed),
    )  # fmt: skip


def budgets(seeds: int, fractions: Sequence[float]) -> Iterator[Cell]:
    """Priority saving at several fractions against deltas without limit at several intervals."""
    for share in fractions:
        yield _cell(
            "budget", f"fraction-{share:g}", STRESS, range(seeds), ("mfu", "ssu"), fraction=share,
            settings=(("fraction", share),),
        )  # fmt: skip
    for share in (*fractions, 1.0):
        yield _cell(
            "budget", f"delta-{share:g}", STRESS, range(seeds), ("delta_partial",), interval=share,
            settings=(("interval", share),),
        )  # fmt: skip


def sensitivity(seeds: int, *, small: bool, log: FailureLog | None = None) -> Iterator[Cell]:
    """One thing varied at a time from the stress set-up; `log`: for recorded times of failures."""
    base = STRESS.job

    def cell(what: str, value: float | str, names: Sequence[str] = COMPARED, **settings: object) -> Cell:
        label = f"{what}-{value:g}" if isinstance(value, float | int) else f"{what}-{value}"
        kept = ((what, value), *settings.pop("also", ()))  # type: ignore[misc]
        return _cell("sensitivity", label, STRESS, range(seeds), names, settings=kept, **settings)  # type: ignore[arg-type]

    for failures in (2, 20) if small else (2, 20, 40):
        yield cell("failures", failures, job=replace(base, mtbf_hours=base.total_hours / failures))
    for lost in (1, 4) if small else (1, 2, 4):
        yield cell("lost_percent", 100.0 * lost / base.shards, lost=lost)
    for pls in (0.02, 0.1) if small else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        yield cell("target_pls", pls, target_pls=pls)
    for share in (1 / 8,) if small else (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2):
        yield cell("fraction", share, ("mfu", "ssu"), fraction=share)
    for period in (1, 16) if small else (1, 2, 4, 8, 16):
        yield cell("ssu_period", period, ("ssu",), period=period)
    for capacity in (1 / 8,) if small else (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2):
        yield cell("ssu_capacity", capacity, ("ssu",), capacity=capacity)
    yield cell("failures_in_pairs", "pairs", failures=partial(paired, base, 2), lost=2)
    renewals: tuple[tuple[Times, float], ...] = (("exponential", 1.0), ("gamma", 0.5), ("gamma", 2.0))
    for times, shape in renewals:
        yield cell("times", f"{times}-{shape:g}", failures=partial(drawn, base, STRESS.lost, times, shape))
    if log is not None:
        yield cell("times", "recorded", failures=partial(recorded, base, STRESS.lost, log))
    yield from _scaling(cell, base, (4, 64) if small else (4, 8, 16, 32, 64, 128, 256))


def _scaling(cell: Callable[..., Cell], base: Job, shard_counts: Sequence[int]) -> Iterator[Cell]:
    """More shards, one lost at a failure: at one MTBF, and at one of each node."""
    for shards in shard_counts:
        for law in ("constant", "inverse"):
            mtbf = base.mtbf_hours * (1.0 if law == "constant" else base.shards / shards)
            job = replace(base, shards=shards, mtbf_hours=mtbf)
            yield cell(f"shards_{law}", shards, job=job, lost=1)
