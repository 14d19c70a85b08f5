"""Head, raylet or GCS are away for ten minutes: nodes go on, and what they see meanwhile is the head's afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chaos.disks import inside
from chaos.ledger import Watch
from chaos.nodes import Node
from chaos.scenario import AWAY_S, BOUND_S, HEAD_BOUND_S, Scenario
from chaos.scenarios_freeze import stopped
from chaos.scenarios_network import link_is_up
from chaos.site import GPU_BYTES, ChaosSite

DOOMED = "doomed"
STEP_BYTES = GPU_BYTES // 8
WAITS_WITHIN_S = 180.0
KNOWN_WITHIN_S = 60.0
KEPT_FILES = {"taken.json", "clock.json"}
"""In the evidence's folder, beside the pieces that wait."""


def away(gone: Callable[[ChaosSite, Watch], Any]) -> Callable[[ChaosSite, Watch], None]:
    """``gone`` is a context. Meanwhile a job beside the leak runs out of memory: its node's agent collects the
    evidence, which waits on disk. The job ends of it."""

    def run(site: ChaosSite, watch: Watch) -> None:
        node = site.nodes[1]
        until_s = time.monotonic() + AWAY_S
        with gone(site, watch):
            before = _waiting(node)
            watch.dead(site.start_job(DOOMED, node, requeue=False, leak_bytes=STEP_BYTES).name)
            site.eventually(
                lambda: _waiting(node) - before, "evidence that was collected meanwhile waits",
                within_s=WAITS_WITHIN_S,
            )  # fmt: skip
            time.sleep(max(0.0, until_s - time.monotonic()))  # the trouble itself has a length
        assert time.monotonic() >= until_s

    return run


@contextmanager
def head_off(site: ChaosSite, watch: Watch) -> Iterator[None]:
    watch.away(site.head)
    site.head.power_off()
    try:
        yield
    finally:
        site.head.up()


@contextmanager
def no_engine(site: ChaosSite, _watch: Watch) -> Iterator[None]:
    """The node's raylet is dead, and no other can be started, as its head is out of reach."""
    node = site.nodes[1]
    node.cut()
    node.kill("raylet")
    yield
    node.heal()


def stops(number: int, role: str) -> Callable[[ChaosSite, Watch], Any]:
    return lambda site, _watch: stopped([site.nodes[number].the_pid(role)])


def told_of_meanwhile(site: ChaosSite, _watch: Watch) -> None:
    """An incident about what happened meanwhile is with the head, and the evidence with it."""
    site.eventually(
        lambda: any(one["reports"] or one["snapshots"] for one in site.incidents(DOOMED)),
        "the head has an incident of that time, and its evidence", within_s=KNOWN_WITHIN_S,
    )  # fmt: skip


def over(site: ChaosSite) -> None:
    link_is_up(site)
    if DOOMED in site.jobs:
        site.jobs.pop(DOOMED).stop()


def _waiting(node: Node) -> set[str]:
    return {path.name for path in inside(node, node.state_dir / "evidence").glob("*.json")} - KEPT_FILES


def _away(name: str, what: str, gone: Callable[[ChaosSite, Watch], Any], bound_s: float) -> Scenario:
    return Scenario(f"{name}-away", f"{what} for {AWAY_S / 60:.0f} minutes", away(gone), bound_s,
                    after=told_of_meanwhile, cleanup=over, is_long=True)  # fmt: skip


SCENARIOS = (
    _away("head", "the head's host is off", head_off, HEAD_BOUND_S),
    _away("raylet", "a node has no raylet, and its head is out of reach", no_engine, BOUND_S),
    _away("raylet-stopped", "a raylet is stopped", stops(1, "raylet"), BOUND_S),
    _away("gcs-stopped", "gcs_server is stopped", stops(0, "gcs"), HEAD_BOUND_S),
)
