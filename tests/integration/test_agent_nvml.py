"""The node agent with the fake-GPU rig's libnvidia-ml and real training processes: nothing of ours is mocked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from rank_profiles import rank_profile, steady_profile
from tidegauge.core.profile.imbalance import ImbalanceKind, Outside, cause_of, imbalance_of
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.views import GpuView
from tidegauge.probe.activation.launch import activation_environ

pytestmark = [pytest.mark.rig, pytest.mark.timeout(300)]

MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 300 * MIB
TOTAL_BYTES = 8 * GIB
PATIENCE_S = 60.0
SOURCES = ("containers", "host_memory", "launches", "proc", "nvml", "rings")

JOB = """
import ctypes, json, os, sys, time, torch
keep = []
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def steps(count):
    for _ in range(count):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        time.sleep(0.006)

def allocate(size):
    keep.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

def allocate_outside(size):
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    assert ctypes.CDLL(path).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size)) == 0

for line in sys.stdin:
    name, value = json.loads(line)
    globals()[name](value)
    stats = torch.cuda.memory_stats()
    print(json.dumps([stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]]), flush=True)
"""


class Talker:
    """A child process that answers each line with a line of JSON."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, line: str = "") -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        assert answer, f"the child ended ({self.process.wait(10)})"
        return json.loads(answer)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Node:
    """Fake GPUs of its own, an agent and jobs on them."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self.rig = rig
        self.scratch = scratch
        self.started: list[Talker] = []

    def environ(self, **knobs: str) -> dict[str, str]:
        environ = self.rig.environ(
            devices=2,
            total_bytes=TOTAL_BYTES,
            context_bytes=CONTEXT_BYTES,
            state=self.scratch / "gpus",
        )
        environ |= {f"FAKEGPU_{name.upper()}": value for name, value in knobs.items()}
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        return {**environ, "TIDEGAUGE_RUN_DIR": str(self.scratch / "run")}

    def start_agent(self, **knobs: str) -> Talker:
        console = Path(__file__).with_name("agent_console.py")
        self.started.append(Talker([sys.executable, str(console)], self.environ(**knobs)))
        return self.started[-1]

    def start_job(self, *, level: str | None = "stats", **more: str) -> Talker:
        environ = self.environ() | more
        if level is not None:
            environ |= activation_environ(level, environ, pythonpath=True)
        self.started.append(Talker([str(self.rig.python), "-c", JOB], environ))
        return self.started[-1]


@pytest.fixture
def node(rig: Rig, tmp_path: Path) -> Iterator[Node]:
    node = Node(rig, tmp_path)
    yield node
    for talker in node.started:
        talker.end()


def poll_until(agent: Talker, ready: Callable[[Any], bool]) -> Any:
    """Poll until the view is ``ready``; the last view if patience ends first, for the assertion that follows."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        view = agent.ask()
        if ready(view) or time.monotonic() > deadline_s:
            return view
        time.sleep(0.1)


def test_gpus_are_seen_as_nvml_tells_them(node: Node) -> None:
    view = node.start_agent().ask()
    assert [(gpu["gpu"], gpu["total_bytes"], gpu["used_bytes"]) for gpu in view["gpus"]] == [
        (0, TOTAL_BYTES, 0),
        (1, TOTAL_BYTES, 0),
    ]
    assert all(gpu["uuid"].startswith("GPU-") and gpu["name"] for gpu in view["gpus"])
    assert view["collect_success"] == dict.fromkeys(SOURCES, True)


def test_a_training_job_is_seen_with_its_own_figures_and_what_lies_outside_the_allocator(node: Node) -> None:
    job = node.start_job(RANK="3", LOCAL_RANK="0", WORLD_SIZE="4", TIDEGAUGE_JOB_ID="train-7")
    job.ask('["allocate", 734003200]')  # 700 MiB
    allocated, reserved = job.ask('["steps", 20]')
    agent = node.start_agent()  # later than the job
    view = poll_until(
        agent,
        lambda view: (
            view["ranks"] and view["ranks"][0]["nontorch_bytes"] is not None and view["ranks"][0]["steps"] == 20
        ),
    )
    [rank] = view["ranks"]
    assert (rank["allocated_bytes"], rank["reserved_bytes"]) == (allocated, reserved)
    assert allocated > 700 * MIB
    assert rank["nontorch_bytes"] == CONTEXT_BYTES
    assert rank["limit_bytes"] == TOTAL_BYTES
    assert (rank["gpu"], rank["uuid"]) == (0, view["gpus"][0]["uuid"])
    assert (rank["process"]["pid"], rank["uid"], rank["steps"]) == (job.pid, os.getuid(), 20)
    assert rank["host_rss_bytes"] > 50 * MIB
    who = rank["identity"]
    assert (who["job_id"], who["rank"], who["world_size"]) == ("train-7", 3, 4)
    assert view["gpus"][0]["used_bytes"] == reserved + CONTEXT_BYTES
    assert view["gpus"][0]["other_processes_bytes"] == 0

    job.ask(f'["allocate_outside", {500 * MIB}]')
    grown = poll_until(agent, lambda view: view["ranks"][0]["nontorch_bytes"] > CONTEXT_BYTES)
    assert grown["ranks"][0]["nontorch_bytes"] == CONTEXT_BYTES + 500 * MIB


def test_a_segment_of_the_allocator_never_shows_as_nontorch(node: Node) -> None:
    job = node.start_job()
    job.ask('["steps", 20]')
    agent = node.start_agent()
    poll_until(agent, lambda view: view["ranks"] and view["ranks"][0]["nontorch_bytes"] is not None)
    seen = set()
    for _ in range(10):
        job.ask(f'["allocate", {100 * MIB}]')
        seen.add(agent.ask()["ranks"][0]["nontorch_bytes"])
        job.ask('["steps", 1]')
        seen.add(agent.ask()["ranks"][0]["nontorch_bytes"])
    assert seen == {CONTEXT_BYTES}


def test_a_process_that_nobody_watches_is_told_apart(node: Node) -> None:
    watched, other = node.start_job(), node.start_job(level=None)
    watched.ask('["steps", 5]')
    _, reserved = other.ask('["steps", 5]')
    agent = node.start_agent()
    view = poll_until(agent, lambda view: view["ranks"] and view["ranks"][0]["nontorch_bytes"] is not None)
    assert len(view["ranks"]) == 1
    assert view["gpus"][0]["other_processes_bytes"] == reserved + CONTEXT_BYTES


def test_a_cap_bounds_its_rank(node: Node) -> None:
    job = node.start_job(TIDEGAUGE_MEMORY_FRACTION="0.25")
    job.ask('["steps", 5]')
    agent = node.start_agent()
    view = poll_until(agent, lambda view: view["ranks"] and view["ranks"][0]["limit_bytes"] == TOTAL_BYTES // 4)
    assert view["ranks"][0]["limit_bytes"] == TOTAL_BYTES // 4


def test_a_killed_job_goes_with_its_ring(node: Node) -> None:
    job = node.start_job()
    job.ask('["steps", 5]')
    agent = node.start_agent()
    assert poll_until(agent, lambda view: len(view["ranks"]) == 1)["ranks"][0]["alive"]
    job.process.kill()
    job.process.wait(30)
    assert poll_until(agent, lambda view: not view["ranks"])["ranks"] == []
    rings = node.scratch / "run" / str(os.getuid())
    assert poll_until(agent, lambda _: not list(rings.iterdir())) is not None
    assert list(rings.iterdir()) == []


@pytest.mark.parametrize(
    ("knob", "success", "missing"), [("memory", True, "total_bytes"), ("processes", True, "other_processes_bytes")]
)
def test_agent_omits_values_that_nvml_does_not_answer(node: Node, knob: str, success: bool, missing: str) -> None:
    view = node.start_agent(nvml_fail=knob).ask()
    assert view["collect_success"]["nvml"] is success
    assert [gpu[missing] for gpu in view["gpus"]] == [None, None]


def test_hidden_process_bytes_leave_nontorch_unknown(node: Node) -> None:
    job = node.start_job()
    job.ask('["steps", 20]')
    agent = node.start_agent(nvml_hide_bytes="1")
    view = poll_until(agent, lambda view: view["ranks"])
    for _ in range(5):
        job.ask('["steps", 2]')
        view = agent.ask()
    assert view["ranks"][0]["nontorch_bytes"] is None
    assert view["ranks"][0]["gpu"] == 0


def test_a_driver_that_does_not_answer_is_a_failed_source_and_the_rings_go_on(node: Node) -> None:
    job = node.start_job()
    job.ask('["steps", 5]')
    agent = node.start_agent(nvml_fail="init")
    # Steps that are closer than a record can tell come with the next record, which is a tick's.
    view = poll_until(agent, lambda view: view["ranks"] and view["ranks"][0]["steps"] == 5)
    assert view["collect_success"] == {**dict.fromkeys(SOURCES, True), "nvml": False}
    assert (view["gpus"], view["ranks"][0]["nontorch_bytes"], view["ranks"][0]["steps"]) == ([], None, 5)


def profiled(view: Any) -> list[RankProfile]:
    """Equal profiles of the view's ranks, each with what NVML says beside PyTorch."""
    gpus = {gpu["uuid"]: gpu for gpu in view["gpus"]}
    found = []
    for rank in view["ranks"]:
        held = {int(pid): size for pid, size in gpus[rank["uuid"]]["process_bytes"].items()}
        gpu = GpuView(rank["uuid"], rank["gpu"], "", None, None, None, process_bytes=held)
        found.append(
            rank_profile(
                rank["identity"]["rank"],
                process_outside_bytes=rank["nontorch_bytes"],
                other_processes_bytes=gpu.bytes_beside(rank["process"]["pid"]),
            )
        )
    return found


def test_memory_outside_pytorch_that_one_rank_has_is_named_as_the_cause(node: Node) -> None:
    job = {"WORLD_SIZE": "2", "TIDEGAUGE_JOB_ID": "train-8"}
    ranks = [
        node.start_job(RANK=str(rank), LOCAL_RANK=str(rank), CUDA_VISIBLE_DEVICES=str(rank), **job) for rank in range(2)
    ]
    for rank in ranks:
        rank.ask('["steps", 20]')
    agent = node.start_agent()

    def known(view: Any, *outside: int) -> bool:
        return sorted(rank["nontorch_bytes"] or 0 for rank in view["ranks"]) == list(outside)

    view = poll_until(agent, lambda view: known(view, CONTEXT_BYTES, CONTEXT_BYTES))
    assert imbalance_of(profiled(view)) is None

    second = node.start_job(level=None, CUDA_VISIBLE_DEVICES="0")  # a context on the GPU of rank 0
    _, reserved = second.ask('["steps", 1]')
    uneven = imbalance_of(profiled(agent.ask()))
    assert uneven is not None
    assert (uneven.rank, uneven.excess_bytes) == (0, CONTEXT_BYTES + reserved)
    assert cause_of(uneven, steady_profile(), steady_profile()).kind is ImbalanceKind.OTHER_PROCESS

    ranks[1].ask(f'["allocate_outside", {900 * MIB}]')
    view = poll_until(agent, lambda view: known(view, CONTEXT_BYTES, CONTEXT_BYTES + 900 * MIB))
    uneven = imbalance_of(profiled(view))
    assert uneven is not None
    assert (uneven.rank, uneven.grown_bytes(Outside.PROCESS)) == (1, 900 * MIB)
    assert cause_of(uneven, steady_profile(), steady_profile()).kind is ImbalanceKind.OTHER_LIBRARY
