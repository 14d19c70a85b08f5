"""Training processes with the real probe, on the fake-GPU rig: some that train for the whole run, which are watched as
parts of Tidegauge are, and every few minutes one that leaks, so that evidence with real snapshots is collected."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fakegpu.rig import Rig
from tidegauge.probe.activation.launch import activation_environ

SCRIPT = Path(__file__).with_name("training.py")
LEAKS_EVERY_S = 150.0
LEAKS_FOR_S = 75.0
"""Suspected after some ten seconds, a window of evidence of 30 steps, holders, snapshots read by the agent."""
RUN_EVERY_S = 60.0
ASK_EVERY_S = 90.0


class Service(Protocol):
    """The part of ``integration.service.Service`` that is needed."""

    run_dir: Path
    environ: dict[str, str]


class RigJobs:
    """``turn`` now and then; ``close`` ends all."""

    def __init__(self, rig: Rig, service: Service, scratch: Path) -> None:
        self._python = str(rig.python)
        self._environ = {
            **rig.environ(devices=2, total_bytes=80 << 30, state=scratch / "gpus", base=_quiet(os.environ)),
            "TIDEGAUGE_RUN_DIR": str(service.run_dir),
            "OMP_NUM_THREADS": "1",
        }
        self._service = service
        self._scratch = scratch
        self._leaking: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._commands: list[subprocess.Popen[bytes]] = []
        self._next_leak_s = time.monotonic() + 20
        self._next_run_s = time.monotonic() + 10
        self._next_ask_s = time.monotonic() + 30
        self._asks = 0
        self.leaks = self.runs = 0
        """Begun so far."""
        self.failed: Counter[str] = Counter()
        """Commands that ended with an error, by what they said last."""
        self.steady = {f"rank ({level})": self._train(f"steady-{level}", level) for level in ("stats", "auto")}
        """Training processes of the whole run, by name."""
        self.unwatched = self._train("unwatched", None)
        """The same without the probe: what torch itself comes to hold."""

    @property
    def asks(self) -> int:
        return self._asks

    def turn(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_leak_s:
            self._next_leak_s = now_s + LEAKS_EVERY_S
            self.leaks += 1
            process = self._train(f"leaking-{self.leaks}", "auto", "--leak", "--pause-s", "0.03")
            self._leaking.append((now_s + LEAKS_FOR_S, process))
        if now_s >= self._next_run_s:
            self._next_run_s = now_s + RUN_EVERY_S
            self.runs += 1
            self._tidegauge("run", "--job-name", f"kept-{self.runs}", "--", "sleep", "20")
        if now_s >= self._next_ask_s:
            self._next_ask_s = now_s + ASK_EVERY_S
            self._ask()
        for ends_s, process in [one for one in self._leaking if now_s >= one[0]]:
            self._leaking.remove((ends_s, process))
            _end(process)
        for command in [one for one in self._commands if one.poll() is not None]:
            self._commands.remove(command)
            if command.returncode != 0:
                self.failed[_last_words(command)] += 1

    def close(self) -> None:
        for process in (
            self.unwatched,
            *self.steady.values(),
            *(process for _, process in self._leaking),
            *self._commands,
        ):
            _end(process)

    def _ask(self) -> None:
        """A snapshot of the steady ranks in turn; every third time a window of evidence of the one that may give it."""
        self._asks += 1
        if self._asks % 3 == 0:
            self._tidegauge("snapshot", str(self.steady["rank (auto)"].pid), "--evidence", "--json")
        else:
            process = list(self.steady.values())[self._asks % 2]
            self._tidegauge("snapshot", str(process.pid), "-o", str(self._scratch / "asked.snap.zst"))

    def _train(self, name: str, level: str | None, *flags: str) -> subprocess.Popen[bytes]:
        environ = {**self._environ, "TIDEGAUGE_JOB_ID": name}
        if level is not None:
            environ |= activation_environ(level, environ, pythonpath=True)
        return subprocess.Popen(
            [self._python, str(SCRIPT), *flags], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(self._scratch / f"{name}.err").open("wb"),
        )  # fmt: skip

    def _tidegauge(self, *arguments: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegauge.cli.main", *arguments], env=self._service.environ, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._commands.append(process)


def scratch_folder() -> Path:
    """Short enough for sockets; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix="tg-soak-", dir="/tmp"))


def _quiet(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would tell the ranks who they are."""
    return {
        name: value
        for name, value in environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and not name.startswith(("TIDEGAUGE_", "RAY_", "SLURM_"))
    }


def _last_words(command: subprocess.Popen[bytes]) -> str:
    assert command.stderr is not None
    with command.stderr as said:  # they say far less than a pipe takes
        lines = said.read().decode(errors="replace").strip().splitlines() or ["nothing"]
    return f"{command.args[3:5]}: {lines[-1][:120]}" if isinstance(command.args, list) else lines[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
