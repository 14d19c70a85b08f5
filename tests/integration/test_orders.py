"""An order's whole way but Ray: queue, report, agent, socket, a real probe in a real torch; then caps and OOMs."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.runner import AgentRunner
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.alloc_conf import merge_alloc_conf
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.jobs.fraction import FRACTION_KEY
from tidegauge.core.oom import OomKind, explain_oom, explanation_for
from tidegauge.core.orders import GONE
from tidegauge.core.samples import OomRecord
from tidegauge.core.views import JobView, RankSummary
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.settings import Settings

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

GIB = 1 << 30
NODE = "node-id-of-ray"
ASK_S = 60.0
REPORT_PERIOD_S = 0.2

JOB = """
import os, sys, time, torch
def block(gib):
    return torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.012)
"""


class Stage:
    """A coordinator, a node agent at work, and jobs on one fake GPU of 8 GiB."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self.rig = rig
        self.scratch = scratch
        self.coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="c1")
        settings = Settings(run_dir=scratch / "run", poll_period_s=0.1, report_period_s=REPORT_PERIOD_S)
        self.agent: NodeAgent = open_node_agent(settings)
        self._runner = AgentRunner(
            self.agent, DirectReporter(self.coordinator.report), open_job_settings(settings),
            poll_period_s=settings.poll_period_s, report_period_s=settings.report_period_s,
            node_id=NODE, incarnation="i1",
        )  # fmt: skip
        self._runner.start()
        self._jobs: list[subprocess.Popen[str]] = []

    def environ(self, level: str = "stats") -> dict[str, str]:
        environ = self.rig.environ(devices=1, total_bytes=8 * GIB, state=self.scratch / "gpus")
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        environ |= activation_environ(level, environ, pythonpath=True)
        return {**environ, "TIDEGAUGE_RUN_DIR": str(self.scratch / "run"), "TIDEGAUGE_JOB_ID": "orders"}

    def start(self, code: str) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [str(self.rig.python), "-c", JOB + textwrap.dedent(code)],
            env=self.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._jobs.append(job)
        return job

    def job(self) -> JobView:
        (job,) = self.coordinator.jobs()
        return job

    def rank(self, when: Callable[[RankSummary], bool] = lambda _: True) -> RankSummary:
        """The job's only rank as the coordinator sees it, once it is as wanted."""
        return eventually(
            lambda: next((r for job in self.coordinator.jobs() for r in job.ranks if when(r)), None),
            "the rank",
            within_s=150,
        )

    def ask(
        self, rank: RankSummary, request: dict[str, Any], *, uid: int | None = None, timeout_s: float = ASK_S
    ) -> Any:
        key = JobKey("orders", 0, rank.uid if uid is None else uid)
        target = RankTarget(0, NODE, rank.process, rank.step)
        return self.coordinator.orders.ask_ranks(key, [target], request, timeout_s=timeout_s)[0]

    def close(self) -> None:
        for job in self._jobs:
            job.kill()
            job.communicate(timeout=30)
        self._runner.stop(60.0)
        self.agent.close()


@pytest.fixture
def stage(rig: Rig, tmp_path: Path) -> Iterator[Stage]:
    (tmp_path / "run").mkdir()
    stage = Stage(rig, tmp_path)
    yield stage
    stage.close()


TRAIN = """
while True:
    step()
"""


def test_a_rank_is_asked_through_report_and_reply(stage: Stage) -> None:
    job = stage.start(TRAIN)
    rank = stage.rank(lambda rank: rank.step > 3)
    first = stage.ask(rank, {"command": "ping"})
    assert (first.error, first.value["pid"]) == (None, job.pid)
    assert first.value["step"] >= rank.step
    assert stage.ask(rank, {"command": "no such thing"}).error.startswith("no such command")
    assert "nothing was sent" in stage.ask(rank, {"command": "ping"}, uid=rank.uid + 1).error

    job.send_signal(signal.SIGSTOP)
    # Asked again where the agent's word of that came too late: it has a moment for the way there and back.
    eventually(
        lambda: "did not answer within" in (stage.ask(rank, {"command": "ping"}, timeout_s=2.0).error or ""),
        "the agent says that the rank is silent",
    )
    job.send_signal(signal.SIGCONT)
    assert stage.ask(rank, {"command": "ping"}).value["pid"] == job.pid

    job.kill()
    job.wait(30)
    stage.rank(lambda rank: not rank.alive)
    assert stage.ask(rank, {"command": "ping"}).kind == GONE


UNTIL_OUT_OF_MEMORY = """
kept = []
step()
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        kept.append(block(0.25))
        step()
except torch.cuda.OutOfMemoryError as error:
    print(error, flush=True)
while True:
    step()
"""


def out_of_memory(stage: Stage, job: subprocess.Popen[str]) -> tuple[str, RankSummary, OomRecord]:
    """Let the job allocate until it ends: PyTorch's words, the rank, and its record of that."""
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write("go\n")
    job.stdin.flush()
    said = job.stdout.readline()
    rank = stage.rank(lambda rank: rank.last_oom is not None)
    assert rank.last_oom is not None
    return said, rank, rank.last_oom


def test_a_cap_set_while_the_job_runs_is_why_it_runs_out_of_memory(stage: Stage) -> None:
    job = stage.start(UNTIL_OUT_OF_MEMORY)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    rank = stage.rank()
    assert rank.cap_fraction is None
    assert stage.ask(rank, {"command": "fraction", "value": 0.25}).value == {"ok": True, "limit_fraction": 0.25}
    assert stage.rank(lambda rank: rank.cap_fraction is not None).cap_fraction == 0.25

    said, rank, oom = out_of_memory(stage, job)
    assert "2.00 GiB allowed" in said
    assert (oom.limit_bytes, oom.wanted_bytes) == (2 * GIB, GIB // 4)
    assert oom.free_bytes > 5 * GIB
    explained = explain_oom(oom, verdict=rank.verdict, cap_fraction=rank.cap_fraction, usable_bytes=8 * GIB)
    assert (explained.kind, explained.retry, explained.capped) == (OomKind.CAP, False, True)
    assert "the memory fraction set the limit (" in explanation_for(rank, stage.job())


def test_without_a_cap_the_card_is_the_reason(stage: Stage) -> None:
    job = stage.start(UNTIL_OUT_OF_MEMORY)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    said, rank, oom = out_of_memory(stage, job)
    assert "allowed" not in said
    assert oom.limit_bytes == 8 * GIB
    assert oom.free_bytes < oom.wanted_bytes
    explained = explain_oom(oom, verdict=rank.verdict, usable_bytes=8 * GIB, others_bytes=0)
    assert (explained.kind, explained.capped) == (OomKind.ALLOCATED, False)
    assert "fraction" not in explanation_for(rank, stage.job())


@pytest.mark.parametrize(
    ("fraction", "settings", "gets"),
    [
        pytest.param(0.25, "", "2.00 GiB allowed", id="a quarter"),
        pytest.param(0.25, "expandable_segments:True", "2.00 GiB allowed", id="a quarter, beside the owner's settings"),
        pytest.param(1.0, "", "no cap", id="1.0 is no cap"),
    ],
)
def test_the_allocators_own_key_is_in_force_without_the_probe(
    stage: Stage, fraction: float, settings: str, gets: str
) -> None:
    environ = {name: value for name, value in stage.environ("off").items() if not name.startswith("PYTORCH_")}
    if settings:
        environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
    environ |= merge_alloc_conf(environ, {FRACTION_KEY: repr(fraction)}, torch_version="2.13.0+cu130")
    code = JOB + textwrap.dedent(
        """
        kept = [block(1)]
        try:
            kept += [block(1) for _ in range(5)]
        except torch.cuda.OutOfMemoryError as error:
            print(error)
        else:
            print("no cap")
        """
    )
    done = subprocess.run(
        [str(stage.rig.python), "-c", code], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert gets in done.stdout
    assert done.stdout.count("GiB allowed") == (fraction < 1)
    assert os.listdir(stage.scratch / "run") == [], "the probe was not there"
