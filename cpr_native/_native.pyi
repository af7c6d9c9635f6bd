"""The compiled engine: tables, trackers, snapshots and segment files.

Callers pass memory as `TensorRef` tuples `(address, shape, dtype)`; `cpr_native._tensor` makes them.
Every function checks its arguments before anything is written or counted and releases the GIL while it works.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol

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
def cuda_build() -> tuple[int, list[str]]:
    """The CUDA version of this build (13000: 13.0; 0: no CUDA engine), and its targets ("90-real")."""

def cuda_driver() -> tuple[int, str, list[tuple[str, int, int, int, str]]]:
    """The CUDA version that the driver supports (0: no driver), why there is no device (or ""), and of each
    device: name, capability (major, minor), memory in bytes, why this build can't use it (or "")."""

def cuda_missing_code(targets: Sequence[str], major: int, minor: int) -> str:
    """Why a device of capability `major`.`minor` has no code among `targets`; "" if it has."""

def cuda_device(index: int) -> Device:
    """The GPU with CUDA's number `index`. Raises ValueError for one that isn't there; CprError, in the words
    of `cuda_driver`, where there is none, or where this build can't use it.
    """

def host_device(lanes: int, seed: int, *, deferred: bool = True) -> Device:
    """A device whose kernels run on the host, in orders drawn from `seed`; in builds for tests only.

    Groups have 1, 8 or 32 `lanes`. `deferred`: work is done late, at a time drawn too.
    """

def give_way() -> None:
    """From now on this thread's writes of segments, and the walks that it starts, give way to others: after a
    piece (a millisecond or so) for which the thread had to wait for a core it pauses three times as long.
    """

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
        drift: bool = False,
        ssu_fraction: float = 0.125,
        ssu_period: int = 2,
        dtype: str = "float32",
        scale_grad_by_freq: bool = False,
        external: bool = False,
    ) -> None:
        """`pooling`: sum, mean, max, or none (a row an id; of all tables of a collection, and those of one
        `embedding_dim`). `dtype` of the rows: float32, float16, bfloat16 or float64.

        `external`: the rows lie in memory of the caller's, which `bind_weight` names before the first use.
        """
    @property
    def name(self) -> str: ...
    @property
    def num_embeddings(self) -> int: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def pooling(self) -> str: ...
    @property
    def dtype(self) -> str: ...
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
    def most_drifted(rows: int) -> Selection: ...
    @staticmethod
    def sampled() -> Selection: ...
    @staticmethod
    def rows(mask: NDArray[np.bool_]) -> Selection:
        """The rows where `mask`, bool [num_embeddings], is true; it is copied."""

class Chunk:
    """Rows of one table and one shard; arrays are read-only views of the staging memory."""
    @property
    def table(self) -> int: ...
    @property
    def shard(self) -> int: ...
    @property
    def rows(self) -> NDArray[np.int64]: ...
    @property
    def weight(self) -> NDArray[Any]:
        """[n, dim] in the table's dtype, bfloat16 as uint16 bit patterns."""
    @property
    def state(self) -> NDArray[np.float32] | None:
        """Optimizer state, [n] if a row has one value, else [n, columns]; None without."""
    @property
    def count(self) -> NDArray[np.uint32]: ...
    def close(self) -> None: ...

class GatheredRows:
    """Rows of one shard, of any tables, in the snapshot's memory. `nbytes`: ids, weights, state and counts;
    `lookups`: sum of the counts; `rows`: their number for each table."""
    @property
    def shard(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def lookups(self) -> int: ...
    @property
    def rows(self) -> dict[int, int]: ...
    def tensors(self, names: Sequence[str]) -> list[SegmentTensor]:
        """The tensors of a segment of these rows, valid until `close`; `names[t]`: of table t."""
    def close(self) -> None: ...

class Gathering:
    """Iterates over the rows of a snapshot, each time those of a segment; raises what `next_chunk` raises."""
    def __iter__(self) -> Iterator[GatheredRows]: ...
    def __next__(self) -> GatheredRows: ...

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
        """Seconds that updates waited for staging memory; on a device also those for which `begin` and later
        pieces kept the training stream busy, once they are over.
        """
    def walk(self) -> None:
        """Begin to copy a snapshot that was begun with `walk=False`; no effect on any other. The copying
        gives way if the caller's thread does (`give_way`).
        """
    def next_chunk(self, timeout: float | None = None) -> Chunk | None:
        """The next chunk, or None after the last. One reader at a time.

        Raises TimeoutError after `timeout` seconds without one, CprError when the snapshot failed or was
        aborted.
        """
    def gather(self, max_bytes: int, shard_rows: Sequence[int]) -> Gathering:
        """Read the chunks shard by shard, as what segments are made of; in place of `next_chunk`.

        About `max_bytes` are gathered, over all shards; then the shard that holds most is handed out.
        `shard_rows` [shards]: it is handed out when it has that many rows; negative: unknown. Raises
        ValueError.
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

class Region:
    """Memory of tables in a file that outlives the process; `SharedMemory` is its face.

    Takes over `fd` and its record lock: OSError (EAGAIN) when another has it.
    """
    def __init__(self, fd: int, name: str, *, discard: bool) -> None: ...
    @property
    def attached(self) -> bool:
        """Whether tables built in it are those that an earlier process left."""
    @property
    def reason(self) -> str:
        """Why contents that were there began anew; empty if none did."""
    @property
    def sequence(self) -> int:
        """Number of the last commit, 0 before the first."""
    def describe(self, text: str) -> str:
        """Say what the next collection is. Where an earlier process said otherwise: what; else empty."""
    def reset(self, reason: str) -> None:
        """Begin anew, before any collection was built in it; raises CprError after."""
    def invalidate(self) -> None:
        """Make its contents count for nothing until the next commit."""
    def commit(self, meta: bytes, tensors: Sequence[TensorRef], *, ends_step: bool = True) -> None:
        """Keep copies of all of it, or, when that raises OSError, of what was committed before.

        `ends_step`: rows written before it are not in doubt any more.
        """
    def read(self) -> tuple[bytes, list[bytes]]:
        """Return what was committed last; raises CorruptionError."""

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
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        seed: int = 0,
        max_staging_bytes: int = 268435456,
        region: Region | None = None,
    ) -> None:
        """`optimizer`: none (torch's own writes the rows), sgd, row_wise_adagrad, adagrad, adam or
        partial_row_wise_adam (docs/numerics.md has the formulas). `region`: rows, state and trackers lie in
        it; where it is attached, they are what an earlier process left.
        """
    learning_rate: float
    eps: float
    beta1: float
    beta2: float
    weight_decay: float
    step: int
    """Optimizer steps done: Adam's t is one more."""
    max_stall_seconds: float
    """How long an update waits, with staging full, for a snapshot's reader before it raises StagingFull; 60
    at first, at least 0.
    """
    @property
    def tables(self) -> list[TableSpec]: ...
    @property
    def output_dim(self) -> int: ...
    @property
    def skipped_steps(self) -> int: ...
    @property
    def region(self) -> Region | None:
        """What its tables lie in, if that is shared memory."""
    def reattach(self) -> None:
        """Go on with the tables of an earlier process: rows in doubt become dirty; no effect without."""
    def doubtful_rows(self, table: int) -> NDArray[np.int64] | None:
        """Rows that it may have written since its last commit, ascending global ids; None: any row."""
    def weight(self, table: int) -> NDArray[Any]:
        """Rows of a table, [num_embeddings, dim] in its dtype, bfloat16 as uint16 bit patterns.

        Aliases the engine's memory; announce writes with `mark_dirty`.
        """
    def state(self, table: int) -> NDArray[np.float32] | None:
        """Copy of the optimizer state of each row: [num_embeddings] if that is one value, else
        [num_embeddings, columns] (adagrad: sum; adam: exp_avg, exp_avg_sq; partial_row_wise_adam: exp_avg,
        then the row's exp_avg_sq; bound state: its arrays in order); None without state.
        """
    def state_columns(self, table: int) -> int:
        """Values of optimizer state a row."""
    def keep_saved(self, table: int, keep: bool) -> None:
        """Keep a copy of the rows as last saved, in as much memory as they take; or free it.

        It begins as the rows are now and follows every row that a snapshot hands out. What an aborted
        snapshot handed out counts as never saved. Raises SnapshotInProgress.
        """
    def refresh_saved(self, table: int, begin: int, end: int) -> None:
        """Set that copy of global rows [begin, end), if it is kept, to the rows as they are now: restored.

        Raises SnapshotInProgress.
        """
    def changes(
        self, table: int, metric: Literal["l2", "l1", "tv"] = "l2", *, threads: int = 1
    ) -> NDArray[np.float32]:
        """Distance of each row's weight a from its copy b as last saved, [num_embeddings].

        `metric`: "l2", "l1" or the total variation "tv", 0.5 * sum |a / sum(a) - b / sum(b)|, meant for rows
        of numbers from 0 on; those of a row that sums to 0 count as 0. Finite: of a row that was never
        saved, and for an infinity or NaN, it is the largest float. The same bits for any number of threads.
        Raises ValueError without the copy and for another metric, SnapshotInProgress.
        """
    def drift(self, table: int) -> NDArray[np.float32]:
        """Copy of the sum of the L2 norms of the steps of each row since it was last saved."""
    def set_drift(self, table: int, drift: TensorRef) -> None:
        """Replace the drift of every row by `drift`, float32 [num_embeddings], at least 0."""
    def drift_histogram(self, table: int) -> NDArray[np.int64]:
        """Rows by log-spaced bucket of their drift, [256] (docs/numerics.md)."""
    def counts(self, table: int) -> NDArray[np.uint32]:
        """Copy of the accesses of each row since it was last saved, saturating at 2**27 - 1."""
    def dirty(self, table: int) -> NDArray[np.bool_]:
        """Copy of each row's dirty bit: updated since the last base or delta."""
    def num_dirty(self, table: int) -> int:
        """Number of dirty rows, without a scan."""
    def trackers(self, table: int) -> NDArray[np.uint32]:
        """Copy of each row's count (bits 0-26), listed (29) and dirty (30) bits, for `set_trackers`."""
    def set_trackers(self, table: int, words: TensorRef) -> None:
        """Replace all trackers of a table by `words`, uint32 [num_embeddings]."""
    def sampled_rows(self, table: int) -> NDArray[np.int64]:
        """Global ids in the sub-sampled used list, ascending."""
    def count_histogram(self, table: int) -> NDArray[np.int64]:
        """Rows by log-spaced bucket of their count, [384] (docs/numerics.md)."""
    def bind_weight(self, table: int, weight: TensorRef, owner: Any) -> None:
        """Use the caller's memory for a table's rows; `owner` is kept alive. All its rows become dirty.

        `weight`: [num_embeddings, dim] of the table's dtype.
        """
    def bind_state(self, table: int, arrays: Sequence[TensorRef], owner: Any) -> None:
        """Take the caller's arrays, float32 [num_embeddings] or [num_embeddings, d], for the optimizer state
        of the rows: torch's own optimizer writes it, snapshots copy it and `load_rows` restores it.
        """
    def track(self, table: int, ids: TensorRef) -> None:
        """Count and sample `ids` (int32 or int64 [n]) as an update would; no row is written or dirty.

        Raises IndexError for a bad id, with nothing counted.
        """
    def renormalise(self, table: int, ids: TensorRef, max_norm: float, norm_type: float) -> int:
        """Scale the rows named by `ids` whose p-norm is above `max_norm` by max_norm / (norm + 1e-7), as
        torch.embedding_renorm_; they become dirty. Returns their number.

        Raises IndexError for a bad id, with nothing written.
        """
    def mark_dirty_nonzero(self, table: int, grad: TensorRef) -> int:
        """Announce that the rows were written for which the dense gradient [num_embeddings, dim] (any float
        dtype) has an element other than +0.0; returns their number.
        """
    def lookup(
        self,
        ids: TensorRef,
        offsets: TensorRef | None,
        per_sample_weights: TensorRef | None,
        out: TensorRef | None,
        *,
        threads: int,
        keep: bool,
        ids_per_bag: int = 0,
    ) -> Batch | None:
        """Check ids and offsets, then pool into `out` [batch, output_dim]; with `keep` returns the batch
        for `update`.

        `out` and `per_sample_weights` are float32, for float64 tables float64.
        `ids`: int32 or int64 [n], feature-major; `offsets`: int32 or int64 [features * batch + 1], or None
        with `ids_per_bag`; `per_sample_weights`: [n]. Without pooling `offsets` are [features + 1], where
        each feature's ids begin, and `out` and the gradient of `update` are [n, output_dim]; no `out`: rows
        are not read, for an update that needs none. Raises
        IndexError for an id, ValueError for offsets or shapes, TypeError for a dtype; nothing is counted
        then.
        """
    def update(
        self,
        batch: Batch,
        grad: TensorRef,
        *,
        threads: int,
        grad_scale: float = 1.0,
        frozen: Sequence[int] = (),
        multiplicity: TensorRef | None = None,
    ) -> bool:
        """One optimizer step on the batch's rows, tracked; False, and nothing changed, if `grad` isn't
        finite.

        `grad`: float32 [batch, output_dim]; `frozen`: tables left out. `multiplicity`: uint32 [num_ids], at
        least 1: how many accesses each id stands for, where its gradient is a sum already; they are counted
        and sampled as so many. None: one each. Raises CprError for a batch used before.
        """
    def gradient(
        self, batch: Batch, grad: TensorRef, *, table: int, threads: int
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
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
        threads: int = 1,
    ) -> None:
        """Write global `rows` (int64 [n]) in place: `weight` [n, dim] of the table's dtype (bfloat16 also as
        uint16), `state` shaped as `state` gives it; trackers cleared. More than one thread only works on
        strictly ascending rows.
        """
    def copy_rows(
        self,
        table: int,
        rows: TensorRef,
        weight: TensorRef,
        state: TensorRef | None,
        *,
        threads: int = 1,
    ) -> None:
        """Copy global `rows` (int64 [n]) to `weight` and `state`, of the shapes that `load_rows` takes."""
    def put_rows(self, table: int, rows: TensorRef, weight: TensorRef, state: TensorRef | None) -> None:
        """Write global `rows` back as `copy_rows` had them: they become dirty, other trackers stay.

        Raises IndexError for a row, SnapshotInProgress, with nothing written.
        """
    def reset_rows(self, table: int, begin: int, end: int) -> None:
        """Initial weight and state for global rows [begin, end), trackers but the dirty bit cleared. Rows of
        external tables have no initial values and stay as they are.
        """
    def discard_rows(self, table: int, begin: int, end: int) -> None:
        """Destroy global rows [begin, end): weight and state become NaN."""
    def clear_trackers(self, table: int, begin: int, end: int, *, dirty: bool) -> None:
        """Clear counts and list entries of global rows [begin, end), and with `dirty` their dirty bits."""
    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[int | tuple[int, int]] = (),
        blocking: bool = False,
        walk: bool = True,
    ) -> Snapshot:
        """Take a snapshot of the selected rows as they are now; copied in the background, or here if
        `blocking`; without `walk` only once `Snapshot.walk` is called, or row by row by updates before.

        `clears_dirty`: a base or delta; `shard_rows`: of each table, to cut chunks at: rows per shard, or
        (first, spread): row r of n lies in shard first + r * spread // n. Raises SnapshotInProgress while one
        is uncommitted.
        """
    def memory(self) -> dict[str, int]:
        """Bytes of `weight` (the engine's own), `state` beside the metadata, `metadata` (8 a row, 16 with
        drift), `ssu`, `saved` (see `keep_saved`) and, at present, `staging`.
        """
    def close(self) -> None: ...

class Device:
    """A GPU, or what stands for one in tests. Its memory is the caller's, its streams are integers: those of
    torch, 0 is the default one.
    """
    @property
    def name(self) -> str: ...
    def synchronize(self, stream: int = 0) -> None: ...

class DeviceBatch:
    """What one lookup on a device leaves for its update, in the caller's memory."""
    @property
    def num_ids(self) -> int: ...
    @property
    def batch_size(self) -> int: ...

class DeviceCollection:
    """`Collection` with its tables in memory of a device: the same bits.

    All device memory is the caller's, aligned to 16 bytes; `owner` is kept alive with it, and must not lead
    back to the collection, which would then never be freed. Calls give work to `stream` and return; memory
    they name stays as it is until the work has ended. A bad id or offset makes
    its bag's output NaN; updates then do nothing until the error is raised, by the next call or `synchronize`
    (IndexError, ValueError).
    """
    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[int],
        *,
        device: Device,
        optimizer: str,
        learning_rate: float,
        eps: float = 1e-8,
        initial_state: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        """As `Collection`; all tables together have fewer than 2^32 rows. Raises ValueError."""
    @property
    def learning_rate(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def tables(self) -> list[TableSpec]: ...
    @property
    def output_dim(self) -> int: ...
    def needs(self, table: int) -> dict[str, Any]:
        """Bytes of `weight`, of each of `arrays` (optimizer state), `metadata`, `slots` and `claims`."""
    def bind(
        self,
        table: int,
        weight: TensorRef,
        arrays: Sequence[TensorRef],
        metadata: TensorRef,
        slots: TensorRef,
        claims: TensorRef,
        owner: Any,
    ) -> None:
        """Name the memory of a table, of at least `needs` bytes; of all tables before `bind_records`.

        `weight`: [num_embeddings, embedding_dim] of the table's dtype (bfloat16 also as uint16).
        """
    @property
    def record_bytes(self) -> int: ...
    def bind_records(self, memory: TensorRef, owner: Any, stream: int = 0) -> None:
        """Name `record_bytes` of memory for what kernels know of the tables, and write it."""
    def initialise(self, stream: int = 0, *, weights: bool = True) -> None:
        """Write the initial rows, state and trackers of all tables, those of `Collection`; without `weights`
        the rows stay as they are.
        """
    def bind_weight(self, table: int, weight: TensorRef, owner: Any, stream: int = 0) -> None:
        """`Collection.bind_weight`, in memory of the device, after `bind_snapshot`; the old memory may go
        when the work given to `stream` before has ended.
        """
    def set_optimizer(
        self,
        *,
        stream: int = 0,
        learning_rate: float | None = None,
        eps: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        weight_decay: float | None = None,
    ) -> None:
        """Change settings for the updates given to `stream` from now on."""
    def step(self, stream: int = 0) -> int:
        """Optimizer steps done; waits for the stream."""
    def set_step(self, step: int, stream: int = 0) -> None:
        """Count steps from `step` on, at least 0; in order of the stream."""
    def skipped_steps(self, stream: int = 0) -> int:
        """Steps left out for a gradient that wasn't finite; waits for the stream."""
    def batch_bytes(self, num_ids: int, batch_size: int, *, weighted: bool) -> int:
        """Bytes of `memory` that a lookup of so many ids takes to be updated."""
    def lookup(
        self,
        ids: TensorRef,
        offsets: TensorRef | None,
        per_sample_weights: TensorRef | None,
        out: TensorRef | None,
        memory: TensorRef | None,
        owner: Any,
        *,
        stream: int = 0,
        ids_per_bag: int = 0,
    ) -> DeviceBatch | None:
        """`Collection.lookup`, its arguments on the device; with `memory` returns the batch for `update`."""
    def per_sample_weight_grad(
        self, batch: DeviceBatch, grad: TensorRef, out: TensorRef, *, stream: int = 0
    ) -> None:
        """`Collection.per_sample_weight_grad`, of a batch with weights, before its update."""
    def update_bytes(self, num_ids: int) -> int:
        """Bytes of workspace that an update of so many ids takes."""
    def update(
        self,
        batch: DeviceBatch,
        grad: TensorRef,
        memory: TensorRef,
        *,
        grad_scale: float = 1.0,
        frozen: Sequence[int] = (),
        stream: int = 0,
    ) -> None:
        """`Collection.update`, its gradient on the device; `memory`: `update_bytes` of workspace, free when
        the work has ended. A gradient that isn't finite skips the step, which `skipped_steps` counts.
        """
    def gradient_bytes(self, num_ids: int) -> int:
        """Bytes of workspace that a gradient of so many ids takes."""
    def gradient(
        self,
        batch: DeviceBatch,
        grad: TensorRef,
        *,
        table: int,
        rows: TensorRef,
        values: TensorRef,
        count: TensorRef,
        memory: TensorRef,
        stream: int = 0,
    ) -> None:
        """`Collection.gradient`, all memory on the device: how many unique rows there are goes to `count`
        (int64 [1]), the rows and their gradients to the first places of `rows` (int64 [num_ids]) and
        `values` [num_ids, dim]; `memory`: `gradient_bytes` of workspace. May be called again.
        """
    def ids_bytes(self, num_ids: int) -> int:
        """Bytes of workspace that `track` and `renormalise` of so many ids take."""
    def track(self, table: int, ids: TensorRef, *, memory: TensorRef, stream: int = 0) -> None:
        """`Collection.track`, of ids on the device; `memory`: `ids_bytes` of workspace. A bad id is raised
        as a lookup's is, with nothing counted.
        """
    def renormalise(
        self,
        table: int,
        ids: TensorRef,
        max_norm: float,
        norm_type: float,
        *,
        count: TensorRef,
        memory: TensorRef,
        stream: int = 0,
    ) -> None:
        """`Collection.renormalise`, of ids on the device, for the norms 1, 2 and inf; how many rows were
        scaled goes to `count` (int64 [1], on the device). `memory`: `ids_bytes` of workspace. A bad id is
        raised as a lookup's is, with nothing written. Raises ValueError for another norm.
        """
    def synchronize(self, stream: int = 0) -> None:
        """Wait for the stream, and raise what a lookup found."""
    def snapshot_bytes(self, max_staging_bytes: int) -> int:
        """Bytes of memory for `bind_snapshot`; raises ValueError where staging would hold too few rows."""
    def bind_snapshot(self, memory: TensorRef, max_staging_bytes: int, owner: Any, stream: int = 0) -> None:
        """Name the memory of snapshots and of rows on their way to and from the host, before what follows.

        As much pinned memory of the host as staging is allocated. Raises SnapshotInProgress.
        """
    max_stall_seconds: float
    """As `Collection` has it."""
    # As `Collection` has them; arrays and the memory of arguments are the host's. What returns something
    # waits for the stream.
    def state_columns(self, table: int) -> int: ...
    def state(self, table: int, stream: int = 0) -> NDArray[np.float32] | None: ...
    def trackers(self, table: int, stream: int = 0) -> NDArray[np.uint32]: ...
    def drift(self, table: int, stream: int = 0) -> NDArray[np.float32]: ...
    def sampled_rows(self, table: int, stream: int = 0) -> NDArray[np.int64]: ...
    def count_histogram(self, table: int, stream: int = 0) -> NDArray[np.int64]:
        """Counted in a scan of the table, as are `drift_histogram` and `num_dirty`."""
    def drift_histogram(self, table: int, stream: int = 0) -> NDArray[np.int64]: ...
    def num_dirty(self, table: int, stream: int = 0) -> int: ...
    def copy_rows(
        self, table: int, rows: TensorRef, weight: TensorRef, state: TensorRef | None, stream: int = 0
    ) -> None: ...
    def load_rows(
        self,
        table: int,
        rows: TensorRef,
        weight: TensorRef,
        state: TensorRef | None,
        *,
        dirty: bool = False,
        stream: int = 0,
    ) -> None: ...
    def put_rows(
        self, table: int, rows: TensorRef, weight: TensorRef, state: TensorRef | None, stream: int = 0
    ) -> None: ...
    def set_trackers(self, table: int, words: TensorRef, stream: int = 0) -> None: ...
    def set_drift(self, table: int, drift: TensorRef, stream: int = 0) -> None: ...
    def mark_dirty(self, table: int, rows: TensorRef | None = None, stream: int = 0) -> None: ...
    def reset_rows(self, table: int, begin: int, end: int, stream: int = 0) -> None: ...
    def discard_rows(self, table: int, begin: int, end: int, stream: int = 0) -> None: ...
    def clear_trackers(self, table: int, begin: int, end: int, *, dirty: bool, stream: int = 0) -> None: ...
    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[int | tuple[int, int]] = (),
        blocking: bool = False,
        walk: bool = True,
        stream: int = 0,
    ) -> Snapshot:
        """`Collection.begin`: the rows as they are when `stream` gets there; waits for nothing.

        What doesn't fit into the staging memory is copied between steps. `Snapshot.step` and
        `Snapshot.expected_rows` wait until the stream got there.
        """
    def keep_saved(self, table: int, keep: bool, stream: int = 0) -> None:
        """`Collection.keep_saved`; the copy lies in memory of the host."""
    def refresh_saved(self, table: int, begin: int, end: int, stream: int = 0) -> None: ...
    def changes(
        self, table: int, metric: Literal["l2", "l1", "tv"] = "l2", *, threads: int = 1, stream: int = 0
    ) -> NDArray[np.float32]:
        """`Collection.changes`, of rows that are copied to the host some MB at a time."""
    @property
    def saved_bytes(self) -> int:
        """Bytes of these copies."""
    def prepare_step(self, num_ids: int, stream: int = 0) -> None:
        """Make room for the rows that an update of `num_ids` ids may record for the snapshot in flight.

        `update` calls it; whoever replays a captured update calls it before each replay. Raises StagingFull.
        """
    def close(self) -> None: ...

class RoutedBatch:
    """One batch on its way: what to ask of each shard, its rows, the pooled output, and their gradients.

    Used by one thread at a time; its memory goes back to the router with it.
    """
    @property
    def num_ids(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    def counts(self, shard: int) -> NDArray[np.int64]:
        """How many unique rows of each table the shard is asked for, [tables]; a copy."""
    def rows(self, shard: int) -> NDArray[np.int32]:
        """These rows, table after table, ascending within one, counted from the begin of the shard's range;
        a copy.
        """
    def multiplicity(self, shard: int) -> NDArray[np.uint32]:
        """How many ids of the batch each of them is; a copy."""
    def index(self) -> NDArray[np.int32]:
        """Which of the unique rows of its table each id is, [num_ids]; a copy."""
    def matches(self, ids: TensorRef, offsets: TensorRef) -> bool:
        """Whether the batch was made of just these."""
    def fill(self, shard: int, values: TensorRef, *, threads: int) -> None:
        """Take the shard's rows, float32 flat, table after table [counts[t], dim]; copied."""
    def pool(self, per_sample_weights: TensorRef | None, out: TensorRef, *, threads: int) -> None:
        """Pool into `out`, float32 [batch, output_dim], to the bits of `Collection.lookup`.

        `per_sample_weights`: float32 [num_ids], sum pooling only; copied. Raises ValueError before every
        shard's rows are there.
        """
    def gradient(
        self, grad: TensorRef, *, threads: int, grad_scale: float = 1.0
    ) -> list[NDArray[np.float32]] | None:
        """The gradient of each shard's rows, float32 flat as they came; None if `grad` isn't finite.

        `grad`: float32 [batch, output_dim]. Sums are in the order of `Collection.update`, times `grad_scale`.
        May be called again.
        """
    def per_sample_weight_grad(self, grad: TensorRef, out: TensorRef, *, threads: int) -> None: ...

class Router:
    """Brings the ids of a batch to the shards that hold their rows. Any thread may call."""
    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[int],
        ranges: Sequence[Sequence[tuple[int, int]]],
    ) -> None:
        """`features[f]`: the table of feature f. `ranges[t][s]`: the rows [begin, end) of table t in shard s,
        fewer than 2^31; all rows of a table are in one shard each. Raises ValueError.
        """
    @property
    def output_dim(self) -> int: ...
    def route(self, ids: TensorRef, offsets: TensorRef, *, threads: int) -> RoutedBatch:
        """Check ids and offsets, as `Collection.lookup` and with its errors, and find the unique rows.

        `ids`: int32 or int64 [n], feature-major; `offsets`: int32 or int64 [features * batch + 1]. Both are
        copied. The same for any number of threads.
        """

class SystemCalls(Protocol):
    """The system calls that write and read segments; each raises OSError. Called by any thread."""
    def open(self, path: str, flags: int, mode: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def unlink(self, path: str) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def pwrite(self, fd: int, data: bytes, offset: int) -> int: ...
    def pread(self, fd: int, size: int, offset: int) -> bytes: ...

class SegmentTensor:
    """One tensor of a segment, gathered from `pieces` laid end to end along dimension 0."""
    def __init__(self, name: str, dtype: str, shape: Sequence[int], pieces: Sequence[TensorRef]) -> None: ...

class SegmentFile:
    """A new file that holds `tensors`, written by the constructor and removed again unless it is synced.

    `path` must not exist. `metadata` gets the CRC-32C of each tensor beside it. `size`: bytes of the file;
    `crc`: its CRC-32C. `system`: what is called in place of the operating system, see `SystemCalls`.
    Raises ValueError for a repeated name, OSError.
    """
    def __init__(
        self,
        path: str,
        tensors: Sequence[SegmentTensor],
        metadata: dict[str, str],
        system: SystemCalls | None = None,
    ) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def crc(self) -> int: ...
    def sync(self) -> None:
        """Return when the bytes are durable; the directory is the caller's to sync. Once only.

        Raises OSError, and the file is removed then; ValueError the second time.
        """

def read_sections(
    sections: Sequence[tuple[int, int, int, TensorRef | None]],
    threads: int,
    system: SystemCalls | None = None,
) -> list[int]:
    """Return the CRC-32C, or a negative errno, of each section (open file, offset, bytes, memory).

    The bytes go to the memory, where one is given; -EIO for a file that ends before. `system`: see
    `SegmentFile`.
    """

def load_stored_rows(
    stored: Sequence[
        tuple[
            Collection | tuple[DeviceCollection, int],
            int,
            int,
            str,
            str,
            int,
            tuple[int, int, int],
            tuple[int, int],
            bool,
        ]
    ],
    threads: int,
    system: SystemCalls | None = None,
) -> list[tuple[int, int, int]]:
    """Write rows from open files into tables, as `Collection.load_rows` does, by several threads.

    Of each of `stored`: the collection (one on a device with the stream that gets the work), the table, the
    open file, its path, what messages call the rows, their number, where their ids (int64), weight and state
    begin in the file (they lie as `load_rows` takes them; the last counts only for a table with state), the
    range of the ids, and whether they end up dirty. All rows are in their tables when it returns.
    Returns the CRC-32C of ids, weight and state of each, 0 for no state. Blocks are written in any order, so
    no row may come twice. Raises IndexError for an id outside its range, OSError with the path for what
    can't be read (EIO for a file that ends before), and what `load_rows` raises; some rows may be written
    then, none when `load_rows` would refuse.
    """

def mark_rows(rows: TensorRef, begin: int, end: int, seen: TensorRef) -> int:
    """Set bit `row - begin` of `seen` (uint8, lowest bit first) for each of `rows` (int64).

    Returns how many were not set before. Raises IndexError for a row outside [begin, end), with nothing set.
    """
