"""The study's forks against real jobs: the same failures met by a recovery manager over files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cpr_study.experiments import POLICIES, case_of, stratified
from cpr_study.runs import Run
from cpr_study.setups import STRESS, Samples, SetUp

from cpr_native.emulate.failures import FailureSchedule
from cpr_native.emulate.runner import run_emulation
from cpr_native.emulate.settings import Emulation
from cpr_native.emulate.sources import GeneratedSource

SETUP: SetUp = replace(STRESS, recipe=replace(STRESS.recipe, batch_size=64))
SOURCE = GeneratedSource(samples=4000, table_sizes=(40, 3000, 7, *[900] * 22, 2000), seed=3)


def samples() -> Samples:
    return Samples(
        SOURCE.table_sizes, tuple(SOURCE.train(64)), tuple(SOURCE.held_out(4096)), SOURCE.describe()
    )


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", POLICIES)
def test_fork_ends_as_the_real_job(name: str) -> None:
    """Two failures of half the shards: the forked model ends with the very predictions of the real one."""
    failures = stratified(SETUP.job, 2, 4, seed=1)
    run = Run(
        SETUP, samples(), seed=1, cases={name: case_of(name, SETUP.job, seed=1)}, failures=failures, shards=8
    )
    record = run()["cases"][name]
    emulation = Emulation(
        job=SETUP.job, costs=SETUP.preset.costs, recipe=SETUP.recipe, seed=1, threads=1,
        schedule=FailureSchedule(failures=failures, total_hours=SETUP.job.total_hours, num_shards=8),
    )  # fmt: skip
    real = run_emulation(emulation, SOURCE, (name,)).runs[0]
    assert (record["auc"], record["logloss"]) == (real.auc, real.logloss)
    assert [failure["lookups"] for failure in record["failures"]] == [f.lost_lookups for f in real.failures]


def test_no_case_and_no_failure_differ_by_nothing_but_the_failures() -> None:
    run = Run(
        SETUP, samples(), seed=2, cases={"partial": case_of("partial", SETUP.job)},
        failures=stratified(SETUP.job, 1, 4, seed=2), shards=8, noise=True,
    )  # fmt: skip
    cases = run()["cases"]
    plain = run_emulation(
        Emulation(
            job=SETUP.job, costs=SETUP.preset.costs, recipe=SETUP.recipe, seed=2, threads=1,
            schedule=FailureSchedule(failures=(), total_hours=SETUP.job.total_hours, num_shards=8),
        ),
        SOURCE,
        ("none",),
    ).runs[0]  # fmt: skip
    assert (cases["none"]["auc"], cases["none"]["logloss"]) == (plain.auc, plain.logloss)
    assert cases["none"]["progressive"] == 0.0
    assert 0.0 < abs(cases["noise"]["progressive"]) < abs(cases["partial"]["progressive"])
    assert sum(cases["partial"]["progressive_tenths"]) == pytest.approx(cases["partial"]["progressive"])
