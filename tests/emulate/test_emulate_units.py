from __future__ import annotations

import pytest

from cpr_native.emulate.units import human_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_949, "99.9 kB"), (99_951, "100 kB"),
     (999_499, "999 kB"), (999_500, "1.0 MB"), (12_345_678, "12.3 MB"), (5 * 10**12, "5.0 TB")],
)  # fmt: skip
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text
