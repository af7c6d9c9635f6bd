"""All that is used of Ray beyond its typed public interface; the extra `ray` pins the range."""

from __future__ import annotations

from typing import Any, cast

import ray._private.state
import ray._raylet
import ray.util
from ray.experimental import internal_kv

_NAMESPACE = b"cpr_native"


def read_environment() -> None:
    """Make this process read the variables RAY_* and the token again: Ray reads each once."""
    raylet: Any = ray._raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def put(key: str, value: bytes, *, overwrite: bool) -> bool:
    """Write a value into the control store; False if there was one and it was left."""
    existed = internal_kv._internal_kv_put(key.encode(), value, overwrite=overwrite, namespace=_NAMESPACE)
    return overwrite or not existed


def get(key: str) -> bytes | None:
    """Return a value of the control store, None if there is none."""
    value: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return value


def keys(prefix: str) -> list[str]:
    """Return all keys that begin with `prefix`, sorted."""
    found = internal_kv._internal_kv_list(prefix.encode(), namespace=_NAMESPACE)
    return sorted(key.decode() for key in found)


def delete(key: str) -> None:
    """Remove a value of the control store, if it is there."""
    internal_kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)


def draining(node: str) -> bool:
    """Whether the node (its id in hex) is drained: it was asked to end or is about to be taken away."""
    return node in ray._private.state.state.get_draining_nodes()


def available() -> dict[str, dict[str, float]]:
    """Return what is free on each living node, by its id in hex."""
    look: Any = ray._private.state.available_resources_per_node
    return cast(dict[str, dict[str, float]], look())


def nodes() -> list[dict[str, Any]]:
    """Return all nodes that the cluster has had, as `ray.nodes` does."""
    look: Any = ray.nodes
    return cast(list[dict[str, Any]], look())


def own_address() -> str:
    """Return the IP address of this process's node."""
    look: Any = ray.util.get_node_ip_address
    return str(look())


def actor_state(actor_id: str) -> dict[str, Any]:
    """Return what is known of an actor: "State", "NumRestarts", "Address"; empty if nothing."""
    found: dict[str, Any] = ray._private.state.actors(actor_id)
    return found
