"""Which schedulers a head can act through, by its settings and what is found on its machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.schedulers import open_node_conditions, open_schedulers
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import StoreError
from tidegauge.settings import Settings

TESTS = Path(__file__).parents[2]
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: test, user: {token: secret}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
"""


def opened(folder: Path, **settings: object) -> set[str]:
    """The names of the schedulers of a head with these settings."""
    coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="test")
    defaults: dict[str, object] = {"slurm": "off", "state_dir": folder}
    return set(open_schedulers(Settings.model_validate(defaults | settings), coordinator, StateFiles(folder)))


def kubeconfig(folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(KUBECONFIG)
    return path


def test_a_machine_with_nothing_has_the_local_scheduler_alone(tmp_path: Path) -> None:
    assert opened(tmp_path) == {"local"}


OPEN = """
import sys
from pathlib import Path
from collector.cluster.test_schedulers import kubeconfig, opened
folder = Path(sys.argv[1])
found = opened(folder, kubernetes_kubeconfig=kubeconfig(folder), kubernetes_controller="tidegauge/controller")
print(*sorted(found))
"""


def test_a_kubeconfig_brings_kubernetes(tmp_path: Path) -> None:
    # In a process of its own, with which its watches end.
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["kubernetes", "local"]


def test_kubernetes_can_be_switched_off(tmp_path: Path) -> None:
    assert opened(tmp_path, kubernetes_kubeconfig=kubeconfig(tmp_path), kubernetes="off") == {"local"}


def test_kubernetes_without_credentials_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="kubernetes is enabled, but the API server cannot be used: no credentials"):
        opened(tmp_path, kubernetes="on", kubernetes_controller="tidegauge/controller")


def test_conditions_of_nodes_are_written_only_on_kubernetes_and_where_that_is_set(tmp_path: Path) -> None:
    coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="test")

    def opens(**settings: object) -> bool:
        said = Settings.model_validate({"slurm": "off", "state_dir": tmp_path, **settings})
        return open_node_conditions(said, coordinator, submit=lambda call: call()) is not None

    here = {"kubernetes_kubeconfig": kubeconfig(tmp_path)}
    assert opens(**here, kubernetes_node_conditions=True)
    assert not opens(**here)
    assert not opens(**here, kubernetes_node_conditions=True, kubernetes="off")


@pytest.mark.parametrize("name", ["controller", "tidegauge/", "/controller"])
def test_a_lease_needs_namespace_and_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="NAMESPACE/NAME"):
        opened(tmp_path, kubernetes_kubeconfig=kubeconfig(tmp_path), kubernetes_controller=name)


def test_a_kind_that_nobody_knows_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"kubernetes_kinds: .*Jobset.*Job, JobSet"):
        opened(
            tmp_path,
            kubernetes_kubeconfig=kubeconfig(tmp_path),
            kubernetes_controller="tidegauge/controller",
            kubernetes_kinds="Job,Jobset",
        )
