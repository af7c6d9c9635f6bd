"""The chains of a checkpoint directory together, and the points in their history that can be restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpr_native.errors import CorruptionError
from cpr_native.store import naming
from cpr_native.store.chain import ChainReader, Fetch
from cpr_native.store.manifest import DATA_KINDS, Manifest, Ref
from cpr_native.store.placement import Placement
from cpr_native.store.restore import Mode, RestorePlan, before, exact_plan, running_plan
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.segment_reader import read_dense


class Directory:
    """The chains of a checkpoint directory as they are when each is first asked for.

    threads: read segments; None: as many as there are processors. fetch: see `ChainReader`.
    """

    def __init__(self, path: Path, threads: int | None = None, fetch: Fetch | None = None) -> None:
        self.path = path
        self._threads = threads
        self._fetch = fetch
        self.whole = ChainReader(path, naming.GLOBAL, threads=threads, fetch=fetch)
        self._shards: dict[int, ChainReader] = {}

    def shard(self, shard: int) -> ChainReader:
        """Returns the reader of a shard's chain; commits of another run or schema are refused."""
        if shard not in self._shards:
            self._shards[shard] = ChainReader(
                self.path, naming.shard_chain(shard), self.whole.identity, self._threads, self._fetch
            )
        return self._shards[shard]

    def is_outdated(self) -> bool:
        """Whether commits of chains that were read are gone by now."""
        return any(reader.is_outdated() for reader in (self.whole, *self._shards.values()))

    def history(self, skipped: list[str]) -> Iterator[tuple[Manifest, Ref]]:
        """Yields the saves of the global chain from the newest back along parent links.

        Where all links of a commit are damaged it goes on with the next lower sequence number.
        """
        at = self.whole.newest(skipped)
        while at is not None:
            manifest, ref = at
            if manifest.kind in DATA_KINDS:
                yield manifest, ref
            at, _ = before(self.whole, manifest, skipped)
            if at is None and manifest.parent is not None:
                at = self.whole.newest(skipped, below=manifest.sequence)


@dataclass(frozen=True, kw_only=True, eq=False)
class RestorePoint:
    """A global commit that can be restored. `skipped` says what newer was refused, and why.

    mode "exact": rows, dense state and position of one step. "running": dense state of this commit and the
    newest rows of every shard, of mixed age.
    """

    directory: Directory
    ref: Ref
    manifest: Manifest
    mode: Mode
    skipped: tuple[str, ...] = ()

    @property
    def sequence(self) -> int:
        """Sequence number in the global chain."""
        return self.manifest.sequence

    @property
    def kind(self) -> str:
        """ "base", "delta" or "priority"."""
        return self.manifest.kind

    @property
    def step(self) -> int:
        """Training step of the save."""
        return self.manifest.step

    @property
    def samples(self) -> int:
        """Samples trained at the save."""
        return self.manifest.samples

    @property
    def run_id(self) -> str:
        """Run that made the checkpoint."""
        return self.manifest.run_id

    @property
    def schema(self) -> CollectionSchema:
        """Tables and optimizer."""
        return self.manifest.schema

    @property
    def placement(self) -> Placement:
        """Rows of each shard."""
        return self.manifest.placement

    @property
    def info(self) -> Mapping[str, Any]:
        """What `Save.commit` was given."""
        return self.manifest.info

    @property
    def engine(self) -> Mapping[str, Any]:
        """What `StoreWriter.begin` was given."""
        return self.manifest.engine

    def dense(self) -> dict[str, NDArray[Any] | bytes]:
        """Returns the dense state, in fresh memory; raises CorruptionError, OSError."""
        dense: dict[str, NDArray[Any] | bytes] = {}
        self.directory.whole.fetch([self.manifest])
        for record in self.manifest.segments:
            path = self.directory.whole.segment_path(record.name)
            dense.update(read_dense(path, record, self.manifest.blobs))
        return dense

    def plan(self, shards: Sequence[int] | None = None) -> RestorePlan:
        """Returns what to load for `shards` (None: all) to get to this point.

        Raises IndexError; CorruptionError or NoCheckpointError when the manifests do not lead to a base.
        """
        chosen = range(self.placement.shards) if shards is None else shards
        chains = []
        for shard in chosen:
            if not 0 <= shard < self.placement.shards:
                raise IndexError(f"shard {shard} of {self.placement.shards}")
            reader = self.directory.shard(shard)
            if self.mode == "running":
                chains.append(running_plan(reader, shard))
                continue
            if shard not in self.manifest.commits:
                raise CorruptionError(
                    f"{self.directory.path}: commit {self.sequence} names no commit of shard {shard}"
                )
            chains.append(exact_plan(reader, shard, self.manifest.commits[shard]))
        return RestorePlan(mode=self.mode, chains=tuple(chains))
