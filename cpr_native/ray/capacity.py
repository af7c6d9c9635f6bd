"""Which nodes there are and where a shard could go."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_native.ray import internals


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node: `id` in hex, IP address; `offers`, `free`: units of the shards' resource."""

    id: str
    address: str
    alive: bool
    offers: float
    free: float
    draining: bool


def capacity(resource: str) -> list[Node]:
    """Return all nodes that the Ray cluster has had, in no order, as seen by the shards' resource."""
    available = internals.available()
    return [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            alive=node["Alive"],
            offers=node["Resources"].get(resource, 0.0),
            free=available.get(node["NodeID"], {}).get(resource, 0.0) if node["Alive"] else 0.0,
            draining=node["Alive"] and internals.draining(node["NodeID"]),
        )
        for node in internals.nodes()
    ]


def pending_line(nodes: list[Node], *, missing: int) -> str:
    """Return one line that says what `missing` shards wait for."""
    living = [node for node in nodes if node.alive]
    offering = [node for node in living if node.offers >= 1]
    free = [node for node in offering if node.free >= 1 and not node.draining]
    return (
        f"PENDING: waiting for capacity for {missing} shards: {len(living)} nodes live, "
        f"{len(offering)} offer a place, {len(free)} have it free"
    )
