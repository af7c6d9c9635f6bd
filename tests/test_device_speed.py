"""The benchmark of the CUDA engine, all of its stages, on a device that runs on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import device_goals
import device_speed
import pytest
import shapes
import torch
from device_memory import place_for_test
from device_saves_speed import record_bytes, stall_bytes
from device_sides import SHAPES, Ours, Shape, batches
from device_stages import Bench, lookup_bytes, update_bytes
from device_timing import Replay
from one_thread import one_thread

__all__ = ["one_thread"]

SMALL = Shape(tables=3, rows=50, dim=16, batch=16, pooling=5)


def small_bench(seed: int = 0) -> Bench:
    return Bench(place_for_test(8, seed), dict.fromkeys(SHAPES, SMALL), count=2, copied=1 << 12)


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_torchs(seed: int) -> None:
    device_speed.assert_answers(SMALL, small_bench(seed))


def test_every_stage_runs_and_the_goals_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    assert device_speed.run(small_bench(), path, 1000)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert list(record["figures"]) == list(device_speed.STAGES)
    stages = record["figures"]
    numbers = {f"{stage}.{name}": value for stage in stages for name, value in stages[stage].items()}
    counted = [name for name, value in numbers.items() if value is None]
    assert {name.split(".")[1] for name in counted} == {"kernels", "kernel_names"}, "those of a GPU"
    differences = ("tracking.percent", "save.added_ms", "save.stalled_ms", "pinned.update_ms")
    others = [value for name, value in numbers.items() if name not in differences and value is not None]
    assert min(others) >= 0
    assert 100 < numbers["begin.saved_rows"] <= 3 * 50, "the rows that 240 ids meet"
    assert {f"{goal.stage}.{goal.figure}" for goal in device_goals.GOALS} <= numbers.keys()
    assert len(record["goals"]) == len(device_goals.GOALS)


def test_a_stage_that_fails_costs_its_own_figures(tmp_path: Path) -> None:
    def fails(_: Bench) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    stages: dict[str, tuple[device_speed.Stage, float]] = {
        "copy": (fails, 1),
        "large": (lambda _: {"times_torch": 5.0}, 1),
        "S1": (lambda _: {"kernels": 11}, 1),
        "S2": (lambda _: {"kernels": 10}, 1e9),
    }
    path = tmp_path / "speed.json"
    assert not device_speed.run(small_bench(), path, 100, stages)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["figures"]["copy"]["failed"] == "RuntimeError: out of memory"
    assert record["figures"]["S2"]["failed"].startswith("not run: ")
    judged = {goal["goal"]: (goal["measured"], goal["held"]) for goal in record["goals"]}
    assert judged["large: times_torch >= 3"] == (5.0, True)
    assert judged["S1: kernels <= 10"] == (11, False)
    assert judged["S2: kernels <= 10"] == (None, False)


def test_what_lasts_too_long_says_where(tmp_path: Path) -> None:
    """A kernel that never ends can't be interrupted: the process ends, with the figures written before."""
    script = f"""
import sys, time
sys.path[:0] = {[str(Path(device_speed.__file__).parent), str(Path(__file__).parent)]!r}
from pathlib import Path
import device_speed
from test_device_speed import small_bench
def hangs(bench):
    time.sleep(100)
bench = small_bench()
device_speed.run(bench, Path("speed.json"), 1000, {{"copy": (lambda bench: {{"gb_s": 1.0}}, 0)}})
device_speed.guarded(hangs, bench, 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "in hangs" in done.stderr
    assert json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["figures"]["copy"]["gb_s"] == 1.0


def test_shapes_of_the_benchmarks_on_the_cpu_have_their_ids() -> None:
    for name in ("S1", "S2", "S3"):
        shape, host = SHAPES[name], shapes.TIMED[name]
        assert (host.rows, host.dim) == ((shape.rows,) * shape.tables, shape.dim)
        assert (host.batch, host.pooling) == (shape.batch, shape.pooling)
        (ids,) = batches(shape, torch.device("cpu"), 1)
        assert torch.equal(ids, host.batches(1, seed=1)[0])


def test_tables_in_pinned_memory_train_to_the_same_bits() -> None:
    bench = small_bench()
    sides = [Ours(SMALL, bench.place, pinned=pinned) for pinned in (False, True)]
    for ids in bench.batches(SMALL, 3):
        a, b = (ours.step(ids).clone() for ours in sides)
        assert torch.equal(a, b)
    for ours in sides:
        ours.synchronize()
    for a, b in zip(sides[0].weights, sides[1].weights, strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_a_replay_is_a_step() -> None:
    bench = small_bench()
    ours = Ours(SMALL, bench.place)
    ids = bench.batches(SMALL, 1)[0]
    replay = Replay(bench.place, lambda: ours.step(ids))
    before = ours.native.step(bench.place.stream())
    for _ in range(3):
        replay()
    ours.synchronize()
    assert ours.native.step(bench.place.stream()) == before + 3


def test_bytes_are_those_that_must_move() -> None:
    assert lookup_bytes(SMALL) == 240 * (8 + 64) + 16 * 3 * 64
    ids = torch.arange(240) % 2  # two rows of each table
    keys = 240 * 8 * 2  # one pass: 150 rows in 8 bits
    assert update_bytes(SMALL, ids) == 16 * 3 * 64 + keys + 6 * 2 * (64 + 8)
    assert update_bytes(SHAPES["S1"], torch.zeros(SHAPES["S1"].ids, dtype=torch.int64)) > 0
    assert record_bytes(SMALL) == 16 + 64 + 16
    assert stall_bytes(SMALL, 10) == 150 * 8 + 10 * 2 * 96


def test_shapes_shrink_to_the_memory_that_there_is() -> None:
    large = SHAPES["large"]
    assert large.within(large.weight_bytes) == large
    assert large.within(large.weight_bytes - 1).rows == 5_000_000
