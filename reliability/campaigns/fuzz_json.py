"""Mutations of inputs of the fuzz target that keep JSON what it is, to reach what lies behind it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

# What a field of JSON is changed into: numbers at limits, names that lead elsewhere, other types.
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**32, 2**53, 2**62, 2**62 + 1, 2**63, 2**64, -(2**63), 10**40,
    1e308, 0.5, float("nan"), float("inf"), "", "t", "u", "global", "shards/0", "shards/-1",
    "../../etc/passwd", "/etc/passwd", "000000000002-000.safetensors", "000000000002-1000.safetensors",
    "00000000", "FFFFFFFF", "F32", "BF16", "I64", "U8", "float16", "bfloat16", "none", "adam", "base",
    "priority", "contiguous_rows", "balanced_rows", "\ud800", "\0", "\u0663", [], {}, [[]], [0], [0, 0],
    [2**62, 2**62], {"t": 1}, {"": {}}, {"0": {"sequence": 1, "crc32c": "00000000"}},
]  # fmt: skip


def changed(value: Any, random: Random) -> Any:
    """JSON with one of its values, somewhere, changed, removed, doubled or nested."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        name = random.choice(list(value))
        kind = random.randrange(12)
        if kind == 0:
            return {key: entry for key, entry in value.items() if key != name}
        if kind == 1:
            return {**value, random.choice(["x", "t.weight", "u.rows", name + " "]): value[name]}
        return {**value, name: changed(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.85:
        at = random.randrange(len(value))
        kind = random.randrange(6)
        if kind == 0:
            return [*value, value[at]]
        if kind == 1:
            return value[:at] + value[at + 1 :]
        return [*value[:at], changed(value[at], random), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.5:
        return value + random.choice([-1, 1, 8, 64, -8, 2**32])
    if random.random() < 0.02:
        for _ in range(random.choice([10, 900, 1100])):
            value = [value]
        return value
    return random.choice(HOSTILE)


def mutated(data: bytes, random: Random) -> bytes | None:
    """An input of `fuzz_inputs` with its JSON changed; None for one that has none."""
    kind, rest = data[:1], data[1:]
    if kind not in (b"m", b"s"):
        return None
    length = int.from_bytes(rest[:8], "little") if kind == b"s" else 0
    try:
        made = json.dumps(
            changed(json.loads(rest if kind == b"m" else rest[8 : 8 + length]), random)
        ).encode()
    except (ValueError, RecursionError, OverflowError):
        return None
    if kind == b"m":
        return kind + made + b"\n"
    return kind + len(made).to_bytes(8, "little") + made + rest[8 + length :]
