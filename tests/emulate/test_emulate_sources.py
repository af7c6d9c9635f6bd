from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cpr_native.data import kaggle_table_sizes
from cpr_native.emulate.sources import CriteoSource, GeneratedSource

SIZES = kaggle_table_sizes(1e-4)


def _line(index: int) -> str:
    dense = "\t".join(str((index * 7 + column) % 50) for column in range(13))
    categories = "\t".join(f"{(index * 31 + column) % 97:08x}" for column in range(26))
    return f"{index % 3 == 0:d}\t{dense}\t{categories}"


def _file(tmp_path: Path, *, damaged: int | None = None) -> Path:
    lines = [_line(index) for index in range(200)]
    if damaged is not None:
        lines[damaged] = "no sample"
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_generated_samples_are_split_90_to_10() -> None:
    source = GeneratedSource(samples=1000, table_sizes=SIZES, seed=3)
    assert source.train_samples == 900
    assert sum(len(batch) for batch in source.train(128)) == 900
    assert sum(len(batch) for batch in source.held_out(128)) == 100
    described = source.describe()
    assert (described["source"], described["train_samples"], described["held_out_samples"]) == (
        "generator",
        900,
        100,
    )
    assert described["rows"] == sum(SIZES)


def test_every_loader_of_a_source_gives_the_same_samples() -> None:
    source = GeneratedSource(samples=1000, table_sizes=SIZES)
    for one, other in zip(source.train(256), source.train(256), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.labels, other.labels)


def test_too_few_generated_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples must be at least 100, got 99"):
        GeneratedSource(samples=99, table_sizes=SIZES)


def test_lines_of_a_file_are_split_in_order(tmp_path: Path) -> None:
    source = CriteoSource(_file(tmp_path), table_sizes=SIZES)
    assert (source.train_samples, source.damaged) == (180, 0)
    labels = torch.cat([batch.labels for batch in source.held_out(7)])
    assert labels.tolist() == [float(index % 3 == 0) for index in range(180, 200)]
    assert source.describe()["lines"] == 200


def test_first_lines_only(tmp_path: Path) -> None:
    source = CriteoSource(_file(tmp_path), table_sizes=SIZES, lines=100)
    assert source.train_samples == 90
    assert sum(len(batch) for batch in source.held_out(64)) == 10


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    path = _file(tmp_path, damaged=4)
    source = CriteoSource(path, table_sizes=SIZES)
    assert (source.train_samples, source.damaged) == (179, 1)
    assert source.damaged_examples[0].startswith(f"{path}:5: ")
    assert source.describe()["damaged_lines"] == 1


def test_damaged_line_raises_on_request(tmp_path: Path) -> None:
    path = _file(tmp_path, damaged=190)
    with pytest.raises(ValueError, match=r"train\.txt:191: "):
        CriteoSource(path, table_sizes=SIZES, on_error="raise")


def test_too_short_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("\n".join(_line(index) for index in range(99)) + "\n")
    with pytest.raises(ValueError, match=r"short\.txt: at least 100 lines are needed, got 99"):
        CriteoSource(path, table_sizes=SIZES)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        CriteoSource(tmp_path / "absent.txt", table_sizes=SIZES)
    assert str(caught.value.filename) == str(tmp_path / "absent.txt")
