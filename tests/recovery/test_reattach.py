"""A process that trained in shared memory is killed: the next goes on, whatever it was doing."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from campaigns import reattach
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    Net,
    adam,
    batch_size,
    batches,
    everything,
    loss_of,
    manage,
    same,
    train_step,
)

from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.errors import LockedError, SchemaMismatchError
from cpr_native.modules import Embedding, EmbeddingBag, EmbeddingBagCollection
from cpr_native.optim import SGD, RowWiseAdagrad
from cpr_native.policy import Delta, Partial, Policy, Ssu
from cpr_native.recovery import RecoveryManager, RecoveryReport, ResumableLoader
from cpr_native.shared import SharedMemory, keeper
from cpr_native.train import fit


def test_killed_eight_times_a_job_loses_a_batch_at_most() -> None:
    """Real processes; each compares what it finds row by row (see `campaigns.reattach`)."""
    found = reattach.run(times=8, steps=40, sizes="1000")
    assert found["problems"] == []
    assert found["tried"] == 8
    assert found["modes"] == {"reattached": sum(found["modes"].values())}
    assert found["batches_lost_max"] <= 1
    assert found["resume_ms"]["1000"]["resume"] > 0


class Life:
    """A process of the job, in this one: what it leaves is let go without a save, as a kill would."""

    def __init__(self, path: Path, policy: Policy | None = None, *, every: int = 1) -> None:
        trackers = Trackers(ssu=True) if isinstance(policy, Ssu) else None
        self.memory = SharedMemory(path / "memory", every=every)
        with self.memory:
            self.model = Net(OPTIMIZERS["adagrad"], trackers)
        self.dense = adam(self.model)
        self.loader = ResumableLoader(batches())
        torch.manual_seed(7)
        self.manager: RecoveryManager = manage(
            self.model, path / "store", policy or Delta(), dense=self.dense, loader=self.loader,
            shared=self.memory, background=False,
        )  # fmt: skip

    def train(self, until: int) -> None:
        self.manager.start()
        for batch in self.loader:
            train_step(self.model, batch, self.dense)
            self.manager.step(BATCH)
            if self.manager.steps == until:
                break

    def leave(self) -> None:
        self.manager.__exit__(KeyboardInterrupt)
        del self.manager, self.model, self.memory, self.dense
        gc.collect()


def resumed(life: Life) -> RecoveryReport:
    report = life.manager.resume()
    assert report is not None
    return report


@pytest.mark.parametrize("policy", [Delta(), Ssu(), Partial()], ids=["delta", "ssu", "partial"])
def test_between_steps_nothing_is_lost(tmp_path: Path, policy: Policy) -> None:
    first = Life(tmp_path, policy)
    first.train(13)
    saves, pls, unsaved = len(first.manager.saves), first.manager.pls, first.manager._saves.books()
    first.leave()
    life = Life(tmp_path, policy)
    torch.manual_seed(99)
    report = resumed(life)
    assert (report.mode, report.step, report.samples, report.restart) == ("reattached", 13, 13 * BATCH, True)
    assert report.refused is None
    assert [list(rows) for rows in report.doubtful_rows.values() if rows is not None] == [[]] * 3
    books = life.manager._saves.books()
    assert {**books, "incarnation": 0} == {**unsaved, "incarnation": 0}
    assert (saves, life.manager.pls) == (3, pls) if isinstance(policy, Delta) else True
    life.train(40)
    whole = Net(OPTIMIZERS["adagrad"])
    dense = adam(whole)
    torch.manual_seed(7)
    for batch in batches():
        train_step(whole, batch, dense)
    assert same(everything(life.model, life.dense), everything(whole, dense))
    life.manager.close()


def test_fit_goes_on_by_itself_and_a_delta_has_what_changed(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.train(12)  # the newest exact commit is of step 10
    dirty = sum(int(first.model.tables.engine.dirty(table).sum()) for table in range(3))
    assert dirty
    first.leave()
    life = Life(tmp_path)
    resumed(life)
    assert life.manager.save(wait=True)
    assert (life.manager.saves[0].kind, life.manager.saves[0].rows) == ("delta", dirty)
    life.leave()
    life = Life(tmp_path)
    fit(
        life.model,
        life.loader,
        life.manager,
        loss_fn=loss_of,
        batch_size_of=batch_size,
        dense_optimizer=life.dense,
    )
    assert [report.mode for report in life.manager.recoveries] == ["reattached"]
    assert life.manager.recoveries[0].step == 12
    life.manager.close()
    trained = everything(life.model, life.dense)
    life.leave()
    os.remove(tmp_path / "memory")
    life = Life(tmp_path)
    report = resumed(life)
    assert (report.mode, report.step) == ("full", 40)
    assert same(everything(life.model, life.dense), trained)
    life.manager.close()


def test_every_fifth_step(tmp_path: Path) -> None:
    first = Life(tmp_path, every=5)
    first.train(13)
    first.leave()
    life = Life(tmp_path, every=5)
    report = resumed(life)
    assert (report.mode, report.step) == ("reattached", 10)
    assert all(rows is not None and len(rows) for rows in report.doubtful_rows.values())
    life.manager.close()


def test_a_store_that_went_on_without_the_memory_is_restored(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.train(12)
    first.leave()
    os.rename(tmp_path / "memory", tmp_path / "old")
    other = Life(tmp_path)
    assert resumed(other).mode == "full"
    other.train(20)
    other.leave()
    os.rename(tmp_path / "old", tmp_path / "memory")
    life = Life(tmp_path)
    report = resumed(life)
    assert (report.mode, report.step) == ("full", 20)
    assert report.refused is not None
    assert "is not of the process that left step 12" in report.refused
    life.train(25)
    life.leave()
    assert resumed(Life(tmp_path)).mode == "reattached"


def test_another_store_begins_anew(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.train(3)
    first.leave()
    os.rename(tmp_path / "store", tmp_path / "other")
    life = Life(tmp_path)
    with pytest.raises(ValueError, match="holds the tables of an earlier process"):
        life.manager.start()
    assert life.manager.resume() is None
    life.manager.start()
    assert same(everything(life.model), everything(Net(OPTIMIZERS["adagrad"])))
    life.manager.close()


def test_a_recovery_counts_once_it_has_ended(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.train(13)
    report = first.manager.recover([0])
    assert (report.mode, report.step) == ("full", 10)
    first.leave()
    life = Life(tmp_path)
    report = resumed(life)
    assert (report.mode, report.step) == ("reattached", 10)
    life.manager._invalidate()  # as a process leaves it that is killed while rows are restored
    life.leave()
    report = resumed(Life(tmp_path))
    assert report.mode == "full"
    assert report.refused is not None
    assert "a restore of its rows was interrupted" in report.refused


def test_tables_of_another_shape_are_refused(tmp_path: Path) -> None:
    def build(rows: int = 50, **options: object) -> EmbeddingBagCollection:
        config = EmbeddingBagConfig(name="t", num_embeddings=rows, embedding_dim=4, feature_names=("f",))
        with SharedMemory(tmp_path / "memory", **options) as memory:  # type: ignore[arg-type]
            model = EmbeddingBagCollection([config], optimizer=SGD(lr=0.1))
        memory.region.commit(b"", [])
        return model

    model = build()
    assert_in_use(build)
    del model
    gc.collect()
    with pytest.raises(SchemaMismatchError, match="t: rows: expected 50 as the process before, got 51"):
        build(51)
    gc.collect()
    assert build(51, discard=True).engine.region is not None


def test_modules_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    config = EmbeddingBagConfig(name="t", num_embeddings=50, embedding_dim=4, feature_names=("f",))
    with SharedMemory(tmp_path / "memory"):
        with pytest.raises(ValueError, match="shared memory: expected tables with a fused optimizer"):
            EmbeddingBagCollection([config], optimizer=None)
        with pytest.raises(ValueError, match="'weight' lies in shared memory"):
            EmbeddingBag(50, 4, _weight=torch.zeros(50, 4), optimizer=SGD(lr=0.1))
    outside = Net(OPTIMIZERS["sgd"])
    with pytest.raises(
        ValueError, match=r"expected every table to be built in .*, got \['big', 'mid', 'tiny'\]"
    ):
        manage(outside, tmp_path / "store", Delta(), shared=SharedMemory(tmp_path / "other"))


def test_other_modules_are_found_too(tmp_path: Path) -> None:
    def build() -> torch.nn.ModuleList:
        with memory:
            bag = EmbeddingBag(60, 4, mode="sum", optimizer=RowWiseAdagrad(lr=0.1))
            return torch.nn.ModuleList([bag, Embedding(30, 4, padding_idx=2, optimizer=SGD(lr=0.1))])

    memory = SharedMemory(tmp_path / "memory")
    model = build()
    model[0](torch.arange(20).reshape(4, 5)).sum().backward()
    memory.region.commit(b"", [])
    weights = [module.weight.detach().clone() for module in model]
    del model, memory
    gc.collect()
    memory = SharedMemory(tmp_path / "memory")
    again = build()
    assert all(torch.equal(module.weight, weight) for module, weight in zip(again, weights, strict=True))
    assert again[0].engine.num_dirty(0) == 60  # drawing the first weights was a write


def assert_in_use(call: Callable[[], object]) -> None:
    for _ in range(2):  # what failed has not freed the lock
        with pytest.raises(LockedError, match="in use in this process"):
            call()


def test_a_keeper_holds_memory_without_a_file() -> None:
    name = f"test-{os.getpid()}"
    config = EmbeddingBagConfig(name="t", num_embeddings=50, embedding_dim=4, feature_names=("f",))
    memory = SharedMemory.keeper(name)
    try:
        with memory:
            model = EmbeddingBagCollection([config], optimizer=SGD(lr=0.1))
        weight = model.embedding_bags["t"].weight.detach().clone() + 1
        with torch.no_grad():
            model.embedding_bags["t"].weight.add_(1)
        memory.region.commit(b"", [])
        assert_in_use(lambda: SharedMemory.keeper(name))
        del model, memory
        gc.collect()
        memory = SharedMemory.keeper(name)
        assert memory.attached
        with memory:
            model = EmbeddingBagCollection([config], optimizer=SGD(lr=0.1))
        assert torch.equal(model.embedding_bags["t"].weight, weight)
    finally:
        assert keeper.stop(name)
        assert not keeper.stop(name)
    with pytest.raises(ValueError, match="1 to 64 letters"):
        SharedMemory.keeper("a/b")
