"""An S3 server on this machine (moto's) and a new bucket in it, for tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cpr_native.store import remote
from cpr_native.store.remote import connect


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_options(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.001)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return {"key": "testing", "secret": "testing", "endpoint_url": s3_server}


@pytest.fixture
def s3_bucket(s3_options: dict[str, Any], request: pytest.FixtureRequest) -> str:
    name = f"bucket{abs(hash(request.node.name))}"
    connect(f"s3://{name}", s3_options).system.mkdir(name)
    return name
