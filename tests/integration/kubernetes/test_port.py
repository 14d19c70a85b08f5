"""The Kubernetes adapter keeps to the contract of schedulers on an API server, with the rights of the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.kubernetes.port_world import ApiWorld
from integration.kubernetes.target import KubeTarget
from kube_standins.jobset import StandInJobSets
from scheduler_hooks.port_contract import PortContract

pytestmark = pytest.mark.usefixtures("job_controller")


@pytest.fixture(scope="module")
def jobsets(kube: KubeTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with StandInJobSets(kube.kubeconfig, tmp_path_factory.mktemp("jobsets")):
        yield


class TestKubernetesPortOnAServer(PortContract):
    @pytest.fixture(params=["Job", "JobSet"])
    def world(
        self, request: pytest.FixtureRequest, kube: KubeTarget, namespace: str, jobsets: None, tmp_path: Path
    ) -> Iterator[ApiWorld]:
        world = ApiWorld(kube, namespace, request.param, tmp_path)
        yield world
        world.close()
