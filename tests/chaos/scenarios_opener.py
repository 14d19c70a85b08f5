"""The opener ends, or stops for a while: agents see through its hands."""

from __future__ import annotations

import time

from chaos.ledger import Watch
from chaos.nodes import Node
from chaos.scenario import Scenario
from chaos.scenarios_freeze import FROZEN_S, freeze, stopped
from chaos.scenarios_kills import kill, without
from chaos.site import INCIDENT_WITHIN_S, ChaosSite
from integration.security.users import ADA

NEWCOMER = "newcomer"
LOOK_EVERY_S = 0.01


def kill_while_a_rank_starts(site: ChaosSite, watch: Watch) -> None:
    """At the moment when the first ring of a new job is there, which the agent has not opened yet."""
    node = site.nodes[1]
    before = _rings(node)
    job = site.start_job(NEWCOMER, node, requeue=False)
    watch.dead(job.name)
    until_s = time.monotonic() + INCIDENT_WITHIN_S
    while not _rings(node) - before:
        assert time.monotonic() < until_s, f"no ring of the new job\n{job.words()}"
        time.sleep(LOOK_EVERY_S)
    node.kill("opener")


def kill_the_agent_beside_a_frozen_opener(site: ChaosSite, watch: Watch) -> None:
    """The agent that follows cannot open other users' rings before the opener goes on: its page has not every rank."""
    node = site.nodes[1]
    watch.away(node)
    with stopped([node.the_pid("opener")]):
        time.sleep(1.0)
        node.kill("agent")
        time.sleep(FROZEN_S)


def _rings(node: Node) -> set[str]:
    return {path.name for path in (node.run_dir / str(ADA)).glob("*.ring")}


SCENARIOS = (
    Scenario("opener", "SIGKILL to the opener beside the leak", kill(1, "opener")),
    Scenario("frozen-opener", f"the same opener is stopped for {FROZEN_S:.0f} s", freeze(1, "opener")),
    Scenario("frozen-opener-agent", f"SIGKILL to the agent while its opener is stopped for {FROZEN_S:.0f} s",
             kill_the_agent_beside_a_frozen_opener),
    Scenario("opener-rank-starts", "SIGKILL to the opener as a rank begins", kill_while_a_rank_starts,
             cleanup=without(NEWCOMER)),
)  # fmt: skip
