"""Models of blocks through the manager: saves, partial and full recovery, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attachment.attached_jobs import copied, same
from attachment.block_jobs import BATCH, MODELS, OPTIMIZERS, SHARDS, STEPS, manager, records, step
from torch import nn
from torch.optim import Optimizer

from cpr_native import Trackers
from cpr_native.attachment import attach
from cpr_native.overhead import ClosedLoop
from cpr_native.policy import Delta, Drift, Full, Mfu, Partial, Policy, Random, RoundRobin, Scar, Ssu

BLOCKS: list[Any] = ["rows", "tensors", 7]
CASES: list[Any] = [
    (kind, name, blocks)
    for kind in MODELS
    for name, blocks in zip(
        OPTIMIZERS, ("rows", "tensors", 7) if kind == "mlp" else (7, "rows", "tensors"), strict=True
    )
]


def everything(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return {"model": copied(model.state_dict()), "optimizer": copied(optimizer.state_dict())}


@pytest.mark.parametrize(("kind", "name", "blocks"), CASES)
def test_full_recovery_ends_where_training_without_a_failure_does(
    kind: str, name: str, blocks: Any, tmp_path: Path
) -> None:
    ends = []
    for failing in (False, True):
        model = MODELS[kind][0]()
        optimizer = OPTIMIZERS[name](model)
        attach(model, blocks=blocks, optimizer=optimizer)
        with manager(model, optimizer, tmp_path / str(failing), Delta(base_every=2)) as jobs:
            while jobs.steps < STEPS:
                step(model, optimizer, jobs.steps)
                jobs.step(BATCH)
                if jobs.steps == 5:
                    jobs.save(wait=True)
                if failing and jobs.steps == 8:
                    failing = False
                    assert jobs.recover([2]).step < 8
        ends.append(everything(model, optimizer))
    assert same(*ends)


@pytest.mark.parametrize(("kind", "name", "blocks"), CASES)
def test_partial_recovery_brings_lost_blocks_back_with_their_state_and_touches_no_other(
    kind: str, name: str, blocks: Any, tmp_path: Path
) -> None:
    model = MODELS[kind][0]()
    optimizer = OPTIMIZERS[name](model)
    attach(model, blocks=blocks, optimizer=optimizer)
    with manager(model, optimizer, tmp_path, Partial()) as jobs:
        step(model, optimizer, 0)
        jobs.step(BATCH)
        step(model, optimizer, 1)
        jobs.save("base", wait=True)
        names = [name for name, _ in model.named_parameters()]
        saved = {name: records(model, optimizer, name) for name in names}
        for number in range(2, 5):
            step(model, optimizer, number)
        now = {name: records(model, optimizer, name) for name in names}
        dense = {key: value.clone() for key, value in model.named_buffers()}
        lost = [jobs.recover([shard]).rows_restored for shard in range(SHARDS - 1)]
        kept = 0
        for name in names:
            after = records(model, optimizer, name)
            back = (after == saved[name]).all(axis=0)
            still = (after == now[name]).all(axis=0)
            assert (back | still).all(), "weight and state of an element go together"
            kept += int((still & ~back).sum())
        assert sum(lost) > 0
        assert kept > 0
        assert all(torch.equal(model.get_buffer(key), value) for key, value in dense.items())
        jobs.recover([SHARDS - 1])
        assert all(np.array_equal(records(model, optimizer, name), saved[name]) for name in names)
        step(model, optimizer, 5)


@pytest.mark.parametrize(
    "policy", [Full(), Delta(recovery="partial"), Partial(), Random(), RoundRobin(), Scar()]
)
def test_a_restart_goes_on_from_the_newest_rows_with_every_policy(policy: Policy, tmp_path: Path) -> None:
    model = MODELS["cnn"][0]()
    optimizer = OPTIMIZERS["adam"](model)
    attach(model, blocks=3, optimizer=optimizer)
    with manager(model, optimizer, tmp_path, policy) as jobs:
        for number in range(4):
            step(model, optimizer, number)
            jobs.step(BATCH)
            jobs.save(wait=True)
        step(model, optimizer, 4)
        jobs.step(BATCH)
    expected = everything(model, optimizer)
    again = MODELS["cnn"][0]()
    other = OPTIMIZERS["adam"](again)
    attach(again, blocks=3, optimizer=other)
    with manager(again, other, tmp_path, policy) as jobs:
        report = jobs.resume()
        assert report is not None
        assert report.step == 5
        assert same(everything(again, other), expected)


@pytest.mark.parametrize("policy", [Mfu(), Ssu(), Drift()])
def test_policies_that_need_lookups_name_scar(policy: Policy, tmp_path: Path) -> None:
    model = MODELS["mlp"][0]()
    optimizer = OPTIMIZERS["adam"](model)
    attach(model, blocks="rows", optimizer=optimizer)
    with pytest.raises(
        ValueError, match=r"table 'inner-0-weight': .* it has none: use Scar\(fraction=0.125\)"
    ):
        manager(model, optimizer, tmp_path, policy)


def test_a_closed_loop_wants_lookups_to_count(tmp_path: Path) -> None:
    model = MODELS["mlp"][0]()
    optimizer = OPTIMIZERS["adam"](model)
    attach(model, blocks="rows", optimizer=optimizer)
    with pytest.raises(ValueError, match=r"loop: ClosedLoop keeps a PLS, .* use IterationLoop\(\)"):
        manager(model, optimizer, tmp_path, Scar(), loop=ClosedLoop())
    assert manager(model, optimizer, tmp_path, Full(), loop=ClosedLoop()).pls == 0


def test_mfu_ranks_embeddings_beside_small_layers_that_are_saved_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(600, 4), nn.Flatten(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    attach(model, blocks="rows", optimizer=optimizer, trackers=Trackers(ssu=False))
    with manager(model, optimizer, tmp_path, Mfu(fraction=0.01)) as jobs:
        optimizer.zero_grad()
        model(torch.tensor([[1, 2], [1, 5]])).sum().backward()
        optimizer.step()
        jobs.start()
        jobs.flush()
        optimizer.step()
        jobs.save(wait=True)
        assert jobs.saves[-1].rows <= 6 + 2
        assert jobs.recover([0]).rows_restored > 0


class Signed(Optimizer):
    """Of a class nobody knows: a running mean, whose sign is the step."""

    def __init__(self, params: Any, odd: str) -> None:
        super().__init__(params, {"odd": odd})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(step=torch.tensor(0.0), mean=torch.zeros_like(parameter))
                if self.param_groups[0]["odd"] == "shape":
                    state["rows"] = torch.zeros(3)
                if self.param_groups[0]["odd"] == "number":
                    state.update({f"mean{i}": torch.zeros_like(parameter) for i in range(4)})
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 0.1)
            parameter.add_(state["mean"].sign(), alpha=-0.01)
        return loss


def test_state_of_an_unknown_optimizer_is_part_of_the_block_once_it_is_there(tmp_path: Path) -> None:
    model = MODELS["cnn"][0]()
    optimizer = Signed(model.parameters(), odd="")
    with attach(model, blocks="rows", optimizer=optimizer) as attachment:
        assert "its state there already when attached" in str(attachment.incomplete_rows())
    step(model, optimizer, 0)
    attach(model, blocks="rows", optimizer=optimizer)
    with manager(model, optimizer, tmp_path, Partial()) as jobs:
        jobs.start()
        jobs.flush()
        names = [name for name, _ in model.named_parameters()]
        saved = {name: records(model, optimizer, name) for name in names}
        assert all(len(each) == 2 for each in saved.values())
        step(model, optimizer, 1)
        jobs.recover(range(SHARDS))
        assert all(np.array_equal(records(model, optimizer, name), saved[name]) for name in names)
        assert optimizer.state[model.get_parameter("out.bias")]["step"] == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Signed(p, odd="shape"),
        lambda p: Signed(p, odd="number"),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
    ],
)
def test_optimizers_with_odd_state_recover_as_a_whole(make: Any, tmp_path: Path) -> None:
    model = MODELS["mlp"][0]()
    optimizer = make(model.parameters())
    step(model, optimizer, 0)
    attach(model, blocks="rows", optimizer=optimizer)
    with pytest.raises(ValueError, match="isn't trained by one whose state has rows"):
        manager(model, optimizer, tmp_path / "partial", Scar())
    with manager(model, optimizer, tmp_path, Delta()) as jobs:
        step(model, optimizer, 1)
        jobs.start()
        jobs.flush()
        saved = everything(model, optimizer)
        step(model, optimizer, 2)
        jobs.recover([1])
        assert same(everything(model, optimizer), saved)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_lost_shard_is_about_its_share_of_the_numbers(blocks: Any, tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(24, 24) for _ in range(8)])
    optimizer = torch.optim.Adam(model.parameters())
    attach(model, blocks=blocks, optimizer=optimizer)
    with manager(model, optimizer, tmp_path, Partial()) as jobs:
        jobs.start()
        jobs.flush()
        total = sum(parameter.numel() for parameter in model.parameters())
        for shard in range(SHARDS):
            jobs.shards[shard].discard()
            lost = sum(int(parameter.isnan().sum()) for parameter in model.parameters())
            assert lost == pytest.approx(total / SHARDS, rel=0.1)
            jobs.recover([shard])


def test_layers_are_ranked_against_each_other_and_r_of_the_bytes_is_saved(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attachment = attach(model, blocks="tensors", optimizer=optimizer)
    with manager(model, optimizer, tmp_path, Scar(fraction=0.25, row_share=1.0)) as jobs:
        jobs.start()
        jobs.flush()
        for moved in ((5, 1, 7), (2, 3, 4)):
            with torch.no_grad():
                for layer, step_length in zip(moved, (3.0, 1.0, 2.0), strict=True):
                    model.get_parameter(f"{layer}.weight").add_(step_length)
            jobs.save(wait=True)
            assert jobs.saves[-1].rows == 2, "the farthest two of eight"
            still = [name for name in attachment.table_names if attachment.changes(name)[0] > 0]
            assert f"{moved[0]}-weight" not in still
            assert f"{moved[2]}-weight" not in still
            assert f"{moved[1]}-weight" in still
        assert attachment.changes("1-weight")[0] == pytest.approx(16.0)
        assert attachment.changes("1-weight", "l1")[0] == pytest.approx(256.0)


def test_nothing_changed_is_a_save_of_nothing(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, blocks="tensors", optimizer=optimizer)
    with manager(model, optimizer, tmp_path, Scar()) as jobs:
        jobs.start()
        jobs.flush()
        jobs.save(wait=True)
        assert jobs.saves[-1].kind == "priority"
        assert jobs.saves[-1].rows <= 1, "the bias is saved whole"
        assert jobs.recover([0, 1, 2, 3]).rows_restored == 2


def test_a_tensor_of_millions_is_one_block(tmp_path: Path) -> None:
    """Longer than a chunk of a snapshot and than what a restore reads at once."""
    model = nn.ParameterDict({"big": torch.randn(3, 1_800_000), "small": torch.randn(3)})
    optimizer = torch.optim.Adam(model.parameters())
    attach(model, blocks="tensors", optimizer=optimizer)

    def train() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    train()
    with manager(model, optimizer, tmp_path, Scar(fraction=0.5)) as jobs:
        jobs.start()
        jobs.flush()
        saved = [records(model, optimizer, name) for name in ("big", "small")]
        train()
        jobs.recover([0, 1, 2, 3])
        assert all(
            np.array_equal(records(model, optimizer, name), rows)
            for name, rows in zip(("big", "small"), saved, strict=True)
        )
