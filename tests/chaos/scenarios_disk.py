"""Disks are filled to the last byte, and have room again: a node's state, the head's state, a node's /dev/shm."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.disks import full, leave_no_room_in_the_log, put_state_on_a_small_disk
from chaos.ledger import Watch
from chaos.scenario import HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import cured, watch_only
from chaos.site import CURE, ChaosSite

FULL_S = 15.0
SAYS_SO_WITHIN_S = 60.0
"""The next time that there is anything to write down."""
BACK_WITHIN_S = 30.0
SHM = Path("/dev/shm")


def node_disk(site: ChaosSite, watch: Watch) -> None:
    """The agent goes on reporting; one that has to start on the full disk comes back too."""
    node = site.nodes[1]
    put_state_on_a_small_disk(site, node)
    watch.prepared()
    with full(node, node.state_dir):
        time.sleep(FULL_S)
        assert site.problem() is None, f"a full disk of a node costs its service something: {site.problem()}"
        node.kill("agent")
        site.wait_full_service(BACK_WITHIN_S)


def node_disk_and_raylet(site: ChaosSite, watch: Watch) -> None:
    """The engine cannot be started while the disk is full."""
    node = site.nodes[1]
    put_state_on_a_small_disk(site, node)
    watch.prepared()
    with full(node, node.state_dir):
        node.kill("raylet")
        time.sleep(FULL_S)


def head_disk(site: ChaosSite, watch: Watch) -> None:
    """Nothing is decided that cannot be written down first; the API says so; the agents go on."""
    head = site.head
    put_state_on_a_small_disk(site, head)
    watch.prepared()
    saved = len(site.jobs["leaky"].told("saving"))
    leave_no_room_in_the_log(head)
    with full(head, head.state_dir):
        site.eventually(
            lambda: site.api("/api/v1/policy")["store_problem"], "the API says that nothing can be written",
            within_s=SAYS_SO_WITHIN_S,
        )  # fmt: skip
        site.set_ladder(CURE)  # what the policy wants now would have to be written down
        time.sleep(FULL_S)
        assert len(site.jobs["leaky"].told("saving")) == saved, "something was done that is not in the audit"
        health = [node["health"] for node in site.api("/api/v1/status")["nodes"]]
        assert health == ["ok"] * len(site.nodes), f"the agents do not go on: {health}"


def head_disk_and_coordinator(site: ChaosSite, watch: Watch) -> None:
    """The coordinator has to start on the full disk: it serves what it hears from the agents."""
    head = site.head
    put_state_on_a_small_disk(site, head)
    watch.prepared()
    with full(head, head.state_dir):
        head.kill("coordinator")
        site.eventually(
            lambda: site.api("/api/v1/status")["healthy"] and site.api("/api/v1/policy")["store_problem"],
            "a coordinator that started on a full disk answers, and says so", within_s=BACK_WITHIN_S,
        )  # fmt: skip


def head_disk_and_gcs(site: ChaosSite, watch: Watch) -> None:
    """The engine's head cannot be started while the disk is full."""
    head = site.head
    put_state_on_a_small_disk(site, head)
    watch.prepared()
    with full(head, head.state_dir):
        head.kill("gcs")
        time.sleep(FULL_S)


def node_shm(site: ChaosSite, _watch: Watch) -> None:
    """Ray's object store lies there. What its agent starts anew meanwhile has to do without."""
    node = site.nodes[2]
    with full(node, SHM):
        time.sleep(FULL_S)
        assert site.problem() is None, f"a full /dev/shm costs the service something: {site.problem()}"
        node.kill("agent")
        site.wait_full_service(BACK_WITHIN_S)


def node_shm_and_raylet(site: ChaosSite, _watch: Watch) -> None:
    node = site.nodes[2]
    with full(node, SHM):
        node.kill("raylet")
        time.sleep(FULL_S)


SCENARIOS = (
    Scenario("full-disk-node", "the disk of a node's state is full; its agent is killed meanwhile", node_disk),
    Scenario("full-disk-node-raylet", "the same, and its raylet is killed meanwhile", node_disk_and_raylet),
    Scenario("full-disk-head", "the disk of the head's state is full while the policy wants to act", head_disk,
             after=cured, cleanup=watch_only),
    Scenario("full-disk-coordinator", "the same, and the coordinator is killed meanwhile", head_disk_and_coordinator,
             HEAD_BOUND_S),
    Scenario("full-disk-gcs", "the same, and gcs_server is killed meanwhile", head_disk_and_gcs, HEAD_BOUND_S),
    Scenario("full-shm", "a node's /dev/shm is full; its agent is killed meanwhile", node_shm),
    Scenario("full-shm-raylet", "the same, and its raylet is killed meanwhile", node_shm_and_raylet),
)  # fmt: skip
