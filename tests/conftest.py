"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from s3_cases import s3_bucket, s3_options, s3_server
from working_directory import empty_working_directory

__all__ = ["empty_working_directory", "s3_bucket", "s3_options", "s3_server"]

# No deadline: a slow machine is not a wrong answer. CI draws the same examples each time.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=50,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
