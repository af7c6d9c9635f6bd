"""A node out of reach: its link is cut and heals (`make test-cluster`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ray_lab import SECONDS, eventually, lab, pid_is_gone
from ray_runs import Run

from cpr_native.ray.local import process_tree

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


@contextmanager
def linked_network() -> Iterator[list[str]]:
    """Make a network with the address 10.77.0.2, linked to this one, which gets 10.77.0.1 and 10.77.0.3.

    Gives the prefix of commands that run in it.
    """
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    here = os.readlink("/proc/self/ns/net")
    try:
        eventually(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != here, "the node's network")
        for command in (
            ["link", "add", "veth1", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid)],
            ["addr", "add", "10.77.0.1/32", "dev", "lo"],
            ["addr", "add", "10.77.0.3/32", "dev", "lo"],
            ["link", "set", "veth1", "up"],
            ["route", "add", "10.77.0.2/32", "dev", "veth1", "src", "10.77.0.1"],
        ):
            subprocess.run(["ip", *command], check=True)
        for command in (
            ["addr", "add", "10.77.0.2/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            subprocess.run([*inside, "ip", *command], check=True)
        yield inside
    finally:
        holder.kill()
        holder.wait(SECONDS)


def test_a_cut_link() -> None:
    """The node and its process go on, out of reach; when the link heals, the old life can't commit."""
    with lab(0, start=False) as place, linked_network() as inside:
        place.nodes.start_head(ip="10.77.0.1")
        place.nodes.connect()
        far = place.nodes.add(prefix=inside, ip="10.77.0.2")
        place.nodes.wait()
        run = Run(place, shards=1)
        run.train(1, 4)
        run.save(4)
        run.train(5, 6)
        before = run.pid(0)
        assert before in process_tree(far.pid)
        place.nodes.add(ip="10.77.0.3")
        place.nodes.wait()
        subprocess.run([*inside, "ip", "link", "set", "eth0", "down"], check=True)
        run.train(7, 8)
        assert not pid_is_gone(before), "the life that was cut off still runs"
        assert run.trainer.lost == [(0, 2)]
        run.check(0, [(1, 4), (7, 8)])
        run.save(8)
        subprocess.run([*inside, "ip", "link", "set", "eth0", "up"], check=True)
        eventually(lambda: pid_is_gone(before), "the end of the life that was cut off")
        run.train(9, 9)
        run.check(0, [(1, 4), (7, 9)])
        assert run.handle(0).incarnation == 2
