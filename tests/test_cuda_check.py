"""`make cuda-check` fails aloud without a GPU, and where a part fails, hangs or finds nothing to run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import cuda_check
import cuda_check_parts as parts
import pytest

from cpr_native import cuda

needs_no_gpu = pytest.mark.skipif(cuda.device_count() > 0, reason="this machine has a GPU")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cuda_check, parts):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    # The package that this test runs with stands for the one that was built.
    monkeypatch.setattr(parts, "SITE", Path(cuda.__file__).resolve().parent.parent)


@needs_no_gpu
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cuda_check.main([]) == 2
    assert "make cuda-check can't run here: " in capsys.readouterr().err
    assert not (tmp_path / "check.json").exists()


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "TOOLS", ("pytest", "no_such_tool"))
    assert cuda_check.what_is_missing().endswith("lacks no_such_tool")


def works(seconds: float) -> dict[str, float]:
    return {"limit": seconds}


def fails(seconds: float) -> dict[str, float]:
    raise parts.Failed("three rows differ")


def with_parts(monkeypatch: pytest.MonkeyPatch, **found: object) -> None:
    monkeypatch.setattr(cuda_check, "PARTS", {name: (work, 20.0) for name, work in found.items()})
    monkeypatch.setattr(cuda_check, "what_is_missing", lambda: "")
    monkeypatch.setattr(cuda_check, "machine", lambda: {"card": "none"})


def test_all_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_parts(monkeypatch, build=works, speed=lambda _: {"copy": 4, "S1": {"lookup_ms": 0.5, "kernels": 7}})
    assert cuda_check.main(["--seconds", "15"]) == 0
    record = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    assert record["machine"] == {"card": "none"}
    assert [(step["name"], step["ok"]) for step in record["steps"]] == [("build", True), ("speed", True)]
    assert record["steps"][0]["figures"]["limit"] == pytest.approx(15, abs=1), "the time that is left"
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].startswith("ok      build")
    assert lines[1].endswith("s  copy 4")
    assert lines[2] == "    S1: lookup_ms 0.5, kernels 7"


def test_one_failure_fails_the_check_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_parts(monkeypatch, build=works, tests=fails, speed=works)
    assert cuda_check.main([]) == 1
    steps = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["steps"]
    assert [step["ok"] for step in steps] == [True, False, True]
    assert "tests:\nthree rows differ\n" in capsys.readouterr().out


def test_without_a_build_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_parts(monkeypatch, build=fails, tests=works)
    assert cuda_check.main([]) == 1
    steps = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["steps"]
    assert (steps[1]["ok"], steps[1]["said"]) == (False, "not run: there is no build")


def test_parts_that_time_did_not_reach_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_parts(monkeypatch, build=works, tests=works)
    assert cuda_check.main(["--seconds", "5"]) == 1
    steps = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["steps"]
    assert [step["said"] for step in steps] == ["not run: the time is over", "not run: there is no build"]


def test_a_command_that_hangs_is_cut_short() -> None:
    with pytest.raises(parts.Failed, match="cut short after 1 s"):
        parts.run([sys.executable, "-c", "import time; time.sleep(60)"], log="hang", seconds=1)


def test_tests_run_without_the_suites_own_settings() -> None:
    """What tests/conftest.py imports isn't on a machine with a GPU."""
    counts = parts.run_tests("tests", 100, "-k", "test_ptx_runs_on_all_newer_gpus")
    assert counts == {"passed": 3, "skipped": 0}
    with pytest.raises(parts.Failed, match=r"no tests ran|deselected"):
        parts.run_tests("tests", 100, "-k", "no_test_has_this_name")


def test_memcheck_needs_the_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(parts.Failed, match="compute-sanitizer was not found"):
        parts.memcheck(10)


@needs_no_gpu
def test_a_load_that_does_not_run_is_a_failure() -> None:
    with pytest.raises(parts.Failed, match="the load did not begin"):
        parts.under_load(10)
