"""The controller process against an API server with a Job controller: it starts suspended Jobs again, exactly once."""

from __future__ import annotations

import base64
import json
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import SYSTEM, installed
from integration.kubernetes.controller_process import ControllerProcess, run_to_its_end, running_controller
from integration.kubernetes.target import WITHIN_S, Connection, KubeTarget, eventually
from integration.server_process import free_port
from kube_emulator import Emulator
from matrix import in_turns
from tidegauge.core.jobs.kubernetes import ATTEMPT, INCIDENT, LEAK_CONDITION, PROFILE_LABEL, REQUEUE
from tidegauge_scheduler_hooks.kubernetes.intents import IncidentIntent, RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.owners import JOB
from tidegauge_scheduler_hooks.kubernetes.patches import suspend_patch
from tidegauge_scheduler_hooks.kubernetes.ports import FIELD_MANAGER
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of

pytestmark = pytest.mark.timeout(300)

LEASE = "tidegauge-controller"
HOLD = "test.tidegauge.dev/hold"
"""A finalizer, which keeps pods as those are kept whose node does not answer."""


def values(*, actions: bool = True, webhook: bool = False) -> dict[str, Any]:
    """Of the chart: for one team, whose Jobs are acted on and whose pods are marked."""
    return {
        "workloads": {"kinds": ["Job"], "actions": actions, "podConditions": actions},
        "rbac": {"namespaces": [SYSTEM], "kueue": False},
        "injection": {"mode": "webhook" if webhook else "none"},
    }


class Bench:
    """One Job in a namespace, and as many replicas of the controller as are asked for."""

    def __init__(self, kube: KubeTarget, namespace: str, folder: Path, stack: ExitStack) -> None:
        self.kube = kube
        self.admin: Connection = kube.admin
        self.namespace = namespace
        self.folder = folder
        self.enter = stack.enter_context
        self.release = self.enter(installed(kube, namespace, folder, values()))
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._first_pods: set[str] = set()

    def replica(self, *more: str) -> ControllerProcess:
        return self.enter(running_controller(self.folder, self.release.controller_arguments(*more)))

    def start_job(self) -> None:
        """With two pods, which run nowhere: no node is needed for any of this."""
        container = {"name": "node", "image": "example.org/train:1"}
        template = {
            "metadata": {"labels": {PROFILE_LABEL: "auto"}, "finalizers": []},
            "spec": {"restartPolicy": "Never", "containers": [container], "nodeSelector": {"none": "such"}},
        }
        spec = {
            "parallelism": 2,
            "completions": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        }
        self.admin.do("POST", self._jobs, {"metadata": {"name": "train"}, "spec": spec})
        eventually(lambda: len(self.pods()), lambda count: count == 2)
        eventually(lambda: self.job()["status"].get("active"), lambda count: count == 2)

    def job(self) -> Any:
        return self.admin.do("GET", f"{self._jobs}/train")

    def pods(self) -> list[Any]:
        found: list[Any] = self.admin.do("GET", self._pods)["items"]
        return found

    def requeue(self) -> None:
        """What the head does, however often the Job controller is quicker."""
        self._first_pods = {pod["metadata"]["uid"] for pod in self.pods()}
        mark = f"{self.job()['metadata']['uid']}#first"
        order = encode(RequeueOrder("d-1", 1, "rank 1 leaks", time.time(), mark))

        def suspended() -> bool:
            patch = suspend_patch(JOB, self.job(), {REQUEUE: order})
            answer = self.admin.ask(
                "PATCH",
                f"{self._jobs}/train",
                patch,
                content_type="application/merge-patch+json",
                fieldManager=FIELD_MANAGER,
            )
            return answer.code == 200

        eventually(suspended)

    def hold_pods(self, hold: bool) -> None:
        """Keep the pods there although they are deleted; or let them go."""
        for pod in self.pods():
            eventually(partial(self._hold, pod["metadata"]["name"], hold))

    def _hold(self, name: str, hold: bool) -> bool:
        """Whether it is done: the Job controller takes its own finalizer off meanwhile."""
        path = f"{self._pods}/{name}"
        found = self.admin.ask("GET", path)
        if found.code == 404:
            return True
        metadata = found.body["metadata"]
        kept = [one for one in metadata.get("finalizers") or [] if one != HOLD]
        wanted = {"finalizers": [*kept, HOLD] if hold else kept, "resourceVersion": metadata["resourceVersion"]}
        answer = self.admin.ask("PATCH", path, {"metadata": wanted}, content_type="application/merge-patch+json")
        assert answer.code in (200, 404, 409), answer
        return answer.code != 409

    def suspend(self, suspended: bool) -> None:
        """By its owner."""
        patch = {"spec": {"suspend": suspended}}
        self.admin.do("PATCH", f"{self._jobs}/train", patch, content_type="application/merge-patch+json")

    def annotate(self, name: str, text: str | None) -> None:
        patch = {"metadata": {"annotations": {name: text}}}
        self.admin.do("PATCH", f"{self._jobs}/train", patch, content_type="application/merge-patch+json")

    def wait_until_started_again(self, *, within_s: float = WITHIN_S) -> None:
        """Its pods are others, and its spec was changed by one suspension and one resumption."""
        before = self._first_pods
        eventually(
            lambda: {pod["metadata"]["uid"] for pod in self.pods()},
            lambda uids: len(uids) == 2 and uids.isdisjoint(before),
            within_s=within_s,
        )
        job = self.job()
        assert REQUEUE not in job["metadata"]["annotations"]
        assert job["metadata"]["annotations"][ATTEMPT] == "1"
        assert job["metadata"]["generation"] == 3

    def events(self) -> list[Any]:
        """Ours."""
        found = self.admin.do("GET", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [event for event in found if event.get("reportingController", "").startswith("tidegauge.dev/")]

    def holder(self) -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{LEASE}"
        return str(self.admin.do("GET", path)["spec"].get("holderIdentity") or "")


@pytest.fixture
def bench(kube: KubeTarget, namespace: str, job_controller: None, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(kube, namespace, tmp_path, stack)


def test_a_suspended_job_starts_again_when_its_pods_are_gone_and_its_owner_is_told(bench: Bench) -> None:
    bench.start_job()
    replica = bench.replica()
    bench.requeue()
    bench.wait_until_started_again()
    (event,) = eventually(bench.events)
    said = (event["reason"], event["type"], event["regarding"]["name"])
    assert said == ("GpuMemorySettingsMissing", "Warning", "train")
    assert "was made without Tidegauge's webhook" in event["note"]
    assert eventually(lambda: replica.metric("steps_total", step="resume", outcome="done")) == 1
    assert replica.metric("watch_synced", kind="Job") == 1


def test_what_its_owner_suspended_again_while_no_controller_ran_stays_suspended(bench: Bench) -> None:
    bench.start_job()
    bench.requeue()
    eventually(lambda: bench.pods() == [])
    bench.suspend(False)
    eventually(lambda: len(bench.pods()), lambda count: count == 2)
    bench.suspend(True)
    eventually(lambda: bench.pods() == [])
    bench.replica()
    (event,) = eventually(bench.events)
    assert event["reason"] == "GpuMemoryRequeueDropped"
    assert "someone else has suspended it since then" in event["note"]
    job = bench.job()
    assert job["spec"]["suspend"] is True
    assert REQUEUE not in annotations_of(job)


def test_the_leader_is_killed_in_the_middle_and_another_finishes_it_once(bench: Bench) -> None:
    bench.start_job()
    first = bench.replica()
    eventually(lambda: first.leads)
    second = bench.replica()
    bench.hold_pods(True)
    bench.requeue()
    # That is the first one, unless the machine stood still for as long as a lease lasts.
    leader, other = eventually(
        lambda: next((pair for pair in ((first, second), (second, first)) if has_work(pair[0])), None)
    ) or (first, second)
    leader.process.kill()
    bench.hold_pods(False)
    bench.wait_until_started_again(within_s=90)  # the killed one's lease has to run out
    eventually(lambda: other.leads)
    eventually(bench.events)  # told after it was done
    assert len(bench.events()) == 1


def has_work(replica: ControllerProcess) -> bool:
    return (replica.metric("queue_length") or 0) > 0


def test_controller_starts_nothing_while_a_pod_still_terminates(bench: Bench) -> None:
    bench.start_job()
    replica = bench.replica("--log-level=debug")
    bench.hold_pods(True)
    bench.requeue()
    # A real Job controller counts pods that no node has as terminating, until the server's garbage collector ends them.
    eventually(lambda: "pods have not ended" in replica.log or "not reported it suspended yet" in replica.log)
    assert bench.job()["spec"]["suspend"] is True
    bench.hold_pods(False)
    bench.wait_until_started_again()


def test_sigterm_gives_the_lease_back_and_the_next_one_leads_at_once(bench: Bench) -> None:
    first = bench.replica()
    eventually(lambda: first.leads)
    second = bench.replica()
    held_by = bench.holder()
    began_s = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=60) == 0
    assert time.monotonic() - began_s < 28, "10 s, on a machine that is busy with other tests; a pod has 30"
    eventually(lambda: second.leads)
    assert bench.holder() not in ("", held_by)


def test_pods_of_a_job_with_an_incident_are_marked_until_it_is_over(bench: Bench) -> None:
    bench.start_job()
    bench.replica()

    def marks() -> list[str | None]:
        conditions = [pod["status"].get("conditions") or [] for pod in bench.pods()]
        return [next((one["status"] for one in some if one["type"] == LEAK_CONDITION), None) for some in conditions]

    mark = Workload(JOB, bench.job()).incarnation
    bench.annotate(INCIDENT, encode(IncidentIntent("d-1", mark, "rank 1 leaks", time.time())))
    eventually(marks, lambda seen: seen == ["True", "True"])
    bench.annotate(INCIDENT, None)
    eventually(marks, lambda seen: seen == ["False", "False"])


def test_a_role_without_patch_is_named_and_works_once_it_is_given(bench: Bench) -> None:
    bench.start_job()
    bench.release.lacks |= {"controller: patch jobs.batch", "controller: list workloads.kueue.x-k8s.io"}
    bench.release.upgrade(values(actions=False))
    replica = bench.replica()
    bench.requeue()
    eventually(lambda: replica.metric("steps_total", step="resume", outcome="forbidden"))
    eventually(lambda: "patch jobs.batch" in replica.log)
    eventually(replica.is_ready)
    eventually(lambda: [event["reason"] for event in bench.events()], lambda seen: seen == ["GpuMemoryRequeueWaits"])
    bench.release.upgrade(values())
    bench.wait_until_started_again(within_s=90)  # tried again after twice as long each time, and after 60 s at most
    assert replica.process.poll() is None


def test_controller_prints_one_line_if_it_cannot_start(bench: Bench, tmp_path: Path) -> None:
    leases = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}]
    stranger = bench.kube.as_user(bench.namespace, leases, folder=tmp_path)
    blind = run_to_its_end(bench.release.controller_arguments(f"--kubeconfig={stranger}"))
    away = tmp_path / "away.kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    away.write_text(json.dumps({"clusters": [cluster], "users": users, "contexts": [context], "current-context": "x"}))
    gone = run_to_its_end([f"--kubeconfig={away}", "--namespace=a", "--no-webhook"])
    missing = run_to_its_end([f"--kubeconfig={tmp_path}/none", "--namespace=a", "--no-webhook"])
    for ended, says in ((blind, "list pods"), (gone, "127.0.0.1"), (missing, "none")):
        assert ended.returncode == 3, ended
        (line,) = ended.stderr.splitlines()
        assert line.startswith("tidegauge controller: not started: ")
        assert says in line
        assert "Traceback" not in ended.stderr


# Faults that only the emulator has at a word


def _cut(emulator: Emulator) -> None:
    emulator.cut_watches()


def _compacted(emulator: Emulator) -> None:
    emulator.compact()
    emulator.cut_watches()


def _busy(emulator: Emulator) -> None:
    emulator.faults.fail(429, 8, path="/jobs", retry_after_s=1)


def _broken(emulator: Emulator) -> None:
    emulator.faults.fail(500, 2, path="/jobs")


def _slow(emulator: Emulator) -> None:
    emulator.faults.delay_s = 0.5


def _conflict(emulator: Emulator) -> None:
    emulator.faults.conflict("jobs", "train")


def _lossy(emulator: Emulator) -> None:
    """The answer to the next change is lost: the one that resumes it, if the Lease's renewal is not quicker."""
    emulator.faults.lose_answers = 1


@pytest.mark.parametrize("fault", in_turns([_cut, _compacted, _busy, _broken, _slow, _conflict, _lossy]))
def test_controller_finishes_a_requeue_despite_api_server_faults(
    bench: Bench, emulator: Emulator, fault: Callable[[Emulator], None]
) -> None:
    bench.start_job()
    replica = bench.replica()
    eventually(lambda: replica.leads)
    bench.hold_pods(True)
    bench.requeue()
    eventually(lambda: has_work(replica))
    bench.hold_pods(False)
    fault(emulator)
    # Not by requests of the test's own, which would meet the faults in place of the controller's.
    eventually(lambda: replica.metric("queue_length"), lambda length: length == 0, within_s=90)
    emulator.faults.clear()
    bench.wait_until_started_again(within_s=90)


def test_while_the_server_is_away_it_is_not_ready_and_comes_back_by_itself(bench: Bench, emulator: Emulator) -> None:
    bench.start_job()
    replica = bench.replica()
    with emulator.away():
        page = eventually(lambda: replica.page("readyz"), lambda page: page[0] == 503)
        assert "lease" in page[1].lower()
        assert replica.page("healthz")[0] == 200
    eventually(replica.is_ready)
    bench.requeue()
    bench.wait_until_started_again(within_s=90)  # a watch that found nobody is opened again after 30 s at most


# The webhook


def test_replicas_serve_one_certificate_that_the_configuration_trusts(bench: Bench) -> None:
    bench.release.upgrade(values(webhook=True))
    served = [_serve(bench)[1] for _ in range(2)]
    bundle = eventually(lambda: _bundle(bench))
    answers = [_review(port, bundle, bench.namespace, {}) for port in served]
    assert answers == ["HTTP/1.1 200 OK"] * 2


def test_name_of_an_owner_forges_no_line_of_the_log(bench: Bench) -> None:
    """The webhook logs why it could not read the owner, in words that have its name."""
    bench.release.upgrade(values(webhook=True))
    replica, port = _serve(bench)
    bundle = eventually(lambda: _bundle(bench))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train\nERROR forged\x1b[31m", "uid": "u"}
    metadata = {"name": "p", "labels": {PROFILE_LABEL: "auto"}, "ownerReferences": [{**owner, "controller": True}]}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    assert _review(port, bundle, bench.namespace, pod) == "HTTP/1.1 200 OK"
    (line,) = eventually(lambda: [line for line in replica.log.splitlines() if "forged" in line])
    assert f" INFO tidegauge_scheduler_hooks.kubernetes.injection.webhook: pod {bench.namespace}/p: " in line
    assert line.isprintable()


def _serve(bench: Bench) -> tuple[ControllerProcess, int]:
    """A replica, and its webhook's port."""
    port = free_port()
    return bench.replica(f"--webhook-port={port}", "--webhook-host=127.0.0.1"), port


def _bundle(bench: Bench) -> str:
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{bench.release.cluster_name}"
    found = bench.admin.do("GET", path)["webhooks"][0]["clientConfig"].get("caBundle") or ""
    return base64.b64decode(found).decode()


def _review(port: int, bundle: str, namespace: str, pod: Any) -> str:
    """The first line of the answer to a question about a pod, over TLS that trusts ``bundle`` alone."""
    name = f"tidegauge-webhook.{namespace}.svc"
    context = ssl.create_default_context(cadata=bundle)
    resource = {"resource": "pods"}
    request = {"uid": "u", "operation": "CREATE", "namespace": namespace, "resource": resource, "object": pod}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()
    head = f"POST /mutate HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        connection.sendall(head + body)
        return connection.recv(4096).decode().splitlines()[0]
