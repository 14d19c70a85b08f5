"""The local adapter with everything real but the GPU: ``tidegauge run``, its keeper's and its rank's sockets, /proc."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sample_views import identity, job_view, rank_summary
from scheduler_hooks.port_contract import ContractWorld, PortContract
from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.agent.rings.launches import Launches
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import ActionKind, RankTarget
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.orders import GONE, Reply
from tidegauge.core.run_dirs import socket_name
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge.osproc.processes import descendants, identity_of, is_alive, send_signal
from tidegauge_scheduler_hooks.ports import ChangedError, Presence, RequeueChanges
from tidegauge_scheduler_hooks.tidegauge_run.adapter import LocalScheduler
from whole_lines import whole_lines

RANK = Path(__file__).with_name("rig_jobs") / "small_rank.py"
NODE = "this-node"
PATIENCE_S = 60.0
"""A machine that stands still for a while makes no process silent."""


class Node:
    """What an agent does for adapters, without the way through the coordinator: the ``ProcessCommands`` of one node."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = HostRunDir(run_dir)
        self._launches = Launches(lambda: [self._run_dir], ProcFs(), linger_s=3600.0)
        self._now_s = itertools.count(step=10.0)  # each look lists the folders again

    def launches(self) -> dict[ProcessId, LaunchSummary]:
        self._launches.look(next(self._now_s))
        self._launches.hold()
        return {launch.process: launch for launch in self._launches.summaries}

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        return {
            rank.rank: self._ask(rank.process, partial(self._rank_socket, job.uid, rank.process), request, timeout_s)
            for rank in ranks
        }

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        assert node_id == NODE
        process = ProcessId(handle["pid"], handle["start_ticks"])
        return self._ask(process, partial(self._launch_socket, process), request, timeout_s)

    def _rank_socket(self, uid: int, process: ProcessId) -> ProcessSocket:
        return ProcessSocket(UserFolder(self._run_dir, uid), uid, socket_name(process), process)

    def _launch_socket(self, process: ProcessId) -> ProcessSocket:
        self.launches()
        to = self._launches.sockets().get(process)
        if to is None:
            raise NotAskedError("no such tidegauge run")
        return to

    def _ask(
        self, process: ProcessId, where: Callable[[], ProcessSocket], request: Mapping[str, Any], timeout_s: float
    ) -> Reply:
        """One that is leaving has closed its socket already: ask until it is gone, as carrying out does."""
        timeout_s = max(timeout_s, PATIENCE_S)
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                said = ask(where(), request, timeout_s=timeout_s)
                break
            except NotAskedError as error:
                if not is_alive(process) or time.monotonic() > deadline_s:
                    return Reply(error=str(error), kind=None if is_alive(process) else GONE)
            time.sleep(0.01)
        return Reply(error=said["error"], kind=said.get("kind")) if "error" in said else Reply(said)


@dataclass
class Job:
    """One ``tidegauge run`` and the folder of its story."""

    keeper: subprocess.Popen[bytes]
    process: ProcessId
    folder: Path

    def story(self, what: str) -> list[dict[str, Any]]:
        """What was told in whole: the rank may be in the middle of a line."""
        lines = [json.loads(line) for line in whole_lines(self.folder / "story")]
        return [line for line in lines if line["what"] == what]

    def rank(self) -> ProcessId | None:
        """The process of the latest attempt, if it lives."""
        began = self.story("began")
        return identity_of(began[-1]["pid"]) if began else None


class LocalWorld(ContractWorld):
    """A workstation with an empty run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run_dir = folder / "run"
        self.node = Node(self._run_dir)
        self.port: LocalScheduler = LocalScheduler(self.node)
        self.jobs: dict[str, Job] = {}

    def start_job(self, *, saves: bool = False) -> JobView:
        return self.start(["--requeue"], saves=saves)

    def start(self, flags: list[str], *, saves: bool = False) -> JobView:
        job_id = f"job-{len(self.jobs)}"
        folder = self._folder / job_id
        folder.mkdir()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGAUGE_", "PYTORCH_"))}
        with (folder / "terminal").open("wb") as terminal:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tidegauge", "run", *flags, "--", sys.executable, str(RANK), str(folder),
                 *(["saves"] if saves else [])],
                env={**clean, "TIDEGAUGE_JOB_ID": job_id, "TIDEGAUGE_RUN_DIR": str(self._run_dir)},
                stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, start_new_session=True,
            )  # fmt: skip
        process = identity_of(keeper.pid)
        assert process is not None
        job = self.jobs[job_id] = Job(keeper, process, folder)
        self.until(lambda: len(job.story("began")) == 1)
        return self._view(job_id)

    def view_now(self, job: JobView) -> JobView:
        return self._view(job.job_id)

    def _view(self, job_id: str) -> JobView:
        job = self.jobs[job_id]
        launch, process = self.node.launches().get(job.process), job.rank()
        attempt = 0 if launch is None else launch.restarts
        rank = replace(
            rank_summary(0),
            identity=identity(0, job_id=JobId(job_id), attempt=attempt, world_size=1, scheduler="local"),
            process=process or ProcessId(0, 0),
            uid=os.geteuid(),
            verdict=OK,
            alive=process is not None,
            launch=job.process,
        )
        return job_view(
            job_id=job_id, attempt=attempt, world_size=1, scheduler="local", ranks=(rank,), rank_nodes=(NODE,),
            running=process is not None,
            rank_hostnames=("here",), launch=launch, launch_node=None if launch is None else NODE,
        )  # fmt: skip

    def end_by_itself(self, job: JobView) -> None:
        one = self.jobs[job.job_id]
        (one.folder / "end").touch()
        assert one.keeper.wait(PATIENCE_S) == 0

    def starts(self, job: JobView) -> int:
        return len(self.jobs[job.job_id].story("began"))

    def alive(self, job: JobView) -> bool:
        process = self.jobs[job.job_id].rank()
        return process is not None and is_alive(process)

    def saves(self, job: JobView) -> int:
        return len(self.jobs[job.job_id].story("saved"))

    def environ(self, job: JobView) -> dict[str, str]:
        environ: dict[str, str] = self.jobs[job.job_id].story("began")[-1]["environ"]
        return environ

    def owner_sees(self, job: JobView) -> str:
        one = self.jobs[job.job_id]
        launch = self.node.launches().get(one.process)
        remarks = () if launch is None else launch.remarks
        return "\n".join([(one.folder / "terminal").read_text(), *remarks])

    def close(self) -> None:
        for job in self.jobs.values():
            for process in [job.process, job.rank(), *(stat.process for stat in descendants(job.process.pid))]:
                if process is not None:
                    send_signal(process, signal.SIGKILL)
            job.keeper.wait(PATIENCE_S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LocalWorld]:
    world = LocalWorld(tmp_path)
    yield world
    world.close()


class TestLocalPort(PortContract):
    """The contract against real keepers."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[ContractWorld]:
        world = LocalWorld(tmp_path)
        yield world
        world.close()

    def stranger(self, job: JobView) -> JobView:
        # A job that nobody keeps is known here, too: as one that can be capped.
        return replace(super().stranger(job), scheduler="slurm")

    def test_a_job_that_ended_by_itself_is_gone(self, world: ContractWorld) -> None:
        # Described as the coordinator sees it now: this adapter asks nobody for that.
        job = world.start_job()
        target = self.target(world, job)
        world.end_by_itself(job)
        assert world.port.presence(target) is Presence.GONE
        assert not self.facts(world, world.view_now(job)).running


def test_a_keeper_that_was_killed_leaves_a_job_that_can_only_be_capped(world: LocalWorld) -> None:
    contract, job = TestLocalPort(), world.start_job(saves=True)
    target = contract.target(world, job)
    send_signal(world.jobs[job.job_id].process, signal.SIGKILL)
    world.jobs[job.job_id].keeper.wait(PATIENCE_S)
    assert world.alive(job)
    assert world.port.presence(target) is Presence.GONE
    with pytest.raises(ChangedError):
        world.port.requeue(target, RequeueChanges(), "it leaks", decision_id="d-1")
    assert world.alive(job)
    now = world.view_now(job)
    assert now.launch is None
    assert contract.facts(world, now).can == {ActionKind.CAP, ActionKind.CHECKPOINT}
    world.port.cap(contract.target(world, now), 0.5, decision_id="d-2")
    assert world.jobs[job.job_id].story("capped")[-1]["fraction"] == 0.5


def test_an_exempt_job_says_so_and_its_keeper_sees_to_it(world: LocalWorld) -> None:
    contract, job = TestLocalPort(), world.start(["--requeue", "--no-actions"])
    assert contract.facts(world, job).exempt
    assert job.launch is not None
    assert job.launch.state is LaunchState.RUNNING
    reply = world.node.ask_launch(
        contract.target(world, job).job, NODE, contract.facts(world, job).handle,
        {"command": "cancel", "id": "d-1", "restarts": 0}, timeout_s=10,
    )  # fmt: skip
    assert reply.kind == "refused"
    assert world.alive(job)


def test_a_requeue_that_was_sent_twice_at_the_same_moment_happens_once(world: LocalWorld) -> None:
    contract, job = TestLocalPort(), world.start_job()
    target = contract.target(world, job)
    for _ in range(3):  # the first answer was lost, the coordinator was restarted, …
        world.port.requeue(target, RequeueChanges(), "it leaks", decision_id="d-1")
    world.until(lambda: world.starts(job) == 2 and world.port.presence(target) is Presence.REPLACED)
    with pytest.raises(ChangedError):
        world.port.requeue(target, RequeueChanges(), "it leaks", decision_id="d-2")
    assert world.starts(job) == 2
