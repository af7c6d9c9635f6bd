"""The corpus of the fuzz target once more, and mutations of it that need no fuzzer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from campaigns.fuzz_corpus import seeds
from campaigns.fuzz_inputs import CORPUS, shown
from campaigns.fuzz_json import mutated

from cpr_native.store import segment_reader

INPUTS = [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def test_every_input_of_the_corpus_is_taken_or_refused(tmp_path: Path) -> None:
    taken = [data[:1] for data in INPUTS if shown(data, tmp_path)]
    assert {*taken} == {b"M", b"m", b"S", b"s"}
    assert len(taken) < len(INPUTS)


def test_what_is_written_today_is_taken(tmp_path: Path) -> None:
    made = seeds()
    assert len({data[:1] for data in made}) == 4
    assert sum(shown(data, tmp_path) for data in made) > len(made) / 2


def test_json_of_any_kind_behind_right_checksums_is_refused_or_right(tmp_path: Path) -> None:
    random = Random(1)
    candidates = [data for data in INPUTS if data[:1] in b"ms"]
    taken = 0
    for _ in range(4000):
        data = mutated(random.choice(candidates), random)
        if data is not None:
            taken += shown(data, tmp_path)
    assert 0 < taken < 2000


def test_a_reader_that_fails_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is no CorruptionError gets out, so the fuzzer sees it."""
    (data, *_) = (data for data in INPUTS if data[:1] == b"s" and shown(data, tmp_path))
    monkeypatch.setattr(segment_reader, "row_layout", lambda *_: {}["missing"])
    with pytest.raises(KeyError):
        shown(data, tmp_path)
