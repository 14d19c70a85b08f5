"""Checkpoints on request in real training jobs: torch's CUDA build on the fake-GPU rig, ranks that meet in gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fakegpu.rig import Rig
from probe_fakes import Ring, rings_below
from tidegauge.probe.activation.launch import activation_environ
from whole_lines import whole_lines

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1000)]

SCRIPT = Path(__file__).parent / "rig_jobs" / "checkpoint.py"
Found = TypeVar("Found")
AHEAD = 20
"""Steps between asking and saving. While ranks are asked they are held, so that none of them has made its steps before
the last one is asked."""


class Job:
    """A running job and the command sockets of its ranks."""

    def __init__(self, rig: Rig, scratch: Path, on_request: str, *, ranks: int, signal: str | None) -> None:
        self.state = scratch / "state"
        self.checkpoints = self.state / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        (self.checkpoints / "from-before.pt").write_text("an old state")
        self.run_dir = scratch / "run"
        self.stderr = scratch / "stderr"
        environ = rig.environ(devices=ranks, total_bytes=8 << 30, state=scratch / "gpus")
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        environ |= activation_environ("stats", environ, pythonpath=True)
        environ |= {"TIDEGAUGE_RUN_DIR": str(self.run_dir), "OMP_NUM_THREADS": "1"}
        if signal is not None:
            environ |= {
                "TIDEGAUGE_CHECKPOINT_SIGNAL": signal,
                "TIDEGAUGE_CHECKPOINT_PATH": str(self.checkpoints),
                "TIDEGAUGE_GPU_SHARE": "0.5",
            }
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [str(rig.python), *torchrun, str(SCRIPT), str(self.state), "--on-request", on_request],
                env=environ,
                stderr=stderr,
            )
        try:
            self._sockets = self._wait_until_all_train(ranks)
        except BaseException:
            self.end()
            raise

    def _wait_until_all_train(self, ranks: int) -> list[Path]:
        def sockets() -> list[Path]:
            found = sorted(self.run_dir.glob("*/*.sock"))
            return found if len(found) == ranks and all(self._steps_at(one) for one in found) else []

        return self.wait_for(sockets)

    @staticmethod
    def _steps_at(path: Path) -> int:
        try:
            return int(ask(path, command="ping")["step"])
        except ConnectionRefusedError:
            return 0  # it has its name, and does not listen yet

    def wait_for(self, look: Callable[[], Found]) -> Found:
        """What ``look`` finds, once it finds something; fails when the job ends before."""
        deadline_s = time.monotonic() + 300
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self.stderr.read_text()[-3000:]
            found = look()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"not seen in time; the job said: {self.stderr.read_text()[-3000:]}")

    def ask(self, rank: int = 0, command: str = "checkpoint", **more: Any) -> Any:
        return ask(self._sockets[rank], command=command, **more)

    def ask_all(self, **more: Any) -> list[Any]:
        return [self.ask(rank, **more) for rank in range(len(self._sockets))]

    def steps(self) -> list[int]:
        return [ping["step"] for ping in self.ask_all(command="ping")]

    @contextmanager
    def held(self) -> Iterator[int]:
        """The ranks make no steps; gives one that each of them will come to."""
        hold = self.state / "hold"
        hold.touch()
        try:
            yield max(self.steps()) + AHEAD  # the step that a rank was in is made still
        finally:
            hold.unlink()

    def ended_stages(self, request_id: str) -> list[Any]:
        """The replies of all ranks, once none of them waits or is asked any more."""

        def ended() -> list[Any]:
            replies = self.ask_all(id=request_id)
            return replies if all(reply["stage"] in ("done", "failed") for reply in replies) else []

        return self.wait_for(ended)

    def saves(self, rank: int = 0) -> list[Any]:
        path = self.state / f"rank{rank}.saves"
        return [json.loads(line) for line in whole_lines(path)]

    def goes_on_and_ends_well(self) -> None:
        before = self.steps()
        self.wait_for(lambda: all(now > step + 5 for now, step in zip(self.steps(), before, strict=True)))
        (self.state / "stop").touch()
        assert self.process.wait(200) == 0, self.stderr.read_text()[-3000:]

    def said(self) -> str:
        return self.stderr.read_text()

    def end(self) -> None:
        (self.state / "stop").touch()  # torchrun, if it is there, would leave its workers behind
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(60)


def ask(path: Path, **request: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(client.makefile().readline())


@pytest.fixture
def start(rig: Rig, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(on_request: str, *, ranks: int = 1, signal: str | None = None) -> Job:
        jobs.append(Job(rig, tmp_path, on_request, ranks=ranks, signal=signal))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


def request(request_id: str, at_step: int | None, *, grace_s: float = 300.0, **more: Any) -> dict[str, Any]:
    return {
        "id": request_id,
        "at_step": at_step,
        "deadline_unix_s": time.time() + grace_s,
        "way": "callback",
        **more,
    }


def test_both_ranks_save_in_the_same_step_and_a_collective_in_the_callback_goes_through(
    start: Callable[..., Job],
) -> None:
    job = start("collective", ranks=2)
    identities = [Ring(path).identity for path in rings_below(str(job.run_dir))]
    assert [identity.checkpoint for identity in identities if identity is not None] == ["callback", "callback"]
    with job.held() as at_step:
        asked = job.ask_all(**request("r1", at_step, ranks=2))
    assert [reply["stage"] for reply in asked] == ["waiting", "waiting"], asked
    assert [(reply["stage"], reply["step"]) for reply in job.ended_stages("r1")] == [("done", at_step)] * 2
    assert (job.checkpoints / f"steps-{at_step}-{at_step}.pt").exists()
    for rank in (0, 1):
        assert job.saves(rank) == [{"request": "r1", "step": at_step, "in_main": True}]

    # By the step alone, as asked when the ranks cannot agree among themselves.
    with job.held() as at_step:
        job.ask_all(**request("r2", at_step))
    assert [(reply["stage"], reply["step"]) for reply in job.ended_stages("r2")] == [("done", at_step)] * 2

    # One of them may not save any more when its step comes: then the other must not enter the collective alone.
    with job.held() as at_step:
        job.ask(0, **request("r3", at_step, ranks=2))
        short = request("r3", at_step, ranks=2, grace_s=20.0)
        assert job.ask(1, **short)["stage"] == "waiting"
        job.wait_for(lambda: time.time() > short["deadline_unix_s"])
    replies = job.ended_stages("r3")
    assert [reply["stage"] for reply in replies] == ["failed", "failed"]
    assert "none of them was asked" in replies[0]["detail"]
    assert "too late" in replies[1]["detail"]
    assert [len(job.saves(rank)) for rank in (0, 1)] == [2, 2]
    job.goes_on_and_ends_well()


def test_a_signal_is_proven_by_a_file_that_is_fresh_whole_and_has_its_final_name(start: Callable[..., Job]) -> None:
    job = start("signal", signal="USR1")
    (identity,) = [Ring(path).identity for path in rings_below(str(job.run_dir))]
    assert identity is not None
    assert (identity.checkpoint, identity.gpu_share) == ("signal", 0.5)
    assert [path.name for path in job.checkpoints.iterdir()] == ["from-before.pt"]

    # The first save leaves a temporary file only.
    with job.held() as at_step:
        asked = job.ask(**request("r1", at_step, way="signal", grace_s=40.0))
    assert asked["stage"] == "waiting"
    (reply,) = job.ended_stages("r1")
    assert (reply["stage"], reply["step"], reply["fresh_files"]) == ("failed", at_step, [])
    assert "only temporary or empty files are new, such as unfinished.pt.tmp" in reply["detail"]

    assert job.ask(**request("r2", None, way="signal"))["stage"] == "waiting"
    (reply,) = job.ended_stages("r2")
    assert (reply["stage"], reply["fresh_files"]) == ("done", ["save-2.pt"])
    assert [(save["step"] >= at_step, save["in_main"]) for save in job.saves()] == [(True, True)] * 2
    job.goes_on_and_ends_well()


def test_a_job_that_handles_no_signal_and_has_no_callback_is_not_asked_and_lives(start: Callable[..., Job]) -> None:
    job = start("nothing", signal="USR1")
    refused = job.ask(**request("r1", None, way="signal"))
    assert refused["kind"] == "unable"
    assert "has no handler for SIGUSR1" in refused["error"]
    refused = job.ask(**request("r1", None))
    assert refused["kind"] == "unable"
    assert "no callback is registered" in refused["error"]
    assert job.ask(**request("r1", 1, way="signal"))["kind"] == "unable"
    job.goes_on_and_ends_well()
    assert job.said() == ""


def test_checkpoint_callback_error_is_shown_and_reported_and_training_continues(start: Callable[..., Job]) -> None:
    job = start("fail")
    assert job.ask(**request("r1", 1))["kind"] == "passed"
    job.ask(**request("r1", None))
    (reply,) = job.ended_stages("r1")
    assert reply["stage"] == "failed"
    assert "OSError: the disk is full" in reply["detail"]
    assert job.ask(**request("r1", None))["stage"] == "failed"
    job.goes_on_and_ends_well()
    assert len(job.saves()) == 1
    assert job.said().count("Traceback") == 1
    assert "in fail" in job.said()
