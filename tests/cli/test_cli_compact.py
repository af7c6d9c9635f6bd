from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, flip, history, restored, segment_path

from cpr_native.cli import main
from cpr_native.store import CheckpointStore, inspect, verify


def test_a_directory_is_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, seen = history(tmp_path)
    assert main(["compact", str(tmp_path), "--json", "--keep", "1"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["retention_error"] is None
    assert [(each["chain"], each["kind"], each["replaced"], each["commits"]) for each in made["folded"]] == [
        (f"shards/{shard}", "base", 5, 3) for shard in range(3)
    ]
    assert restored(store) == seen[3]
    assert verify(tmp_path) == []
    assert main(["compact", str(tmp_path)]) == 0
    assert "nothing to fold" in capsys.readouterr().out
    assert {commit.kind for commit in inspect(tmp_path).chains[1].commits} == {"base", "priority", "epoch"}


def test_a_table_tells_what_was_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path)
    assert main(["compact", str(tmp_path)]) == 0
    assert "shards/2" in capsys.readouterr().out


def test_an_open_writer_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, _ = history(tmp_path)
    with store.writer(SCHEMA, PLACEMENT):
        assert main(["compact", str(tmp_path)]) == 1
    assert "another writer of this process has the checkpoint directory open" in capsys.readouterr().err
    assert main(["compact", str(tmp_path / "shards")]) == 1
    assert "no intact manifest" in capsys.readouterr().err


def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history(tmp_path)
    flip(segment_path(tmp_path, "shards/1", 3))
    assert main(["compact", str(tmp_path), "--json"]) == 1
    assert "000000000003-000.safetensors" in capsys.readouterr().err
    assert CheckpointStore(tmp_path).latest().step == 1
