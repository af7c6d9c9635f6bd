"""What a manager asks of a model, and training with torch's own optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    Arrays,
    Net,
    batch_size,
    batches,
    everything,
    loss_of,
    manage,
    same,
    train_step,
)

from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.modules import Embedding, EmbeddingBag, EmbeddingBagCollection
from cpr_native.optim import SGD
from cpr_native.policy import Delta, Full, Mfu, Partial, Policy, Ssu
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.train import fit

# Each makes an optimizer of all parameters, tables too.
TORCH_OPTIMIZERS = {
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
}


def run(path: Path | None, policy: Policy, make: Any, failures: dict[int, list[int]]) -> Arrays:
    model = Net(None)
    optimizer = make(model)
    torch.manual_seed(7)
    if path is None:
        for batch in batches():
            train_step(model, batch, optimizer)
    else:
        with manage(model, path, policy, dense=optimizer) as manager:
            fit(
                model,
                batches(),
                manager,
                loss_fn=loss_of,
                batch_size_of=batch_size,
                failures=lambda step: failures.pop(step, ()),
            )
    return everything(model, optimizer)


# torch's own sparse Adagrad makes tensors without saying whether to check them.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
def test_v24_torch_optimizers_of_the_tables_end_bit_equal_after_failures(
    tmp_path: Path, policy: Policy, name: str
) -> None:
    make = TORCH_OPTIMIZERS[name]
    assert same(run(tmp_path, policy, make, {7: [1], 23: [0, 3]}), run(None, policy, make, {}))


@pytest.mark.parametrize("policy", [Partial(), Mfu(), Ssu()], ids=["partial", "mfu", "ssu"])
def test_partial_recovery_needs_a_fused_optimizer(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(ValueError, match="use a fused optimizer or attach"):
        manage(Net(None), tmp_path, policy)


@pytest.mark.parametrize(
    ("trackers", "policy", "match"),
    [
        (Trackers(dirty=False), Full(), "table 'big': saving needs the dirty tracker"),
        (Trackers(mfu=False), Partial(), "table 'big': partial recovery needs the mfu tracker"),
        (Trackers(ssu=False), Ssu(), "table 'big': Ssu"),
        (Trackers(ssu_fraction=0.5), Ssu(fraction=0.125), "ssu_fraction=0.125"),
    ],
)
def test_missing_trackers_are_refused(tmp_path: Path, trackers: Trackers, policy: Policy, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        manage(Net(SGD(lr=0.1), trackers), tmp_path, policy)
    assert list(tmp_path.iterdir()) == []


def test_trackers_that_a_policy_does_not_use_may_be_off(tmp_path: Path) -> None:
    manage(Net(SGD(lr=0.1), Trackers(ssu=False, mfu=False)), tmp_path, Delta())
    manage(Net(SGD(lr=0.1), Trackers(ssu=False)), tmp_path, Mfu())


def test_a_model_without_tables_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[\]; convert the model or attach it"):
        TrainedCollection(torch.nn.Linear(2, 2))


def test_keys_and_schema_describe_the_tables() -> None:
    described = TrainedCollection(Net(OPTIMIZERS["adagrad"]))
    assert described.keys == {f"tables.embedding_bags.{name}.weight" for name in ("big", "mid", "tiny")}
    assert [(table.name, table.rows, table.dim) for table in described.schema.tables] == [
        ("big", 400, 8),
        ("mid", 97, 4),
        ("tiny", 8, 4),
    ]
    assert described.schema.optimizer == "row_wise_adagrad"
    assert described.schema.seed == 11


def test_the_model_itself_may_be_the_collection() -> None:
    config = EmbeddingBagConfig(name="t", num_embeddings=5, embedding_dim=2, feature_names=["f"])
    described = TrainedCollection(EmbeddingBagCollection([config], optimizer=SGD(lr=0.1)))
    assert described.keys == {"embedding_bags.t.weight"}
    assert described.schema.optimizer == "sgd"


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_drop_ins_are_saved_counted_and_restored(tmp_path: Path, kind: Any) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(kind(40, 4, optimizer=SGD(lr=0.5)))
    ids = torch.tensor([[0, 1, 12], [39, 12, 12]])
    manager = manage(model, tmp_path, Partial())  # type: ignore[arg-type]
    manager.start()
    manager.flush()
    before = model[0].weight.detach().clone()
    model(ids).sum().backward()
    manager.step(BATCH)
    changed = model[0].weight.detach().clone()
    report = manager.recover([1])
    assert report.lost_lookups == 3
    assert report.rows_restored == 10
    now = model[0].weight.detach()
    assert torch.equal(now[10:20], before[10:20])
    assert torch.equal(now[:10], changed[:10])
    assert torch.equal(now[20:], changed[20:])
    manager.close()
