"""Leader election on an API server: one after the other, never two."""

from __future__ import annotations

from datetime import datetime, timezone

from integration.kubernetes.target import KubeTarget, eventually
from kube_emulator import Emulator
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.client.leases import Leader, lease_age_s
from tidegauge_scheduler_hooks.kubernetes.ports import LEASES


class Candidate:
    """A leader that counts."""

    def __init__(
        self, kube: KubeTarget, namespace: str, identity: str, leading: set[str], most: list[int], *, lease_s: float = 3
    ) -> None:  # fmt: skip
        def on_started() -> None:
            leading.add(identity)
            most.append(len(leading))

        self.leader = Leader(
            open_api(kube.kubeconfig), namespace, "controller", identity, on_started, lambda: leading.discard(identity),
            lease_s=lease_s, renew_deadline_s=lease_s * 2 / 3, retry_s=0.2,
        )  # fmt: skip
        self.leader.start()


def test_leaders_take_turns(kube: KubeTarget, kube_api: ClientApi, namespace: str) -> None:
    leading: set[str] = set()
    most: list[int] = []
    # A lease that outlives any stall of this machine: it is given up, and does not run out.
    first = Candidate(kube, namespace, "first", leading, most, lease_s=60)
    eventually(lambda: first.leader.leading)
    second = Candidate(kube, namespace, "second", leading, most, lease_s=60)
    try:
        eventually(lambda: second.leader.holder, lambda holder: holder == "first")
        age_s = lease_age_s(kube_api, namespace, "controller")
        assert age_s is not None
        assert age_s < 60
        first.leader.stop()
        eventually(lambda: second.leader.leading)
        assert not first.leader.leading
    finally:
        second.leader.stop()
        first.leader.stop()
    assert max(most) == 1
    assert lease_age_s(kube_api, namespace, "controller") is None


def test_a_leader_that_vanished_is_followed_by_another(kube: KubeTarget, kube_api: ClientApi, namespace: str) -> None:
    renewed = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000000Z")  # no microseconds, and no matter
    spec = {"holderIdentity": "vanished", "leaseDurationSeconds": 2, "renewTime": renewed, "leaseTransitions": 4}
    kube_api.create(LEASES, namespace, {"metadata": {"name": "controller"}, "spec": spec})
    heir = Candidate(kube, namespace, "heir", set(), [])
    try:
        eventually(lambda: heir.leader.leading)
        lease = kube_api.get(LEASES, namespace, "controller")["spec"]
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("heir", 5)
    finally:
        heir.leader.stop()


def test_a_leader_whose_server_is_away_stops(kube: KubeTarget, emulator: Emulator, namespace: str) -> None:
    leading: set[str] = set()
    candidate = Candidate(kube, namespace, "this", leading, [])
    try:
        eventually(lambda: leading)  # told a moment after it leads
        with emulator.away():
            eventually(lambda: not leading)
            assert not candidate.leader.leading
        eventually(lambda: candidate.leader.leading)
    finally:
        candidate.leader.stop()
