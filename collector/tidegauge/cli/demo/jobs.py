"""The demo's training jobs: ordinary ``torchrun`` jobs, each in its own session."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegauge.cli.errors import CommandError
from tidegauge.cli.service.run import job_environ
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import descendants, end_processes, identity_of, stat_of

SCRIPT = Path(__file__).with_name("demo_job.py")
STOP_WITHIN_S = 10.0

_ASK_TORCH = """
import torch
if torch.cuda.is_available():
    print(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_properties(0).name, sep="|")
"""


@dataclass(frozen=True)
class Torch:
    """The PyTorch installation that the jobs use."""

    python: str
    version: str
    device_count: int
    device_name: str


def find_torch(python: str) -> Torch:
    """The PyTorch of ``python``. Raises ``CommandError`` if it has none that sees a GPU."""
    try:
        done = subprocess.run([python, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"cannot run {python}: {error}") from error
    # Other output of the environment at start, such as a site's banner, comes before this line.
    answer = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not answer or answer[0].count("|") != 2:
        raise CommandError(
            f"{python} has no PyTorch that sees a GPU.\n"
            "Give the Python of your training environment: tidegauge demo --python PATH\n"
            "(In a checkout of Tidegauge, `make demo` needs no GPU.)"
        )
    version, count, name = answer[0].rsplit("|", 2)
    return Torch(python, version, int(count), name)


@contextlib.contextmanager
def training_job(
    torch: Torch,
    *,
    job_id: str,
    leak_rank: int | None,
    environ: Mapping[str, str],
    log_file: Path,
    backend: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run two ranks of the demo script under ``torchrun``, profiled at the default level, while the block runs."""
    command = [torch.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    if leak_rank is not None:
        command += ["--leak-rank", str(leak_rank)]
    if backend is not None:
        command += ["--backend", backend]
    # One thread per rank: four ranks share the machine with the service.
    quiet = {**environ, "OMP_NUM_THREADS": "1"}
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            env=job_environ(quiet, level="auto", job_name=log_file.stem, job_id=job_id),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        stop_job(process)


def last_lines(log_file: Path, count: int = 8) -> str:
    """The end of a job's output, for an error message."""
    with contextlib.suppress(OSError):
        return "\n".join(log_file.read_text(errors="replace").splitlines()[-count:])
    return ""


def stop_job(process: subprocess.Popen[Any]) -> None:
    """End a launcher and all processes that it started, with SIGTERM, then SIGKILL.

    ``torchrun`` starts every rank in its own session, so ending the launcher's process group is not enough.
    """
    leader = identity_of(process.pid)
    # Former descendants are remembered: a rank that outlives its launcher has another parent.
    family: dict[ProcessId, None] = {} if leader is None else {leader: None}

    def living() -> list[ProcStat]:
        process.poll()
        for member in list(family):
            family.update((stat.process, None) for stat in descendants(member.pid))
        stats = (stat_of(member.pid) for member in family)
        return [stat for stat in stats if stat is not None and stat.process in family and not stat.ended]

    end_processes(living, grace_s=STOP_WITHIN_S, deadline_s=2 * STOP_WITHIN_S)
    process.wait()
