"""The start-up probe on local folders and URLs, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cluster.cluster_jobs import spec_of

from cpr_native.errors import CprError
from cpr_native.ray import probe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["", "file://"], ids=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}{tmp_path}/store"


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.internals, "own_address", lambda: "10.0.0.1")


def test_nodes_that_agree(store: str, tmp_path: Path) -> None:
    spec = spec_of(Path(store), shards=2) if "://" not in store else replace(spec_of(tmp_path), store=store)
    file = probe.ProbeFile(spec)
    found = [probe.look(spec, shard, file.nonce) for shard in range(2)]
    probe.check(found, file, spec.store)
    file.close(2)
    assert [path for path in (tmp_path / "store").iterdir() if path.is_file()] == []
    file.close(2)


def test_every_difference_is_named(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "store", shards=2)
    file = probe.ProbeFile(spec)
    good = probe.look(spec, 0, file.nonce)
    other = spec_of(tmp_path / "other", shards=2)
    absent = probe.look(other, 1, file.nonce)
    with pytest.raises(CprError, match=r"node 10\.0\.0\.1: store .*: FileNotFoundError"):
        probe.check([good, absent], file, spec.store)
    old = replace(good, versions={**good.versions, "cpr_native": "0.0.1"})
    with pytest.raises(CprError, match=r"cpr_native: expected .*, got 0\.0\.1"):
        probe.check([old], file, spec.store)
    with pytest.raises(CprError, match="it is another one than the driver's"):
        probe.check([replace(good, read="else")], file, spec.store)
    with pytest.raises(CprError, match="what it writes is not seen by the driver"):
        probe.check([good, good], file, spec.store)
