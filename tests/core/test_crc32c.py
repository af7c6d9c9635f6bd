from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cpr_native import _native
from cpr_native._tensor import describe


def crc(data: bytes, before: int = 0) -> int:
    return _native.crc32c(describe(np.frombuffer(data, np.uint8)), before)


def reference(data: bytes, before: int = 0) -> int:
    """Bit by bit: RFC 3720, reflected polynomial 0x82f63b78."""
    register = before ^ 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_vectors_of_rfc_3720() -> None:
    assert crc(b"123456789") == 0xE3069283
    assert crc(b"\0" * 32) == 0x8A9136AA
    assert crc(b"\xff" * 32) == 0x62A8AB43
    assert crc(bytes(range(32))) == 0x46DD794E
    assert crc(b"") == 0


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_equals_the_bitwise_reference(data: bytes, before: int) -> None:
    assert crc(data, before) == reference(data, before)


def test_every_length_around_the_stripes_and_every_alignment() -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 * 4096 * 2 + 64, dtype=np.uint8)
    register = crc(data[:12280].tobytes())
    for length in range(12281, 12310):
        register = reference(data[length - 1 : length].tobytes(), register)
        assert crc(data[:length].tobytes()) == register
    whole = _native.crc32c(describe(data))
    for offset in range(1, 17):
        head = _native.crc32c(describe(data[:offset]))
        assert _native.crc32c(describe(data[offset:]), head) == whole


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 20_000))
def test_combine_is_the_crc_of_the_concatenation(a: bytes, b: bytes, repeat: int) -> None:
    tail = b * (repeat // 100 + 1)
    assert _native.crc32c_combine(crc(a), crc(tail), len(tail)) == crc(a + tail)


def test_combine_with_lengths_beyond_memory() -> None:
    # Appending zeros twice is appending them once with the sum of the lengths.
    once = _native.crc32c_combine(0x12345678, 0, 2**40 + 2**33)
    assert once == _native.crc32c_combine(_native.crc32c_combine(0x12345678, 0, 2**40), 0, 2**33)
    assert once != 0x12345678


def test_every_set_of_instructions_gives_the_same() -> None:
    code = (
        "import numpy as np\n"
        "from cpr_native import _native\n"
        "from cpr_native._tensor import describe\n"
        "data = np.random.default_rng(2).integers(0, 256, 100_003, dtype=np.uint8)\n"
        "print([_native.crc32c(describe(data[i:]), i) for i in range(9)])\n"
        "print([_native.crc32c(describe(data[:i])) for i in range(1000, 1600, 7)])\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | level, capture_output=True, text=True, check=True
        ).stdout
        for level in ({}, *({"CPR_ISA": isa} for isa in _native.supported_isas()))
    }
    assert len(answers) == 1
