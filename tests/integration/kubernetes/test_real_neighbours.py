"""Attempt and changes of a requeue reach the pods under Kueue itself, and of workloads that are only watched nothing is
touched, beside the controllers themselves: the contracts that the transcriptions keep in the fast tests. Needs a real
API server (``TIDEGAUGE_TEST_KUBECONFIG``) on which they run; ``TIDEGAUGE_TEST_NEIGHBOURS`` names the kinds that Kueue
and a controller look after there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.kubernetes.adopted_namespace import OurProcesses
from integration.kubernetes.kueue_site import open_site
from integration.kubernetes.lws_site import open_lws_site
from integration.kubernetes.target import KubeTarget
from integration.kubernetes.volcano_site import open_volcano_site
from scheduler_hooks.kubernetes.notified_contract import VOLCANO, NotifiedContract, NotifiedSite
from scheduler_hooks.kubernetes.restart_contract import RestartContract, RestartSite

NEIGHBOURS = "TIDEGAUGE_TEST_NEIGHBOURS"
THERE = frozenset(os.environ.get(NEIGHBOURS, "").split(",")) - {""}

pytestmark = [
    pytest.mark.skipif(not THERE, reason=f"{NEIGHBOURS} names the kinds whose controllers run beside Kueue"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def ours(kube: KubeTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurProcesses]:
    with kube.temporary_namespace("system") as system, ExitStack() as stack:
        yield OurProcesses(kube, tmp_path_factory.mktemp("ours"), system, stack)


class TestRestartsBesideTheNeighboursThemselves(RestartContract):
    @pytest.fixture
    def open_site(self, kube: KubeTarget, ours: OurProcesses, tmp_path: Path) -> Iterator[Callable[..., RestartSite]]:
        with ExitStack() as stack:

            def opened(kind: str, *, queued: bool = True, unwatched: int = 0) -> RestartSite:
                if kind not in THERE:
                    pytest.skip(f"{NEIGHBOURS} does not name {kind}")
                return stack.enter_context(open_site(kube, ours, tmp_path, kind, queued=queued, unwatched=unwatched))

            yield opened


class TestWatchedBesideTheNeighboursThemselves(NotifiedContract):
    @pytest.fixture
    def open_site(self, kube: KubeTarget, ours: OurProcesses) -> Iterator[Callable[[str], NotifiedSite]]:
        with ExitStack() as stack:

            def opened(kind: str) -> NotifiedSite:
                if kind.split()[0] not in THERE:
                    pytest.skip(f"{NEIGHBOURS} does not name {kind}")
                if kind == VOLCANO:
                    return stack.enter_context(open_volcano_site(kube, ours))
                return stack.enter_context(open_lws_site(kube, ours, kind))

            yield opened
