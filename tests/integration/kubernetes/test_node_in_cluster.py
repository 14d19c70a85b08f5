"""The stand-in node in its cluster: pods of Jobs, GPUs that are all taken, an API server that is not always there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.kubernetes.stand_in_pods import Bench, condition, exit_codes, open_bench, shell
from integration.kubernetes.target import KubeTarget
from kube_emulator import Emulator
from kube_standins.api import MERGE
from kube_standins.node import GPUS

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def bench(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node") as bench:
        yield bench


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}


# --- Jobs


def test_a_job_runs_to_completion(bench: Bench, job_controller: None) -> None:
    bench.job("counts", shell("echo $JOB_COMPLETION_INDEX"), pod={}, completions=3, parallelism=2,
              completionMode="Indexed")  # fmt: skip
    path = bench.path("jobs", "counts", group="apis/batch/v1")
    bench.until(lambda: (job := bench.read(path)) and condition(job, "Complete"), "the Job is complete")
    pods = bench.api.call("GET", bench.path("pods"), query={"labelSelector": "job-name=counts"})["items"]
    assert sorted(bench.node.log_of(pod["metadata"]["uid"], "main") for pod in pods) == ["0\n", "1\n", "2\n"]


def test_a_suspended_job_ends_its_pods_with_their_grace_and_begins_new_ones(bench: Bench, job_controller: None) -> None:
    script = "trap 'echo told; exit 1' TERM; echo up; while :; do sleep 0.05; done"
    bench.job("pauses", shell(script), pod={"terminationGracePeriodSeconds": 60}, backoffLimit=0)
    path = bench.path("jobs", "pauses", group="apis/batch/v1")
    query = {"labelSelector": "job-name=pauses"}

    def running_pod() -> Any:
        pods = bench.api.call("GET", bench.path("pods"), query=query)["items"]
        return next((pod for pod in pods if pod["status"].get("phase") == "Running"), None)

    first = bench.until(running_pod, "the Job's pod runs")
    bench.log_has(first, "main", "up")
    bench.api.call("PATCH", path, {"spec": {"suspend": True}}, how=MERGE)
    bench.gone("pods", first["metadata"]["name"])
    assert bench.node.log_of(first["metadata"]["uid"], "main") == "up\ntold\n"
    job = bench.until(lambda: (job := bench.read(path)) and condition(job, "Suspended") and job, "it is suspended")
    assert not job["status"].get("failed")
    bench.api.call("PATCH", path, {"spec": {"suspend": False}}, how=MERGE)
    second = bench.until(running_pod, "the Job's pod runs again")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


# --- an API server that is not always there


def test_kube_node_sees_changes_made_while_watches_are_cut(bench: Bench, emulator: Emulator) -> None:
    bench.pod("before", shell("trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    pod = bench.in_phase("before", "Running")
    bench.log_has(pod, "main", "up")
    with emulator.away():
        pass
    bench.api.call("DELETE", bench.path("pods", "before"))
    emulator.cut_watches()
    emulator.compact()
    bench.gone("pods", "before")
    assert bench.node.log_of(pod["metadata"]["uid"], "main") == "up\ntold\n"
    bench.pod("after", shell("echo hello"))
    bench.in_phase("after", "Succeeded")


def test_a_pod_that_vanished_while_nobody_could_watch_is_ended(bench: Bench, emulator: Emulator) -> None:
    bench.pod("lost", shell("trap '' TERM; while :; do sleep 0.05; done"))
    pod = bench.in_phase("lost", "Running")
    pid = bench.node.pid_of(pod["metadata"]["uid"], "main")
    emulator.faults.fail(500, 10_000, method="GET", path="/api/v1/pods")
    emulator.cut_watches()
    bench.api.call("DELETE", bench.path("pods", "lost"), {"gracePeriodSeconds": 0})
    emulator.compact()
    emulator.faults.clear()
    bench.until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended")


def test_an_end_that_the_server_was_not_there_for_is_told_later(bench: Bench, emulator: Emulator) -> None:
    script = "echo up; while [ ! -e /shared/end ]; do sleep 0.05; done; echo over; exit 6"
    mounted = shell(script, volumeMounts=[{"name": "shared", "mountPath": "/shared"}])
    bench.pod("ends", mounted, volumes=[{"name": "shared", "emptyDir": {}}])
    pod = bench.in_phase("ends", "Running")
    with emulator.away():
        (bench.node.empty_dir_of(pod["metadata"]["uid"], "shared") / "end").touch()
        bench.log_has(pod, "main", "over")
    assert exit_codes(bench.in_phase("ends", "Failed")) == {"main": 6}


# --- GPUs


def test_pods_wait_for_gpus_and_see_those_that_they_have(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node", pod_resources=socket) as bench:
        bench.pod("first", shell("echo $NVIDIA_VISIBLE_DEVICES; exec sleep 600", **gpus(2)))
        first = bench.in_phase("first", "Running")
        assert bench.log_has(first, "main", "\n") == ",".join(GPUS) + "\n"
        listed = pod_resources(socket)
        assert all(word.encode() in listed for word in ("first", namespace, "main", "nvidia.com/gpu", *GPUS))

        bench.pod("second", shell("echo $NVIDIA_VISIBLE_DEVICES", **gpus(1)))
        bench.pod("without", shell('echo "$NVIDIA_VISIBLE_DEVICES"'))
        without = bench.in_phase("without", "Succeeded")
        assert bench.node.log_of(without["metadata"]["uid"], "main") == "\n"
        waiting = bench.read(bench.path("pods", "second"))
        assert waiting is not None
        assert "nodeName" not in waiting["spec"]

        bench.api.call("DELETE", bench.path("pods", "first"), {"gracePeriodSeconds": 1})
        second = bench.in_phase("second", "Succeeded")
        assert bench.node.log_of(second["metadata"]["uid"], "main") == f"{GPUS[0]}\n"


def pod_resources(socket: Path) -> bytes:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answer: bytes = channel.unary_unary("/v1.PodResourcesLister/List")(b"", timeout=60)
        return answer
