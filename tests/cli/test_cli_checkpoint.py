from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cpr_native.cli import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tiny = ["--samples", "1500", "--scale", "0.0001", "--batch-size", "128", "--shards", "2"]
    assert main(["emulate", *tiny, "--strategies", "ssu", "--checkpoints", str(folder), "--json"]) == 0
    return folder / "ssu"


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    copy = tmp_path / "ckpt"
    shutil.copytree(saved, copy)
    capsys.readouterr()
    return copy


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _segment(checkpoint: Path) -> Path:
    return max((checkpoint / "shards").rglob("*.safetensors"), key=lambda path: path.stat().st_size)


def test_intact_checkpoint_verifies(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(checkpoint)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{checkpoint}: intact\n", "")


def test_intact_checkpoint_verifies_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(checkpoint), "intact": True, "problems": []}


def test_flipped_bit_is_found_and_the_file_named(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = _segment(checkpoint)
    _flip_a_bit(damaged)
    assert main(["verify", str(checkpoint)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert str(damaged) in captured.err
    assert main(["verify", str(checkpoint), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["intact"] is False
    assert str(damaged) in found["problems"][0]


def test_missing_segment_is_found(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = _segment(checkpoint)
    missing.unlink()
    assert main(["verify", str(checkpoint)]) == 1
    assert str(missing) in capsys.readouterr().err


def test_damaged_manifest_is_found_by_inspect(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = max((checkpoint / "global" / "manifests").iterdir())
    _flip_a_bit(damaged)
    assert main(["inspect", str(checkpoint)]) == 1
    captured = capsys.readouterr()
    assert str(damaged) in captured.err
    assert "26 tables" in captured.out


def test_inspect_shows_tables_saves_and_shards(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "26 tables" in captured.out
    assert "2 shards, placement contiguous_rows" in captured.out
    assert "shards/0" in captured.out
    assert "shards/1" in captured.out
    assert "priority" in captured.out
    assert "the newest 8" in captured.out
    assert main(["inspect", str(checkpoint), "--all"]) == 0
    assert "the newest 8" not in capsys.readouterr().out


def test_inspect_prints_everything_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    loaded = json.loads(capsys.readouterr().out)
    assert loaded["placement"]["shards"] == 2
    assert len(loaded["schema"]["tables"]) == 26
    assert loaded["problems"] == []
    assert [chain["chain"] for chain in loaded["chains"]] == ["global", "shards/0", "shards/1"]
    assert "priority" in {commit["kind"] for commit in loaded["chains"][0]["commits"]}


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_folder_without_a_checkpoint_is_found_bad(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(tmp_path) in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_folder_that_does_not_exist_is_wrong_use(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "/nonexistent/ckpt"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"cpr-native {command}: error: Invalid value for 'CKPT'")
    assert "/nonexistent/ckpt" in err
