"""A remote checkpoint in a real S3 server on this machine (moto's)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from remote_cases import files
from store_cases import PLACEMENT, SCHEMA, Model, restored

from cpr_native.errors import FencedError, NoCheckpointError
from cpr_native.store import CheckpointStore, inspect, remote, remote_s3, verify
from cpr_native.store.remote import Objects, connect


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def options(server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.001)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return {"key": "testing", "secret": "testing", "endpoint_url": server}


@pytest.fixture
def bucket(options: dict[str, Any], request: pytest.FixtureRequest) -> str:
    name = "b" + str(abs(hash(request.node.name)))
    connect(f"s3://{name}", options).system.mkdir(name)
    return name


def test_saves_and_restores_on_another_machine(bucket: str, tmp_path: Path) -> None:
    url, model = f"s3://{bucket}/runs/a", Model()
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


def test_second_writer_is_fenced_by_if_none_match(bucket: str, tmp_path: Path) -> None:
    url, model = f"s3://{bucket}/a", Model()
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


def test_exclusive_creation(bucket: str, options: dict[str, Any]) -> None:
    objects = connect(f"s3://{bucket}", options)
    assert isinstance(objects, remote_s3.S3Objects)
    objects.create("a", b"one")
    with pytest.raises(FileExistsError, match=f"s3://{bucket}/a"):
        objects.create("a", b"two")
    assert objects.read("a") == b"one"
    assert objects.read("a", 1, 3) == b"ne"
    objects.remove("a")
    objects.remove("a")
    with pytest.raises(FileNotFoundError):
        objects.read("a")


def test_parts_are_sent_once_and_left_ones_are_dropped(
    bucket: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(remote_s3, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    source = tmp_path / "file"
    source.write_bytes(bytes(range(256)) * (12 * 2**12))
    objects = connect(f"s3://{bucket}/x", options)
    call, sent = objects.system.call_s3, []

    def broken(method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "upload_part":
            sent.append(kwargs["PartNumber"])
            if len(sent) == 2:
                raise ConnectionResetError(104, "reset")
        return call(method, *args, **kwargs)

    monkeypatch.setattr(objects.system, "call_s3", broken)
    with pytest.raises(OSError, match=f"reset.*s3://{bucket}/x/big"):
        objects.upload("big", source)
    objects.upload("big", source)
    assert sent == [1, 2, 2, 3]
    assert objects.read("big") == source.read_bytes()
    with pytest.raises(FileExistsError):
        objects.upload("big", source)
    assert len(pending(objects, bucket)) == 1  # the refused one, as a killed process leaves it
    connect(f"s3://{bucket}", options).abandon("x")
    assert pending(objects, bucket) == []


def pending(objects: Objects, bucket: str) -> list[Any]:
    found: list[Any] = objects.system.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads") or []
    return found


def test_missing_bucket_and_server_are_errors(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="s3://no-such-bucket/a"):
        CheckpointStore("s3://no-such-bucket/a", cache=tmp_path / "x").writer(SCHEMA, PLACEMENT)
    options["endpoint_url"] = "http://127.0.0.1:9"
    store = CheckpointStore("s3://b/a", cache=tmp_path / "y", storage_options=options)
    with pytest.raises(OSError, match="s3://b/a"):
        store.latest()
