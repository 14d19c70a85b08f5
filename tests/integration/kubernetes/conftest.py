"""Fixtures for tests on an API server: a real one where ``TIDEGAUGE_TEST_KUBECONFIG`` names its kubeconfig, else the
emulator. A real one is used with its admin's rights; everything that a test makes lies in a namespace of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.kubernetes.target import Connection, KubeTarget
from kube_emulator import Emulator

if TYPE_CHECKING:
    from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi

KUBECONFIG = "TIDEGAUGE_TEST_KUBECONFIG"


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeTarget]:
    """The API server of this run."""
    given = os.environ.get(KUBECONFIG)
    if given:
        yield KubeTarget(Path(given), None)
        return
    with Emulator(tmp_path_factory.mktemp("kube")) as emulator:
        yield KubeTarget(emulator.kubeconfig(), emulator)


@pytest.fixture
def namespace(kube: KubeTarget) -> Iterator[str]:
    """A fresh namespace with its default ServiceAccount."""
    with kube.temporary_namespace("test") as name:
        yield name


@pytest.fixture
def admin(kube: KubeTarget) -> Connection:
    """Plain HTTP as the cluster's admin."""
    return kube.admin


@pytest.fixture
def emulator(kube: KubeTarget) -> Iterator[Emulator]:
    """For tests that need a server to fail at their word. All faults are taken back afterwards."""
    if kube.emulator is None:
        pytest.skip(f"needs the emulator's faults; {KUBECONFIG} names a real API server")
    yield kube.emulator
    kube.emulator.faults.clear()


@pytest.fixture
def job_controller(kube: KubeTarget) -> None:
    """For tests that need pods of Jobs."""
    if not kube.has_job_controller:
        pytest.skip("this API server runs without kube-controller-manager: nobody makes the pods of Jobs")


@pytest.fixture
def kube_api(kube: KubeTarget) -> ClientApi:
    """The real client behind its port, as the cluster's admin."""
    from tidegauge_scheduler_hooks.kubernetes.client.api import open_api

    return open_api(kube.kubeconfig, timeout_s=60)  # a machine may stand still for the usual 10 s
