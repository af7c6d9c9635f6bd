"""The loss of the head, with its control store on disk (alpha in Ray): only by `make test-cluster`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import ray
from ray_lab import SECONDS, eventually, lab
from ray_runs import Run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


def test_training_goes_on_without_the_head_and_the_next_one_restarts_shards(tmp_path: Path) -> None:
    on_disk = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "control")}
    with lab(2, on_disk, start=False) as place:
        nodes = place.nodes
        head = nodes.start_head(cpus=1)
        trainer = nodes.add(resources={"trainer": 1})
        for _ in range(2):
            nodes.add()
        eventually(lambda: list(Path(place.folder, "r").glob("n2/session_*/sockets/raylet")), "a node")
        nodes.connect(node=trainer)
        nodes.wait()
        run = Run(place)
        run.train(1, 4)
        run.save(4)
        run.train(5, 6)

        head.kill()
        run.train(7, 9)
        assert run.pids() == run.begun
        nodes.start_head(cpus=1)
        nodes.wait_for_head()
        run.train(10, 11)
        run.save(11)
        assert run.trainer.lost == []
        for shard in range(2):
            run.check(shard, [(1, 11)])

        run.train(12, 12)
        os.kill(run.pid(0), signal.SIGKILL)
        run.train(13, 14)
        assert {shard for shard, _ in run.trainer.lost} == {0}
        run.check(0, [(1, 11), (13, 14)])
        run.check(1, [(1, 14)])
        assert run.pids()[1] == run.begun[1]
        eventually(lambda: sum(node["Alive"] for node in ray.nodes()) == 4, "all nodes", SECONDS)
