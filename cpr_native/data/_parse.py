"""Parses a block of raw Criteo lines at once: label, 13 integers and 26 hexadecimal hashes, tab-separated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.data.tables import CATEGORICAL_FEATURES, DENSE_FEATURES

FIELDS = 1 + DENSE_FEATURES + CATEGORICAL_FEATURES
_MAX_DIGITS = 18  # any such integer fits int64
_MAX_HEX = 8
_NOT_HEX = 255
_TAB, _NEWLINE, _RETURN, _MINUS, _ZERO = 9, 10, 13, 45, 48


def _nibbles() -> NDArray[np.uint8]:
    table = np.full(256, _NOT_HEX, dtype=np.uint8)
    for value, digit in enumerate("0123456789abcdef"):
        table[ord(digit)] = table[ord(digit.upper())] = value
    return table


_NIBBLES = _nibbles()


@dataclass(frozen=True, kw_only=True)
class ParsedBlock:
    """The valid lines of a block, and which lines are damaged.

    Attributes:
        labels: float32 [n].
        dense: float32 [n, 13], `log(1 + max(x, 0))`; 0 where missing.
        hashes: int64 [n, 26], 0 .. 2**32 - 1; -1 where missing.
        lines: int64 [n], index of each valid line in the block.
        ends: int64 [n], bytes of the block up to and including each valid line's newline.
        damaged: int64 [m], index of each damaged line, ascending.
        line_ends: int64 [n + m], bytes of the block up to and including each line's newline.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    hashes: NDArray[np.int64]
    lines: NDArray[np.int64]
    ends: NDArray[np.int64]
    damaged: NDArray[np.int64]
    line_ends: NDArray[np.int64]


def parse_block(block: bytes) -> ParsedBlock:
    """Parse `block`, whole lines that each end in a newline (a carriage return before it is ignored)."""
    text = np.frombuffer(block, dtype=np.uint8)
    delimiters = np.flatnonzero((text == _TAB) | (text == _NEWLINE))
    newlines = np.flatnonzero(text[delimiters] == _NEWLINE)
    line_ends = delimiters[newlines] + 1
    line_starts = np.concatenate((np.zeros(1, dtype=np.int64), line_ends[:-1]))
    whole = np.flatnonzero(np.diff(newlines, prepend=-1) == FIELDS)
    stops = delimiters[newlines[whole, None] + np.arange(1 - FIELDS, 1)]
    starts = np.concatenate((line_starts[whole, None], stops[:, :-1] + 1), axis=1)
    stops[:, -1] -= (text[stops[:, -1] - 1] == _RETURN) & (stops[:, -1] > starts[:, -1])
    sizes = stops - starts

    label = text[starts[:, 0]] - _ZERO
    valid = (sizes[:, 0] == 1) & (label <= 1)
    first_hash = 1 + DENSE_FEATURES
    integers, integers_valid = _integers(text, starts[:, 1:first_hash], sizes[:, 1:first_hash])
    hashes, hashes_valid = _hashes(text, starts[:, first_hash:], sizes[:, first_hash:])
    valid &= integers_valid & hashes_valid

    lines = whole[valid]
    damaged = np.ones(line_ends.size, dtype=np.bool_)
    damaged[lines] = False
    return ParsedBlock(
        labels=label[valid].astype(np.float32),
        dense=np.log1p(np.maximum(integers[valid], 0)).astype(np.float32),
        hashes=hashes[valid],
        lines=lines,
        ends=line_ends[lines],
        damaged=np.flatnonzero(damaged),
        line_ends=line_ends,
    )


def explain_line(line: bytes) -> str:
    """Return what is wrong with one damaged line, without its newline."""
    fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != FIELDS:
        return f"expected {FIELDS} tab-separated fields, got {len(fields)}"
    if fields[0] not in (b"0", b"1"):
        return f"label must be 0 or 1, got {_shown(fields[0])}"
    for index, field in enumerate(fields[1 : 1 + DENSE_FEATURES], start=1):
        digits = field.removeprefix(b"-")
        if field and not (digits.isdigit() and len(digits) <= _MAX_DIGITS):
            return f"I{index} must be an integer of up to {_MAX_DIGITS} digits, got {_shown(field)}"
    for index, field in enumerate(fields[1 + DENSE_FEATURES :], start=1):
        if len(field) > _MAX_HEX or not all(_NIBBLES[byte] != _NOT_HEX for byte in field):
            return f"C{index} must be up to {_MAX_HEX} hexadecimal digits, got {_shown(field)}"
    raise ValueError(f"line is not damaged: {_shown(line)}")


def _shown(field: bytes) -> str:
    return repr(field[:24].decode("ascii", errors="backslashreplace"))


def _integers(
    text: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the values [n, 13] (0 where missing) and which lines [n] hold none but integers."""
    negative = (sizes > 0) & (text[starts] == _MINUS)
    digits = sizes - negative
    valid = ((sizes == 0) | (digits > 0)) & (digits <= _MAX_DIGITS)
    begin = starts + negative
    values = np.zeros(starts.shape, dtype=np.int64)
    for place in range(min(int(digits.max(initial=0)), _MAX_DIGITS)):
        used = place < digits
        digit = text[np.where(used, begin + place, 0)] - _ZERO
        valid &= ~used | (digit <= 9)
        np.copyto(values, values * 10 + digit, where=used)
    np.negative(values, out=values, where=negative)
    return values, np.logical_and.reduce(valid, axis=1)


def _hashes(
    text: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the values [n, 26] (-1 where missing) and which lines [n] hold none but hexadecimal numbers."""
    valid = sizes <= _MAX_HEX
    values = np.zeros(starts.shape, dtype=np.int64)
    for place in range(min(int(sizes.max(initial=0)), _MAX_HEX)):
        used = place < sizes
        nibble = _NIBBLES[text[np.where(used, starts + place, 0)]]
        valid &= ~used | (nibble != _NOT_HEX)
        np.copyto(values, (values << 4) | nibble, where=used)
    np.copyto(values, -1, where=sizes == 0)
    return values, np.logical_and.reduce(valid, axis=1)
