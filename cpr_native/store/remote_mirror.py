"""A remote checkpoint and the local folder that mirrors it: what reading needs is brought here first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpr_native.errors import CorruptionError, SchemaMismatchError
from cpr_native.store import files, naming
from cpr_native.store.manifest import MAX_MANIFEST_BYTES, Manifest, SegmentRecord, decode
from cpr_native.store.remote import Objects, connect
from cpr_native.store.remote_pull import Pulls, Wanted, chain_of, run_all


def default_cache(url: str) -> Path:
    """Returns the local folder of a URL: `cpr-native/<hash of the URL>` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "cpr-native" / hashlib.sha256(url.encode()).hexdigest()[:32]


def decoded(data: bytes, where: str) -> Manifest | None:
    """Returns a manifest; None for a damaged one."""
    try:
        return decode(np.frombuffer(data, np.uint8), Path(where))[0]
    except CorruptionError:
        return None


class Mirror:
    """The objects under `url` and the folder `cache`, which is a checkpoint directory like any other.

    All manifests are kept there, and the segments that were written or read here. The remote is the truth:
    what the folder alone has is a commit that was not reported, and is dropped once a newer writer has begun
    elsewhere. While a writer of this object is open the folder is ahead and nothing is looked up.
    """

    def __init__(self, url: str, cache: Path | None, options: Mapping[str, Any] | None) -> None:
        self.url = url.rstrip("/")
        self.cache = default_cache(self.url) if cache is None else cache
        self.writing = False
        self._options = options
        self._connected: tuple[int, Objects] | None = None

    @property
    def objects(self) -> Objects:
        """The connection of this process; a forked child makes its own."""
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = os.getpid(), connect(self.url, self._options)
        return self._connected[1]

    def local(self, name: str) -> Path:
        """Returns the local path of an object."""
        return self.cache / name

    def local_names(self, chain: str, folder: str) -> set[str]:
        """Returns the object names of the files in a folder of a chain."""
        return {
            f"{chain}/{folder}/{name}"
            for name in files.list_directory(naming.chain_path(self.cache, chain) / folder)
            if (parsed := naming.parse(name)) and parsed.what != "temporary"
        }

    def local_chains(self) -> set[str]:
        """Returns the chains that have a folder here."""
        shards = {f"{naming.SHARDS}/{name}" for name in files.list_directory(self.cache / naming.SHARDS)}
        return {chain for chain in {naming.GLOBAL, *shards} if chain_of(f"{chain}/x/y") is not None}

    def refresh(self, chains: Iterable[str] | None = None) -> dict[str, int]:
        """Brings the manifests of `chains` (None: all) here; returns the remote objects and their sizes.

        Raises SchemaMismatchError when the folder holds another run; OSError.
        """
        if self.writing:
            return {}
        wanted = None if chains is None else list(dict.fromkeys(chains))
        local = {
            name
            for chain in (self.local_chains() if wanted is None else wanted)
            for name in self.local_names(chain, naming.MANIFESTS)
        }
        # The global chain first: what its commits name was there before them.
        folders = (
            (naming.GLOBAL, naming.SHARDS)
            if wanted is None
            else [f"{chain}/{naming.MANIFESTS}" for chain in wanted]
        )
        sizes: dict[str, int] = {}
        for folder in folders:
            sizes |= self.objects.sizes(folder)
        remote = {
            name: chain
            for name in sizes
            if (chain := chain_of(name)) is not None
            and (parsed := naming.parse(name.rsplit("/", 1)[1]))
            and parsed.what == "manifest"
            and name == f"{chain}/{naming.MANIFESTS}/{naming.manifest_name(parsed.sequence)}"
        }
        self._bring(remote, local)
        return sizes

    def _bring(self, remote: Mapping[str, str], local: set[str]) -> None:
        newest: dict[str, str] = {}
        for name in sorted(remote):
            newest[remote[name]] = name
        heads = self._read(newest.values())
        stale = {chain for chain, name in newest.items() if self._differs(name, heads.get(name))}
        found = heads | self._read(
            name
            for name, chain in remote.items()
            if name not in heads and (name not in local or chain in stale)
        )
        self._check_run(found, local)
        pulls = Pulls(self.objects, self.cache)
        for name in sorted(found, key=lambda name: (remote[name] == naming.GLOBAL, name)):
            if self._differs(name, found[name]):
                self._drop(name, manifest=False)  # segments of another history under this number
                pulls.manifest(found[name], self.local(name))
        for chain in newest:
            self._drop_fenced(chain, found, local - remote.keys())

    def _read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns what is there: retention may remove a commit at any time."""
        names = list(names)

        def read(name: str) -> bytes | None:
            try:
                return self.objects.read(name)
            except FileNotFoundError:
                return None

        read_all = run_all([partial(read, name) for name in names])
        return {name: data for name, data in zip(names, read_all, strict=True) if data is not None}

    def _local_bytes(self, name: str) -> bytes | None:
        try:
            return files.read_file(self.local(name), MAX_MANIFEST_BYTES).tobytes()
        except CorruptionError:
            return None

    def _differs(self, name: str, data: bytes | None) -> bool:
        return data is not None and self._local_bytes(name) != data

    def _check_run(self, found: Mapping[str, bytes], local: set[str]) -> None:
        theirs = {m.run_id for name, data in found.items() if (m := decoded(data, name))}
        for name in sorted(local)[:1]:
            own = decoded(self._local_bytes(name) or b"", name)
            if own is not None and theirs - {own.run_id}:
                raise SchemaMismatchError(
                    f"{self.cache}: run id: expected {min(theirs)}, that of {self.url}, got {own.run_id}"
                )

    def _drop_fenced(self, chain: str, found: Mapping[str, bytes], alone: set[str]) -> None:
        """Drops commits that only the folder has when the remote has one of a later incarnation."""
        seen = [m.incarnation for n, d in found.items() if chain_of(n) == chain and (m := decoded(d, n))]
        for name in alone:
            if chain_of(name) == chain:
                own = decoded(self._local_bytes(name) or b"", name)
                if own is not None and own.incarnation < max(seen, default=0):
                    self._drop(name, manifest=True)

    def _drop(self, name: str, *, manifest: bool) -> None:
        chain = chain_of(name)
        own = naming.parse(name.rsplit("/", 1)[1])
        assert chain is not None
        assert own is not None
        if manifest:
            files.remove(self.local(name))
        for segment in self.local_names(chain, naming.SEGMENTS):
            parsed = naming.parse(segment.rsplit("/", 1)[1])
            if parsed and parsed.sequence == own.sequence:
                files.remove(self.local(segment))

    def fetch(self, wanted: Sequence[tuple[str, SegmentRecord]]) -> dict[tuple[str, str], CorruptionError]:
        """Brings segments of chains that are not here; returns which are damaged, by chain and file name.

        Raises OSError when the remote can't be read.
        """
        missing = [
            Wanted(name=f"{chain}/{naming.SEGMENTS}/{record.name}", record=record, target=path)
            for chain, record in wanted
            if not files.exists(path := naming.chain_path(self.cache, chain) / naming.SEGMENTS / record.name)
        ]
        if not missing:
            return {}
        damaged = Pulls(self.objects, self.cache).segments(missing)
        return {(str(chain_of(n)), n.rsplit("/", 1)[1]): error for n, error in damaged.items()}
