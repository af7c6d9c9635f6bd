"""`make cuda-check` fails aloud without a GPU, and where a part fails, hangs or finds nothing to run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_a_tool_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {
        "pytest": (8, 2),
        "no-such-tool": (1,),
        "numpy": (99, 1),
    }
    monkeypatch.setattr(cuda_check, "TOOLS", tools)
    monkeypatch.setattr(cuda_check, "COMMANDS", {"no_such_command": "", "neither": "pytest"})
    assert cuda_check.what_is_missing().endswith("lacks no-such-tool, numpy 99.1 or newer, no_such_command")


def test_commands_that_are_not_there_answer_nothing() -> None:
    assert cuda_check.answer("no_such_command", "--version") == ""
    assert cuda_check.answer(sys.executable, "-c", "raise SystemExit(1)") == ""
    assert cuda_check.answer(sys.executable, "-c", "print(5)") == "5"


def works(seconds: float) -> dict[str, Any]:
    return {"limit": seconds}


def fails(seconds: float) -> dict[str, Any]:
    raise parts.Failed("three rows differ", {"passed": 7})


def with_parts(monkeypatch: pytest.MonkeyPatch, least: float = 5.0, **found: Any) -> None:
    made = {name: parts.Part(work, 20.0, least) for name, work in found.items()}
    monkeypatch.setattr(cuda_check, "PARTS", made)
    monkeypatch.setattr(cuda_check, "what_is_missing", lambda: "")
    monkeypatch.setattr(cuda_check, "machine", lambda: {"card": "none"})


def steps_of(folder: Path) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads((folder / "check.json").read_text(encoding="utf-8"))["steps"]
    return steps


def test_all_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goals = [
        {"goal": "S1: kernels <= 10", "measured": 7, "held": True},
        {"goal": "S2: kernels <= 10", "measured": 12, "held": False},
        {"goal": "S3: kernels <= 10", "measured": None, "held": False},
    ]
    found = {"copy": 4, "S1": {"lookup_ms": 0.5, "kernels": 7}, "goals": goals}
    with_parts(monkeypatch, build=works, speed=lambda _: found)
    assert cuda_check.main(["--seconds", "20"]) == 0, "a goal that was missed is no failure"
    assert [(step["name"], step["ok"]) for step in steps_of(tmp_path)] == [("build", True), ("speed", True)]
    lines = capsys.readouterr().out.splitlines()[-6:]
    assert lines[0].startswith("ok      build")
    assert lines[1].endswith("s  copy 4")
    assert lines[2] == "    S1: lookup_ms 0.5, kernels 7"
    assert [line.split()[0] for line in lines[3:]] == ["held", "MISSED", "NOT"]


def test_a_part_leaves_time_for_those_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_parts(monkeypatch, build=works, tests=works, speed=works)
    assert cuda_check.main(["--seconds", "28"]) == 0
    limits = [step["figures"]["limit"] for step in steps_of(tmp_path)]
    assert limits == [pytest.approx(18, abs=1), pytest.approx(20, abs=1), pytest.approx(20, abs=1)]


def test_one_failure_fails_the_check_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_parts(monkeypatch, build=works, tests=fails, speed=works)
    assert cuda_check.main([]) == 1
    steps = steps_of(tmp_path)
    assert [step["ok"] for step in steps] == [True, False, True]
    assert steps[1]["figures"] == {"passed": 7}
    assert "tests:\nthree rows differ\n" in capsys.readouterr().out


def test_what_was_found_stays_when_the_rest_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(seconds: float) -> dict[str, Any]:
        raise KeyboardInterrupt

    with_parts(monkeypatch, build=works, tests=fails, speed=interrupted)
    with pytest.raises(KeyboardInterrupt):
        cuda_check.main([])
    assert [step["name"] for step in steps_of(tmp_path)] == ["build", "tests"]


def test_without_a_build_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_parts(monkeypatch, build=fails, tests=works)
    assert cuda_check.main([]) == 1
    step = steps_of(tmp_path)[1]
    assert (step["ok"], step["said"]) == (False, "not run: there is no build")


def test_parts_that_time_did_not_reach_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_parts(monkeypatch, build=works, tests=works)
    assert cuda_check.main(["--seconds", "4"]) == 1
    said = [step["said"] for step in steps_of(tmp_path)]
    assert said == ["not run: 4 s were left", "not run: there is no build"]


def test_a_command_that_hangs_is_cut_short_and_its_words_are_kept() -> None:
    script = "import time; print('step 3'); time.sleep(60)"
    with pytest.raises(parts.Failed, match=r"cut short after 1 s, see .*hang\.log\nstep 3"):
        parts.run([sys.executable, "-c", script], log="hang", seconds=1)


ONE_FILE = [str(parts.TESTS / "device" / "test_cuda_module.py")]


def test_tests_run_without_the_suites_own_settings() -> None:
    """What tests/conftest.py imports isn't on a machine with a GPU."""
    counts = parts.run_tests("tests", 100, ONE_FILE, "-k", "test_ptx_runs_on_all_newer_gpus")
    assert counts == {"passed": 3, "skipped": 0}
    assert parts.run_tests("tests", 100, ONE_FILE, "-k", "no_test_has_this_name")["passed"] == 0


def test_every_file_runs_and_one_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    files = [tmp_path / name for name in ("test_good.py", "test_bad.py", "test_none.py")]
    bodies = ("def test_same(): pass\ndef test_other(): pass", "def test_same(): assert 1 == 2", "")
    for file, body in zip(files, bodies, strict=True):
        file.write_text(body + "\n", encoding="utf-8")
    monkeypatch.setattr(parts, "files_of_tests", lambda: files)
    with pytest.raises(parts.Failed, match=r"(?s)^test_bad\.py: .*assert 1 == 2") as raised:
        parts.run_files("all", 100)
    assert raised.value.figures == {"passed": 2, "skipped": 0, "failed_files": 1}
    files.remove(files[1])
    assert parts.run_files("all", 100, "-k", "same") == {"passed": 1, "skipped": 0}
    with pytest.raises(parts.Failed, match="no test ran on the GPU"):
        parts.run_files("all", 100, "-k", "no_test_has_this_name")


def test_every_test_of_devices_can_be_collected_there() -> None:
    """A machine with a GPU has what the files import, and no name of a test that is checked went stale."""
    files = parts.files_of_tests()
    assert {file.parent.name for file in files} >= {"device"}
    absent = ["ray", "moto", "s3fs", "torchrec", "fbgemm_gpu", "torchdata"]
    script = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    script += "; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    checked = [str(parts.TESTS / "device" / test) for test in parts.MEMCHECKED]
    for folder in sorted({file.parent for file in files}):
        chosen = [str(file) for file in files if file.parent == folder]
        chosen += checked if folder.name == "device" else []
        command = [sys.executable, "-P", "-c", script, "--collect-only", *parts.settings_of(chosen), *chosen]
        done = parts.run(command, log="collect", seconds=100, environment={"CPR_TEST_DEVICE": "cuda"})
        assert done.returncode == 0, done.stdout


def test_memcheck_needs_a_sanitizer_that_can_use_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(parts.Failed, match="compute-sanitizer was not found"):
        parts.memcheck(10)
    fake = tmp_path / "compute-sanitizer"
    fake.write_text("#!/bin/sh\necho '========= Error: Device not supported.'\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(fake))
    with pytest.raises(parts.Failed, match="can't use this machine's GPU: Error: Device not supported"):
        parts.memcheck(10)


@pytest.mark.parametrize("status", [0, 1])
def test_figures_of_a_benchmark_that_failed_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    record = {"figures": {"copy": {"gb_s": 4}}, "goals": [{"goal": "g", "measured": 1, "held": True}]}

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[2]).write_text(json.dumps(record), encoding="utf-8")
        return subprocess.CompletedProcess(command, status, "out of memory", "")

    monkeypatch.setattr(parts, "run", run)
    expected = {"copy": {"gb_s": 4}, "goals": record["goals"]}
    if status == 0:
        assert parts.speed(60) == expected
        return
    with pytest.raises(parts.Failed, match="out of memory") as raised:
        parts.speed(60)
    assert raised.value.figures == expected


@needs_no_gpu
def test_a_load_that_does_not_run_is_a_failure() -> None:
    with pytest.raises(parts.Failed, match="the load did not begin"):
        parts.under_load(10)
