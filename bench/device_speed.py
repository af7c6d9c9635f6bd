"""Speed of the CUDA engine on the GPU of this machine, beside its copy bandwidth and torch.

    python bench/device_speed.py OUT.json [--seconds 110]

`make cuda-check` runs it. Answers are compared with torch's before anything is timed. The stages follow each
other, the most telling first; after each, OUT.json has its figures, those of the stages before and what they
say of the goals (`device_goals.py`). A stage that fails is named there and the next one runs; where the time
is over, the traceback of what ran is printed. The exit status is 1 unless every stage ran.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from device_goals import judge
from device_saves_speed import begin, save
from device_sides import SHAPES, Ours, Shape, Torchs, batches
from device_stages import Bench, copy, pinned, shape_stage, tracking

from cpr_native.device.place import place_of

Stage = Callable[[Bench], dict[str, Any]]
# With the seconds that there must be left for it to begin.
STAGES: dict[str, tuple[Stage, float]] = {
    "copy": (copy, 5),
    "large": (shape_stage("large"), 20),
    **{name: (shape_stage(name), 8) for name in ("S1", "S2", "S3")},
    "tracking": (tracking, 10),
    "begin": (begin, 15),
    "save": (save, 10),
    "pinned": (pinned, 10),
}
CHECKED = Shape(tables=3, rows=1000, dim=16, batch=64, pooling=5)


def assert_answers(shape: Shape, bench: Bench) -> None:
    """Two steps of ours and of torch from the same rows end in the same rows, to rounding."""
    ours, theirs = Ours(shape, bench.place), Torchs(shape, bench.place.torch_device)
    ours.synchronize()
    with torch.no_grad():
        for bag, weight in zip(theirs.bags, ours.weights, strict=True):
            bag.weight.copy_(weight)
    for ids in batches(shape, bench.place.torch_device, 2):
        expected, found = theirs.step(ids), ours.step(ids)
        ours.synchronize()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for bag, weight in zip(theirs.bags, ours.weights, strict=True):
        torch.testing.assert_close(weight, bag.weight.detach(), rtol=1e-4, atol=1e-5)
    assert ours.native.step(bench.place.stream()) == 2


def run(bench: Bench, path: Path, seconds: float, stages: dict[str, tuple[Stage, float]] = STAGES) -> bool:
    """Run the stages within `seconds`; returns whether all did."""
    end = time.monotonic() + seconds
    figures: dict[str, dict[str, Any]] = {}
    for name, (stage, least) in stages.items():
        left = end - time.monotonic()
        if left < least:
            figures[name] = {"failed": f"not run: {max(left, 0):.0f} s were left of {seconds:.0f}"}
        else:
            figures[name] = guarded(stage, bench, left)
        bench.figures = figures
        path.write_text(json.dumps({"figures": figures, "goals": judge(figures)}) + "\n", encoding="utf-8")
    return not any("failed" in found for found in figures.values())


def guarded(stage: Stage, bench: Bench, seconds: float) -> dict[str, Any]:
    """Run one stage; the process ends with tracebacks if it lasts longer. Its memory is free again after."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    begun = time.monotonic()
    try:
        found = stage(bench)
    except Exception as error:  # a stage that has no memory, say, costs its own figures alone
        found = {"failed": f"{type(error).__name__}: {error}"[:500]}
    finally:
        faulthandler.cancel_dump_traceback_later()
    bench.free()
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def main(arguments: list[str]) -> int:
    """Compare the answers, then run the stages on the first GPU."""
    parser = argparse.ArgumentParser(description="Measure the CUDA engine on the first GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=110.0, help="of all stages together (default 110)")
    options = parser.parse_args(arguments)
    place = place_of("cuda:0")
    assert place is not None
    bench = Bench(place, SHAPES)
    assert_answers(CHECKED, bench)
    return 0 if run(bench, options.out, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
