"""The compiled engine: tables, trackers, snapshots and segment files.

Callers pass memory as `TensorRef` tuples `(address, shape, dtype)`; `cpr_native._tensor` makes them.
Every function checks its arguments before anything is written or counted and releases the GIL while it works.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

TensorRef = tuple[int, tuple[int, ...], str]

class CprError(Exception): ...
class CorruptionError(CprError): ...
class SnapshotInProgress(CprError): ...
class StagingFull(CprError): ...
class ForkedProcessError(CprError): ...

def isa() -> str: ...
def supported_isas() -> list[str]: ...
def share_openmp(path: str) -> bool: ...
def crc32c(data: TensorRef, crc: int = 0) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int: ...

class TableSpec:
    def __init__(
        self,
        *,
        name: str,
        num_embeddings: int,
        embedding_dim: int,
        pooling: str = "sum",
        row_offset: int = 0,
        init_min: float,
        init_max: float,
        dirty: bool = True,
        mfu: bool = True,
        ssu: bool = True,
        ssu_fraction: float = 0.125,
        ssu_period: int = 2,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def num_embeddings(self) -> int: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def pooling(self) -> str: ...
    @property
    def row_offset(self) -> int: ...
    @property
    def init_min(self) -> float: ...
    @property
    def init_max(self) -> float: ...

class Batch:
    """The validated copy of one forward's ids; consumed by one `update`, not by `gradient`."""
    @property
    def num_ids(self) -> int: ...
    @property
    def batch_size(self) -> int: ...

class Selection:
    """Which rows of one table a snapshot takes."""
    @staticmethod
    def none() -> Selection: ...
    @staticmethod
    def all() -> Selection: ...
    @staticmethod
    def dirty() -> Selection: ...
    @staticmethod
    def most_used(rows: int) -> Selection: ...
    @staticmethod
    def sampled() -> Selection: ...

class Chunk:
    """Rows of one table and one shard; arrays are read-only views of the staging memory."""
    @property
    def table(self) -> int: ...
    @property
    def shard(self) -> int: ...
    @property
    def rows(self) -> NDArray[np.int64]: ...
    @property
    def weight(self) -> NDArray[np.float32]: ...
    @property
    def state(self) -> NDArray[np.float32] | None: ...
    @property
    def count(self) -> NDArray[np.uint32]: ...
    def close(self) -> None: ...

class Snapshot:
    """Every selected row as it was when `Collection.begin` returned."""
    @property
    def step(self) -> int: ...
    @property
    def status(self) -> str:
        """`walking`, `complete` (every row was met), `failed` (rows were written from outside, or memory
        ran out),
        `committed` or `aborted`.
        """
    @property
    def expected_rows(self) -> list[int]:
        """Rows of each table that the selection was expected to take; an upper bound for `sampled`."""
    @property
    def rows_taken(self) -> list[int]:
        """Rows of each table copied so far."""
    @property
    def stall_seconds(self) -> float:
        """Seconds that updates waited for staging memory."""
    def next_chunk(self, timeout: float | None = None) -> Chunk | None:
        """The next chunk, or None after the last. One reader at a time.

        Raises TimeoutError after `timeout` seconds without one, CprError when the snapshot failed or was
        aborted.
        """
    def commit(self) -> None:
        """Drop what the snapshot took, once it is durable; raises ValueError before the last chunk was
        read.
        """
    def abort(self) -> None:
        """Give back what the snapshot took: rows dirty again, counts added, listed again where the slot is
        free.
        """
    def __iter__(self) -> Iterator[Chunk]: ...
    def __next__(self) -> Chunk: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Collection:
    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[int],
        *,
        optimizer: str,
        learning_rate: float,
        eps: float = 1e-8,
        initial_state: float = 0.0,
        seed: int = 0,
        max_staging_bytes: int = 268435456,
    ) -> None: ...
    learning_rate: float
    step: int
    @property
    def tables(self) -> list[TableSpec]: ...
    @property
    def output_dim(self) -> int: ...
    @property
    def skipped_steps(self) -> int: ...
    def weight(self, table: int) -> NDArray[np.float32]:
        """Rows of a table, [num_embeddings, dim]; aliases the engine's memory. Announce writes with
        `mark_dirty`.
        """
    def state(self, table: int) -> NDArray[np.float32] | None:
        """Copy of the optimizer state of each row, [num_embeddings]; None without state."""
    def counts(self, table: int) -> NDArray[np.uint32]:
        """Copy of the accesses of each row since it was last saved, saturating at 2**29 - 1."""
    def dirty(self, table: int) -> NDArray[np.bool_]:
        """Copy of each row's dirty bit: updated since the last base or delta."""
    def num_dirty(self, table: int) -> int:
        """Number of dirty rows, without a scan."""
    def trackers(self, table: int) -> NDArray[np.uint32]:
        """Copy of each row's count (bits 0-28), listed (29) and dirty (30) bits, for `set_trackers`."""
    def set_trackers(self, table: int, words: TensorRef) -> None:
        """Replace all trackers of a table by `words`, uint32 [num_embeddings]."""
    def sampled_rows(self, table: int) -> NDArray[np.int64]:
        """Global ids in the sub-sampled used list, ascending."""
    def count_histogram(self, table: int) -> NDArray[np.int64]:
        """Rows by log-spaced bucket of their count, [416] (docs/numerics.md)."""
    def bind_weight(self, table: int, weight: TensorRef, owner: Any) -> None:
        """Use the caller's memory for a table's rows; `owner` is kept alive. All its rows become dirty."""
    def lookup(
        self,
        ids: TensorRef,
        offsets: TensorRef | None,
        per_sample_weights: TensorRef | None,
        out: TensorRef,
        *,
        threads: int,
        keep: bool,
        ids_per_bag: int = 0,
    ) -> Batch | None:
        """Check ids and offsets, then pool into `out` [batch, output_dim]; with `keep` returns the batch
        for `update`.

        `ids`: int32 or int64 [n], feature-major; `offsets`: int32 or int64 [features * batch + 1], or None
        with
        `ids_per_bag`; `per_sample_weights`: float32 [n]. Raises IndexError for an id, ValueError for
        offsets or
        shapes, TypeError for a dtype; nothing is counted then.
        """
    def update(
        self,
        batch: Batch,
        grad: TensorRef,
        *,
        threads: int,
        grad_scale: float = 1.0,
        frozen: Sequence[int] = (),
    ) -> bool:
        """One optimizer step on the batch's rows, tracked; False, and nothing changed, if `grad` isn't
        finite.

        `grad`: float32 [batch, output_dim]; `frozen`: tables left out. Raises CprError for a batch used
        before.
        """
    def gradient(
        self, batch: Batch, grad: TensorRef, *, table: int, threads: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """For optimizer `none`: unique local rows [u], ascending, and their summed gradients [u, dim];
        tracks them.
        """
    def per_sample_weight_grad(
        self, batch: Batch, grad: TensorRef, out: TensorRef, *, threads: int
    ) -> None: ...
    def mark_dirty(self, table: int, rows: TensorRef | None = None) -> None:
        """Announce that global `rows` (int64 [n]; None: all) were written; fails a snapshot they may have
        torn.
        """
    def load_rows(
        self,
        table: int,
        rows: TensorRef,
        weight: TensorRef,
        state: TensorRef | None,
        *,
        dirty: bool = False,
    ) -> None:
        """Write global `rows` (int64 [n]) in place: `weight` float32 [n, dim], `state` float32 [n];
        trackers cleared.
        """
    def reset_rows(self, table: int, begin: int, end: int) -> None:
        """Initial weight and state for global rows [begin, end), trackers but the dirty bit cleared."""
    def discard_rows(self, table: int, begin: int, end: int) -> None:
        """Destroy global rows [begin, end): weight and state become NaN."""
    def clear_trackers(self, table: int, begin: int, end: int, *, dirty: bool) -> None:
        """Clear counts and list entries of global rows [begin, end), and with `dirty` their dirty bits."""
    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[int] = (),
        blocking: bool = False,
    ) -> Snapshot:
        """Take a snapshot of the selected rows as they are now; copied in the background, or here if
        `blocking`.

        `clears_dirty`: a base or delta; `shard_rows`: rows per shard of each table, to cut chunks at.
        Raises SnapshotInProgress while one is uncommitted.
        """
    def memory(self) -> dict[str, int]:
        """Bytes of `weight`, `metadata`, `ssu` and, at present, `staging`."""
    def close(self) -> None: ...

class SegmentTensor:
    """One tensor of a segment, gathered from `pieces` laid end to end along dimension 0."""
    def __init__(self, name: str, dtype: str, shape: Sequence[int], pieces: Sequence[TensorRef]) -> None: ...

def write_segment(
    path: str, tensors: Sequence[SegmentTensor], metadata: dict[str, str]
) -> tuple[int, int]: ...
