"""The site's training jobs: real PyTorch on fake GPUs under ``tidegauge run``, and what they tell of themselves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.nodes import Node, number_inside
from chaos.promises import Step
from tidegauge.osproc.processes import descendants, send_signal
from whole_lines import whole_lines

SCRIPT = Path(__file__).with_name("training.py")
RANKS = 2
HIGH_PRIORITY = ["nice", "-n", "-5"]
"""Where training runs, cores are plenty. Here three nodes share the cores of one machine, so ranks go first."""


@dataclass(frozen=True)
class TrainingJob:
    """Two ranks under ``torchrun``, under ``tidegauge run --requeue``."""

    name: str
    node: Node
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def story(self) -> list[dict[str, Any]]:
        """What the ranks wrote of beginnings (``began``) and checkpoints (``saving``, ``saved``), in order."""
        return [json.loads(line) for line in whole_lines(self.folder / f"{self.name}.story")]

    def told(self, what: str, *, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.story() if line["what"] == what and line["rank"] == rank]

    def steps(self, rank: int) -> list[Step]:
        """All of them, of all attempts, in order."""
        return list(_steps(whole_lines(self.folder / f"{self.name}.{rank}.steps")))

    def rank_pids(self) -> dict[int, int]:
        """By rank: the pid on its own host, of the latest attempt."""
        return {rank: line["pid"] for rank, line in self._latest_beginnings().items()}

    def training_pids(self, for_s: float) -> set[int]:
        """Of ``rank_pids``, those that live and began to train at least so many seconds ago: none while torchrun or
        a requeue starts the next attempt."""
        living = {number_inside(pid) for pid in self.node.host.pids()}
        now_s = time.monotonic()
        latest = self._latest_beginnings().values()
        return {line["pid"] for line in latest if line["pid"] in living and now_s - line["mono_s"] >= for_s}

    def _latest_beginnings(self) -> dict[int, dict[str, Any]]:
        return {line["rank"]: line for line in self.story() if line["what"] == "began"}

    def host_pid_of(self, rank: int) -> int:
        """The rank's pid as this machine numbers it. Raises ``AssertionError`` if it has ended."""
        wanted = self.rank_pids()[rank]
        found = [pid for pid in self.node.host.pids() if number_inside(pid) == wanted]
        assert len(found) == 1, f"{self.name} rank {rank} (pid {wanted} of {self.node.name}) is {found}: {self.words()}"
        return found[0]

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End it and all of it, as its owner would."""
        for stat in descendants(self.process.pid):
            send_signal(stat.process, signal.SIGKILL)
        self.process.wait()

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def start_training(
    name: str, node: Node, *, python: Path, environ: Mapping[str, str], folder: Path, leak_bytes: int = 0,
    save_seconds: float = 0.0, requeue: bool = True,
) -> TrainingJob:  # fmt: skip
    """Rank 1 leaks ``leak_bytes`` a step, if that is not 0; a checkpoint takes ``save_seconds``."""
    command = [
        *HIGH_PRIORITY,
        "setpriv",
        "--reuid=ada",
        "--regid=ada",
        "--clear-groups",
        sys.executable,
        "-m",
        "tidegauge",
        "run",
        "--job-name",
        name,
    ]
    command += [*(["--requeue"] if requeue else []), "--", str(python), "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", str(SCRIPT), str(folder), name, "--save-seconds", str(save_seconds)]
    if leak_bytes:
        command += ["--leak-rank", "1", "--leak-bytes", str(leak_bytes)]
    process = node.start_job(command, {**environ, "OMP_NUM_THREADS": "1"}, folder / f"{name}.log", user="ada")
    return TrainingJob(name, node, folder, process)


def _steps(lines: Iterable[str]) -> Iterator[Step]:
    for line in lines:
        pid, step, at_ns = line.split()
        yield Step(int(pid), int(step), int(at_ns) / 1e9)
