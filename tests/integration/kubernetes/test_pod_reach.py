"""Ranks in pods, which mount nothing of the node, and the agent in the node's own namespaces: it finds them, knows
whose they are by the kernel's word, and has their answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tidegauge
from fakegpu.rig import Rig
from integration import container_rank
from integration.kubernetes.stand_in_pods import Bench, open_bench, python, shell
from integration.kubernetes.target import KubeTarget
from kube_standins.api import Object
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.core.jobs.kubernetes import PodFacts, PodPlace
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.views import RankView
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.settings import Settings

GIB = 1 << 30
COLLECTOR = Path(tidegauge.__file__).parents[1]
RUN_DIR = "/run/tidegauge"
PATIENCE_S = 30.0

VOLUME = {"name": "tidegauge", "emptyDir": {}}
MAKE_RUN_DIR = shell(
    "mkdir /volume/run && chmod 1777 /volume/run", "init", volumeMounts=[{"name": "tidegauge", "mountPath": "/volume"}]
)
MOUNT = {"name": "tidegauge", "mountPath": RUN_DIR, "subPath": "run"}

pytestmark = pytest.mark.timeout(600)

TRAIN = """
import time, torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.fixture
def agent() -> Iterator[NodeAgent]:
    settings = Settings(slurm="off", run_dir=Path(RUN_DIR), kubernetes="on", linger_s=0.0)
    with closing(open_node_agent(settings, {})) as agent:
        yield agent


def env(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]


def small_rank(name: str, job_id: str, uid: int) -> dict[str, Any]:
    """A rank without torch; ``sleep`` holds its standard input open."""
    rank = python([container_rank.__file__, job_id])["command"]
    return shell(
        'sleep 600 | "$@"', name,
        args=[name, *rank],
        env=env({"TIDEGAUGE_RUN_DIR": RUN_DIR, "PYTHONPATH": str(COLLECTOR)}),
        volumeMounts=[MOUNT],
        securityContext={"runAsUser": uid},
    )  # fmt: skip


def introduced(bench: Bench, agent: NodeAgent, pod: Object) -> None:
    """The agent has asked who the pod is, and was told as the head would tell it."""
    metadata = pod["metadata"]
    containers = {each["containerID"].split("//")[1]: each["name"] for each in pod["status"]["containerStatuses"]}
    facts = PodFacts(metadata["uid"], metadata["namespace"], metadata["name"], metadata["name"], "Pod",
                     containers=containers)  # fmt: skip

    def asked() -> bool:
        agent.poll()
        summary = agent.summary(node_id="n", incarnation="i", metrics_address=None)
        return facts.pod_uid in summary.pods_wanted

    bench.until(asked, "the agent asks who the pod is")
    agent.hear_of_pods([facts])


def rank_when(
    bench: Bench, agent: NodeAgent, job_id: str, when: Callable[[RankView], bool] = lambda _: True
) -> RankView:
    def look() -> RankView | None:
        agent.poll()
        mine = (rank for rank in agent.view().ranks if rank.identity.job_id == job_id)
        return next((rank for rank in mine if when(rank)), None)

    return bench.until(look, f"the agent sees a rank of {job_id}")


def ask(agent: NodeAgent, rank: RankView) -> Any:
    order = Order("1", OrderTo.RANK, rank.process, rank.uid, {"command": "ping"}, PATIENCE_S)
    return agent.carry_out(order).reply


def test_ranks_of_two_pods_are_told_apart_though_user_and_pid_are_the_same(
    kube: KubeTarget, namespace: str, tmp_path: Path, agent: NodeAgent
) -> None:
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node") as bench:
        for name in ("one", "two"):
            bench.pod(name, small_rank("main", "claimed", 5001), initContainers=[MAKE_RUN_DIR], volumes=[VOLUME])
        pods = {name: bench.in_phase(name, "Running") for name in ("one", "two")}
        # Both have their rings before the agent looks: one that it sees being made may not stay blank for long.
        inside = {name: int(bench.log_has(pod, "main", "\n").split()[-1]) for name, pod in pods.items()}
        for name, pod in pods.items():
            uid = pod["metadata"]["uid"]
            introduced(bench, agent, pod)
            rank = rank_when(bench, agent, f"{namespace}/{name}")
            assert rank.pod == PodPlace(uid, namespace, name, "main", job_known=True)
            assert rank.uid == 5001
            assert namespace_of(rank.process.pid) == namespace_of(bench.node.pid_of(uid, "main"))
            assert ask(agent, rank) == {"ok": True, "pid": inside[name]}
        assert inside["one"] == inside["two"]

        bench.api.call("DELETE", bench.path("pods", "one"), {"gracePeriodSeconds": 1})
        bench.gone("pods", "one")

        def left() -> bool:
            agent.poll()
            return [rank.pod and rank.pod.pod for rank in agent.view().ranks] == ["two"]

        bench.until(left, "only the other's rank is there")
        assert agent.view().rings_skipped == {}


def namespace_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino


@pytest.mark.rig
@pytest.mark.timeout(300)
def test_a_real_torch_in_a_pod_is_watched_through_its_empty_dir(
    kube: KubeTarget, namespace: str, tmp_path: Path, agent: NodeAgent, rig: Rig
) -> None:
    gpu_memory = tmp_path / "gpus"
    gpu_memory.mkdir()
    gpu_memory.chmod(0o777)
    environ = rig.environ(devices=1, total_bytes=8 * GIB, state=gpu_memory / "state", base={})
    environ |= activation_environ("stats", environ, pythonpath=True)
    environ |= {"TIDEGAUGE_RUN_DIR": RUN_DIR, "TIDEGAUGE_JOB_ID": f"{namespace}/trains"}
    with open_bench(kube.kubeconfig, namespace, tmp_path / "node", visible=[gpu_memory]) as bench:
        trainer = {"name": "main", "image": "stand-in", "command": [str(rig.python), "-c", TRAIN], "env": env(environ)}
        volume = {"name": "tidegauge", "emptyDir": {"medium": "Memory"}}
        bench.pod("trains", {**trainer, "volumeMounts": [MOUNT], "securityContext": {"runAsUser": 5001}},
                  initContainers=[MAKE_RUN_DIR], volumes=[volume])  # fmt: skip
        pod = bench.in_phase("trains", "Running")
        introduced(bench, agent, pod)
        rank = rank_when(bench, agent, f"{namespace}/trains", lambda rank: rank.steps > 3)
        assert rank.pod == PodPlace(pod["metadata"]["uid"], namespace, "trains", "main", job_known=True)
        assert rank.uid == 5001
        assert ask(agent, rank)["step"] >= rank.steps
