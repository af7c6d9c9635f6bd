"""Settings of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from s3_cases import s3_bucket, s3_options, s3_server

__all__ = ["s3_bucket", "s3_options", "s3_server"]

# No deadline: a slow machine is not a wrong answer. CI draws the same examples each time.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=50,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _empty_working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run every test in an empty directory.

    A `python -c` child has the working directory first in its `sys.path`: in the root of the repository
    it would import the source folder instead of the installed package.
    """
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)
