"""Files made to mislead, with right checksums: refused and named, nothing applied, the older point taken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns.fuzz_inputs import crc
from campaigns.tiny import Tiny, restore, tiny_directory

from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, verify

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("made") / "c").path


@pytest.fixture
def job(made: Path, tmp_path: Path) -> Tiny:
    return Tiny(Path(shutil.copytree(made, tmp_path / "c")))


def newest(job: Tiny, chain: str = "shards/0") -> Path:
    return job.path / chain / "manifests" / "000000000003.json"


def segment(job: Tiny, chain: str = "shards/0") -> Path:
    return job.path / chain / "segments" / "000000000003-000.safetensors"


def sealed(text: bytes) -> bytes:
    return text + b"crc32c %08x\n" % crc(text)


def relink(job: Tiny) -> None:
    """Makes the global commit name the shard's commit as it is now."""
    body = json.loads(newest(job, "global").read_bytes()[:-16])
    body["commits"]["0"]["crc32c"] = newest(job).read_bytes()[-9:-1].decode()
    newest(job, "global").write_bytes(sealed(json.dumps(body).encode() + b"\n"))


def check_refused(job: Tiny, path: Path, older: bytes | None) -> None:
    """`path` is named by verify and by the restore, which gives the base."""
    assert any(str(path) in problem for problem in verify(job.path)), verify(job.path)
    found = restore(job)
    assert found.state == older
    assert str(path) in found.said


@pytest.fixture
def older(job: Tiny, tmp_path: Path) -> bytes | None:
    """What the base gives."""
    copy = Tiny(Path(shutil.copytree(job.path, tmp_path / "older")))
    for chain in ("global", "shards/0"):
        newest(copy, chain).unlink()
    return restore(copy).state


MANIFESTS: dict[str, Change] = {
    "later version": lambda m: m.update(format_version=99),
    "earlier version": lambda m: m.update(format_version=0),
    "version of another type": lambda m: m.update(format_version=True),
    "missing field": lambda m: m.pop("step"),
    "foreign field": lambda m: m.update(extra=1),
    "huge step": lambda m: m.update(step=10**40),
    "negative samples": lambda m: m.update(samples=-1),
    "float step": lambda m: m.update(step=2.0),
    "kind": lambda m: m.update(kind="full"),
    "kind of another type": lambda m: m.update(kind=["base"]),
    "another run": lambda m: m.update(run_id="other"),
    "another chain": lambda m: m.update(chain="shards/1"),
    "chain that leads out": lambda m: m.update(chain="../../etc"),
    "another sequence": lambda m: m.update(sequence=2),
    "parent after it": lambda m: m["parent"].update(sequence=4),
    "parent of another type": lambda m: m.update(parent=[1, 2]),
    "crc in capitals": lambda m: m["parent"].update(crc32c="ABCDEF01"),
    "segments of another type": lambda m: m.update(segments={"0": m["segments"][0]}),
    "segment that leads out": lambda m: m["segments"][0].update(name="../../../etc/passwd"),
    "segment by an absolute path": lambda m: m["segments"][0].update(name="/etc/passwd"),
    "segment of another commit": lambda m: m["segments"][0].update(name="000000000002-000.safetensors"),
    "segment with a null in its name": lambda m: m["segments"][0].update(
        name="000000000003-000\0.safetensors"
    ),
    "huge segment": lambda m: m["segments"][0].update(size=2**63),
    "rows of another type": lambda m: m["segments"][0].update(rows=[["t", 1]]),
    "rows of a foreign table": lambda m: m["segments"][0].update(rows={"t": 1, "u": 1}),
    "huge count of rows": lambda m: m["segments"][0].update(rows={"t": 2**61}),
    "negative count of rows": lambda m: m["segments"][0].update(rows={"t": -1}),
    "more rows": lambda m: m["schema"]["tables"][0].update(rows=2**61),
    "other optimizer": lambda m: m["schema"].update(optimizer="adam"),
    "no tables": lambda m: m["schema"].update(tables=[]),
    "table twice": lambda m: m["schema"].update(tables=m["schema"]["tables"] * 2),
    "placement of a foreign table": lambda m: m["placement"]["blocks"].update(u=1),
    "no shards": lambda m: m["placement"].update(shards=0),
    "engine of another type": lambda m: m.update(engine=[]),
    "blobs of another type": lambda m: m.update(blobs=[1]),
    "deep nesting": lambda m: m.update(info={"deep": 0}),
}


def encoded(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False)
    text = text.replace(
        '{"deep": 0}', '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    )  # too deep to be encoded
    return text.encode("utf-8", "surrogatepass") + b"\n"


@pytest.mark.parametrize("what", MANIFESTS)
def test_v22_a_misleading_manifest_is_refused(job: Tiny, older: bytes | None, what: str) -> None:
    body = json.loads(newest(job).read_bytes()[:-16])
    MANIFESTS[what](body)
    newest(job).write_bytes(sealed(encoded(body)))
    relink(job)
    path = segment(job) if "rows" in what and ("foreign" in what or "huge" in what) else newest(job)
    check_refused(job, path, older)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null\n", b"[]\n", b'"x"\n', b"{\n", b"\xff\xfe{}\n", b'{"a": 1, "a": 2}\n', b"NaN\n",
        b"1e999\n", b"\0" * 64, b"[" * 200_000, b'{"format_version": 1}\n', b"9" * 10_000,
    ],
    ids=range(13),
)  # fmt: skip
def test_v22_a_manifest_that_is_none_is_refused(job: Tiny, older: bytes | None, text: bytes) -> None:
    newest(job).write_bytes(sealed(text))
    relink(job)
    check_refused(job, newest(job), older)


def test_v22_a_repeated_key_or_nan_in_a_right_manifest_is_refused(job: Tiny, older: bytes | None) -> None:
    good = newest(job).read_bytes()[:-16]
    for bad in (
        good.replace(b'"step": 2', b'"step": 2, "step": 2'),
        good.replace(b'"engine": {}', b'"engine": {"a": NaN}'),
        good.replace(b'"engine": {}', b'"engine": {"a": -Infinity}'),
    ):
        assert bad != good
        newest(job).write_bytes(sealed(bad))
        relink(job)
        check_refused(job, newest(job), older)


@pytest.mark.parametrize("which", ["manifest", "segment"])
@pytest.mark.parametrize("thing", ["link", "pipe", "directory", "missing", "other run", "older file"])
def test_v22_what_is_no_file_of_this_commit_is_refused(
    job: Tiny, older: bytes | None, tmp_path: Path, which: str, thing: str
) -> None:
    path = newest(job) if which == "manifest" else segment(job)
    moved = path.rename(tmp_path / "moved")
    if thing == "link":
        path.symlink_to(moved)
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing == "directory":
        path.mkdir()
    elif thing == "other run":
        other = Tiny(tmp_path / "other")
        with CheckpointStore(other.path).writer(other.schema, other.placement, run_id="other") as writer:
            other.save(writer, "base", 5)
            other.save(writer, "delta", 6, [0, 1])
        shutil.copy(other.path / path.relative_to(job.path), path)
    elif thing == "older file":
        shutil.copy(path.with_name(path.name.replace("000000000003", "000000000002")), path)
    check_refused(job, path, older)


def test_v22_swapped_files_are_refused(job: Tiny) -> None:
    for folder in ("manifests", "segments"):
        first, second = sorted((job.path / "shards/0" / folder).iterdir())[-2:]
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
        assert {str(first), str(second)} <= {
            word.rstrip(":") for problem in verify(job.path) for word in problem.split()
        }
        with pytest.raises(NoCheckpointError):
            CheckpointStore(job.path).latest()
        first.write_bytes(one)
        second.write_bytes(two)
    assert verify(job.path) == []
