"""The wall clock of a node jumps by an hour while everything runs, and back."""

from __future__ import annotations

import time
from collections.abc import Callable

from chaos.clocks import HOUR_S, check_clock, give_settable_clock, set_clock
from chaos.ledger import Watch
from chaos.scenario import BOUND_S, HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import cured, watch_only, while_acting
from chaos.site import ChaosSite

WRONG_S = 20.0
"""For how long the clock is wrong: longer than what makes a node stale."""


def jump(number: int, offset_s: int) -> Callable[[ChaosSite, Watch], None]:
    """The clock jumps, stays wrong for a while in which everything must be whole, and jumps back."""

    def run(site: ChaosSite, watch: Watch) -> None:
        node = site.nodes[number]
        give_settable_clock(site, node)
        watch.prepared()
        _its_time_means_nothing(site, watch, number)
        set_clock(node, offset_s)
        check_clock(site, node, offset_s)
        until_s = time.monotonic() + WRONG_S
        while time.monotonic() < until_s:
            problem = site.problem()
            assert problem is None, f"a clock that is {offset_s:+d} s off costs the service something: {problem}"
            time.sleep(1.0)
        set_clock(node, 0)
        check_clock(site, node, 0)

    return run


def act_with_wrong_clock(offset_s: int) -> Callable[[ChaosSite, Watch], None]:
    """The head's clock is not the ranks': what it asks of them with a deadline must be done all the same, once."""

    def run(site: ChaosSite, watch: Watch) -> None:
        give_settable_clock(site, site.head)
        watch.prepared()
        _its_time_means_nothing(site, watch, 0)
        set_clock(site.head, offset_s)
        check_clock(site, site.head, offset_s)
        while_acting(lambda _site, _watch: None)(site, watch)

    return run


def restart_with_wrong_clock(offset_s: int) -> Callable[[ChaosSite, Watch], None]:
    """The coordinator and every agent start while the clock of the head is wrong."""

    def run(site: ChaosSite, watch: Watch) -> None:
        give_settable_clock(site, site.head)
        watch.prepared()
        _its_time_means_nothing(site, watch, 0)
        set_clock(site.head, offset_s)
        check_clock(site, site.head, offset_s)
        site.head.kill("coordinator")
        site.head.kill("agent")

    return run


def clocks_right(site: ChaosSite) -> None:
    for node in site.nodes:
        set_clock(node, 0)


def right_and_watching(site: ChaosSite) -> None:
    clocks_right(site)
    watch_only(site)


def _its_time_means_nothing(site: ChaosSite, watch: Watch, number: int) -> None:
    """The times that a node with a wrong clock puts to its samples are wrong, and nobody can know it from them."""
    for job in site.jobs.values():
        if job.node.number == number:
            watch.dateless(job.name)


SCENARIOS = (
    Scenario("clock-ahead", "the clock beside the leak jumps an hour ahead, and back", jump(1, HOUR_S),
             cleanup=clocks_right),
    Scenario("clock-back", "the clock beside the leak jumps an hour back, and ahead", jump(1, -HOUR_S),
             cleanup=clocks_right),
    Scenario("clock-seconds", "the clock beside the leak jumps 40 s back, and ahead", jump(1, -40),
             cleanup=clocks_right),
    Scenario("clock-head", "the head's clock jumps an hour ahead, and back", jump(0, HOUR_S), HEAD_BOUND_S,
             cleanup=clocks_right),
    Scenario("clock-head-restart", "the head's clock is an hour ahead, and coordinator and agent start anew",
             restart_with_wrong_clock(HOUR_S), HEAD_BOUND_S, cleanup=clocks_right),
    Scenario("clock-head-while-acting", "the policy acts while the head's clock is an hour behind the ranks'",
             act_with_wrong_clock(-HOUR_S), BOUND_S, after=cured, cleanup=right_and_watching),
)  # fmt: skip
