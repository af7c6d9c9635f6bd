from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from emulation_cases import EMULATION, RECIPE, SAMPLES, SIZES, TinySource, schedule

from cpr_native.emulate import RunResult
from cpr_native.emulate.runner import run_emulation
from cpr_native.emulate.settings import DEFAULT_STRATEGIES, STRATEGIES, Emulation, check_strategies
from cpr_native.models import DLRM
from cpr_native.overhead import Job
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

PRIORITY = ("mfu", "ssu", "scar", "drift", "random", "round_robin")
PARTIAL = ("partial", "partial_small", "delta_partial", *PRIORITY)


class Watcher:
    """Keeps what every run trained and where it stood."""

    def __init__(self) -> None:
        self.models: dict[str, DLRM] = {}
        self.positions: dict[str, list[int]] = {}

    def started(self, strategy: str, samples: int) -> None:
        self.positions[strategy] = []

    def stepped(self, strategy: str, samples: int) -> None:
        self.positions[strategy].append(samples)

    def trained(self, strategy: str, model: DLRM) -> None:
        self.models[strategy] = model


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def runs(watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    folder = tmp_path_factory.mktemp("emulation")
    results = run_emulation(EMULATION, TinySource(), STRATEGIES, checkpoints=folder, observer=watcher)
    return {run.strategy: run for run in results.runs}


def _run(emulation: Emulation, strategy: str, folder: Path) -> RunResult:
    (run,) = run_emulation(emulation, TinySource(), (strategy,), checkpoints=folder).runs
    return run


def _differences(one: DLRM, other: DLRM) -> list[str]:
    theirs = other.state_dict()
    return [name for name, value in one.state_dict().items() if not torch.equal(value, theirs[name])]


def test_every_strategy_runs_in_order(runs: dict[str, RunResult]) -> None:
    assert tuple(runs) == STRATEGIES
    assert set(DEFAULT_STRATEGIES) < set(STRATEGIES)


def test_full_recovery_ends_bit_equal_to_no_failure(runs: dict[str, RunResult], watcher: Watcher) -> None:
    assert _differences(watcher.models["full"], watcher.models["none"]) == []
    assert _differences(watcher.models["delta"], watcher.models["none"]) == []
    assert (runs["full"].auc, runs["full"].logloss) == (runs["none"].auc, runs["none"].logloss)


def test_partial_recovery_changes_the_failed_rows(runs: dict[str, RunResult], watcher: Watcher) -> None:
    for strategy in PARTIAL:
        assert "embeddings.embedding_bags.C1.weight" in _differences(
            watcher.models[strategy], watcher.models["none"]
        )
        assert torch.isfinite(
            watcher.models[strategy].state_dict()["embeddings.embedding_bags.C1.weight"]
        ).all()


def test_the_model_learns(runs: dict[str, RunResult]) -> None:
    assert all(run.auc > 0.65 for run in runs.values())


def test_full_recovery_replays_and_partial_does_not(runs: dict[str, RunResult], watcher: Watcher) -> None:
    positions = watcher.positions
    assert positions["none"] == sorted(positions["none"])
    assert positions["partial"] == sorted(positions["partial"])
    replayed = len(positions["full"]) - len(positions["none"])
    hours = replayed * RECIPE.batch_size * 56.0 / SAMPLES
    assert replayed > 0
    assert runs["full"].overhead_hours.lost == pytest.approx(hours)


def test_run_without_failure_has_no_overhead(runs: dict[str, RunResult]) -> None:
    none = runs["none"]
    assert none.overhead_percent == 0
    assert (none.pls, none.pls_expected, none.commits, none.bytes_written, none.failures) == (0, 0, 0, 0, ())


def test_overhead_is_as_in_the_paper(runs: dict[str, RunResult]) -> None:
    assert runs["full"].overhead_percent > 5
    for strategy in ("partial", *PRIORITY):
        assert 0.3 < runs[strategy].overhead_percent < 1
        assert runs[strategy].overhead_hours.lost == 0
        assert runs[strategy].overhead_hours.load == pytest.approx(2 * 0.045)
        assert runs[strategy].overhead_hours.reschedule == pytest.approx(2 * 0.045)


def test_priority_saves_are_smaller_and_more(runs: dict[str, RunResult]) -> None:
    for strategy in PRIORITY:
        run = runs[strategy]
        saves = [save for save in run.saves if save.kind == "priority"]
        assert len(saves) == 9  # every 5.6 of 56 hours, the tenth would be after the end
        assert sum(save.cost_hours for save in saves) < 9 * 0.094 * 0.4


def test_small_tables_and_deltas_are_saved_as_often_as_priority_saves(runs: dict[str, RunResult]) -> None:
    kinds = {name: [save.kind for save in run.saves[1:]] for name, run in runs.items()}
    assert kinds["partial_small"] == [*["priority"] * 7, "base", "priority", "delta"]
    assert kinds["delta_partial"] == ["delta"] * 10
    assert runs["partial_small"].bytes_written > runs["partial"].bytes_written


def test_pls_is_zero_after_full_and_bounded_after_partial(runs: dict[str, RunResult]) -> None:
    assert (runs["full"].pls, runs["full"].pls_expected) == (0, 0)
    for strategy in PARTIAL:
        assert runs[strategy].pls_expected == pytest.approx(0.1)
        assert 0 < runs[strategy].pls < 2 / 8
        assert runs[strategy].pls_trace[-1][1] == pytest.approx(runs[strategy].pls)
    assert runs["partial"].pls == pytest.approx((13.1 + 40.9) / (56 * 8), abs=0.01)
    assert runs["mfu"].pls < runs["partial"].pls


def test_failures_are_recorded(runs: dict[str, RunResult]) -> None:
    for strategy, run in runs.items():
        if strategy == "none":
            continue
        assert [(failure.hour, failure.shards) for failure in run.failures] == [(13.1, (3,)), (40.9, (6,))]
        assert {failure.mode for failure in run.failures} == {"partial" if strategy in PARTIAL else "full"}
    assert all(failure.lost_lookups == 0 for failure in runs["full"].failures)
    for strategy in ("mfu", "ssu"):
        assert all(failure.rows_restored > 0 for failure in runs[strategy].failures)
        assert all(failure.lost_lookups > 0 for failure in runs[strategy].failures)
    assert runs["full"].failures[0].rows_restored == sum(SIZES)


def test_commits_and_bytes_are_those_on_disk(tmp_path: Path) -> None:
    run = _run(EMULATION, "mfu", tmp_path)
    assert run.commits == len(run.saves) >= 10
    on_disk = sum(file.stat().st_size for file in (tmp_path / "mfu").rglob("*") if file.is_file())
    assert 0 < run.bytes_written <= on_disk


def test_same_seed_gives_the_same_results(runs: dict[str, RunResult], tmp_path: Path) -> None:
    for strategy in ("full", "ssu"):
        again = _run(EMULATION, strategy, tmp_path)
        assert dataclasses.replace(again, seconds=0) == dataclasses.replace(runs[strategy], seconds=0)


def test_rows_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recover = RecoveryManager.recover

    def without_files(manager: RecoveryManager, shards: Any) -> Any:
        for segment in tmp_path.rglob("*.safetensors"):
            segment.unlink()
        return recover(manager, shards)

    monkeypatch.setattr(RecoveryManager, "recover", without_files)
    with pytest.raises(Exception, match=r"safetensors|No such file|nothing"):
        _run(EMULATION, "full", tmp_path)


def test_more_failures_of_more_shards(tmp_path: Path) -> None:
    emulation = dataclasses.replace(
        EMULATION,
        job=Job(total_hours=56.0, mtbf_hours=14.0, shards=8, failed_shards=2),
        schedule=schedule("5:0,7", "5:1", "20:2,3", "55.99:4,5"),
    )
    run = _run(emulation, "ssu", tmp_path)
    assert [failure.shards for failure in run.failures] == [(0, 7), (1,), (2, 3), (4, 5)]
    assert run.overhead_hours.load == pytest.approx(4 * 0.045)


@pytest.mark.parametrize("strategy", ["full", "partial"])
def test_failures_within_the_last_step_all_strike(tmp_path: Path, strategy: str) -> None:
    emulation = dataclasses.replace(EMULATION, schedule=schedule("55.98:1", "55.99:2", "55.995:1"))
    run = _run(emulation, strategy, tmp_path)
    assert [failure.shards for failure in run.failures] == [(1,), (2,), (1,)]
    if strategy == "partial":  # two losses of one shard at one step: the second has nothing more to lose
        assert run.failures[0].lost_lookups > 0
        assert run.failures[2].lost_lookups == 0


def test_checkpoints_of_an_earlier_run_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    with pytest.raises(FileExistsError):
        _run(EMULATION, "partial", tmp_path)
    assert list((tmp_path / "partial").iterdir()) == []


def test_store_of_a_run_can_be_read_afterwards(tmp_path: Path) -> None:
    _run(EMULATION, "full", tmp_path)
    assert CheckpointStore(tmp_path / "full").latest("exact").samples <= SAMPLES


@pytest.mark.parametrize("names", [(), ("none", "none"), ("none", "best")])
def test_strategies_are_checked(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="strateg"):
        check_strategies(names)


def test_policy_of_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match=f"strategy must be one of {', '.join(STRATEGIES)}, got 'none'"):
        EMULATION.policy("none")


def test_schedule_of_another_job_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule is of a job of \(hours, shards\) \(56.0, 8\)"):
        dataclasses.replace(EMULATION, job=Job(total_hours=40.0, mtbf_hours=28.0, shards=8))


@pytest.mark.parametrize("fraction", [0.0, 1.5])
def test_fraction_is_checked(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must lie in"):
        dataclasses.replace(EMULATION, fraction=fraction)
