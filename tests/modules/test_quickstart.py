"""The quickstart runs, learns and recovers a shard."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(QUICKSTART))["main"]()
    printed = capsys.readouterr().out
    assert "mode='partial', shards=(3,)" in printed
    loss = re.search(r"loss (\d+\.\d+)", printed)
    assert loss
    assert float(loss[1]) < 0.2
