"""Two DDP trainers inside Ray Train, over shards that are Ray actors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_lab import SECONDS, Lab, lab
from sharded.sharded_jobs import spec_of, table_state, tables_of
from sharded.test_sharded_ranks import trained_by_hand

pytest.importorskip("ray.train", reason="the extra `ray[train]` is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

STEPS = 5


@pytest.fixture(scope="module")
def two_places() -> Iterator[Lab]:
    """Two places for shards; the trainers run where there is a processor left."""
    with lab(2) as made:
        yield made


@pytest.fixture
def places(two_places: Lab) -> Lab:
    """The same with no run on it."""
    two_places.heal()
    return two_places


def fit(places: Lab, spec: Any, run: str, folder: Path, *, kill: int) -> list[dict[str, Any]]:
    """Train in two workers; returns what each found. Before step `kill` shard 0's process is killed."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from sharded.sharded_jobs import bags_of  # isort: skip

    batches = [[bags_of(spec.tables, 2 * step + rank, batch=4) for step in range(STEPS)] for rank in range(2)]
    given = [
        [(bags.ids.numpy(), bags.offsets.numpy()) for bags in own] for own in batches
    ]  # the workers don't have the tests' modules

    def loop(config: dict[str, Any]) -> None:
        import os
        import signal

        import torch
        from ray import train
        from ray.train.torch import prepare_model

        from cpr_native.cluster.client import ShardClients
        from cpr_native.ray import RayCluster
        from cpr_native.sharded import ShardedEmbeddingBagCollection

        torch.set_num_threads(1)
        rank = train.get_context().get_world_rank()
        losses: list[Any] = []
        shards = RayCluster.attach(config["run"]).shards
        clients = ShardClients(
            shards, rank=rank, ranks=train.get_context().get_world_size(), on_lost=losses.append
        )

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tables = ShardedEmbeddingBagCollection(config["spec"], clients)
                torch.manual_seed(0)
                self.top = torch.nn.Linear(self.tables.output_dim, 1)

            def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
                return self.top(self.tables(ids, offsets))

        model = prepare_model(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        batches = [tuple(map(torch.tensor, batch)) for batch in config["batches"][rank]]
        for step, (ids, offsets) in enumerate(batches, start=1):
            if step == config["kill"] and rank == 0:
                clients.settle(60.0)
                os.kill(clients.call(0, "status").pid, signal.SIGKILL)
            optimizer.zero_grad()
            loss = model(ids, offsets).pow(2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        clients.settle(60.0)
        about = {
            "losses": found,
            "dense": [parameter.detach().flatten().tolist() for parameter in model.parameters()],
            "lost": [[loss.shard, loss.lost_steps] for loss in losses],
            "pid": os.getpid(),
        }
        with open(os.path.join(config["folder"], f"rank-{rank}.json"), "w", encoding="utf-8") as file:
            json.dump(about, file)
        train.report({})

    folder.mkdir()
    result = TorchTrainer(
        loop,
        train_loop_config={
            "run": run, "spec": spec, "batches": given, "kill": kill, "folder": str(folder),
        },
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(storage_path=str(places.folder), name=folder.name),
    ).fit()  # fmt: skip
    assert result.error is None
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_trainers_are_as_two_in_one_process(places: Lab, tmp_path: Path) -> None:
    spec = spec_of(places.store(), tables_of("SUM", "MEAN", "SUM"), ranks=2, shards=2)
    cluster = places.launch(spec)
    found = fit(places, spec, cluster.settings.run, tmp_path / "whole", kill=0)
    expected = trained_by_hand(tmp_path / "by hand")
    assert found[0]["dense"] == found[1]["dense"]
    for mine, other in zip(found[0]["dense"], expected["dense"], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    for name, rows in expected["rows"].items():
        np.testing.assert_allclose(table_state(cluster.shards, name)["weight"], rows, rtol=1e-4, atol=1e-6)
    assert found[0]["lost"] == found[1]["lost"] == []


def test_trainers_keep_their_processes_when_a_shard_dies(places: Lab, tmp_path: Path) -> None:
    """Nothing was saved: the steps before are lost, by both ranks, and training goes on."""
    spec = spec_of(places.store(), tables_of("SUM", "MEAN", "SUM"), ranks=2, shards=2)
    cluster = places.launch(spec)
    other = cluster.shards.handle(1).call("status").result(SECONDS).pid
    found = fit(places, spec, cluster.settings.run, tmp_path / "killed", kill=3)
    assert [each["lost"] for each in found] == [[[0, 2]], [[0, 2]]]
    assert [len(each["losses"]) for each in found] == [STEPS, STEPS]
    assert cluster.shards.handle(1).call("status").result(SECONDS).pid == other
    status = cluster.shards.handle(0).call("status").result(SECONDS)
    assert (status.incarnation, status.watermarks) == (2, (STEPS, STEPS))
