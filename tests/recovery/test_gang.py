"""`examples/torchrun.py`: two real processes, one of which is killed; torchrun starts both again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cpr_native as cpr
from cpr_native.errors import CprError
from cpr_native.store import CheckpointStore, verify

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40


def run(folder: Path, *options: str) -> str:
    """Everything that the processes of a job print."""
    environment = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", str(ROOT / "examples" / "torchrun.py"), "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--steps", str(STEPS), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(output: str) -> list[str]:
    return sorted(re.findall(rf"rank \d: {STEPS} steps, \d+ saves, loss [\d.]+", output))


def reports(output: str) -> dict[int, tuple[str, int, int]]:
    """Mode, step and rows loaded, by rank."""
    found = re.findall(r"rank (\d): (\w+) at step (\d+), (\d+) rows", output)
    return {int(rank): (mode, int(step), int(rows)) for rank, mode, step, rows in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    output = run(folder, "--policy", "delta")
    assert len(losses(output)) == 2
    assert verify(folder / "checkpoint") == []
    point = CheckpointStore(folder / "checkpoint").latest()
    assert point.step == STEPS
    assert point.placement.strategy == "table_wise"
    assert [len(plan.commits) > 0 for plan in point.plan().chains] == [True, True]
    return output


@pytest.mark.parametrize("policy", ["mfu", "delta"])
def test_killed_process_and_the_other_go_on_in_their_memory(
    tmp_path: Path, undisturbed: str, policy: str
) -> None:
    output = run(tmp_path, "--policy", policy, "--kill-at", "25")
    found = reports(output)
    assert {mode for mode, _, _ in found.values()} == {"reattached"}
    assert all(step in (24, 25) and not rows for _, step, rows in found.values())
    assert len(losses(output)) == 2
    assert verify(tmp_path / "checkpoint") == []


def test_only_the_process_that_lost_its_memory_loads_rows(tmp_path: Path) -> None:
    output = run(tmp_path, "--policy", "mfu", "--kill-at", "25", "--lose-memory")
    found = reports(output)
    assert (found[0][0], found[0][2]) == ("reattached", 0)
    assert found[1][0] == "partial"
    assert found[1][2] > 0
    assert found[0][1] == found[1][1]
    assert len(set(re.findall(r"PLS ([\d.]+)", output))) == 1
    assert len(losses(output)) == 2
    assert verify(tmp_path / "checkpoint") == []


def test_full_recovery_takes_all_back_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: str
) -> None:
    output = run(tmp_path, "--policy", "delta", "--kill-at", "25", "--lose-memory")
    found = reports(output)
    assert {mode for mode, _, _ in found.values()} == {"full"}
    assert found[0][1] == found[1][1] < 25
    assert [line.split("loss")[1] for line in losses(output)] == [
        line.split("loss")[1] for line in losses(undisturbed)
    ]


def test_shards_without_torch_distributed_are_refused(tmp_path: Path) -> None:
    model = cpr.EmbeddingBag(10, 2, optimizer=cpr.SGD(lr=0.1))
    settings = {
        "policy": cpr.Delta(), "job": cpr.Job(total_hours=1.0, mtbf_hours=1.0, shards=2),
        "costs": cpr.Costs(save=0.1, load=0.1, reschedule=0.1), "total_samples": 10,
    }  # fmt: skip
    store = CheckpointStore(tmp_path)
    with pytest.raises(CprError, match=r"expected torch\.distributed to be initialised"):
        cpr.RecoveryManager(model, store, shard=0, shards=2, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected both"):
        cpr.RecoveryManager(model, store, shard=0, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"job.shards \(2\) shards, got 0, 3"):
        cpr.RecoveryManager(model, store, shard=0, shards=3, **settings)  # type: ignore[arg-type]
