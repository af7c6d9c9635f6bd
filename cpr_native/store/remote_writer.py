"""The writer's side of a remote checkpoint: uploads in the background, manifests last, one writer wins."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from cpr_native.errors import CorruptionError, FencedError, LockedError
from cpr_native.store import files, naming
from cpr_native.store.background import Workers
from cpr_native.store.manifest import MAX_MANIFEST_BYTES, Manifest, SegmentRecord
from cpr_native.store.remote import Objects, file_size
from cpr_native.store.remote_mirror import Mirror, decoded
from cpr_native.store.remote_pull import Pulls, chain_of, crc32c

_UPLOADS = 4  # segments at a time


class RemoteWriter:
    """Keeps the objects of a mirror up with its folder; `chains`: those written, None for all.

    `publish` returns when the remote has a commit: what it names was there before. A commit that could not be
    uploaded is uploaded before the next one of its chain. Thread-safe. Making it brings all manifests here
    and uploads the commits that only the folder has. Raises OSError, FencedError.
    """

    def __init__(self, mirror: Mirror, chains: Sequence[str] | None = None) -> None:
        if mirror.writing:
            raise LockedError(f"{mirror.url}: this store object has a writer already")
        self._mirror = mirror
        self.fetch = mirror.fetch
        self._objects: Objects = mirror.objects
        self._incarnation = 0
        self._chains = None if chains is None else set(chains)
        self._known = mirror.refresh() if chains is None else mirror.refresh([naming.GLOBAL, *chains])
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._uploads: dict[str, Future[None]] = {}
        self._pending: dict[str, list[Manifest]] = {}
        self._opening = True
        self._workers = Workers(_UPLOADS)
        try:
            for chain in self._own_chains():
                self._known |= self._objects.sizes(chain) if chains is not None else {}
                self._push_alone(chain)
        except BaseException:
            self._workers.close()
            raise
        mirror.writing = chains is None

    def _own_chains(self) -> list[str]:
        """Returns the chains written, the global one last."""
        chains = self._mirror.local_chains()
        if self._chains is not None:
            chains &= self._chains
        return sorted(chains, key=lambda chain: (chain == naming.GLOBAL, chain))

    def _push_alone(self, chain: str) -> None:
        for name in sorted(self._mirror.local_names(chain, naming.MANIFESTS) - self._known.keys()):
            manifest = decoded(self._manifest_bytes(name), name)
            if manifest is not None:
                self.publish(chain, manifest)

    def opened(self) -> None:
        """Told when all chains have their epoch, which fences older writers: removes what those have left."""
        self._opening = False
        Pulls(self._objects, self._mirror.cache).clean()
        for chain in self._own_chains():
            self._objects.abandon(chain)
        self.sweep()

    def used(self, chain: str) -> int:
        """Returns the highest sequence number of an object of a chain."""
        parsed = [naming.parse(n.rsplit("/", 1)[1]) for n in list(self._known) if chain_of(n) == chain]
        return max((p.sequence for p in parsed if p), default=0)

    def sealed(self, chain: str, record: SegmentRecord) -> None:
        """Told that a segment is durable here: its upload begins."""
        self._upload(chain, record)

    def _upload(self, chain: str, record: SegmentRecord) -> Future[None]:
        name = f"{chain}/{naming.SEGMENTS}/{record.name}"
        with self._guard:
            if name not in self._uploads:
                self._uploads[name] = self._workers.submit(partial(self._send, name, record))
            return self._uploads[name]

    def _send(self, name: str, record: SegmentRecord) -> None:
        path = self._mirror.local(name)
        try:
            if file_size(path) != record.size:
                raise OSError(errno.EIO, f"expected {record.size} bytes", str(path))
            try:
                self._objects.upload(name, path)
            except FileExistsError:
                data = self._objects.read(name)
                if len(data) != record.size or crc32c(data) != record.crc:
                    self._check_fence(str(chain_of(name)), None)
                    self._objects.remove(name)  # of a writer that is fenced
                    self._objects.upload(name, path)
        except CorruptionError:
            if files.exists(path):
                raise
            return  # its save was dropped
        self._known[name] = record.size

    def publish(self, chain: str, manifest: Manifest) -> None:
        """Returns when the remote has this commit, which was made durable here, and all before it.

        Raises FencedError when another writer has gone on from elsewhere; OSError with the URL: then the
        commit may or may not be there, and is seen to by the next call.
        """
        with self._guard:
            lock = self._locks.setdefault(chain, threading.Lock())
            pending = self._pending.setdefault(chain, [])
        try:
            for record in manifest.segments:  # not under the lock: other commits of the chain go by
                self._wait(chain, record)
        except BaseException:
            with lock:
                pending.append(manifest)
            raise
        with lock:
            pending.append(manifest)
            while pending:
                name = f"{chain}/{naming.MANIFESTS}/{naming.manifest_name(pending[0].sequence)}"
                if files.exists(self._mirror.local(name)):
                    self._put(chain, name, pending[0])
                pending.pop(0)

    def _manifest_bytes(self, name: str) -> bytes:
        return files.read_file(self._mirror.local(name), MAX_MANIFEST_BYTES).tobytes()

    def _put(self, chain: str, name: str, manifest: Manifest) -> None:
        for record in manifest.segments:
            self._wait(chain, record)
        data = self._manifest_bytes(name)
        self._known[name] = len(data)  # at once: a look for other writers' commits must not take it for one
        try:
            try:
                self._objects.create(name, data)
            except FileExistsError:
                self._settle(chain, name, data, manifest)
        except BaseException:
            self._known.pop(name, None)
            raise
        self._incarnation = max(self._incarnation, manifest.incarnation)
        if manifest.kind == "epoch" or not self._opening:
            self._check_fence(chain, manifest)

    def _wait(self, chain: str, record: SegmentRecord) -> None:
        name = f"{chain}/{naming.SEGMENTS}/{record.name}"
        if self._known.get(name) != record.size:
            try:
                self._upload(chain, record).result()
            finally:
                with self._guard:
                    self._uploads.pop(name, None)  # a failed one is begun anew by the next call
        if self._known.get(name) != record.size:
            raise OSError(errno.ENOENT, "neither the local folder nor the remote has it", self._url(name))

    def _url(self, name: str) -> str:
        return f"{self._mirror.url}/{name}"

    def _settle(self, chain: str, name: str, data: bytes, manifest: Manifest) -> None:
        """Judges an object that has the name of a commit: ours, if a reply was lost, or another writer's."""
        found = self._objects.read(name)
        if found == data:
            return
        other = decoded(found, name)
        if self._opening or other is None or other.incarnation >= manifest.incarnation:
            raise FencedError(f"{self._url(name)}: committed by another writer; this one must stop")
        # Of a fenced writer, which looks for our epoch before it reports a commit.
        self._objects.remove(name)
        self._objects.create(name, data)

    def _check_fence(self, chain: str, own: Manifest | None) -> None:
        """Raises FencedError when a commit is there that this writer doesn't know and of no older writer.

        own: the commit just made. An epoch, which fences older writers, must not overlook a commit of theirs.
        """
        folder = f"{chain}/{naming.MANIFESTS}"
        sizes = self._objects.sizes(folder)
        for name in sorted(sizes.keys() - self._known.keys()):
            parsed = naming.parse(name.rsplit("/", 1)[1])
            if parsed is None or parsed.what != "manifest":
                continue
            with suppress(FileNotFoundError):
                other = decoded(self._objects.read(name), name)
                if other is None or other.incarnation >= self._incarnation:
                    raise FencedError(f"{self._url(name)}: a newer writer has begun; this one must stop")
                if own is not None and own.kind == "epoch":
                    raise LockedError(f"{self._url(name)}: committed while this writer opened; open it again")
                # Made after our epoch, which its writer looks for before it reports a commit.
                self._objects.remove(name)

    def sweep(self) -> None:
        """Removes objects that the folder has no commit for, manifests first; raises OSError."""
        known = list(self._known)  # before the folder is listed: what is uploaded meanwhile is not in it
        with self._guard:
            self._uploads = {name: f for name, f in self._uploads.items() if not f.done()}
        segments = []
        for chain in sorted(self._own_chains()):
            kept = self._mirror.local_names(chain, naming.MANIFESTS)
            committed = {_sequence(name) for name in kept}
            for name in _within(known, chain, naming.MANIFESTS):
                if name not in kept:
                    self._remove(name)
            kept = self._mirror.local_names(chain, naming.SEGMENTS)
            found = _within(known, chain, naming.SEGMENTS)
            segments += [n for n in found if n not in kept and _sequence(n) not in committed]
        self._workers.run([partial(self._remove, name) for name in segments])

    def _remove(self, name: str) -> None:
        self._objects.remove(name)
        self._known.pop(name, None)

    def close(self) -> None:
        """Ends the threads after the uploads that have begun."""
        if self._chains is None:
            self._mirror.writing = False
        self._workers.close()


def _within(names: list[str], chain: str, folder: str) -> list[str]:
    """Returns those of object names that are of a folder of a chain, oldest first."""
    prefix = f"{chain}/{folder}/"
    return sorted(n for n in names if n.startswith(prefix) and naming.parse(n.rsplit("/", 1)[1]))


def _sequence(name: str) -> int:
    parsed = naming.parse(name.rsplit("/", 1)[1])
    return parsed.sequence if parsed else 0
