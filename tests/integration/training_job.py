"""A training program on the rig, under the environment that has Lightning, transformers and Ray Train (make trainers):
its ranks are read and asked with the agent's own reader and client."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.agent.rings.reader import RingReader
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.core.ids import ProcessId, RankIdentity
from tidegauge.core.samples import EventCode, Sample
from tidegauge.osproc.processes import descendants, is_alive
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".trainers" / "venv" / "bin" / "python"
WITHIN_S = 600.0
RAY_STARTS, RAY_TIMED_OUT = 3, "The current node timed out during startup"
"""Ray waits 30 s for its raylet, which no setting changes; on a busy machine that is not always enough."""
AHEAD = 200
"""Steps between asking and saving: some examples make them in 3 ms."""
ATTEMPTS = 5

Found = TypeVar("Found")


def available() -> str | None:
    """Why there is no such environment here, or ``None``."""
    return None if PYTHON.exists() else "Lightning, transformers and Ray Train are not installed: say make trainers"


class Rank(NamedTuple):
    """What the agent's reader finds in one ring."""

    identity: RankIdentity
    samples: list[Sample]

    @property
    def steps(self) -> int:
        """As counted when the process ended."""
        assert self.samples[-1].event is EventCode.DETACHED, "it did not end in peace"
        return self.samples[-1].step


class Devices(Protocol):
    """The rig, or the cards of this machine."""

    def environ(self, *, devices: int, total_bytes: int, state: Path, base: Mapping[str, str]) -> dict[str, str]: ...


class TrainingJob:
    """One program, started in its folder. ``stop`` is a file that the programs in ``trainer_jobs`` wait for."""

    python = PYTHON

    def __init__(
        self, rig: Devices, scratch: Path, command: Sequence[str | Path], *, ranks: int = 1, **variables: str
    ) -> None:
        self.run_dir = scratch / f"run-{time.monotonic_ns()}"
        self.output = scratch / "output.txt"
        self.stop = scratch / "stop"
        self._ranks = ranks
        self._ray_folder = tempfile.mkdtemp(prefix="tg-job-", dir="/tmp")  # pytest's own are too deep for Ray's sockets
        environ = rig.environ(devices=2, total_bytes=8 << 30, state=scratch / "gpus", base=_quiet(os.environ))
        environ |= {
            "FAKEGPU_KERNEL_DELAY_US": "100",  # with a wake-up 0.4 ms: examples train as fast as they can
            "TIDEGAUGE_RUN_DIR": str(self.run_dir),
            "RAY_TMPDIR": self._ray_folder,
            "PYTHONPATH": f"{PYTHONPATH_FOLDER}:{ROOT / 'collector'}",
            **variables,
        }
        self._command = [self.python, *command]
        self._environ = environ
        self._starts_left = RAY_STARTS
        self._start()

    def _start(self) -> None:
        self._starts_left -= 1
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                self._command, env=self._environ, cwd=self.output.parent, stdout=output, stderr=output
            )

    def wait_for(self, look: Callable[[], Found]) -> Found:
        """What ``look`` finds, once it finds something; fails when the job ends before."""
        until_s = time.monotonic() + WITHIN_S
        while time.monotonic() < until_s:
            alive = self.process.poll() is None
            found = look()
            if found:
                return found
            if not alive and self._starts_left and RAY_TIMED_OUT in self.said():
                self._start()
                continue
            assert alive, f"the job ended: {self.said()}"
            time.sleep(0.05)
        raise AssertionError(f"not seen in {WITHIN_S:g} s: {self.said()}")

    def ask_all(self, **request: Any) -> list[dict[str, Any]]:
        """The answer of each rank that can be asked."""
        answers = []
        for path in sorted(self.run_dir.glob("*/*.sock")):
            pid, start_ticks = path.stem.split("-")
            folder = UserFolder(HostRunDir(self.run_dir), os.getuid())
            to = ProcessSocket(folder, os.getuid(), path.name, ProcessId(int(pid), int(start_ticks)))
            try:
                answers.append(ask(to, request, timeout_s=30.0))
            except NotAskedError:
                continue  # it is about to begin, or it has ended
        return answers

    def training(self, *, able: bool | None = None) -> list[dict[str, Any]]:
        """``ping`` of all ranks once all of them have made steps, and can be asked for a checkpoint if ``able``."""

        def pings() -> list[dict[str, Any]]:
            found = self.ask_all(command="ping")
            way = "callback" if able else None
            right = [one for one in found if one["step"] > 2 and (able is None or one["checkpoint"] == way)]
            return found if len(found) == len(right) == self._ranks else []

        return self.wait_for(pings)

    def saves_on_request(self, request_id: str = "r1", *, multiple_of: int = 1) -> list[dict[str, Any]]:
        """Ask all ranks for a checkpoint some steps from now; how it ended on each."""
        for attempt in range(1, ATTEMPTS + 1):
            asked_for = f"{request_id}.{attempt}"
            at_step = max(ping["step"] for ping in self.training(able=True)) + attempt * AHEAD
            at_step -= at_step % multiple_of
            taken_on = self.ask_all(
                command="checkpoint", id=asked_for, way="callback", at_step=at_step, ranks=self._ranks,
                deadline_unix_s=time.time() + 200.0,
            )  # fmt: skip
            if not any(one.get("kind") == "passed" for one in taken_on):
                break
            # We stood still meanwhile. Ranks that took it on do not save either, as not all have come.
            self.wait_for(partial(self._is_over, asked_for))
        assert [one.get("stage") for one in taken_on] == ["waiting"] * self._ranks, (taken_on, self.said())

        def ended() -> list[dict[str, Any]]:
            looks = self.ask_all(command="checkpoint", id=asked_for)
            done = [one for one in looks if one["stage"] in ("done", "failed")]
            return done if len(done) == self._ranks else []

        found = self.wait_for(ended)
        assert {one["step"] for one in found if one["stage"] == "done"} <= {at_step}
        return found

    def _is_over(self, request_id: str) -> bool:
        """On all ranks that took it on."""
        looks = self.ask_all(command="checkpoint", id=request_id)
        return len(looks) == self._ranks and not any(one.get("stage") in ("waiting", "asked") for one in looks)

    def result(self) -> int:
        """The exit status, once it has ended by itself."""
        try:
            return self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-6000:]

    def ranks(self) -> list[Rank]:
        """By rank."""
        found = []
        for path in self.run_dir.glob("*/*.ring"):
            with path.open("rb") as ring:
                reader = RingReader(ring.fileno())
                samples = reader.read()
            assert reader.identity is not None
            found.append(Rank(reader.identity, samples))
        return sorted(found, key=lambda one: one.identity.rank)

    def end(self) -> None:
        """End it and all that it started, by identity and top down: Ray's daemons would leave workers behind."""
        living = [stat.process for stat in descendants(self.process.pid)]
        self.process.kill()
        self.process.wait()
        until_s = time.monotonic() + 60.0
        while living:
            assert time.monotonic() < until_s, f"still there: {living}"
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)
            living = [process for process in living if is_alive(process)]
        shutil.rmtree(self._ray_folder, ignore_errors=True)


def _quiet(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would decide who a rank is, or make a library look for something outside of this machine."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and not name.startswith(("TIDEGAUGE_", "RAY_", "SLURM_"))
    }
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900",  # on a busy machine it would begin anew after each minute
        "RAY_prestart_worker_first_driver": "0",  # idle workers take the processors from those that train
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: stay on 127.0.0.1
        "PYTHONUNBUFFERED": "1",
    }
