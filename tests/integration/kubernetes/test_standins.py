"""The stand-in JobSet controller, and that a stand-in leaves nothing behind, however its test ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.stand_in_pods import Bench, condition, open_bench, shell
from integration.kubernetes.target import KubeTarget
from kube_standins.api import MERGE, Object
from kube_standins.cgroups import NodeCgroups, hierarchies, node_name
from kube_standins.containers import user_of
from kube_standins.jobset import StandInJobSets
from kube_standins.jobset_crd import API_VERSION
from kube_standins.jobset_steps import NAME, PREFIX, REPLICATED_JOB, RESTART_ATTEMPT, next_steps, wanted_jobs
from kube_standins.pod_environ import Here, UnsupportedError, environ_of, expanded
from kube_standins.process import TESTS

pytestmark = pytest.mark.timeout(600)

NOW = "2026-11-21T12:00:00Z"
RUNS = "trap 'echo told; exit 1' TERM; echo up; while :; do sleep 0.05; done"


def jobset(*, jobs: Mapping[str, int] | None = None, status: Object | None = None, **spec: Any) -> dict[str, Any]:
    replicated = [
        {"name": name, "replicas": count, "template": {"spec": {"template": {"spec": {"containers": []}}}}}
        for name, count in (jobs or {"workers": 2}).items()
    ]
    metadata = {"name": "train", "namespace": "lab", "uid": "jobset-uid"}
    return {"metadata": metadata, "spec": {"replicatedJobs": replicated, **spec}, "status": status}


def child(job: Object, **conditions: str) -> dict[str, Any]:
    """A Job of the JobSet with conditions that hold, by type, and their reasons."""
    held = [
        {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": NOW}
        for kind, reason in conditions.items()
    ]
    return {**job, "status": {"conditions": held}}


def statuses(spec: Mapping[str, Any], reasons: Sequence[str]) -> list[Mapping[str, Any]]:
    """What becomes of a JobSet whose first Job fails for these reasons, one after the other."""
    seen: list[Mapping[str, Any]] = []
    status: Object = next_steps(jobset(**spec), [], NOW).status or {}
    for reason in reasons:
        this = jobset(status=status, **spec)
        first, *others = wanted_jobs(this, status["restarts"])
        status = next_steps(this, [child(first, Failed=reason), *others], NOW).status or {}
        seen.append(status)
    return seen


# --- what the controller decides


def test_jobs_carry_what_tells_a_pod_where_it_belongs() -> None:
    first, _, third = wanted_jobs(jobset(jobs={"driver": 1, "workers": 2}), 3)
    assert (first["metadata"]["name"], third["metadata"]["name"]) == ("train-driver-0", "train-workers-1")
    for metadata in (third["metadata"], third["spec"]["template"]["metadata"]):
        assert metadata["labels"] == metadata["annotations"]
        labels = metadata["labels"]
        assert (labels[NAME], labels[REPLICATED_JOB], labels[RESTART_ATTEMPT]) == ("train", "workers", "3")
        assert (labels[PREFIX + "job-index"], labels[PREFIX + "job-global-index"]) == ("1", "2")


def test_without_a_failure_policy_the_first_failure_is_the_end() -> None:
    [status] = statuses({}, ["BackoffLimitExceeded"])
    assert status["terminalState"] == "Failed"
    assert condition({"status": status}, "Failed")["reason"] == "FailedJobs"


def test_jobset_standin_restarts_up_to_max_restarts() -> None:
    failing = ["BackoffLimitExceeded"] * 3
    first, second, third = statuses({"failurePolicy": {"maxRestarts": 2}}, failing)
    assert (first["restarts"], second["restarts"], third["restarts"]) == (1, 2, 2)
    assert condition({"status": third}, "Failed")["reason"] == "ReachedMaxRestarts"


def test_rules_go_by_the_reason_of_the_failure() -> None:
    rules = [
        {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
        {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["DeadlineExceeded"]},
    ]
    spec = {"failurePolicy": {"maxRestarts": 1, "rules": rules}}
    uncounted, counted, last = statuses(spec, ["DeadlineExceeded", "BackoffLimitExceeded", "PodFailurePolicy"])
    assert (uncounted["restarts"], uncounted["restartsCountTowardsMax"]) == (1, 0)
    assert (counted["restarts"], counted["restartsCountTowardsMax"]) == (2, 1)
    assert condition({"status": last}, "Failed")["reason"] == "FailJobSetFailurePolicyAction"


@pytest.mark.parametrize(("strategy", "created"), [("Recreate", ["train-workers-1"]), ("BlockingRecreate", [])])
def test_new_jobs_wait_for_the_old_ones(strategy: str, created: list[str]) -> None:
    spec: dict[str, Any] = {"failurePolicy": {"maxRestarts": 1, "restartStrategy": strategy}}
    [status] = statuses(spec, ["BackoffLimitExceeded"])
    this = jobset(status=status, **spec)
    old, _ = wanted_jobs(this, 0)
    steps = next_steps(this, [old], NOW)
    assert (steps.delete, [job["metadata"]["name"] for job in steps.create]) == (["train-workers-0"], created)


def test_jobs_that_have_ended_are_neither_suspended_nor_begun_again() -> None:
    running = jobset(jobs={"driver": 1, "workers": 1})
    first, second = wanted_jobs(running, 0)
    ended = child(first, Complete="CompletionsReached")
    paused = jobset(jobs={"driver": 1, "workers": 1}, suspend=True)
    paused["status"] = next_steps(paused, [ended, second], NOW).status
    steps = next_steps(paused, [ended, second], NOW)
    assert (steps.patch, steps.create) == ({"train-workers-0": {"spec": {"suspend": True}}}, [])


@pytest.mark.parametrize(("policy", "ends"), [(None, False), ({"operator": "Any"}, True)])
def test_jobset_standin_succeeds_by_its_success_policy(policy: Object | None, ends: bool) -> None:
    this = jobset(successPolicy=policy)
    first, second = wanted_jobs(this, 0)
    half = next_steps(this, [child(first, Complete="CompletionsReached"), second], NOW).status or {}
    assert bool(half.get("terminalState")) is ends
    whole = next_steps(this, [child(job, Complete="CompletionsReached") for job in (first, second)], NOW).status or {}
    assert whole["terminalState"] == "Completed"


# --- JobSets at work


@pytest.fixture
def bench(kube: KubeTarget, namespace: str, tmp_path: Path, job_controller: None) -> Iterator[Bench]:
    with StandInJobSets(kube.kubeconfig, tmp_path), open_bench(kube.kubeconfig, namespace, tmp_path / "node") as bench:
        yield bench


JOBSETS = f"apis/{API_VERSION}"


def start(bench: Bench, name: str, script: str, **spec: Any) -> str:
    """Creates a JobSet of one Job with one pod; its path."""
    pod = {"spec": bench.pod_spec(shell(script), terminationGracePeriodSeconds=60)}
    template = {"spec": {"backoffLimit": 0, "template": pod}}
    replicated = [{"name": "workers", "replicas": 1, "template": template}]
    body = {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": {"name": name}}
    bench.create("jobsets", {**body, "spec": {"replicatedJobs": replicated, **spec}}, group=JOBSETS)
    return bench.path("jobsets", name, group=JOBSETS)


def running_pod(bench: Bench, name: str, *, other_than: str = "") -> Object:
    def look() -> Object | None:
        query = {"labelSelector": f"{NAME}={name}"}
        pods: list[Object] = bench.api.call("GET", bench.path("pods"), query=query)["items"]
        running = (pod for pod in pods if pod["status"].get("phase") == "Running")
        return next((pod for pod in running if pod["metadata"]["uid"] != other_than), None)

    return bench.until(look, f"a pod of JobSet {name} runs")


def test_a_jobset_begins_again_when_a_pod_fails_and_ends_when_it_may_not(bench: Bench) -> None:
    path = start(bench, "fails", "echo attempt; exit 3", failurePolicy={"maxRestarts": 1})
    ended = bench.until(lambda: (it := bench.read(path)) and condition(it, "Failed") and it, "the JobSet has failed")
    assert (ended["status"]["restarts"], condition(ended, "Failed")["reason"]) == (1, "ReachedMaxRestarts")


def test_a_jobset_completes(bench: Bench) -> None:
    path = start(bench, "completes", "exit 0")
    ended = bench.until(lambda: (it := bench.read(path)) and condition(it, "Completed") and it, "it has completed")
    assert ended["status"]["restarts"] == 0


def test_a_suspended_jobset_ends_its_pods_and_goes_on_with_new_annotations(bench: Bench) -> None:
    path = start(bench, "pauses", RUNS)
    first = running_pod(bench, "pauses")
    bench.log_has(first, "main", "up")
    bench.api.call("PATCH", path, {"spec": {"suspend": True}}, how=MERGE)
    bench.gone("pods", first["metadata"]["name"])
    assert bench.node.log_of(first["metadata"]["uid"], "main") == "up\ntold\n"
    seen = bench.until(lambda: (it := bench.read(path)) and condition(it, "Suspended") and it, "it is suspended")
    assert seen["status"]["restarts"] == 0

    replicated = [dict(each) for each in seen["spec"]["replicatedJobs"]]
    template = replicated[0]["template"]["spec"]["template"]
    template["metadata"] = {"annotations": {"tidegauge.dev/attempt": "1"}}
    change = {"spec": {"suspend": False, "replicatedJobs": replicated}}
    bench.api.call("PATCH", path, change, how=MERGE)
    second = running_pod(bench, "pauses", other_than=first["metadata"]["uid"])
    assert second["metadata"]["annotations"]["tidegauge.dev/attempt"] == "1"
    assert second["metadata"]["labels"][RESTART_ATTEMPT] == "0"


# --- nothing is left behind

HOLDER = """
import sys, time
from pathlib import Path
from kube_standins.node import StandInNode
with StandInNode(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])) as node:
    print(node.pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """A zombie, which waits for whoever inherited it, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def holder(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another test's process, with a node of its own in the folder ``held``."""
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", HOLDER, str(kube.kubeconfig), f"held-{namespace}", str(tmp_path / "held")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    yield process
    process.kill()
    process.stdout.close()
    process.wait(60)


@pytest.mark.parametrize("killed", ["the test", "the node"])
def test_kube_node_leaves_no_process_or_mount_after_a_kill(
    kube: KubeTarget, namespace: str, tmp_path: Path, holder: subprocess.Popen[bytes], killed: str
) -> None:
    assert holder.stdout is not None
    node_pid = int(holder.stdout.readline())
    folder, node_path = tmp_path / "held", f"/api/v1/nodes/held-{namespace}"
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node") as bench:
        deaf = shell("trap '' TERM; echo up; while :; do sleep 0.05; done",
                     volumeMounts=[{"name": "memory", "mountPath": "/memory"}],
                     securityContext={"runAsUser": 5001})  # fmt: skip
        on_other_node = {
            "nodeSelector": {"kubernetes.io/hostname": f"held-{namespace}"},
            "tolerations": [{"operator": "Exists"}],
        }
        volume = {"name": "memory", "emptyDir": {"medium": "Memory"}}
        bench.pod("held", deaf, volumes=[volume], **on_other_node)
        pod = bench.in_phase("held", "Running")
        pid = int((folder / "pods" / pod["metadata"]["uid"] / "main.pid").read_text())
        assert is_alive(pid)
        os.kill(holder.pid if killed == "the test" else node_pid, signal.SIGKILL)
        bench.until(lambda: not is_alive(pid) and not is_alive(node_pid), "all have ended")
        assert str(folder) not in Path("/proc/self/mounts").read_text()
        if killed == "the test":  # the node has ended by itself, and put everything away
            [hierarchy] = hierarchies()
            assert not (hierarchy / node_name(node_pid)).exists()
            assert bench.read(bench.path("pods", "held")) is None
            assert bench.read(node_path) is None
        else:
            bench.api.call("DELETE", bench.path("pods", "held"), {"gracePeriodSeconds": 0})
            bench.api.call("DELETE", node_path)


MAKES_CGROUPS = """
from kube_standins.cgroups import NodeCgroups
node = NodeCgroups()
print(*node.make("pod-uid", "container"), flush=True)
input()
print(node.make("pod-uid", "second") != [], flush=True)
node.close()
"""


def test_kube_node_keeps_cgroups_of_a_node_in_another_pid_namespace() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", MAKES_CGROUPS]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        [cgroup] = other.stdout.readline().decode().split()
        NodeCgroups().close()
        assert Path(cgroup).is_dir()
        other.stdin.write(b"\n")
        other.stdin.close()
        assert other.stdout.readline() == b"True\n"
    assert other.returncode == 0
    assert not Path(cgroup).exists()


def test_kube_node_removes_cgroups_of_a_killed_node() -> None:
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", MAKES_CGROUPS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as killed:
        assert killed.stdout is not None
        [cgroup] = killed.stdout.readline().decode().split()
        killed.kill()
    assert Path(cgroup).is_dir()
    NodeCgroups().close()
    assert not Path(cgroup).exists()


# --- what containers are started with

HERE = Here("node-1", "127.77.0.1", "127.0.0.1", ("127.0.0.1", 6443))
POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "lab", "uid": "u"}, "spec": {}}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$A ${A} $()", "$A ${A} $()"),
        ("$(A)$(A)", "11"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, meant: str) -> None:
    assert expanded(text, {"A": "1"}) == meant


def test_a_reference_sees_only_what_was_named_before() -> None:
    env = [
        {"name": "FIRST", "value": "$(SECOND)"},
        {"name": "SECOND", "value": "2"},
        {"name": "THIRD", "value": "$(SECOND)"},
    ]
    environ = environ_of({"name": "c", "env": env}, POD, HERE, {})
    assert (environ["FIRST"], environ["THIRD"]) == ("$(SECOND)", "2")


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {"envFrom": [{"configMapRef": {"name": "m"}}]},
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.hostPID"}}}]},
    ],
)
def test_kube_node_refuses_unsupported_environment_sources(container: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        environ_of({"name": "c", **container}, POD, HERE, {})


def test_security_contexts_of_container_and_pod_come_together() -> None:
    pod = {**POD, "spec": {"securityContext": {"runAsUser": 1000, "runAsGroup": 100, "fsGroup": 7}}}
    plain = user_of({"name": "c"}, pod)
    assert (plain.uid, plain.gid, plain.groups, plain.no_new_privileges) == (1000, 100, (7, 100), False)
    own = {"runAsUser": 5, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}
    mine = user_of({"name": "c", "securityContext": own}, pod)
    assert (mine.uid, mine.capabilities, mine.no_new_privileges) == (5, (19,), True)
    with pytest.raises(UnsupportedError, match="runAsNonRoot"):
        user_of({"name": "c", "securityContext": {"runAsNonRoot": True}}, POD)
