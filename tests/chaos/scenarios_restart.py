"""Everything of all nodes is killed at once, as when the power fails, and started again as systemd does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from chaos.ledger import Watch
from chaos.scenario import HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import acting
from chaos.site import ChaosSite


def crash_everything(site: ChaosSite, watch: Watch) -> None:
    for node in site.nodes:
        watch.away(node)
    with ThreadPoolExecutor(len(site.nodes)) as at_once:
        list(at_once.map(lambda node: node.crash(), site.nodes))


SCENARIOS = (
    Scenario("everything", "SIGKILL to every process of the service on all nodes", crash_everything, HEAD_BOUND_S),
    acting("everything", "the same", crash_everything, bound_s=HEAD_BOUND_S),
)
