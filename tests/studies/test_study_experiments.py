"""The failures of the study's runs, units that are run once, and saves that are measured whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpr_study import study
from cpr_study.experiments import Cell, recorded, sensitivity, stratified
from cpr_study.measured import POLICIES, configs, measure
from cpr_study.setups import SETUPS, STRESS
from study_common.records import Records

from cpr_native.overhead import FailureLog, Job

JOB = Job(total_hours=56.0, mtbf_hours=28.0, shards=8)
LOG = FailureLog(hours_between=(10.0, 30.0, 2.0, 50.0, 8.0))


def test_recorded_failures_are_a_stretch_of_the_log_at_the_jobs_mtbf() -> None:
    scaled = np.asarray(LOG.hours_between) * 28.0 / 20.0
    stretches = [recorded(JOB, 2, LOG, seed) for seed in range(20)]
    assert stretches == [recorded(JOB, 2, LOG, seed) for seed in range(20)]
    assert len({stretch[0].hour for stretch in stretches}) == 20
    for stretch in stretches:
        hours = [failure.hour for failure in stretch]
        assert hours[0] > 0
        assert hours[-1] < 56.0
        gaps = np.diff(hours)
        starts = [start for start in range(5) if np.allclose(np.roll(scaled, -start)[: len(gaps)], gaps)]
        assert starts, f"{gaps} is no stretch of {scaled}"
    assert max(len(stretch) for stretch in stretches) == 3


def test_a_job_between_two_recorded_failures_still_has_one() -> None:
    log = FailureLog(hours_between=(1.0, 999.0))
    stretches = [recorded(JOB, 1, log, seed) for seed in range(20)]
    assert all(stretches)
    assert np.ptp([stretch[0].hour for stretch in stretches]) > 28.0


def test_recorded_times_are_a_cell_only_with_a_log() -> None:
    names = [cell.name for cell in sensitivity(1, small=True)]
    assert "times-recorded" not in names
    assert [cell.name for cell in sensitivity(1, small=True, log=LOG)].count("times-recorded") == 1


def _run(mark: Path, seed: int) -> dict[str, int]:
    mark.touch(exist_ok=False)
    return {"seed": seed}


def test_units_made_from_the_same_are_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under any name, seed by seed; a second call runs nothing."""
    ran = tmp_path / "ran"
    ran.mkdir()
    samples = study.read_samples(STRESS, None, 1000)
    monkeypatch.setattr(study, "_samples", dict.fromkeys(SETUPS, samples))
    monkeypatch.setattr(study, "_cells", {})
    monkeypatch.setattr(study, "Run", lambda *_, seed, **__: lambda: _run(ran / f"{seed}", seed))

    def cell(name: str, value: float) -> Cell:
        return Cell(
            experiment="sensitivity", name=name, setup=STRESS, job=JOB, seeds=range(2),
            settings=((name, value),), cases=lambda seed: {},
            failures=lambda seed: stratified(JOB, 2, 1, seed),
        )  # fmt: skip

    cells = [cell("lost", 4.0), cell("failures", 2.0)]
    records = Records(tmp_path / "records")
    for _ in range(2):
        study.run_cells(cells, study.SMALL, records, None, 1)
    assert sorted(path.name for path in ran.iterdir()) == ["0", "1"]
    found = records.all("sensitivity")
    assert {name: [unit["settings"] for unit in units] for name, units in found.items()} == {
        "lost": [{"lost": 4.0}] * 2, "failures": [{"failures": 2.0}] * 2,
    }  # fmt: skip


def test_measured_saves_of_a_fraction_take_their_whole_quota() -> None:
    found = measure(configs(small=True)["kaggle"], small=True, pairs=1)
    assert set(found) == set(POLICIES)
    sizes = {name: entry["save_bytes"] for name, entry in found.items() if POLICIES[name].fraction < 1}
    assert min(sizes.values()) > 0.97 * max(sizes.values())
    assert max(sizes.values()) < found["full"]["save_bytes"]
