"""A node's link is cut and healed: for less and for more time than the cluster takes to call the node dead."""

from __future__ import annotations

import time
from collections.abc import Callable

from chaos.ledger import Watch
from chaos.scenario import BOUND_S, HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import cured, watch_only, while_acting
from chaos.site import ChaosSite

BLIP_S = 5.0
CUT_S = 25.0
"""A cut link is called a dead node after 9 s."""


def cut(number: int, seconds: float) -> Callable[[ChaosSite, Watch], None]:
    def run(site: ChaosSite, _watch: Watch) -> None:
        node = site.nodes[number]
        node.cut()
        try:
            time.sleep(seconds)  # the trouble itself has a length: nothing is waited for
        finally:
            node.heal()

    return run


def link_is_up(site: ChaosSite) -> None:
    for node in site.nodes:
        node.heal()


def whole_and_watching(site: ChaosSite) -> None:
    link_is_up(site)
    watch_only(site)


SCENARIOS = (
    Scenario("link-blip", f"the link of the leaking job's node is cut for {BLIP_S:.0f} s", cut(1, BLIP_S),
             cleanup=link_is_up),
    Scenario("link-cut", f"the same for {CUT_S:.0f} s: the node is called dead meanwhile", cut(1, CUT_S),
             cleanup=link_is_up),
    Scenario("link-cut-head", f"the head's link is cut for {CUT_S:.0f} s", cut(0, CUT_S), HEAD_BOUND_S,
             cleanup=link_is_up),
    Scenario("link-cut-while-acting", f"the node's link is cut for {CUT_S:.0f} s while its job saves at our request",
             while_acting(cut(1, CUT_S)), BOUND_S, after=cured, cleanup=whole_and_watching),
)  # fmt: skip
