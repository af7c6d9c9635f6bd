"""Ray as the carrier of a cluster of shards. Ray is imported here and nowhere else: the extra `ray`.

::

    connect()                                              # to the Ray cluster of this machine
    cluster = RayCluster.launch(spec, ClusterSettings(run="ctr"))
    cluster.shards                                         # the `ShardDirectory` for trainers
    cluster.report()                                       # shards, incarnations, last commits
    cluster.stop()
"""

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "cpr_native.ray needs Ray: pip install 'cpr-native[ray]'", name="ray"
    ) from error

from cpr_native.ray.board import RunRecord, publish_progress, runs
from cpr_native.ray.cluster import ClusterReport, RayCluster, ShardReport
from cpr_native.ray.directory import RayHandle, RayShards
from cpr_native.ray.local import LocalNode, LocalNodes
from cpr_native.ray.metrics import TrainingMetrics
from cpr_native.ray.settings import ClusterSettings, HealthProfile
from cpr_native.ray.start import connect

__all__ = [
    "ClusterReport",
    "ClusterSettings",
    "HealthProfile",
    "LocalNode",
    "LocalNodes",
    "RayCluster",
    "RayHandle",
    "RayShards",
    "RunRecord",
    "ShardReport",
    "TrainingMetrics",
    "connect",
    "publish_progress",
    "runs",
]
