"""Every bit and every length of a small directory, exhaustively; random damage of a larger one."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import bit_flips, random_damage, truncations
from campaigns.tiny import files_of, restore, tiny_directory

from cpr_native.store import segment_reader


def test_v22_every_flipped_bit_is_found_and_never_applied() -> None:
    found = bit_flips.run(whole_every=16)
    assert found["unseen"] == []
    assert found["tried"] > 40_000
    assert found["undetected"] == 0


def test_v22_every_shortened_file_is_found_and_never_applied() -> None:
    found = truncations.run(whole_every=16)
    assert found["unseen"] == []
    assert found["tried"] > 5_000


def test_v22_random_damage_is_found_and_never_applied() -> None:
    found = random_damage.run(times=20)
    assert found["unseen"] == []
    assert found["tried"] > 600


def test_the_small_directory_is_small_and_has_files_of_all_kinds(tmp_path: Path) -> None:
    job = tiny_directory(tmp_path / "tiny")
    files = files_of(job.path)
    assert sum(file.stat().st_size for file in files) <= 8192
    kinds = {(file.parent.parent.name, file.parent.name) for file in files}
    assert len(kinds) == 4
    assert restore(job).state is not None


def test_a_reader_that_misses_damage_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader.OpenSegment, "check_crc", lambda *_: None)
    found = random_damage.run(times=3)
    assert 0 < found["undetected"] < found["tried"]
    assert all("segments" in message for message in found["unseen"])
