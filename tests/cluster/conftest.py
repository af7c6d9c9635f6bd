"""A cluster of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.process_clusters import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()
