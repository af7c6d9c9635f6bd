"""Tables on a device and their process, and what a snapshot makes training wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device_saves import Pair

from cpr_native import _native, cuda
from cpr_native._native import CprError, Selection

IN_FORK = """
import os, sys
import numpy as np
from device_memory import ON_GPU, reachable
from device_saves import Pair
from cpr_native._native import ForkedProcessError, Selection
from cpr_native._tensor import describe
pair = Pair((3000, 40), max_staging_bytes=1 << 16)
rng = np.random.default_rng(0)
pair.random_step(rng, 300)
native = pair.device.native
snapshot = native.begin([Selection.all()] * 2, clears_dirty=True)
given = (np.zeros(2, np.int64), np.arange(3), np.zeros((1, 16), np.float32))
ids, offsets, out = (reachable(array) for array in given)
pid = os.fork()
if pid == 0:
    calls = (
        lambda: native.lookup(describe(ids), describe(offsets), None, describe(out), None, None),
        lambda: native.begin([Selection.all()] * 2, clears_dirty=True),
        lambda: native.trackers(0),
        lambda: native.prepare_step(3),
        native.synchronize,
        native.close,
    )
    for call in calls:
        try:
            call()
        except ForkedProcessError as error:
            assert "to a child the device is of no use" in str(error)
            continue
        os._exit(3)
    if ON_GPU:
        os._exit(0)
    sys.exit(0)  # runs the destructors of collection and snapshot
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert sum(len(chunk.rows) for chunk in snapshot) == 3040
snapshot.commit()
pair.random_step(rng, 30)
native.synchronize()
print("end", flush=True)
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    root = Path(__file__).resolve().parents[2]
    paths = [str(root / "tests"), *(path or str(root) for path in sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", IN_FORK],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=100,
    )
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


def test_a_gpu_that_is_not_there_is_refused_in_the_drivers_words() -> None:
    count = cuda.device_count()
    if count == 0:
        with pytest.raises(CprError) as caught:
            _native.cuda_device(0)
        assert str(caught.value) == f"cuda_device: {cuda.why_not()}"
    else:
        for index in (-1, count):
            with pytest.raises(ValueError, match=f"index: expected 0 <= index < {count}, got {index}"):
                _native.cuda_device(index)


def test_steps_are_counted_from_any_number() -> None:
    pair = Pair((30,), optimizer="adam")
    pair.twin.native.step = 41
    pair.device.native.set_step(41)
    pair.random_step(np.random.default_rng(0), 9)
    pair.assert_totals()
    assert pair.device.native.step() == pair.twin.native.step == 42
    with pytest.raises(ValueError, match="step: expected at least 0, got -1"):
        pair.device.native.set_step(-1)


def test_what_begin_and_the_pieces_take_of_the_stream_is_a_stall() -> None:
    pair = Pair((20_000,), dim=32, max_staging_bytes=1 << 17)
    pair.random_step(np.random.default_rng(0), 100)
    native = pair.device.native
    snapshot = native.begin([Selection.all()], clears_dirty=True)
    native.synchronize()
    assert snapshot.step == 1  # waits until begin is over
    begun = snapshot.stall_seconds
    assert begun > 0
    assert sum(len(chunk.rows) for chunk in snapshot) == 20_000
    assert begun < snapshot.stall_seconds < 60
    snapshot.commit()
    held = native.begin([Selection.dirty()], clears_dirty=True, walk=False)
    assert held.step == 1
    assert held.stall_seconds > 0
    held.abort()
