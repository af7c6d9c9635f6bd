"""What a manager of several embedding modules refuses, and what a failure in one of them leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recovery import towers
from recovery.jobs import BATCH, same
from recovery.test_background_saves import Gate
from recovery.towers import NAMES, ROWS, Towers, batches, manage
from torch import nn

from cpr_native._native import Selection, SnapshotInProgress
from cpr_native.config import EmbeddingBagConfig, EmbeddingConfig, Trackers
from cpr_native.errors import CprError, SchemaMismatchError
from cpr_native.modules import Embedding, EmbeddingBag, EmbeddingBagCollection, EmbeddingCollection
from cpr_native.optim import SGD, RowWiseAdagrad
from cpr_native.policy import Delta, Full, Mfu, Partial, Ssu
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.store import CheckpointStore

FUSED = SGD(lr=0.1)


def sequences(seed: int) -> list[Any]:
    """One module of every kind, two of them with a table `t` of different sizes."""
    bag = EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=2, feature_names=["f"])
    row = EmbeddingConfig(name="t", num_embeddings=7, embedding_dim=2, feature_names=["f"])
    return [
        EmbeddingBagCollection([bag], optimizer=FUSED, seed=seed),
        EmbeddingCollection([row], optimizer=FUSED, seed=seed + 1),
        EmbeddingBag(6, 2, optimizer=FUSED),
        Embedding(5, 2, optimizer=FUSED),
    ]


class Mixture(nn.Module):
    """One module of every kind, nested, one under two names."""

    def __init__(self, seed: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        found = sequences(seed)
        self.first = found[0]
        self.deep = nn.ModuleDict({"more": nn.ModuleList(found[1:])})
        self.again = found[0]

    def tables(self) -> list[nn.Parameter]:
        return [p for module in towers.engine_modules(self) for p in module.parameters()]


def started(path: Path, **options: Any) -> tuple[Towers, Any]:
    model = towers.towers()
    manager = manage(model, path, Delta(), **options)
    manager.start()
    manager.flush()
    towers.train(model, batches(3), manager)
    return model, manager


def test_one_table_name_in_two_modules_names_two_tables(tmp_path: Path) -> None:
    model = Mixture()
    described = TrainedCollection(model)
    assert [(table.name, table.rows) for table in described.schema.tables] == [
        ("first.embedding_bags.t", 9),
        ("deep.more.0.embeddings.t", 7),
        ("deep.more.1", 6),
        ("deep.more.2", 5),
    ]
    assert described.keys == {key for key in model.state_dict() if key.endswith("weight")}
    assert len(described.keys) == 5
    with manage(model, tmp_path, Full()) as manager:
        manager.start()
    again = Mixture()
    for weight in again.tables():
        weight.data.fill_(0.5)
    with manage(again, tmp_path, Full()) as manager:
        manager.resume(required=True)
    for got, expected in zip(again.tables(), model.tables(), strict=True):
        assert torch.equal(got, expected)


def test_another_seed_of_one_module_is_another_model(tmp_path: Path) -> None:
    with manage(Mixture(), tmp_path, Full()) as manager:
        manager.start()
    with pytest.raises(SchemaMismatchError, match="seed: expected"):
        manage(Mixture(seed=5), tmp_path, Full()).resume()


@pytest.mark.parametrize(
    ("kinds", "match"),
    [
        ([SGD(lr=0.1), RowWiseAdagrad(lr=0.1)], "optimizers of .* differ.*sgd of module '0', row_wise"),
        ([SGD(lr=0.1), None], "optimizers of .* differ.*sgd of module '0', none of module '1'"),
        (
            [RowWiseAdagrad(lr=0.1), RowWiseAdagrad(lr=0.1, initial_accumulator=0.5)],
            "initial accumulators .* differ.*0.0 of module '0', 0.5 of module '1'",
        ),
    ],
)
def test_different_optimizers_are_refused(tmp_path: Path, kinds: list[Any], match: str) -> None:
    model = nn.ModuleList([EmbeddingBag(5, 2, optimizer=kind) for kind in kinds])
    with pytest.raises(ValueError, match=match):
        manage(model, tmp_path, Full())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trackers", "policy", "match"),
    [
        (Trackers(dirty=False), Full(), "table '1': saving needs the dirty tracker"),
        (Trackers(mfu=False), Mfu(), "table '1': partial recovery needs the mfu tracker"),
        (Trackers(ssu_fraction=0.5), Ssu(), "table '1': Ssu"),
    ],
)
def test_trackers_are_checked_module_by_module(
    tmp_path: Path, trackers: Trackers, policy: Any, match: str
) -> None:
    of = (None, trackers, None)
    model = nn.ModuleList([EmbeddingBag(50, 2, optimizer=FUSED, trackers=each) for each in of])
    with pytest.raises(ValueError, match=match):
        manage(model, tmp_path, policy)


def test_partial_recovery_needs_fused_optimizers(tmp_path: Path) -> None:
    model = nn.ModuleList([EmbeddingBag(5, 2) for _ in range(2)])
    with pytest.raises(ValueError, match="use a fused optimizer or attach"):
        manage(model, tmp_path, Partial())


def test_memory_of_two_modules_is_refused_unless_tied_without_fused_optimizers(tmp_path: Path) -> None:
    def tied(**options: Any) -> nn.ModuleList:
        model = nn.ModuleList([EmbeddingBag(50, 2, sparse=True, **options) for _ in range(2)])
        model[1].weight = model[0].weight
        return model

    with pytest.raises(ValueError, match="tables '0' and '1' share memory"):
        manage(tied(optimizer=FUSED), tmp_path, Full())
    overlapping = tied()
    overlapping[1].weight = nn.Parameter(overlapping[0].weight.detach())
    with pytest.raises(ValueError, match="tables '0' and '1' share memory"):
        manage(overlapping, tmp_path, Full())
    model = tied()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with manage(model, tmp_path, Delta(), dense_optimizer=optimizer) as manager:
        manager.start()
        manager.flush()
        (model[0](torch.tensor([[3]])).sum() + model[1](torch.tensor([[4]])).sum()).backward()
        optimizer.step()
        manager.step(BATCH)
        manager.save(wait=True)
        assert manager.saves[-1].rows == 4  # rows 3 and 4 of both tables
        saved = model[0].weight.detach().clone()
        manager.recover([0, 1, 2, 3])
    assert torch.equal(model[0].weight, saved)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.add_module("late", EmbeddingBag(5, 2, optimizer=FUSED)), r"got \[.*'late'\]"),
        (lambda m: m.side.pop("seen"), r"got \['bags.0', 'bags.1', 'bags.2'\]"),
        (lambda m: setattr(m.bags, "1", EmbeddingBag(97, 4, optimizer=FUSED)), "another engine"),
        (lambda m: m.bags[1].half(), "a dtype or device that changed"),
    ],
    ids=["added", "removed", "replaced", "dtype"],
)
def test_modules_that_change_after_the_manager_was_made_are_noticed(
    tmp_path: Path, change: Any, match: str
) -> None:
    model, manager = started(tmp_path)
    change(model)
    with pytest.raises(ValueError, match=match):
        manager.save(wait=True)
    with pytest.raises(ValueError, match=match):
        manager.recover([0])
    assert len(manager.saves) == 1
    assert CheckpointStore(tmp_path).latest("exact").step == 0
    manager.__exit__(KeyboardInterrupt)


@pytest.mark.parametrize("kind", ["delta", "base"])
def test_a_snapshot_that_cannot_begin_in_one_module_takes_nothing_of_the_others(
    tmp_path: Path, kind: Any
) -> None:
    model, manager = started(tmp_path)
    before = towers.tracked(model)
    own = model.bags[2].engine.begin([Selection.none()], clears_dirty=False)
    with pytest.raises(SnapshotInProgress):
        manager.save(kind)
    own.abort()
    assert same(towers.tracked(model), before)
    assert len(manager.saves) == 1
    manager.save("delta", wait=True)
    assert manager.saves[-1].rows == sum(int(bits.sum()) for bits in before[::2])
    manager.close()


def test_a_snapshot_that_fails_in_one_module_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, manager = started(tmp_path)
    before = towers.tracked(model)
    gate = Gate(monkeypatch)
    manager.save("delta")
    model.bags[1].mark_dirty([0])  # torn: it may not have been copied yet
    gate.open()
    with pytest.raises(CprError, match="written from outside"):
        manager.flush()
    after = towers.tracked(model)
    before[2][0] = True
    assert same(after, before)
    assert CheckpointStore(tmp_path).latest("exact").step == 0
    manager.save("delta", wait=True)
    assert manager.saves[-1].rows == sum(int(bits.sum()) for bits in after[::2])
    expected = towers.rows_of(model)
    manager.recover([0])
    assert same(towers.rows_of(model), expected)
    manager.close()


def test_all_modules_are_saved_as_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, manager = started(tmp_path)
    expected = towers.rows_of(model)
    gate = Gate(monkeypatch)
    manager.save("base")
    towers.train(model, batches(6, seed=9), manager)
    assert gate.reached.wait(30)
    gate.open()
    manager.flush()
    assert not same(towers.rows_of(model), expected)
    manager.recover([3])
    assert manager.steps == 3
    assert same(towers.rows_of(model), expected)
    manager.close()


def test_scalars_that_one_module_refuses_change_none() -> None:
    model = towers.towers()
    module = TrainedCollection(model).module
    saved = module.optimizer_scalars()
    saved["modules"][NAMES[0]]["learning_rate"] = 0.7
    saved["modules"][NAMES[2]]["learning_rate"] = -1.0
    with pytest.raises(ValueError, match="lr"):
        module.load_optimizer_scalars(saved)
    assert [each.learning_rate for each in towers.engine_modules(model)] == [0.05] * len(ROWS)
