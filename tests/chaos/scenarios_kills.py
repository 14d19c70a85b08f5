"""SIGKILL to one process of the cluster, while an incident is open; and while an action is under way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from chaos.ledger import Watch
from chaos.scenario import BOUND_S, HEAD_BOUND_S, Scenario
from chaos.site import CURE, INCIDENT_WITHIN_S, WATCH, ChaosSite

ASKED_WITHIN_S = 60.0
CURED_WITHIN_S = 120.0
VICTIM = "victim"
STEPS_FIRST = 20


def kill(node: int, role: str) -> Callable[[ChaosSite, Watch], None]:
    def run(site: ChaosSite, watch: Watch) -> None:
        if role == "supervisor":  # its unit ends the whole service with it
            watch.away(site.nodes[node])
        site.nodes[node].kill(role)

    return run


def kill_a_rank(site: ChaosSite, watch: Watch) -> None:
    """Of a job of its own, which ends with it: torchrun ends what is left of a job that lost a rank."""
    job = site.start_job(VICTIM, site.nodes[2], requeue=False)
    site.eventually(lambda: len(job.steps(0)) > STEPS_FIRST and site.problem() is None, "the victim trains",
                    within_s=INCIDENT_WITHIN_S)  # fmt: skip
    watch.dead(job.name)
    os.kill(job.host_pid_of(1), signal.SIGKILL)


def agents_lived_on(site: ChaosSite, watch: Watch) -> None:
    """The other nodes' agents are the same processes: that is what the engine's state on the head's disk is for."""
    now = {node.name: node.pids("agent") for node in site.nodes[1:]}
    assert now == {name: watch.agents[name] for name in now}, f"agents were replaced: {now}, before {watch.agents}"


def without(name: str) -> Callable[[ChaosSite], None]:
    """A cleanup: the scenario's own job has ended. Its files stay, so no two scenarios share a name."""

    def run(site: ChaosSite) -> None:
        if name in site.jobs:
            site.jobs.pop(name).stop()

    return run


def while_acting(hurt: Callable[[ChaosSite, Watch], object]) -> Callable[[ChaosSite, Watch], None]:
    """The trouble while the leaking job saves its state because the policy asked it to."""

    def run(site: ChaosSite, watch: Watch) -> None:
        job = site.jobs["leaky"]
        asked = len(job.told("saving"))
        site.set_ladder(CURE)
        site.eventually(lambda: len(job.told("saving")) > asked, "the job is asked to save", within_s=ASKED_WITHIN_S)
        hurt(site, watch)

    return run


def cured(site: ChaosSite, watch: Watch) -> None:
    """The action that was under way has come to its end: saved once, started again once, training on.

    Until here the ladder was in force for the next attempt, too, which may have been saved and started again since.
    """
    job, before = site.jobs["leaky"], watch.requeues_before("leaky")
    requeue = site.eventually(lambda: _finished(site, before), "the requeue is done", within_s=CURED_WITHIN_S)
    site.set_ladder(WATCH)
    assert requeue["outcome"] == "done", requeue
    began = job.told("began")[before + 1]
    *_, saved = (line for line in job.told("saved") if line["mono_s"] < began["mono_s"])
    assert began["step"] == saved["step"], f"it went on from step {began['step']}, and had saved {saved['step']}"
    site.eventually(
        lambda: job.steps(0)[-1].pid == job.rank_pids()[0], "the latest attempt trains", within_s=CURED_WITHIN_S
    )


def watch_only(site: ChaosSite) -> None:
    site.set_ladder(WATCH)


def _finished(site: ChaosSite, before: int) -> dict[str, object] | None:
    """The leaking job's first requeue after the ``before`` earlier ones, when it is over and the job runs again."""
    requeues = [one for one in site.decisions() if one["decision"]["action"] == "requeue" and one["started_s"]]
    again = len(site.jobs["leaky"].told("began")) - 1
    return requeues[before] if len(requeues) > before and requeues[before]["outcome"] and again > before else None


def acting(name: str, what: str, hurt: Callable[[ChaosSite, Watch], object], *, bound_s: float = BOUND_S) -> Scenario:
    """``hurt`` while the leaking job saves at our request; then the action comes to its end all the same."""
    return Scenario(f"{name}-while-acting", f"{what} while a job saves at our request", while_acting(hurt), bound_s,
                    after=cured, cleanup=watch_only)  # fmt: skip


SCENARIOS = (
    Scenario("rank", "SIGKILL to a rank", kill_a_rank, cleanup=without(VICTIM)),
    Scenario("agent", "SIGKILL to the agent beside the leak", kill(1, "agent")),
    Scenario("raylet", "SIGKILL to the raylet beside the leak", kill(1, "raylet")),
    Scenario("supervisor", "SIGKILL to the supervisor beside the leak", kill(1, "supervisor")),
    Scenario("coordinator", "SIGKILL to the coordinator", kill(0, "coordinator")),
    Scenario("notifier", "SIGKILL to the notifier", kill(0, "notifier")),
    Scenario("head-raylet", "SIGKILL to the head's raylet", kill(0, "raylet"), HEAD_BOUND_S),
    Scenario("gcs", "SIGKILL to gcs_server", kill(0, "gcs"), HEAD_BOUND_S, after=agents_lived_on),
    Scenario("head-supervisor", "SIGKILL to the head's supervisor", kill(0, "supervisor"), HEAD_BOUND_S),
    acting("agent", "SIGKILL to the agent beside the job", kill(1, "agent")),
    acting("coordinator", "SIGKILL to the coordinator", kill(0, "coordinator")),
    acting("raylet", "SIGKILL to the raylet beside the job", kill(1, "raylet")),
)
