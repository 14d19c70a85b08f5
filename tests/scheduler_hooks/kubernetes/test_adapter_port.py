"""The Kubernetes adapter keeps to the contract of schedulers, for every kind of workload."""

from __future__ import annotations

import pytest

from scheduler_hooks.kubernetes.kube_world import KubeWorld
from scheduler_hooks.port_contract import PortContract
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS


class TestKubernetesPort(PortContract):
    @pytest.fixture(params=list(KINDS))
    def world(self, request: pytest.FixtureRequest) -> KubeWorld:
        return KubeWorld(request.param)
