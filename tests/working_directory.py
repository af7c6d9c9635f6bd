"""The fixture of an empty working directory, for tests and benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def empty_working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run everything in an empty directory.

    A `python -c` child and Ray's processes have the working directory of their parent first in their
    `sys.path`: in the root of the repository they would import the source folder instead of the installed
    package.
    """
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)
