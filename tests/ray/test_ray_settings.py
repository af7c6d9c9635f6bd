"""Settings refuse what can't be, and say it."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_native.ray import ClusterSettings, HealthProfile
from cpr_native.ray.capacity import Node, pending_line
from cpr_native.ray.local import LocalNodes

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"run": ""}, "run: expected 1 to 64"),
        ({"run": "a b"}, "run: expected 1 to 64"),
        ({"resource": "CPU"}, "resource: expected the name of a custom resource"),
        ({"cpus": -1.0}, "cpus: expected at least 0"),
        ({"lookups": 0}, "lookups: expected at least 1"),
        ({"call_timeout": 0.0}, "call_timeout: expected more than 0 s"),
        ({"report_every": -1.0}, "report_every: expected more than 0 s"),
        ({"grace": float("nan")}, "grace: expected more than 0 s"),
        ({"start_timeout": 0.0}, "start_timeout: expected more than 0 s or None"),
    ],
)
def test_ranges(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterSettings(**{"run": "a", **wrong})


def test_a_health_profile_is_environment_of_ray() -> None:
    assert HealthProfile(period_ms=250).environment() == {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "250",
        "RAY_health_check_timeout_ms": "500",
        "RAY_health_check_failure_threshold": "3",
        "RAY_timeout_ms_task_wait_for_death_info": "20",
        "RAY_max_direct_call_object_size": "2097152",
        "RAY_core_worker_internal_heartbeat_ms": "50",
    }
    with pytest.raises(ValueError, match="failure_threshold: expected at least 1, got 0"):
        HealthProfile(failure_threshold=0)


def test_pending_counts_places_that_a_shard_could_take() -> None:
    def node(*, alive: bool = True, offers: float = 1.0, free: float = 1.0, draining: bool = False) -> Node:
        return Node(id="a", address="b", alive=alive, offers=offers, free=free, draining=draining)

    nodes = [node(), node(free=0.0), node(draining=True), node(alive=False), node(offers=0.0, free=0.0)]
    line = pending_line(nodes, missing=2)
    assert line == (
        "PENDING: waiting for capacity for 2 shards: 4 nodes live, 3 offer a place, 1 have it free"
    )


def test_local_nodes_want_a_short_path(tmp_path: Any) -> None:
    folder = tmp_path / ("long" * 12)
    folder.mkdir()
    with pytest.raises(ValueError, match="expected a path of at most 40 characters"):
        LocalNodes(folder)
