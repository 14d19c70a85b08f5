"""The agent beside the engine and its handover: killed, stopped, and broken in the midst of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from chaos.disks import inside
from chaos.ledger import Watch
from chaos.nodes import Node
from chaos.scenario import BOUND_S, Scenario
from chaos.scenarios_freeze import stopped
from chaos.scenarios_network import link_is_up
from chaos.site import ChaosSite
from tidegauge.cluster.ray_service.agent_place import AgentKind, look_at_place

STANDS_IN_WITHIN_S = 60.0
TAKES_OVER_WITHIN_S = 120.0
STAYS_STOPPED_S = 20.0
LOOK_EVERY_S = 0.01


def without_engine(hurt: Callable[[ChaosSite, Node, int], None]) -> Callable[[ChaosSite, Watch], None]:
    """``hurt`` gets the stand-in's pid while the node has no engine: its raylet is dead, and its head out of reach."""

    def run(site: ChaosSite, _watch: Watch) -> None:
        node = site.nodes[1]
        node.cut()
        node.kill("raylet")
        hurt(site, node, _stand_in(site, node))
        node.heal()

    return run


def kill_stand_in(site: ChaosSite, node: Node, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _stand_in(site, node, but=pid)


def stop_stand_in(site: ChaosSite, node: Node, pid: int) -> None:
    with stopped([pid]):
        _stand_in(site, node, but=pid)


def kill_who_takes_over(site: ChaosSite, _watch: Watch) -> None:
    """The agent of the engine, at the moment when it has the place that the stand-in left to it."""
    node = site.nodes[1]
    node.kill("agent")
    _stand_in(site, node)
    _until(lambda: _holder_kind(node) is AgentKind.ENGINE, "the engine's agent takes over")
    (pid,) = site.eventually(
        lambda: node.pids("agent"), "the engine's agent has its title", within_s=STANDS_IN_WITHIN_S
    )
    os.kill(pid, signal.SIGKILL)


def stop_who_is_asked(site: ChaosSite, _watch: Watch) -> None:
    """The stand-in, as the engine's next agent is there and is about to ask it to end."""
    node = site.nodes[1]
    (before,) = node.pids("agent")
    os.kill(before, signal.SIGKILL)
    pid = _stand_in(site, node)
    _until(lambda: set(node.pids("agent")) - {before}, "the engine's next agent is there")
    with stopped([pid]):
        time.sleep(STAYS_STOPPED_S)  # the trouble itself has a length: nothing is waited for


def _stand_in(site: ChaosSite, node: Node, *, but: int = 0) -> int:
    """Its pid, once it is at work."""
    (pid,) = site.eventually(
        lambda: [pid for pid in node.pids("stand-in") if pid != but], "an agent beside the engine is at work",
        within_s=STANDS_IN_WITHIN_S,
    )  # fmt: skip
    return int(pid)


def _holder_kind(node: Node) -> AgentKind | None:
    place = look_at_place(inside(node, node.files.agent_place))
    return place.holder.kind if place.is_held and place.holder is not None else None


def _until(look: Callable[[], object], what: str) -> None:
    """At once: the next moment is another one. Raises ``AssertionError``."""
    until_s = time.monotonic() + TAKES_OVER_WITHIN_S
    while not look():
        assert time.monotonic() < until_s, what
        time.sleep(LOOK_EVERY_S)


SCENARIOS = (
    Scenario("stand-in", "no engine on the node; SIGKILL to the agent beside it", without_engine(kill_stand_in),
             BOUND_S, cleanup=link_is_up),
    Scenario("frozen-stand-in", "the same, and that agent is stopped", without_engine(stop_stand_in), BOUND_S,
             cleanup=link_is_up),
    Scenario("handover-agent", "SIGKILL to the engine's agent as it takes the place", kill_who_takes_over),
    Scenario("handover-stand-in", f"the agent beside the engine is stopped for {STAYS_STOPPED_S:.0f} s as it is asked "
             "to end", stop_who_is_asked),
)  # fmt: skip
