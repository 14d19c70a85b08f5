"""The head is lost: every process of it at once; with its cluster state, and without."""

from __future__ import annotations

import shutil

from chaos.disks import inside
from chaos.ledger import Watch
from chaos.scenario import HEAD_BOUND_S, Scenario
from chaos.scenarios_kills import acting, agents_lived_on
from chaos.site import ChaosSite


def crash(site: ChaosSite, watch: Watch) -> None:
    watch.away(site.head)
    site.head.crash()


def crash_and_lose_cluster_state(site: ChaosSite, watch: Watch) -> None:
    """The disk with ``gcs/`` is lost (the database is not): the engine starts afresh, and the nodes join anew."""
    crash(site, watch)
    shutil.rmtree(inside(site.head, site.head.files.gcs))


SCENARIOS = (
    Scenario("head", "SIGKILL to every process of the head", crash, HEAD_BOUND_S, after=agents_lived_on),
    acting("head", "SIGKILL to every process of the head", crash, bound_s=HEAD_BOUND_S),
    Scenario(
        "head-without-gcs", "the same, and the engine's cluster state is lost", crash_and_lose_cluster_state,
        HEAD_BOUND_S,
    ),
)  # fmt: skip
