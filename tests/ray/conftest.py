"""The Ray cluster that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_lab import Lab, lab


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """Two places and a spare one, for all tests of the file."""
    with lab(3) as made:
        yield made


@pytest.fixture
def three_places(shared_lab: Lab) -> Lab:
    """The cluster with all its nodes living and no run on it."""
    shared_lab.heal()
    return shared_lab
