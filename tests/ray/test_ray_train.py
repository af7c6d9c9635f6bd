"""Two DDP trainers of Ray Train over shards of its cluster, one of which dies (`make test-cluster`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray_lab import lab
from sharded.sharded_jobs import bags_of, sharded_of, shards_of, spec_of, tables_of
from torch import nn

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]

STEPS, KILL_AT, RANKS, SHARDS = 8, 4, 2, 2


def top_of(width: int) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(width, 1)


def make_loop() -> Callable[[dict[str, Any]], None]:
    """Return what each worker does; as a closure it is pickled by value, and imports what it needs."""

    def loop(config: dict[str, Any]) -> None:
        import json
        import os
        import signal
        import sys

        sys.path[:0] = config["path"]
        import ray.train
        import torch
        from ray.train.torch import prepare_model
        from sharded.sharded_jobs import bags_of, sharded_of

        from cpr_native.ray import RayCluster

        torch.set_num_threads(1)
        spec, rank = config["spec"], ray.train.get_context().get_world_rank()
        shards = RayCluster.attach(config["run"]).shards
        bags = sharded_of(shards, spec, rank=rank, ranks=config["ranks"])
        torch.manual_seed(1)
        top = prepare_model(torch.nn.Linear(bags.output_dim, 1))
        optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
        for step in range(1, config["steps"] + 1):
            if step == config["kill_at"] and rank == 0:
                os.kill(shards.handle(0).life.pid, signal.SIGKILL)
            batch = bags_of(spec.tables, 10 * step + rank)
            loss = top(bags(batch.ids, batch.offsets)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bags.clients.settle(60.0)
        weights = [parameter.detach().flatten().tolist() for parameter in top.parameters()]
        with open(f"{config['out']}/{rank}", "a", encoding="ascii") as out:
            print(json.dumps(weights), file=out)

    return loop


def together(spec: Any) -> tuple[dict[tuple[str, int], Any], list[list[float]]]:
    """The same training with both ranks in this process and the mean of their dense gradients."""
    with shards_of(spec) as directory:
        bags = [sharded_of(directory, spec, rank=rank, ranks=RANKS) for rank in range(RANKS)]
        top = top_of(bags[0].output_dim)
        optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
        for step in range(1, STEPS + 1):
            losses = []
            for rank in range(RANKS):
                batch = bags_of(spec.tables, 10 * step + rank)
                losses.append(top(bags[rank](batch.ids, batch.offsets)).square().mean())
            optimizer.zero_grad()
            for loss in losses:
                loss.backward()
            for parameter in top.parameters():
                assert parameter.grad is not None
                parameter.grad /= RANKS
            optimizer.step()
        for each in bags:
            each.clients.settle(60.0)
        return rows_of(directory, spec), [p.detach().flatten().tolist() for p in top.parameters()]


def rows_of(directory: Any, spec: Any) -> dict[tuple[str, int], Any]:
    return {
        (table.name, shard): directory.handle(shard).call("rows", table.name).result(60.0)
        for table in spec.tables
        for shard in range(SHARDS)
    }


def test_two_ddp_trainers_go_on_when_a_shard_dies(tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    tables = tables_of()
    expected, weights = together(spec_of(tmp_path / "store", tables, ranks=RANKS, shards=SHARDS))
    with lab(SHARDS) as place:
        for _ in range(RANKS):
            place.nodes.add(resources={"trainer": 1})
        place.nodes.wait()
        spec = spec_of(place.store(), tables, ranks=RANKS, shards=SHARDS, shared=str(place.folder / "shm"))
        run = place.launch(spec)
        config = {
            "path": sys.path,
            "spec": spec,
            "run": run.settings.run,
            "ranks": RANKS,
            "steps": STEPS,
            "kill_at": KILL_AT,
            "out": str(tmp_path),
        }
        result = TorchTrainer(
            make_loop(),
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker={"trainer": 1}),
            run_config=RunConfig(name="train", storage_path=str(place.folder / "train")),
        ).fit()
        assert result.error is None
        assert run.shards.reconnect(0, 60.0, after=1).incarnation == 2
        found = rows_of(run.shards, spec)
        for key, table in expected.items():
            for name in ("weight", "state", "count"):
                assert np.array_equal(found[key][name], table[name]), (key, name)
        for rank in range(RANKS):
            (line,) = (tmp_path / str(rank)).read_text(encoding="ascii").splitlines()  # it began once
            assert np.allclose(np.concatenate(json.loads(line)), np.concatenate(weights), rtol=1e-6)
