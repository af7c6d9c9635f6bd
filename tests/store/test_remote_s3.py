"""A remote checkpoint in a real S3 server on this machine (moto's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from remote_cases import files
from store_cases import PLACEMENT, SCHEMA, Model, restored

from cpr_native.cli import main
from cpr_native.errors import FencedError, NoCheckpointError
from cpr_native.store import CheckpointStore, inspect, remote, remote_s3, verify
from cpr_native.store.remote import Objects, connect


def test_saves_and_restores_on_another_machine(s3_bucket: str, tmp_path: Path) -> None:
    url, model = f"s3://{s3_bucket}/runs/a", Model()
    store = CheckpointStore(url, cache=tmp_path / "cache")
    assert str(store) == url
    with pytest.raises(NoCheckpointError, match="s3://"):
        store.latest()
    with store.writer(SCHEMA, PLACEMENT, keep=1) as writer:
        for kind in ("base", "delta", "priority", "base", "delta"):
            model.train_some()
            model.save(writer, kind)
    there = CheckpointStore(url, cache=tmp_path / "other")
    assert restored(there) == model.rows()
    assert [point.kind for point in there.points()] == ["delta", "base"]
    names = connect(url).sizes("global") | connect(url).sizes("shards")
    assert sorted(names) == files(tmp_path / "cache")
    assert verify(url) == []
    assert inspect(url).path == url


def test_second_writer_is_fenced_by_if_none_match(s3_bucket: str, tmp_path: Path) -> None:
    url, model = f"s3://{s3_bucket}/a", Model()
    with CheckpointStore(url, cache=tmp_path / "one").writer(SCHEMA, PLACEMENT) as first:
        model.save(first, "base")
        other = CheckpointStore(url, cache=tmp_path / "two")
        with other.writer(SCHEMA, PLACEMENT) as second:
            second.rollback(other.latest())
            model.train_some()
            with pytest.raises(FencedError, match="s3://"):
                model.save(first, "delta")
            model.save(second, "delta")
    assert restored(CheckpointStore(url, cache=tmp_path / "three")) == model.rows()


def test_exclusive_creation(s3_bucket: str, s3_options: dict[str, Any]) -> None:
    objects = connect(f"s3://{s3_bucket}", s3_options)
    assert isinstance(objects, remote_s3.S3Objects)
    objects.create("a", b"one")
    with pytest.raises(FileExistsError, match=f"s3://{s3_bucket}/a"):
        objects.create("a", b"two")
    assert objects.read("a") == b"one"
    assert objects.read("a", 1, 3) == b"ne"
    objects.remove("a")
    objects.remove("a")
    with pytest.raises(FileNotFoundError):
        objects.read("a")


def test_parts_are_sent_once_and_left_ones_are_dropped(
    s3_bucket: str, s3_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(remote_s3, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    source = tmp_path / "file"
    source.write_bytes(bytes(range(256)) * (12 * 2**12))
    objects = connect(f"s3://{s3_bucket}/x", s3_options)
    call, sent = objects.system.call_s3, []

    def broken(method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "upload_part":
            sent.append(kwargs["PartNumber"])
            if len(sent) == 2:
                raise ConnectionResetError(104, "reset")
        return call(method, *args, **kwargs)

    monkeypatch.setattr(objects.system, "call_s3", broken)
    with pytest.raises(OSError, match=f"reset.*s3://{s3_bucket}/x/big"):
        objects.upload("big", source)
    objects.upload("big", source)
    assert sent == [1, 2, 2, 3]
    assert objects.read("big") == source.read_bytes()
    with pytest.raises(FileExistsError):
        objects.upload("big", source)
    assert len(pending(objects, s3_bucket)) == 1  # the refused one, as a killed process leaves it
    connect(f"s3://{s3_bucket}", s3_options).abandon("x")
    assert pending(objects, s3_bucket) == []


def pending(objects: Objects, bucket: str) -> list[Any]:
    found: list[Any] = objects.system.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads") or []
    return found


def test_missing_bucket_and_server_are_errors(s3_options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="s3://no-such-bucket/a"):
        CheckpointStore("s3://no-such-bucket/a", cache=tmp_path / "x").writer(SCHEMA, PLACEMENT)
    s3_options["endpoint_url"] = "http://127.0.0.1:9"
    store = CheckpointStore("s3://b/a", cache=tmp_path / "y", storage_options=s3_options)
    with pytest.raises(OSError, match="s3://b/a"):
        store.latest()


def test_command_line(s3_bucket: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    url = f"s3://{s3_bucket}/a"
    with CheckpointStore(url).writer(SCHEMA, PLACEMENT) as writer:
        Model().save(writer, "base")
    assert main(["verify", url]) == 0
    assert capsys.readouterr().out == f"{url}: intact\n"
    assert main(["inspect", url]) == 0
    assert capsys.readouterr().out.startswith(f"{url}: run ")
    objects = connect(url)
    name = "shards/1/segments/000000000002-000.safetensors"
    data = bytearray(objects.read(name))
    data[-1] ^= 1
    objects.remove(name)
    objects.create(name, bytes(data))
    assert main(["verify", url]) == 1
    assert f"{url}/{name}: CRC-32C" in capsys.readouterr().err
