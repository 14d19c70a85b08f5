"""Ranks in pods as the kernel shows them: real namespaces, real cgroups named as kubelets name them, no kubelet.

The agent is in the node's own namespaces; the head is played by the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_node import FakeClock
from integration.namespaces import COLLECTOR, need_namespaces, rank_command, start_container
from integration.needs import missing
from tidegauge.agent.container_run_dirs.discovery import WALK_EVERY_S, Containers
from tidegauge.agent.kubernetes.pods import PATIENCE_S, PodBook
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts, PodPlace
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.views import RankView
from tidegauge.settings import Settings

UID = 5001
CONTAINER = "7f3a" * 16
OTHER = PodCgroup("11111111-2222-4333-8444-555555555555", "ab12" * 16)
WITHIN_S = 30.0
HIERARCHIES = [
    path
    for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer")
    if Path(path, "cgroup.procs").exists()
]
"""Version 2, alone or beside version 1, and one of version 1: those that are mounted here."""
SHOW = """
import os, sys
from tidegauge.agent.kubernetes.cgroup import pod_cgroup_of
print(pod_cgroup_of(open(f"/proc/{sys.argv[1]}/cgroup").read()))
print(open(f"/proc/{sys.argv[1]}/cgroup").read())
"""


@dataclass
class Cgroups:
    """A folder of our own in one hierarchy, where pods are made as a kubelet makes them."""

    root: Path

    def pod(self, pod: PodCgroup, *, quality: str = "burstable") -> Path:
        """The cgroup of its container."""
        path = self.root / "kubepods" / quality / f"pod{pod.pod_uid}" / str(pod.container_id)
        path.mkdir(parents=True)
        return path

    def remove(self) -> None:
        """A cgroup can be removed a moment after its last process ended."""
        until_s = time.monotonic() + WITHIN_S
        while self.root.exists() and time.monotonic() < until_s:
            for folder, _, _ in os.walk(self.root, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)
        assert not self.root.exists(), f"{self.root} is still in use"


@pytest.fixture(params=HIERARCHIES or ["nowhere"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    need_namespaces()
    if not HIERARCHIES:
        missing("no cgroups are mounted in /sys/fs/cgroup")
    found = Cgroups(Path(request.param, f"tidegauge-test-{uuid.uuid4().hex[:12]}"))
    try:
        found.root.mkdir()
    except OSError as error:
        missing(f"no cgroup can be made in {request.param}: {error}")
    yield found
    found.remove()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tidegauge-pods-", dir="/dev/shm"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@dataclass
class Node:
    """A real agent, at a time of its own."""

    agent: NodeAgent
    clock: FakeClock

    def poll(self, after_s: float = 0.0) -> tuple[RankView, ...]:
        self.clock.pass_s(after_s)
        self.agent.poll()
        return self.agent.view().ranks

    def wanted(self) -> tuple[str, ...]:
        return self.agent.summary(node_id="n", incarnation="i", metrics_address=None).pods_wanted


@pytest.fixture
def node(run_dir: Path) -> Iterator[Node]:
    clock = FakeClock()
    agent = NodeAgent(
        Settings(linger_s=0.0),
        hostname="node",
        gpus=None,
        procs=ProcFs(monotonic_s=clock.monotonic_s),
        clock=clock,
        run_dirs=[run_dir],
        containers=Containers([run_dir], candidates=lambda: None),
        pods=PodBook(monotonic_s=clock.monotonic_s),
    )
    with closing(agent):
        yield Node(agent, clock)


def new_pod() -> PodCgroup:
    return PodCgroup(str(uuid.uuid4()), CONTAINER)


def facts_of(pod: PodCgroup, attempt: int = 0) -> PodFacts:
    return PodFacts(
        pod.pod_uid, "team-a", "llm-0", "llm", "Job", attempt=attempt, user_name="ada", containers={CONTAINER: "train"}
    )  # fmt: skip


def joins(cgroup: Path) -> str:
    """Shell words by which the shell that says them goes there."""
    return f"echo 0 > {cgroup}/cgroup.procs"


def test_a_rank_in_a_pod_is_named_by_its_cgroup_whatever_it_claims(cgroups: Cgroups, node: Node, run_dir: Path) -> None:
    pod = new_pod()
    command = rank_command("team-b/other", run_dir=run_dir)
    with start_container("admin", command, uid=UID, setup=joins(cgroups.pod(pod))) as container:
        _, _, inner_pid = container.line()
        assert node.poll(WALK_EVERY_S) == (), "the head has not been heard"
        assert node.wanted() == (pod.pod_uid,)
        node.agent.hear_of_pods([facts_of(pod, attempt=3)])
        [rank] = node.poll()
        assert rank.pod == PodPlace(pod.pod_uid, "team-a", "llm-0", "train", job_known=True)
        assert (rank.identity.job_id, rank.identity.attempt, rank.user_name) == ("team-a/llm", 3, "ada")
        assert rank.process.pid != int(inner_pid), "as the node counts, which is how NVML does"
        assert f"\t{inner_pid}\n" in Path(f"/proc/{rank.process.pid}/status").read_text().split("NSpid:")[1]
        asked = Order("1", OrderTo.RANK, rank.process, rank.uid, {"command": "ping"}, WITHIN_S)
        assert node.agent.carry_out(asked).reply == {"ok": True, "pid": int(inner_pid)}


def test_without_a_head_it_gets_into_no_workload_and_nothing_is_done_to_it(
    cgroups: Cgroups, node: Node, run_dir: Path
) -> None:
    pod = new_pod()
    command = rank_command("team-b/other", run_dir=run_dir)
    with start_container("admin", command, uid=UID, setup=joins(cgroups.pod(pod))) as container:
        container.line()
        node.poll(WALK_EVERY_S)
        [rank] = node.poll(PATIENCE_S + 1.0)
        assert rank.identity.job_id.startswith("local-")
        assert rank.pod == PodPlace(pod.pod_uid)


def test_a_cgroup_that_a_container_makes_for_itself_names_no_other_pod(
    cgroups: Cgroups, node: Node, run_dir: Path
) -> None:
    pod = new_pod()
    own = cgroups.pod(pod)
    made_up = own / "kubepods" / f"pod{OTHER.pod_uid}" / str(OTHER.container_id)
    setup = f"{joins(own)}; mkdir -p {made_up}; {joins(made_up)}"
    with start_container("admin", rank_command("job", run_dir=run_dir), uid=UID, setup=setup) as container:
        container.line()
        node.poll(WALK_EVERY_S)
        assert node.wanted() == (pod.pod_uid,)
        [rank] = node.poll(PATIENCE_S + 1.0)
        assert OTHER.pod_uid in Path(f"/proc/{rank.process.pid}/cgroup").read_text()
        assert rank.pod == PodPlace(pod.pod_uid)


def test_a_container_in_no_pod_is_no_workload(node: Node, run_dir: Path) -> None:
    need_namespaces()
    with start_container("admin", rank_command("team-a/llm", run_dir=run_dir), uid=UID) as container:
        container.line()
        [rank] = node.poll(WALK_EVERY_S)
        assert rank.pod is None
        assert rank.identity.job_id.startswith("local-node-")
        assert node.agent.view().claims_overruled == {"job_id": 1}


@pytest.mark.parametrize("quality", ["burstable", "besteffort"])
def test_an_agent_in_a_cgroup_namespace_of_its_own_reads_the_same(cgroups: Cgroups, quality: str) -> None:
    """As in a DaemonSet's pod: there the paths of others begin with ``..``."""
    pod, agents = new_pod(), new_pod()
    watched, own = cgroups.pod(pod, quality=quality), cgroups.pod(agents)
    sleeper = subprocess.Popen(["sh", "-c", f"{joins(watched)}; echo ready; exec sleep 600"], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"ready\n"
        look = f'{joins(own)}; exec unshare --cgroup "$@"'
        done = subprocess.run(
            ["sh", "-c", look, "sh", sys.executable, "-c", SHOW, str(sleeper.pid)],
            env={**os.environ, "PYTHONPATH": str(COLLECTOR)}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    finally:
        sleeper.kill()
        sleeper.communicate()
    told, seen = done.stdout.split("\n", 1)
    assert ":/.." in seen
    assert told == str(pod)
