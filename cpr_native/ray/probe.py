"""Start-up probe: does every node of a run see the same checkpoint directory, and run the same versions?"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ray

from cpr_native import __version__
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.errors import CprError
from cpr_native.ray import internals
from cpr_native.store.remote import connect, is_url

_PREFIX = ".probe-"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a node found: its address, versions, and the text that it read in the driver's file."""

    address: str
    versions: dict[str, str]
    read: str | None
    error: str | None


def versions() -> dict[str, str]:
    """Return the versions that must agree on all nodes."""
    return {
        "cpr_native": __version__,
        "ray": ray.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
    }


class ProbeFile:
    """A small file in the checkpoint directory that the driver writes and every node reads and answers.

    Raises OSError when the directory can't be written.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self.nonce = uuid.uuid4().hex
        self._write("asks", self.nonce)

    def _name(self, which: str) -> str:
        return f"{_PREFIX}{self.nonce}-{which}"

    def _write(self, which: str, text: str) -> None:
        write(self._spec, self._name(which), text)

    def answered(self, shard: int) -> bool:
        """Whether the answer of the node of `shard` is seen here."""
        try:
            return read(self._spec, self._name(str(shard))) == self.nonce
        except FileNotFoundError:
            return False

    def close(self, shards: int) -> None:
        """Remove the file and all answers."""
        for which in ("asks", *map(str, range(shards))):
            remove(self._spec, self._name(which))


def write(spec: ClusterSpec, name: str, text: str) -> None:
    """Write a small object beside the chains of the checkpoint directory; raises OSError."""
    if is_url(spec.store):
        connect(spec.store, spec.storage_options).create(name, text.encode())
    else:
        folder = Path(spec.store)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="ascii")


def read(spec: ClusterSpec, name: str) -> str:
    """Return what `write` wrote; raises FileNotFoundError, OSError."""
    if is_url(spec.store):
        return connect(spec.store, spec.storage_options).read(name).decode()
    return (Path(spec.store) / name).read_text(encoding="ascii")


def remove(spec: ClusterSpec, name: str) -> None:
    """Remove what `write` wrote, if it is there."""
    try:
        if is_url(spec.store):
            connect(spec.store, spec.storage_options).remove(name)
        else:
            (Path(spec.store) / name).unlink()
    except FileNotFoundError:
        pass


def look(spec: ClusterSpec, shard: int, nonce: str) -> Finding:
    """Read the driver's file on this node and answer it; what goes wrong is in the finding."""
    text, failed = None, None
    try:
        text = read(spec, f"{_PREFIX}{nonce}-asks")
        write(spec, f"{_PREFIX}{nonce}-{shard}", nonce)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    return Finding(address=internals.own_address(), versions=versions(), read=text, error=failed)


def check(found: Sequence[Finding], file: ProbeFile, store: object) -> None:
    """Raise CprError, naming every node and what differs there, unless all agree with this process."""
    expected, problems = versions(), []
    for shard, finding in enumerate(found):
        where = f"node {finding.address}"
        if finding.error is not None:
            problems.append(f"{where}: store {store}: {finding.error}")
        elif finding.read != file.nonce:
            problems.append(f"{where}: store {store}: it is another one than the driver's")
        elif not file.answered(shard):
            problems.append(f"{where}: store {store}: what it writes is not seen by the driver")
        for name, version in expected.items():
            if finding.versions[name] != version:
                problems.append(f"{where}: {name}: expected {version}, got {finding.versions[name]}")
    if problems:
        raise CprError("; ".join(problems))
