"""A process stops for a while and goes on (SIGSTOP, SIGCONT), as on a host that swaps or in a debugger."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chaos.ledger import Watch
from chaos.scenario import BOUND_S, HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import STEPS_FIRST
from chaos.site import INCIDENT_WITHIN_S, ChaosSite

FROZEN_S = 20.0
SLEEPER = "sleeper"


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # somebody may have given it up meanwhile
                os.kill(pid, signal.SIGCONT)


def freeze(number: int, role: str, seconds: float = FROZEN_S) -> Callable[[ChaosSite, Watch], None]:
    def run(site: ChaosSite, _watch: Watch) -> None:
        with stopped([site.nodes[number].the_pid(role)]):
            time.sleep(seconds)  # the trouble itself has a length: nothing is waited for

    return run


def freeze_service(number: int) -> Callable[[ChaosSite, Watch], None]:
    """All of a node's service, as a host that is starved of memory or whose virtual machine is moved."""

    def run(site: ChaosSite, watch: Watch) -> None:
        watch.away(site.nodes[number])
        with stopped(site.nodes[number].service_pids()):
            time.sleep(FROZEN_S)

    return run


def freeze_a_rank(site: ChaosSite, watch: Watch) -> None:
    """Of a job of its own. It must hold up nobody: its node's agent goes on reporting and is scraped all the time."""
    node = site.nodes[2]
    job = site.start_job(SLEEPER, node, requeue=False)
    for rank in (0, 1):
        watch.frozen(job.name, rank)
    site.eventually(
        lambda: len(job.steps(0)) > STEPS_FIRST and site.problem() is None, "the sleeper trains",
        within_s=INCIDENT_WITHIN_S,
    )  # fmt: skip
    until_s = time.monotonic() + FROZEN_S
    with stopped([job.host_pid_of(1)]):
        while time.monotonic() < until_s:
            status = {one["address"]: one for one in site.api("/api/v1/status")["nodes"]}[node.address]
            assert status["health"] == "ok", f"a rank that is stopped holds up its node's agent: {status}"
            assert "tidegauge_rank_steps_total{" in site.text(node.metrics_url, "/metrics")
            time.sleep(1.0)
    steps = len(job.steps(1))
    site.eventually(lambda: len(job.steps(1)) > steps, "the sleeper goes on", within_s=BOUND_S)


def sleeper_ends(site: ChaosSite) -> None:
    if SLEEPER in site.jobs:
        site.jobs[SLEEPER].stop()


def _frozen(name: str, number: int, role: str, *, bound_s: float = BOUND_S) -> Scenario:
    return Scenario(f"frozen-{name}", f"{role} of node {number} is stopped for {FROZEN_S:.0f} s",
                    freeze(number, role), bound_s)  # fmt: skip


SCENARIOS = (
    Scenario("frozen-rank", f"a rank is stopped for {FROZEN_S:.0f} s: its socket answers nobody", freeze_a_rank,
             cleanup=sleeper_ends),
    _frozen("agent", 1, "agent"),
    _frozen("raylet", 1, "raylet"),
    Scenario("frozen-service", f"the whole service of node 1 is stopped for {FROZEN_S:.0f} s", freeze_service(1)),
    _frozen("coordinator", 0, "coordinator"),
    _frozen("gcs", 0, "gcs", bound_s=HEAD_BOUND_S),
    _frozen("supervisor", 1, "supervisor"),
)  # fmt: skip
