"""A process that trains tables on a device is killed: the next ends with the bits of a job never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device_memory import place_for_test
from recovery.device_jobs import DeviceNet, everything, whole
from recovery.jobs import BATCH, STEPS, batch_size, batches, loss_of, same
from recovery.towers import dense_of, manage

from cpr_native.policy import Delta
from cpr_native.recovery import ResumableLoader
from cpr_native.train import fit

KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
from device_memory import place_for_test
from recovery.device_jobs import DeviceNet
from recovery.jobs import BATCH, batches, loss_of
from recovery.towers import dense_of, manage
from cpr_native.policy import Delta
from cpr_native.recovery import ResumableLoader

at, pause = int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
model = DeviceNet(place_for_test(), beside=sys.argv[4] == "beside")
dense = dense_of(model)
loader = ResumableLoader(batches())
manager = manage(model, Path(sys.argv[1]), Delta(), dense_optimizer=dense, loader=loader)
torch.manual_seed(7)
if manager.resume() is None:
    manager.start()
    manager.flush()

def kill():
    time.sleep(pause)
    os.kill(os.getpid(), signal.SIGKILL)

for batch in loader:
    dense.zero_grad()
    loss_of(model, batch).backward()
    dense.step()
    manager.step(BATCH)
    if manager.steps == at:
        manager.save("delta")
        threading.Thread(target=kill).start()
print("not killed")
"""


def killed(path: Path, at: int, pause: float, kind: str) -> None:
    """Train in a process of its own that is killed `pause` seconds after it began a save at step `at`."""
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(at), str(pause), kind],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "kills"), [("alone", [(6, 0.0), (14, 0.003), (25, 0.02)]), ("beside", [(13, 0.005)])]
)
def test_killed_it_ends_as_if_it_never_was(tmp_path: Path, kind: str, kills: list[tuple[int, float]]) -> None:
    for at, pause in kills:
        killed(tmp_path, at, pause, kind)
    model = DeviceNet(place_for_test(), beside=kind == "beside")
    dense = dense_of(model)
    loader = ResumableLoader(batches())
    torch.manual_seed(7)
    with manage(model, tmp_path, Delta(), dense_optimizer=dense, loader=loader) as manager:
        fit(model, loader, manager, loss_fn=loss_of, batch_size_of=batch_size)
        assert manager.steps == STEPS
        assert manager.samples == STEPS * BATCH
        assert manager.recoveries[0].restart
    assert same(everything(model, dense), whole(DeviceNet(place_for_test(), beside=kind == "beside")))
