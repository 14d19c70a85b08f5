"""The injection through an API server: whose pods come out how, and that nothing of ours keeps a pod from being."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.kubernetes.chart_accounts import ChartRelease, installed
from integration.kubernetes.injected_pods import (
    PROBE_IMAGE,
    SECRET,
    VALUES,
    Webhook,
    asking,
    dry_run,
    probe_image,
    serving,
)
from integration.kubernetes.stand_in_pods import open_bench, shell
from integration.kubernetes.target import Connection, KubeTarget, eventually, pod
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, IMAGE_PYTHONPATH, INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import SecretCertificate
from tidegauge_scheduler_hooks.kubernetes.injection.names import PYTHONPATH_ENTRY

pytestmark = pytest.mark.timeout(600)

GIB = 1 << 30
USER, OTHER = 5001, 5002
RESTRICTED = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "example.org/main:1",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


@pytest.fixture
def release(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[ChartRelease]:
    with installed(kube, namespace, tmp_path, VALUES) as release:
        yield release


@pytest.fixture
def webhook(admin: Connection, release: ChartRelease) -> Iterator[Webhook]:
    with serving(admin, release) as webhook:
        yield webhook


def environ(made: Any, container: int = 0) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in made["spec"]["containers"][container].get("env", [])}


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/restart-attempt": "2"}, "set"),
        ({"training.kubeflow.org/job-name": "torch"}, "torch"),
        ({"ray.io/cluster": "ray-x7k2p", "ray.io/originated-from-cr-name": "ray"}, "ray"),
    ],
)
def test_pods_of_custom_owners_come_out_watched(
    webhook: Webhook, admin: Connection, namespace: str, labels: dict[str, str], name: str
) -> None:
    made = admin.do("POST", f"/api/v1/namespaces/{namespace}/pods", asking("p", labels=labels))
    assert made["metadata"]["annotations"][INJECTED] == "1"
    assert made["spec"]["initContainers"][0]["image"] == PROBE_IMAGE
    found = environ(made)
    assert found["TIDEGAUGE_JOB_ID"] == f"{namespace}/{name}"
    assert found["TIDEGAUGE_ATTEMPT"] == labels.get("jobset.sigs.k8s.io/restart-attempt", "0")
    assert {one["mountPath"] for one in made["spec"]["containers"][1]["volumeMounts"]} >= {
        "/tidegauge",
        "/run/tidegauge",
    }


@pytest.mark.usefixtures("job_controller", "webhook")
def test_the_pods_of_a_job_come_out_watched_and_a_resumed_job_with_what_was_changed(
    admin: Connection, namespace: str
) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template: dict[str, Any] = {"metadata": {"labels": {PROFILE_LABEL: "auto"}}, "spec": pod("x")["spec"]}
    admin.do("POST", jobs, {"metadata": {"name": "train"}, "spec": {"suspend": True, "template": template}})
    change = '{"environ": {"TIDEGAUGE_MEMORY_FRACTION": "0.5"}, "alloc_conf": {"expandable_segments": "True"}}'
    annotations = {CHANGES: change, ATTEMPT: "1"}
    admin.do(
        "PATCH", f"{jobs}/train",
        {"metadata": {"annotations": annotations}, "spec": {"suspend": False}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    [made] = eventually(lambda: admin.do("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])
    found = environ(made)
    assert made["metadata"]["annotations"][ATTEMPT] == "1"
    assert (found["TIDEGAUGE_JOB_ID"], found["TIDEGAUGE_ATTEMPT"]) == (f"{namespace}/train", "1")
    assert found["TIDEGAUGE_MEMORY_FRACTION"] == "0.5"
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.usefixtures("webhook")
def test_the_namespaces_label_counts_for_gpus_of_pods_that_say_nothing(admin: Connection, namespace: str) -> None:
    def annotations(body: dict[str, Any]) -> dict[str, str]:
        return dry_run(admin, namespace, body)["metadata"].get("annotations") or {}

    gpu = {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    for said in (
        {},
        {"labels": {PROFILE_LABEL: "dormant"}},  # and not what its images set
        {"annotations": {IMAGE_PYTHONPATH: "/opt/lib"}},
    ):
        assert INJECTED not in annotations(pod("p", spec=gpu))
        admin.do(
            "PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": said}, content_type="application/merge-patch+json"
        )
    found = environ(dry_run(admin, namespace, pod("p", spec=gpu)))
    assert (found["TIDEGAUGE_PROFILE"], found["PYTHONPATH"]) == ("dormant", f"{PYTHONPATH_ENTRY}:/opt/lib")
    assert INJECTED not in annotations(pod("p"))
    assert INJECTED not in annotations(pod("p", spec=gpu, labels={PROFILE_LABEL: "off"}))


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_pod_security_takes_what_is_put_in(webhook: Webhook, admin: Connection, namespace: str, level: str) -> None:
    admin.do(
        "PATCH", f"/api/v1/namespaces/{namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    forbidden = asking("host", spec={**RESTRICTED, "hostPID": True})
    path = f"/api/v1/namespaces/{namespace}/pods"
    eventually(lambda: admin.ask("POST", f"{path}?dryRun=All", forbidden).code == 403)  # it is in force
    made = admin.do("POST", path, asking("p", spec=RESTRICTED))
    assert made["metadata"]["annotations"][INJECTED] == "1"


@pytest.mark.usefixtures("webhook")
def test_the_owner_is_warned_and_the_pod_is_made(admin: Connection, namespace: str) -> None:
    bad = pod("p", labels={PROFILE_LABEL: "everything"})
    answer = admin.ask("POST", f"/api/v1/namespaces/{namespace}/pods", bad)
    assert answer.code == 201
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert "everything" in headers["warning"]


def test_who_submits_a_job_hears_what_earlier_runs_needed_and_the_job_is_as_submitted(
    admin: Connection, release: ChartRelease, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "tidegauge_history.tsv"
    said = "earlier runs had 80.0 GiB, needed 9.1 GiB at most in 3 runs; 1/8 of this GPU would do"
    file.write_text(f"{namespace}\ttrain\t{said}\n")
    spec = {"template": {"spec": {**RESTRICTED, "restartPolicy": "Never"}}, "suspend": True}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with serving(admin, release, history=file) as webhook:
        answer = admin.ask("POST", path, {"metadata": {"name": "train"}, "spec": spec})
        other = admin.ask("POST", path, {"metadata": {"name": "other"}, "spec": spec})
        assert (answer.code, other.code) == (201, 201)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        assert headers["warning"] == f'299 - "tidegauge: {said}"'
        assert "warning" not in {name.lower() for name in other.headers}
        assert INJECTED not in (answer.body["metadata"].get("annotations") or {})
        webhook.server.stop(drain_s=5.0)
        assert admin.ask("POST", path, {"metadata": {"name": "without"}, "spec": spec}).code == 201


def test_without_the_webhook_pods_are_made_all_the_same(webhook: Webhook, admin: Connection, namespace: str) -> None:
    webhook.server.stop(drain_s=5.0)
    made = admin.do("POST", f"/api/v1/namespaces/{namespace}/pods", asking("p"))
    assert INJECTED not in (made["metadata"].get("annotations") or {})


def test_a_new_authority_while_serving_is_trusted_and_pods_are_watched_again(
    webhook: Webhook, admin: Connection, namespace: str
) -> None:
    before = webhook.certificate.trusted
    admin.do(
        "PATCH", f"/api/v1/namespaces/{namespace}/secrets/{SECRET}", {"data": None},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    webhook.certificate.maintain()
    assert webhook.certificate.trusted != before
    eventually(lambda: not webhook.is_asked(namespace))  # the server does not trust the new one yet
    webhook.trusted()
    eventually(lambda: webhook.is_asked(namespace))


def test_replicas_that_start_at_once_serve_one_certificate(release: ChartRelease, namespace: str) -> None:
    api = open_api(release.kubeconfig("controller"), timeout_s=60)
    replicas = [SecretCertificate(api, namespace, SECRET, ["localhost"]) for _ in range(4)]
    at_once = threading.Barrier(len(replicas))

    def start(replica: SecretCertificate) -> None:
        at_once.wait()
        replica.maintain()

    threads = [threading.Thread(target=start, args=(replica,)) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for replica in replicas:
        replica.refresh()
    assert len({replica.trusted for replica in replicas}) == 1
    assert replicas[0].trusted is not None


BOTH_WRITE = """
set -e
test -k /run/tidegauge
echo "$TIDEGAUGE_CONTAINER" >/run/tidegauge/1-100.ring
cat /run/tidegauge/*
touch /run/tidegauge/.written
sleep 600
"""


@pytest.mark.usefixtures("webhook")
def test_injected_containers_of_one_user_keep_rings_of_the_same_name_apart(
    kube: KubeTarget, namespace: str, tmp_path: Path
) -> None:
    """Pids and start times, by which rings are named, are counted in each container: two may have the same."""
    images = {PROBE_IMAGE: probe_image(tmp_path / "image")}
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node", image_map=images) as bench:
        both = [shell(BOTH_WRITE, name, securityContext={"runAsUser": USER}) for name in ("one", "two")]
        bench.create("pods", asking("writes", spec=bench.pod_spec(*both)))
        made = dict(bench.in_phase("writes", "Running"))
        uid = made["metadata"]["uid"]
        run_dirs = [
            Path(f"/proc/{bench.node.pid_of(uid, name)}/root/run/tidegauge") for name in ("one", "two")
        ]  # as an agent sees them
        for run_dir in run_dirs:
            eventually((run_dir / ".written").exists)
        assert [(run_dir / "1-100.ring").read_text() for run_dir in run_dirs] == ["one\n", "two\n"]
        assert len({run_dir.stat().st_ino for run_dir in run_dirs}) == 2


TRAIN = f"""
import os, sys, time
assert {PYTHONPATH_ENTRY!r} in sys.path, sys.path
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not os.listdir(f"/run/tidegauge/{{os.getuid()}}"):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.01)
print("rings:", sorted(name.partition(".")[2] for name in os.listdir(f"/run/tidegauge/{{os.getuid()}}")), flush=True)
time.sleep(600)
"""


@pytest.mark.rig
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("webhook")
def test_torch_in_an_injected_pod_writes_its_ring_as_any_user(
    kube: KubeTarget, namespace: str, tmp_path: Path, rig: Rig
) -> None:
    gpus = tmp_path / "gpus"
    gpus.mkdir()
    gpus.chmod(0o777)

    def trainer(name: str, user: int) -> dict[str, Any]:
        # A GPU each: the file that stands for its memory belongs to one user.
        given = rig.environ(devices=1, total_bytes=8 * GIB, state=gpus / name, base={})
        env = [{"name": key, "value": value.replace("$", "$$")} for key, value in given.items()]
        command = [str(rig.python), "-c", TRAIN]
        return {"name": name, "image": "stand-in", "command": command, "env": env,
                "securityContext": {"runAsUser": user}}  # fmt: skip

    images = {PROBE_IMAGE: probe_image(tmp_path / "image")}
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node", visible=[gpus], image_map=images) as bench:
        spec = bench.pod_spec(trainer("one", USER), trainer("two", OTHER), trainer("root", 0))
        bench.create("pods", asking("trains", spec=spec))
        made = dict(bench.in_phase("trains", "Running"))
        assert made["metadata"]["annotations"][INJECTED] == "1"
        for container in ("one", "two", "root"):
            bench.log_has(made, container, "rings: ['ring', 'sock']")
        # As an agent sees it: the volume is mounted in the pod's own namespaces only.
        for container, user in (("one", USER), ("two", OTHER), ("root", 0)):
            run_dir = Path(f"/proc/{bench.node.pid_of(made['metadata']['uid'], container)}/root/run/tidegauge")
            assert [folder.name for folder in run_dir.iterdir()] == [str(user)]
            assert run_dir.stat().st_mode & 0o7777 == 0o1777
