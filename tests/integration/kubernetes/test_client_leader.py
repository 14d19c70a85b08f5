"""Leader election on an API server: one after the other, never two."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from integration.kubernetes.chart_accounts import SYSTEM, ChartRelease, installed
from integration.kubernetes.target import Connection, KubeTarget, eventually
from kube_emulator import Emulator
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.client.leases import Leader, LeaseLock, lease_age_s
from tidegauge_scheduler_hooks.kubernetes.ports import LEASES

LEASE = "tidegauge-controller"


class Candidate:
    """A leader that counts."""

    def __init__(
        self, release: ChartRelease, identity: str, leading: set[str], most: list[int], *, lease_s: float = 3
    ) -> None:  # fmt: skip
        def on_started() -> None:
            leading.add(identity)
            most.append(len(leading))

        self.leader = Leader(
            open_api(release.kubeconfig("controller")), release.namespace, LEASE, identity, on_started,
            lambda: leading.discard(identity),
            lease_s=lease_s, renew_deadline_s=lease_s * 2 / 3, retry_s=0.2,
        )  # fmt: skip
        self.leader.start()


@pytest.fixture
def release(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[ChartRelease]:
    values = {"workloads": {"kinds": ["Job"], "actions": True}, "rbac": {"namespaces": [SYSTEM]}}
    with installed(kube, namespace, tmp_path, values) as release:
        yield release


def test_leaders_take_turns(release: ChartRelease, namespace: str) -> None:
    leading: set[str] = set()
    most: list[int] = []
    heads = open_api(release.kubeconfig("head"))
    # A lease that outlives any stall of this machine: it is given up, and does not run out.
    first = Candidate(release, "first", leading, most, lease_s=60)
    eventually(lambda: first.leader.leading)
    second = Candidate(release, "second", leading, most, lease_s=60)
    try:
        eventually(lambda: second.leader.holder, lambda holder: holder == "first")
        age_s = lease_age_s(heads, namespace, LEASE)
        assert age_s is not None
        assert age_s < 60
        first.leader.stop()
        eventually(lambda: second.leader.leading)
        assert not first.leader.leading
    finally:
        second.leader.stop()
        first.leader.stop()
    assert max(most) == 1
    assert lease_age_s(heads, namespace, LEASE) is None


def test_the_lease_goes_with_the_account_of_its_maker(release: ChartRelease, admin: Connection, namespace: str) -> None:
    """As `helm uninstall` takes it away."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/tidegauge-controller"
    uid = admin.do("GET", path)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "tidegauge-controller", "uid": uid}
    api = open_api(release.kubeconfig("controller"))
    assert LeaseLock(api, namespace, LEASE, "this", lease_s=15, owner=owner).hold()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}"
    assert admin.ask("GET", lease).code == 200
    admin.do("DELETE", path)
    eventually(lambda: admin.ask("GET", lease).code == 404)


def test_a_leader_that_vanished_is_followed_by_another(
    release: ChartRelease, kube_api: ClientApi, namespace: str
) -> None:
    renewed = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000000Z")  # no microseconds, and no matter
    spec = {"holderIdentity": "vanished", "leaseDurationSeconds": 2, "renewTime": renewed, "leaseTransitions": 4}
    kube_api.create(LEASES, namespace, {"metadata": {"name": LEASE}, "spec": spec})
    heir = Candidate(release, "heir", set(), [])
    try:
        eventually(lambda: heir.leader.leading)
        lease = kube_api.get(LEASES, namespace, LEASE)["spec"]
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("heir", 5)
    finally:
        heir.leader.stop()


def test_a_leader_whose_server_is_away_stops(release: ChartRelease, emulator: Emulator) -> None:
    leading: set[str] = set()
    candidate = Candidate(release, "this", leading, [])
    try:
        eventually(lambda: leading)  # told a moment after it leads
        with emulator.away():
            eventually(lambda: not leading)
            assert not candidate.leader.leading
        eventually(lambda: candidate.leader.leading)
    finally:
        candidate.leader.stop()
