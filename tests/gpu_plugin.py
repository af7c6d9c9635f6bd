"""What `make cuda-check` has pytest load (`-p gpu_plugin`) for tests on a GPU, in place of tests/conftest.py.

Hypothesis sets no deadline: the first call of a kernel loads it. Work that a test left is waited for before
the next one takes its memory; a fault of a kernel, after which nothing runs in the process any more, ends the
run there and names the test.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "gpu",
    deadline=None,
    max_examples=30,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gpu")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Wait for the GPU; raises `pytest.exit` where it can't go on."""
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except Exception as error:  # torch has a class of its own for it from 2.9 on
        pytest.exit(f"the GPU failed in or before {item.nodeid}: {error}", returncode=9)
