"""Starts the job of ``training.py`` and attaches to it, under the rig's Pythons or on a GPU machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tidegauge.agent.rings.reader import RingReader
from tidegauge.cli.main import main
from tidegauge.core.ids import RankIdentity
from tidegauge.core.samples import Sample
from tidegauge.osproc.processes import descendants, is_alive
from tidegauge.probe.activation.launch import activation_environ

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("training.py")
WITHIN_S = 180.0

Found = TypeVar("Found")


class AttachedJob:
    """A job of one or two ranks that trains until ``finish``."""

    def __init__(
        self, python: Path | str, environ: Mapping[str, str], scratch: Path, *, level: str | None, ranks: int = 2,
        arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None, uid: int | None = None,
        inside: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``level`` ``None``: the job knows nothing of Tidegauge. ``uid``: another user's; ``scratch`` is
        theirs. ``inside`` begins the command: what starts it in a container."""
        self.as_user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        self.folder, self.run_dir, self.ranks = scratch / "job", scratch / "run", ranks
        self.folder.mkdir()
        if uid is not None:
            os.chown(self.folder, uid, uid)
        self._python = python
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        clean = {name: value for name, value in environ.items() if not name.startswith(("TIDEGAUGE_", "SLURM_"))}
        own = {"TIDEGAUGE_RUN_DIR": str(self.run_dir), "TIDEGAUGE_JOB_ID": "attach-test", "OMP_NUM_THREADS": "1"}
        self._environ = {**clean, **own, **(variables or {})}
        probe = activation_environ(level, self._environ, pythonpath=True) if level is not None else {}
        self.output = scratch / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*inside, *self.as_user, python, *launcher, JOB, self.folder, *arguments],
                env={**self._environ, **probe}, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=scratch,
            )  # fmt: skip

    def wait_for(self, look: Callable[[], Found]) -> Found:
        """What ``look`` finds once it finds something; fails when the job ends before."""
        until_s = time.monotonic() + WITHIN_S
        while time.monotonic() < until_s:
            ended = self.process.poll()
            if found := look():
                return found
            assert ended is None, f"the job ended with {ended}: {self.said()}"
            time.sleep(0.02)
        raise AssertionError(f"not seen within {WITHIN_S:g} s: {self.said()}")

    def pids(self) -> list[int]:
        """Of the ranks, once all of them train."""
        files = [self.folder / f"{rank}.pid" for rank in range(self.ranks)]
        self.wait_for(lambda: all(file.exists() and file.read_text() for file in files))
        return [int(file.read_text()) for file in files]

    def moment(self) -> None:
        """Have the job look for the longest step and the longest gap from here on, for a second."""
        with (self.folder / "moments").open("a") as file:
            file.write(f"{time.monotonic()}\n")

    def finish(self) -> list[dict[str, Any]]:
        """End it at its next step; what each rank wrote."""
        (self.folder / "stop").touch()
        assert self.process.wait(WITHIN_S) == 0, self.said()
        return [json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(self.ranks)]

    def digest_without(self, steps: int) -> str:
        """What comes out of that many steps of a job that nobody touches."""
        done = subprocess.run(
            [self._python, JOB, self.folder, "--exactly", str(steps)],
            env=self._environ, capture_output=True, text=True, timeout=WITHIN_S, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def rings(self) -> list[tuple[RankIdentity, list[Sample]]]:
        """What the agent's reader finds, by rank."""
        found = []
        for path in self.run_dir.glob("*/*.ring"):
            with path.open("rb") as ring:
                reader = RingReader(ring.fileno())
                samples = reader.read()
            if reader.identity is not None:
                found.append((reader.identity, samples))
        return sorted(found, key=lambda one: one[0].rank)

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        """End it and what it started, by identity."""
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


def attach(capsys: Any, *words: str | int) -> tuple[int, list[dict[str, Any]]]:
    """``tidegauge attach``: its exit code and what it says of each process."""
    code = main(["attach", *map(str, words), "--json"])
    said = capsys.readouterr().out
    return code, json.loads(said)["processes"] if said else []
