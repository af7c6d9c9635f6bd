"""Streams raw Criteo files, plain or gzip, as batches; memory is bounded whatever the file's size.

Mapping of a line to a sample:

- label: 0 or 1.
- integer feature x -> float32 `log(1 + max(x, 0))`: the few negative values (Criteo's I2 goes down to -3)
  count as 0; a missing one is 0.
- hexadecimal hash h of table t -> row `1 + h % (table_sizes[t] - 1)`; a missing one is row 0, which no hash
  reaches. The hash is the file's own, so the rows are the same on every machine and in every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpr_native.data._lines import count_lines, line_blocks, open_stream
from cpr_native.data._parse import ParsedBlock, explain_line, parse_block
from cpr_native.data.batch import ClickBatch, one_id_offsets
from cpr_native.data.tables import checked_table_sizes

_MAX_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class _Position:
    """Where the next batch starts: lines and uncompressed bytes before it, what came of those lines."""

    line: int
    byte: int | None  # None: not known, `line` has to be searched
    samples: int = 0
    damaged: int = 0


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Parsed samples that wait for a batch: `lines`, `bytes` after each, `damaged` lines before each."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    lines: NDArray[np.int64]
    bytes: NDArray[np.int64]
    damaged: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def cut(self, begin: int, end: int) -> _Rows:
        """Return rows `begin` .. `end` as views."""
        return _Rows(**{name: values[begin:end] for name, values in vars(self).items()})

    def joined(self, other: _Rows) -> _Rows:
        """Return a copy of both, `other` last."""
        return _Rows(**{name: np.concatenate((mine, vars(other)[name])) for name, mine in vars(self).items()})


class CriteoReader:
    """Iterable over the batches of some lines of a Criteo file; resumes bit-exactly.

    `iter(reader)` starts a pass at `begin`, or where a state loaded since the last `iter` says.
    `state_dict()` is the position after the batch yielded last, so a pass resumed from it yields exactly the
    batches that were still to come. One pass at a time: a second `iter` takes over the position.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_size: int,
        table_sizes: Sequence[int],
        begin: int = 0,
        end: int | None = None,
        on_error: str = "raise",
        drop_last: bool = False,
    ) -> None:
        """Check the arguments and that the file opens.

        Args:
            path: the file, plain or gzip (told by its first bytes, not by its name).
            batch_size: samples per batch; the last batch of a pass may be shorter.
            table_sizes: rows of each of the 26 tables, at least 2.
            begin: first line to read, 0-based.
            end: line to stop before, 0-based; None for the end of the file.
            on_error: "raise" at the first damaged line, or "skip" and count it.
            drop_last: leave out a last batch that is shorter.

        Raises:
            ValueError: an argument is out of its range.
            OSError: the file can't be opened.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if begin < 0 or (end is not None and end < begin):
            raise ValueError(f"begin and end must be 0 <= begin <= end, got {begin} and {end}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
        self._path = os.fspath(path)
        self._batch_size = batch_size
        self._table_sizes = checked_table_sizes(tuple(table_sizes))
        self._modulus = np.asarray(self._table_sizes, dtype=np.int64) - 1
        self._begin = begin
        self._end = end
        self._on_error = on_error
        self._drop_last = drop_last
        with open_stream(self._path):
            self._file_bytes = os.stat(self._path).st_size
        self._start = _Position(line=begin, byte=0 if begin == 0 else None)
        self._position = self._start
        self._resume: _Position | None = None
        self._examples: list[str] = []

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of each of the 26 tables."""
        return self._table_sizes

    @property
    def damaged(self) -> int:
        """Damaged lines skipped in this pass before the position of `state_dict()`."""
        return self._position.damaged

    @property
    def damaged_examples(self) -> tuple[str, ...]:
        """The first 20 damaged lines skipped in this pass, each as `file:line: reason` (lines from 1)."""
        return tuple(self._examples)

    def state_dict(self) -> dict[str, int | None]:
        """Return the position after the batch yielded last: numbers only, safe to store as JSON."""
        return {**vars(self._position), "file_bytes": self._file_bytes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` start at the position of `state`.

        Raises:
            ValueError: keys or values are not those of `state_dict()`, the line is outside `begin` .. `end`,
                or the state belongs to a file of another size. Nothing changed then.
        """
        expected = {"line", "byte", "samples", "damaged", "file_bytes"}
        if set(state) != expected:
            raise ValueError(
                f"{self._path}: state must have the keys {sorted(expected)}, got {sorted(state)}"
            )
        for key, value in state.items():
            if not (isinstance(value, int) and value >= 0) and not (key == "byte" and value is None):
                raise ValueError(
                    f"{self._path}: state[{key!r}] must be a number of at least 0, got {value!r}"
                )
        if state["file_bytes"] != self._file_bytes:
            raise ValueError(
                f"{self._path}: state is of a file of {state['file_bytes']} bytes, "
                f"this one has {self._file_bytes}"
            )
        if state["line"] < self._begin or (self._end is not None and state["line"] > self._end):
            raise ValueError(
                f"{self._path}: state's line {state['line']} is outside {self._begin} .. {self._end}"
            )
        position = _Position(
            line=state["line"], byte=state["byte"], samples=state["samples"], damaged=state["damaged"]
        )
        self._position = self._resume = position

    def __iter__(self) -> Iterator[ClickBatch]:
        """Yield the batches from the position on.

        Raises:
            ValueError: a line is damaged and `on_error` is "raise", or no line of the pass is valid.
            OSError: the file can't be read, or its gzip stream is damaged.
        """
        self._position = self._start if self._resume is None else self._resume
        self._resume = None
        self._examples = []
        return self._batches(self._position)

    def _batches(self, start: _Position) -> Iterator[ClickBatch]:
        position = start
        waiting: _Rows | None = None
        for rows, after in self._rows(start):
            position = after
            waiting = rows if waiting is None else waiting.joined(rows)
            first = 0
            while len(waiting) - first >= self._batch_size:
                yield self._batch(waiting.cut(first, first + self._batch_size))
                first += self._batch_size
            waiting = waiting.cut(first, len(waiting))
        if waiting is not None and len(waiting) > 0 and not self._drop_last:
            yield self._batch(waiting)
        if self._position.samples == 0 and (waiting is None or len(waiting) == 0):
            raise ValueError(f"{self._path}: no valid line in lines {self._begin + 1} .. {position.line}")
        self._position = replace(position, samples=self._position.samples)

    def _rows(self, start: _Position) -> Iterator[tuple[_Rows, _Position]]:
        """Yield the samples of each block, and the position after it (its `samples` are not counted)."""
        line, damaged = start.line, start.damaged
        with open_stream(self._path) as stream:
            for block, byte in line_blocks(stream, self._path, line=line, byte=start.byte):
                parsed = parse_block(block)
                read = len(parsed.line_ends)
                if self._end is not None:
                    read = min(read, self._end - line)
                bad = parsed.damaged[parsed.damaged < read]
                self._report(block, parsed, bad, line)
                good = int(np.searchsorted(parsed.lines, read))
                hashes = parsed.hashes[:good]
                rows = _Rows(
                    labels=parsed.labels[:good],
                    dense=parsed.dense[:good],
                    ids=np.where(hashes < 0, 0, 1 + hashes % self._modulus),
                    lines=line + parsed.lines[:good] + 1,
                    bytes=byte + parsed.ends[:good],
                    damaged=damaged + np.searchsorted(bad, parsed.lines[:good]),
                )
                line += read
                damaged += len(bad)
                after = byte if read == 0 else byte + int(parsed.line_ends[read - 1])
                yield rows, _Position(line=line, byte=after, damaged=damaged)
                if line == self._end:
                    return

    def _report(self, block: bytes, parsed: ParsedBlock, bad: NDArray[np.int64], line: int) -> None:
        for index in bad[: _MAX_EXAMPLES - len(self._examples)]:
            begin = int(parsed.line_ends[index - 1]) if index else 0
            reason = explain_line(block[begin : int(parsed.line_ends[index]) - 1])
            example = f"{self._path}:{line + int(index) + 1}: {reason}"
            if self._on_error == "raise":
                raise ValueError(example)
            self._examples.append(example)

    def _batch(self, rows: _Rows) -> ClickBatch:
        self._position = _Position(
            line=int(rows.lines[-1]),
            byte=int(rows.bytes[-1]),
            samples=self._position.samples + len(rows),
            damaged=int(rows.damaged[-1]),
        )
        ids = np.ascontiguousarray(rows.ids.T).reshape(-1)
        return ClickBatch(
            dense=torch.from_numpy(rows.dense.copy()),
            ids=torch.from_numpy(ids),
            offsets=one_id_offsets(ids.size),
            labels=torch.from_numpy(rows.labels.copy()),
        )


def split_lines(path: str | os.PathLike[str], train: float = 0.9) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ((begin, end) of the first `train` share of the lines, (begin, end) of the rest), 0-based.

    Reads the file once to count its lines.

    Raises:
        ValueError: `train` is not in (0, 1), or a part would be empty.
        OSError: the file can't be read.
    """
    if not 0.0 < train < 1.0:
        raise ValueError(f"train must be in (0, 1), got {train}")
    lines = count_lines(path)
    cut = int(lines * train)
    if cut == 0 or cut == lines:
        raise ValueError(f"{os.fspath(path)}: {lines} lines are too few to split at {train}")
    return (0, cut), (cut, lines)
