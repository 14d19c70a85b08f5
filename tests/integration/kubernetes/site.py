"""A watched Kubernetes cluster for tests: an API server, a node whose pods are processes, webhook and controller, and
the service with its agent on that node. Pods train on the fake-GPU rig's torch."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fakegpu.rig import Rig
from integration.closed_loop_site import EARLY, POLICY
from integration.kubernetes.chart_accounts import ChartRelease, installed
from integration.kubernetes.injected_pods import CONFIGURATIONS, PROBE_IMAGE, asking, dry_run, pod_webhook, probe_image
from integration.kubernetes.stand_in_pods import Bench
from integration.kubernetes.target import Connection, KubeTarget
from integration.needs import missing
from integration.server_process import free_port
from integration.service import Service, eventually
from kube_standins.jobset import StandInJobSets
from kube_standins.node import StandInNode, why_no_node
from tidegauge.core.jobs.kubernetes import INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import renewed
from whole_lines import whole_lines

RIG_JOBS = Path(__file__).resolve().parents[1] / "rig_jobs"
SCRIPT, SERVER = RIG_JOBS / "resumable.py", RIG_JOBS / "serving.py"
GPUS = 4
TOTAL_BYTES = 80 << 30
CAP = "0.5"
"""Of 80 GiB: 40 GiB, which a rank that leaks 4 MiB a step reaches before step 10,250: minutes."""
VALUES = {
    "workloads": {"actions": True, "podConditions": True},
    "injection": {"certificates": {"mode": "secret", "secretName": "given", "caBundle": "LS0="}},
}
"""Of the chart, whose accounts head and controller have."""
JOBS = "apis/batch/v1"
JOBSETS = "apis/jobset.x-k8s.io/v1alpha2"
USER = 5001


class KubeSite:
    """``open_site`` makes one. ``system`` is the service's own namespace, ``bench`` that of the users."""

    def __init__(
        self, kube: KubeTarget, bench: Bench, release: ChartRelease, folder: Path, rig: Rig, policy: str
    ) -> None:
        self.bench = bench
        self.system = release.namespace
        self.others: tuple[str, ...] = ()
        """More namespaces whose pods the webhook is asked about."""
        self.admin: Connection = kube.admin
        self.service = Service()
        self._release = release
        self._folder = folder
        self._rig = rig
        self._gpu_state = folder / "gpus" / "state"
        self._policy, self._policy_text = folder / "policy.yaml", policy
        self._certificates = folder / "certificates"
        self._configuration = f"tidegauge-{uuid.uuid4().hex[:8]}"
        self._webhook_port = free_port()
        self._controllers: list[subprocess.Popen[bytes]] = []

    # What runs

    def up(self) -> None:
        """Webhook, controller and service, as the chart starts them but for addresses; asked and reporting."""
        # A certificate given in a folder: one that the controller makes itself is for the names of a Service.
        made = renewed(None, ["localhost"], now_s=time.time())
        self._certificates.mkdir()
        (self._certificates / "tls.crt").write_bytes(made.certificate)
        (self._certificates / "tls.key").write_bytes(made.key)
        webhook = pod_webhook(self._webhook_port, {"tidegauge.dev/test": self.system}, trusted=made.trusted)
        self.admin.do("POST", CONFIGURATIONS, {"metadata": {"name": self._configuration}, "webhooks": [webhook]})
        self.start_controller()
        del self.service.environ["TIDEGAUGE_RUN_DIR"]  # in pods it has its usual name
        self.service.environ |= self._rig.environ(base=self.service.environ, **self._gpus())
        self.service.environ |= {
            **EARLY,
            "TIDEGAUGE_KUBERNETES_KUBECONFIG": str(self._release.kubeconfig("head")),
            "TIDEGAUGE_KUBERNETES_CONTROLLER": self._release.settings()["kubernetes_controller"],
            "TIDEGAUGE_POLICY_FILE": str(self._policy),
            "TIDEGAUGE_REPORT_PERIOD_S": "0.25",
            "TIDEGAUGE_HOSTNAME": self.bench.node.name,
            "TIDEGAUGE_SLURM": "off",
        }
        eventually(self._pods_are_injected, "the webhook is asked")
        self.service.up()

    def start_controller(self) -> subprocess.Popen[bytes]:
        """Another replica."""
        arguments = self._release.controller_arguments("--health-host=127.0.0.1", f"--health-port={free_port()}")
        if self._controllers:  # on one host only one can have the port
            arguments += ["--no-webhook"]
        else:
            arguments += [
                "--webhook-host", "127.0.0.1", "--webhook-port", str(self._webhook_port),
                "--probe-image", PROBE_IMAGE, "--certificate-dir", str(self._certificates),
            ]  # fmt: skip
        log = self._folder / f"controller-{len(self._controllers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidegauge_scheduler_hooks.kubernetes.controller", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._controllers.append(process)
        return process

    def adopt(self, namespace: str) -> None:
        """Have the webhook asked about the pods of a namespace."""
        self.admin.do(
            "PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"tidegauge.dev/test": self.system}}},
            content_type="application/merge-patch+json",
        )  # fmt: skip

    def _pods_are_injected(self) -> bool:
        made = dry_run(self.admin, self.bench.namespace, asking("look"))
        return INJECTED in (made["metadata"].get("annotations") or {})

    def _gpus(self) -> dict[str, Any]:
        return {"devices": GPUS, "total_bytes": TOTAL_BYTES, "state": self._gpu_state}

    def set_mode(self, mode: str) -> None:
        fresh = self._policy.with_suffix(".new")
        fresh.write_text(self._policy_text.format(mode=mode))
        fresh.replace(self._policy)

    # Workloads

    def template(
        self, name: str, *flags: str, first_gpu: int, steps: int, annotations: Mapping[str, str],
        environ: Mapping[str, str] | None = None, ranks: int = 2, level: str = "stats",
    ) -> dict[str, Any]:  # fmt: skip
        """A pod template: torchrun with one rank a pod, on the GPU that the pod's index says, until ``let_end``."""
        container = self._trainer(name, *flags, first_gpu=first_gpu, steps=steps, environ=environ, ranks=ranks)
        return self._template(container, annotations=annotations, level=level)

    def _trainer(
        self, name: str, *flags: str, first_gpu: int, steps: int, environ: Mapping[str, str] | None = None,
        ranks: int = 1, container: str = "trainer",
    ) -> dict[str, Any]:  # fmt: skip
        torchrun = [
            str(self._rig.python), "-m", "torch.distributed.run", f"--nnodes={ranks}", "--nproc-per-node=1",
            "--node-rank=$JOB_COMPLETION_INDEX", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
            str(SCRIPT), "--state", str(self.state(name)), "--steps", str(steps), "--until", str(self._end(name)),
            *flags,
        ]  # fmt: skip
        script = f"export CUDA_VISIBLE_DEVICES=$(({first_gpu} + JOB_COMPLETION_INDEX)); exec {' '.join(torchrun)}"
        return self._container(container, script, environ)

    def _container(self, name: str, script: str, environ: Mapping[str, str] | None) -> dict[str, Any]:
        values = self._rig.environ(base={}, **self._gpus())
        values |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | dict(environ or {})
        return {
            "name": name,
            "image": "example.org/trainer:1",
            "command": ["sh", "-c", script],
            "env": [{"name": key, "value": value.replace("$", "$$")} for key, value in values.items()],
            "securityContext": {"runAsUser": USER},
        }

    def server_template(
        self, name: str, *, gpu: int, annotations: Mapping[str, str], environ: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """A pod template: a server on that GPU, which asks for more than there is once ``full`` is there."""
        script = f"exec {self._rig.python} {SERVER} --full {self.full(name)}"
        container = self._container("server", script, {"CUDA_VISIBLE_DEVICES": str(gpu), **(environ or {})})
        return self._template(container, annotations=annotations)

    def full(self, name: str) -> Path:
        return self.state(name).with_suffix(".full")

    def _template(
        self, *containers: Mapping[str, Any], annotations: Mapping[str, str], level: str = "stats"
    ) -> dict[str, Any]:
        # As long as its grace is, an old run may still have the port: torchrun passes SIGTERM on to its ranks.
        spec = self.bench.pod_spec(*containers, terminationGracePeriodSeconds=10)
        labels = {PROFILE_LABEL: level} if level else {}
        return {"metadata": {"labels": labels, "annotations": dict(annotations)}, "spec": spec}

    def submit_job(self, name: str, *flags: str, namespace: str | None = None, ranks: int = 2, **template: Any) -> None:
        spec = {
            "completions": ranks, "parallelism": ranks, "completionMode": "Indexed", "backoffLimit": 0,
            "template": self.template(name, *flags, ranks=ranks, **template),
        }  # fmt: skip
        place = f"/{JOBS}/namespaces/{namespace or self.bench.namespace}/jobs"
        self.admin.do("POST", place, {"metadata": {"name": name}, "spec": spec})

    def submit_two_containers(
        self, name: str, flags: Mapping[str, Sequence[str]], *, steps: int, annotations: Mapping[str, str]
    ) -> None:
        """A Job with one pod of two containers, each with a training of its own (``NAME-CONTAINER``) on its own GPU.
        ``flags``: those of each container's script."""
        trainers = [
            self._trainer(f"{name}-{container}", *more, first_gpu=gpu, steps=steps, container=container)
            for gpu, (container, more) in enumerate(flags.items())
        ]
        spec = {
            "completions": 1, "completionMode": "Indexed", "backoffLimit": 0,
            "template": self._template(*trainers, annotations=annotations),
        }  # fmt: skip
        self.admin.do(
            "POST", f"/{JOBS}/namespaces/{self.bench.namespace}/jobs", {"metadata": {"name": name}, "spec": spec}
        )

    def submit_jobset(self, name: str, *flags: str, ranks: int = 2, **template: Any) -> None:
        job = {
            "completions": ranks, "parallelism": ranks, "completionMode": "Indexed", "backoffLimit": 0,
            "template": self.template(name, *flags, ranks=ranks, **template),
        }  # fmt: skip
        body = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
            "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]},
        }  # fmt: skip
        self.admin.do("POST", f"/{JOBSETS}/namespaces/{self.bench.namespace}/jobsets", body)

    def state(self, name: str) -> Path:
        return self._folder / "work" / f"{name}.state"

    def let_end(self, name: str) -> None:
        """The job ends once it has made its steps."""
        self._end(name).touch()

    def _end(self, name: str) -> Path:
        return self.state(name).with_suffix(".end")

    def told(self, name: str, what: str) -> list[dict[str, Any]]:
        """What the script told of its attempts."""
        lines = [json.loads(line) for line in whole_lines(self.state(name).with_suffix(".story"))]
        return [line for line in lines if line["what"] == what]

    # Looking

    def owner(self, group: str, plural: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.do("GET", f"/{group}/namespaces/{self.bench.namespace}/{plural}/{name}")
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Pods whose Job's name begins so, by index."""
        listed = self.admin.do("GET", f"/api/v1/namespaces/{self.bench.namespace}/pods")["items"]
        label = "batch.kubernetes.io/job-name"
        return sorted(
            (pod for pod in listed if pod["metadata"].get("labels", {}).get(label, "").startswith(name)),
            key=lambda pod: str(pod["metadata"]["name"]),
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        """What ``kubectl describe`` shows below the object, oldest first."""
        listed = self.admin.do("GET", f"/apis/events.k8s.io/v1/namespaces/{self.bench.namespace}/events")["items"]
        about = [event for event in listed if event.get("regarding", {}).get("name") == name]
        return sorted(about, key=lambda event: str(event["eventTime"]))

    def ranks(self, job: str, *, again: bool = False) -> list[dict[str, Any]]:
        """The living ranks of a job (``namespace/name``) in its first attempt, or ``again``: in a later one."""
        for view in self.service.answer("/api/v1/jobs")["jobs"]:
            living = [one for one in view["ranks"] if one["alive"]]
            if living and (view["job_id"], view["attempt"] > 0) == (job, again):
                return sorted(living, key=lambda one: int(one["identity"]["rank"]))
        return []

    def incidents(self, job: str) -> list[dict[str, Any]]:
        listed = self.service.answer("/api/v1/incidents?all=1")["incidents"]
        return [one for one in listed if one["key"]["job"]["job_id"] == job]

    def decisions(self, job: str) -> list[dict[str, Any]]:
        """All decisions about a job, oldest first."""
        numbers = sorted(one["number"] for one in self.incidents(job))
        pages = [self.service.answer(f"/api/v1/incident?number={number}") for number in numbers]
        return [record for page in pages for record in page["decisions"]]

    def pages(self, job: str) -> str:
        """What ``tidegauge incidents show`` says of a job's incidents."""
        numbers = sorted(one["number"] for one in self.incidents(job))
        return "\n".join(self.service.call("incidents", "show", str(number)).out for number in numbers)

    def story(self) -> str:
        """What happened, for whoever reads a failure."""
        audit = self.service.call("policy", "log")
        logs = [*self._folder.glob("*.log"), *self._folder.glob("node/*.log"), *self._folder.glob("node/pods/*/*.log")]
        told = [f"--- {path.relative_to(self._folder)}\n{path.read_text(errors='replace')[-2500:]}" for path in logs]
        return "\n".join([audit.out, audit.err, self.service.logs(), *told])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.admin.ask("DELETE", f"{CONFIGURATIONS}/{self._configuration}")
        for process in self._controllers:
            process.terminate()
        for process in self._controllers:
            process.wait(60)
        self.service.close()


@contextmanager
def open_site(
    kube: KubeTarget, rig: Rig, folder: Path, *, namespaces: Sequence[str], policy: str = POLICY
) -> Iterator[KubeSite]:
    """``namespaces``: the service's own, the users', and more of users'. ``policy`` has a place for its mode."""
    reason = why_no_node()
    if reason is not None:
        missing(reason)
    system, users, *more = namespaces
    for part in ("gpus", "work"):
        (folder / part).mkdir()
        (folder / part).chmod(0o777)
    state = folder / "gpus" / "state"
    state.touch()
    state.chmod(0o666)
    os.chown(folder / "work", USER, USER)
    images = {PROBE_IMAGE: probe_image(folder / "probe-image")}
    shared = [folder / "gpus", folder / "work"]
    with ExitStack() as stack:
        stack.enter_context(StandInJobSets(kube.kubeconfig, folder))
        release = stack.enter_context(installed(kube, system, folder, VALUES))
        gpus = [f"GPU-fa6e0000-0000-4000-8000-00000000000{number}" for number in range(GPUS)]
        node = stack.enter_context(
            StandInNode(kube.kubeconfig, f"node-of-{users}", folder / "node", gpus=gpus, image_map=images,
                        visible=shared)
        )  # fmt: skip
        site = KubeSite(kube, Bench(kube.kubeconfig, users, node), release, folder, rig, policy)
        stack.callback(site.close)
        site.others = tuple(more)
        for namespace in (users, *more):
            site.adopt(namespace)
        site.set_mode("act")
        try:
            site.up()
            yield site
        finally:
            print(site.story())  # shown with a failure
