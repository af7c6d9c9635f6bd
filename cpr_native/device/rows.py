"""`DeviceRows`: rows and trackers of tables on a device, read and written from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cpr_native._native import DeviceCollection, TensorRef
    from cpr_native.device.order import StreamOrder

# Of a row's word.
COUNT_MASK = (1 << 27) - 1
_DIRTY_BIT = 1 << 30


class DeviceRows:
    """The methods of `Collection` that read and write rows and trackers, with its arguments and errors.

    What they are given and return is memory of the host; what returns something waits for the device.
    """

    _native: DeviceCollection
    _order: StreamOrder

    def state_columns(self, table: int) -> int:
        """As `Collection.state_columns`."""
        return self._native.state_columns(table)

    def state(self, table: int) -> NDArray[np.float32] | None:
        """As `Collection.state`."""
        return self._native.state(table, self._order.stream())

    def trackers(self, table: int) -> NDArray[np.uint32]:
        """As `Collection.trackers`."""
        return self._native.trackers(table, self._order.stream())

    def counts(self, table: int) -> NDArray[np.uint32]:
        """As `Collection.counts`."""
        counts: NDArray[np.uint32] = self.trackers(table) & np.uint32(COUNT_MASK)
        return counts

    def dirty(self, table: int) -> NDArray[np.bool_]:
        """As `Collection.dirty`."""
        dirty: NDArray[np.bool_] = (self.trackers(table) & np.uint32(_DIRTY_BIT)) != 0
        return dirty

    def num_dirty(self, table: int) -> int:
        """As `Collection.num_dirty`; counted in a scan of the table, as are the histograms."""
        return self._native.num_dirty(table, self._order.stream())

    def drift(self, table: int) -> NDArray[np.float32]:
        """As `Collection.drift`."""
        return self._native.drift(table, self._order.stream())

    def sampled_rows(self, table: int) -> NDArray[np.int64]:
        """As `Collection.sampled_rows`."""
        return self._native.sampled_rows(table, self._order.stream())

    def count_histogram(self, table: int) -> NDArray[np.int64]:
        """As `Collection.count_histogram`."""
        return self._native.count_histogram(table, self._order.stream())

    def drift_histogram(self, table: int) -> NDArray[np.int64]:
        """As `Collection.drift_histogram`."""
        return self._native.drift_histogram(table, self._order.stream())

    def copy_rows(
        self, table: int, rows: TensorRef, weight: TensorRef, state: TensorRef | None, *, threads: int = 1
    ) -> None:
        """As `Collection.copy_rows`; `threads` isn't used."""
        self._native.copy_rows(table, rows, weight, state, self._order.stream())

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
        """As `Collection.load_rows`; `threads` isn't used."""
        self._native.load_rows(table, rows, weight, state, dirty=dirty, stream=self._order.stream())

    def put_rows(self, table: int, rows: TensorRef, weight: TensorRef, state: TensorRef | None) -> None:
        """As `Collection.put_rows`."""
        self._native.put_rows(table, rows, weight, state, self._order.stream())

    def reset_rows(self, table: int, begin: int, end: int) -> None:
        """As `Collection.reset_rows`."""
        self._native.reset_rows(table, begin, end, self._order.stream())

    def discard_rows(self, table: int, begin: int, end: int) -> None:
        """As `Collection.discard_rows`."""
        self._native.discard_rows(table, begin, end, self._order.stream())

    def clear_trackers(self, table: int, begin: int, end: int, *, dirty: bool) -> None:
        """As `Collection.clear_trackers`."""
        self._native.clear_trackers(table, begin, end, dirty=dirty, stream=self._order.stream())

    def set_trackers(self, table: int, words: TensorRef) -> None:
        """As `Collection.set_trackers`."""
        self._native.set_trackers(table, words, self._order.stream())

    def set_drift(self, table: int, drift: TensorRef) -> None:
        """As `Collection.set_drift`."""
        self._native.set_drift(table, drift, self._order.stream())

    def mark_dirty(self, table: int, rows: TensorRef | None = None) -> None:
        """As `Collection.mark_dirty`."""
        self._native.mark_dirty(table, rows, self._order.stream())

    def keep_saved(self, table: int, keep: bool) -> None:
        """As `Collection.keep_saved`; the copy lies in memory of the host."""
        self._native.keep_saved(table, keep, self._order.stream())

    def refresh_saved(self, table: int, begin: int, end: int) -> None:
        """As `Collection.refresh_saved`."""
        self._native.refresh_saved(table, begin, end, self._order.stream())

    def changes(
        self, table: int, metric: Literal["l2", "l1", "tv"] = "l2", *, threads: int = 1
    ) -> NDArray[np.float32]:
        """As `Collection.changes`, of rows that are copied to the host some MB at a time."""
        return self._native.changes(table, metric, threads=threads, stream=self._order.stream())
