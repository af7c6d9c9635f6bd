"""`ClusterManager` over shards in threads: saves, losses of shards in mid-step, losses of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sharded.sharded_jobs import Bags, bags_of, spec_of, tables_of
from torch import nn

from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.local import LocalDirectory
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Delta, Mfu, Policy, Scar
from cpr_native.recovery import ResumableLoader
from cpr_native.sharded import ClusterManager, ShardedEmbeddingBagCollection
from cpr_native.store import CheckpointStore, verify

STEPS, BATCH = 24, 7
TABLES = tables_of()
COSTS = Costs(save=0.02, load=0.01, reschedule=0.01, load_partial=0.01, reschedule_partial=0.0)


class Net(nn.Module):
    def __init__(self, bags: ShardedEmbeddingBagCollection) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bags = bags
        self.top = nn.Sequential(nn.Linear(bags.output_dim, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def forward(self, batch: Bags) -> torch.Tensor:
        out: torch.Tensor = self.top(self.bags(batch.ids, batch.offsets)).squeeze(1)
        return out


@dataclass
class Trainer:
    """One trainer's process: model, optimizer, loader, manager."""

    directory: LocalDirectory
    policy: Policy
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = self.directory.spec
        clients = ShardClients(self.directory, timeout=30.0, patience=30.0, generation=1)
        self.model = Net(ShardedEmbeddingBagCollection(spec, clients))
        self.optimizer = torch.optim.Adagrad(self.model.top.parameters(), lr=0.05)
        self.loader = ResumableLoader([bags_of(TABLES, seed, batch=BATCH) for seed in range(STEPS)])
        torch.manual_seed(5)
        self.manager = ClusterManager(
            self.model, spec, policy=self.policy, costs=COSTS, total_samples=STEPS * BATCH,
            job=Job(total_hours=float(STEPS), mtbf_hours=400.0, shards=spec.shards),
            dense_optimizer=self.optimizer, loader=self.loader, patience=30.0, **self.options,
        )  # fmt: skip

    def train(self, until: int = STEPS, before: dict[int, Callable[[], object]] | None = None) -> None:
        """Train up to a step; `before[s]` is called once, between forward and backward of step s."""
        events = dict(before or {})
        for batch in self.loader:
            with self.manager.surviving():
                loss = self.model(batch).square().sum()
                events.pop(self.manager.steps + 1, lambda: None)()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.manager.step(BATCH)
            if self.manager.steps >= until:
                break

    def state(self) -> dict[str, bytes]:
        found = {
            f"top.{name}": value.numpy().tobytes() for name, value in self.model.top.state_dict().items()
        }
        for table in TABLES:
            for shard in range(self.directory.shards):
                part = self.directory.handle(shard).call("rows", table.name).result(30.0)
                for key in ("weight", "state"):
                    value = part.get(key)
                    found[f"{table.name}.{shard}.{key}"] = b"" if value is None else value.tobytes()
        return found


@contextmanager
def job(path: Path, policy: Policy, **options: Any) -> Iterator[Trainer]:
    spec = spec_of(path, TABLES)
    directory = LocalDirectory(spec)
    try:
        yield Trainer(directory, policy, options)
    finally:
        directory.close()


def undisturbed(path: Path) -> dict[str, bytes]:
    with job(path, Delta()) as trainer:
        with trainer.manager:
            trainer.manager.start()
            trainer.train()
        return trainer.state()


def counts_of(trainer: Trainer, shard: int) -> int:
    rows = [trainer.directory.handle(shard).call("rows", t.name).result(30.0) for t in TABLES]
    return sum(int(part["count"].sum()) for part in rows if part["begin"] is not None)


def test_saves_are_of_all_shards_at_one_step(tmp_path: Path) -> None:
    with job(tmp_path, Delta(), background=False) as trainer:
        with trainer.manager as manager:
            manager.start()
            trainer.train()
        assert manager.missed == 0
        steps = [save.step for save in manager.saves]
        assert steps[0] == 0
        assert steps[-1] == STEPS
        assert len(steps) > 5
        point = CheckpointStore(tmp_path).latest()
        assert (point.step, point.samples) == (STEPS, STEPS * BATCH)
        commits = [chain.commits[-1] for chain in point.plan().chains]
        assert {commit.step for commit in commits} == {STEPS}
    assert verify(tmp_path) == []


@pytest.mark.parametrize("at", [2, 13, STEPS])
def test_full_recovery_ends_as_if_nothing_had_happened(tmp_path: Path, at: int) -> None:
    want = undisturbed(tmp_path / "a")
    with job(tmp_path / "b", Delta()) as trainer:
        with trainer.manager as manager:
            manager.start()
            trainer.train(before={at: lambda: trainer.directory.kill(1)})
        assert trainer.state() == want
        (report,) = manager.recoveries
        assert (report.mode, report.shards) == ("full", (1,))
        assert report.step < at
        assert report.lost_samples == (at - 1 - report.step) * BATCH
    assert verify(tmp_path / "b") == []


def test_partial_recovery_takes_one_shard_back_and_counts_what_is_lost(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    with job(tmp_path, Mfu(fraction=0.25), background=False) as trainer:
        manager = trainer.manager

        def kill() -> None:
            trainer.model.bags.clients.settle(30.0)
            seen["lost"] = counts_of(trainer, 1)
            seen["kept"] = {name: value for name, value in trainer.state().items() if ".1." not in name}
            trainer.directory.kill(1)
            seen["after"] = {name: value for name, value in trainer.state().items() if ".1." not in name}

        with manager:
            manager.start()
            trainer.train(before={14: kill})
        (report,) = manager.recoveries
        assert (report.mode, report.shards, report.step) == ("partial", (1,), 13)
        assert report.lost_lookups == seen["lost"] > 0
        assert report.rows_restored > 0
        assert seen["kept"] == seen["after"]
        assert 0 < manager.pls == report.pls
        assert manager.steps == STEPS
        # What no commit holds is what the counters hold.
        want = [counts_of(trainer, shard) for shard in range(3)]
        assert manager._ledger.unsaved.tolist() == want
    assert verify(tmp_path) == []


def test_a_shard_lost_during_a_save_makes_it_come_to_nothing(tmp_path: Path) -> None:
    with job(tmp_path, Mfu(fraction=0.25)) as trainer:
        manager = trainer.manager
        with manager:
            manager.start()
            trainer.train(until=10)
            manager.flush()
            assert manager.save("delta")
            trainer.directory.kill(2)
            trainer.train(until=STEPS)
        assert CheckpointStore(tmp_path).latest().step == STEPS
    assert verify(tmp_path) == []


def test_the_base_is_there_when_training_begins(tmp_path: Path) -> None:
    with job(tmp_path, Delta()) as trainer:
        manager, begin = trainer.manager, trainer.manager._coordinator.begin  # type: ignore[union-attr]

        def losing(*args: Any, **options: Any) -> Any:
            cut = begin(*args, **options)
            if not manager.missed:
                trainer.directory.kill(0)
            return cut

        manager._coordinator.begin = losing  # type: ignore[method-assign, union-attr]
        manager.start()
        assert manager.missed >= 1
        assert CheckpointStore(tmp_path).latest().step == 0
        manager.close()


def test_another_trainer_goes_on_from_the_newest_point(tmp_path: Path) -> None:
    want = undisturbed(tmp_path / "a")
    spec = spec_of(tmp_path / "b", TABLES)
    directory = LocalDirectory(spec)
    first = Trainer(directory, Delta())
    first.manager.start()
    first.train(until=15)
    first.manager.flush()
    first.manager.__exit__(KeyboardInterrupt)  # it dies
    second = Trainer(directory, Delta())
    with second.manager as manager:
        report = manager.resume()
        assert report is not None
        assert (report.restart, report.mode) == (True, "full")
        assert report.step <= 15
        second.train()
    assert second.state() == want
    directory.close()


def test_rows_stay_when_only_the_trainer_was_lost(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, TABLES)
    directory = LocalDirectory(spec)
    first = Trainer(directory, Mfu(fraction=0.25))
    first.manager.start()
    first.train(until=15)
    first.manager.flush()
    first.model.bags.clients.settle(30.0)
    rows = {name: value for name, value in first.state().items() if not name.startswith("top")}
    first.manager.__exit__(KeyboardInterrupt)
    second = Trainer(directory, Mfu(fraction=0.25))
    with second.manager as manager:
        report = manager.resume(embeddings="keep")
        assert report is not None
        assert report.step == 0  # of the one exact point
        assert {name: value for name, value in second.state().items() if not name.startswith("top")} == rows
        second.train()
        assert manager.steps == STEPS
    assert CheckpointStore(tmp_path).latest().samples == STEPS * BATCH
    directory.close()


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Scar\(\) needs a copy"), job(tmp_path, Scar(fraction=0.25)):
        pass
    with job(tmp_path, Delta()) as trainer:
        spec = trainer.directory.spec
        job_of_two = Job(total_hours=1.0, mtbf_hours=1.0, shards=2)
        with pytest.raises(ValueError, match=r"job.shards: expected 3 as of the spec, got 2"):
            ClusterManager(trainer.model, spec, policy=Delta(), job=job_of_two, costs=COSTS, total_samples=1)
        with pytest.raises(ValueError, match="expected one ShardedEmbeddingBagCollection, got 0"):
            ClusterManager(
                nn.Linear(1, 1), spec, policy=Delta(), job=Job(total_hours=1.0, mtbf_hours=1.0, shards=3),
                costs=COSTS, total_samples=1,
            )  # fmt: skip
        with pytest.raises(ValueError, match="samples must be at least 0"):
            trainer.manager.step(-1)
        trainer.manager.close()
    assert np.isfinite(trainer.manager.pls)
