"""Whole lines of a text file, plain or gzip, in blocks of bounded size."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import IO, cast

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


def open_stream(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open `path` for reading its uncompressed bytes; gzip is told by the first two bytes. Raises OSError."""
    with open(path, "rb") as raw:
        compressed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return cast(IO[bytes], gzip.open(path, "rb")) if compressed else open(path, "rb")


def count_lines(path: str | os.PathLike[str]) -> int:
    """Return the number of lines of a file, plain or gzip, a last one without newline too. Raises OSError."""
    with open_stream(path) as stream:
        return sum(block.count(b"\n") for block, _ in line_blocks(stream, os.fspath(path), line=0, byte=0))


def line_blocks(stream: IO[bytes], path: str, *, line: int, byte: int | None) -> Iterator[tuple[bytes, int]]:
    """Yield the lines from `line` on as (block, its first byte in the uncompressed file).

    A block ends in a newline, added to a last line that lacks it. A line over 64 KiB is cut to `?`, no valid
    line, so that memory stays bounded; positions after it are right nevertheless.

    Args:
        stream: as `open_stream` returns it, at its start.
        path: for messages.
        line: first line wanted, 0-based.
        byte: where it starts; None to search it.

    Raises:
        OSError: reading fails or the gzip stream is damaged.
    """
    unwanted = line if byte is None else 0
    for block, start in _whole_lines(stream, path, 0 if byte is None else line, byte or 0):
        if unwanted:
            newlines = block.count(b"\n")
            if newlines <= unwanted:
                unwanted -= newlines
                continue
            cut = _after_newline(block, unwanted)
            block, start, unwanted = block[cut:], start + cut, 0
        if block:
            yield block, start


def _after_newline(block: bytes, number: int) -> int:
    cut = 0
    for _ in range(number):
        cut = block.index(b"\n", cut) + 1
    return cut


def _whole_lines(stream: IO[bytes], path: str, line: int, byte: int) -> Iterator[tuple[bytes, int]]:
    stream.seek(byte)
    rest, dropped = b"", 0
    while chunk := _read(stream, path, line):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            block = rest + chunk[:cut]
            yield block, byte + dropped
            line += block.count(b"\n")
            byte += dropped + len(block)
            rest, dropped = chunk[cut:], 0
        else:
            rest += chunk
        if len(rest) > MAX_LINE_BYTES:
            dropped += len(rest) - 1
            rest = b"?"
    if rest:
        yield rest + b"\n", byte + dropped


def _read(stream: IO[bytes], path: str, line: int) -> bytes:
    try:
        return stream.read(BLOCK_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(errno.EIO, f"gzip stream is damaged after line {line}: {error}", path) from error
