"""A Slurm allocation as seen by a process inside it, and the Slurm step that starts a service on its other nodes.

It is for ``tidegauge run --with-service``, a service of the job's own user where no admin has installed one. Its input
is not trusted with anything: all of it is the user's own.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidegauge.cluster.ray_service.node_command import address_towards

SLURMD_PORT = 6818
"""Of slurm.conf(5); only to find the way to another node, nothing is sent there."""
COMMAND_TIMEOUT_S = 15.0
LOOPBACK = "127.0.0.1"
_OPTION_VARIABLES = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")
_FOREIGN_VARIABLES = ("TIDEGAUGE_", "_TIDEGAUGE_", "PYTHON", "RAY_")

Ask = Callable[[Sequence[str]], str]
"""Runs one of Slurm's commands and returns what it prints; raises ``AllocationError``."""


class AllocationError(Exception):
    """There is no usable allocation; the message says what to do."""


class Allocation(NamedTuple):
    """One job's nodes. ``here``: this host's name in Slurm, ``None`` on a host outside (``salloc`` on a login node)."""

    job_id: str
    restarts: int
    here: str | None
    nodes: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(node for node in self.nodes if node != self.here)


def ask_slurm(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AllocationError(f"{command[0]} cannot be run here: {error}") from error
    if done.returncode != 0:
        raise AllocationError(f"`{' '.join(command)}` failed: {done.stderr.strip()[:300] or done.returncode}")
    return done.stdout


def read_allocation(environ: Mapping[str, str], ask: Ask = ask_slurm) -> Allocation:
    """The allocation that this process runs in. Raises ``AllocationError``."""
    job_id, node_list = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job_id or not node_list:
        raise AllocationError(
            "not inside a Slurm allocation (no SLURM_JOB_ID and SLURM_JOB_NODELIST). In an sbatch script or "
            "under salloc use: tidegauge run --with-service -- srun python train.py; elsewhere `tidegauge up` "
            "starts a service"
        )
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "SLURM_STEP_ID" in environ and tasks != "1":
        raise AllocationError(
            f"this is one of {tasks} tasks of a step, and each would start a service: put it around srun, not "
            "inside: tidegauge run --with-service -- srun python train.py"
        )
    nodes = tuple(ask(["scontrol", "show", "hostnames", node_list]).split())
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    is_count = restarts.isascii() and restarts.isdigit() and len(restarts) <= 9
    return Allocation(job_id, int(restarts) if is_count else 0, environ.get("SLURMD_NODENAME"), nodes)


def head_address_for(allocation: Allocation, ask: Ask = ask_slurm) -> str:
    """This host's address for the other nodes; loopback where there are none. Raises ``AllocationError``."""
    if not allocation.others:
        return LOOPBACK
    first = allocation.others[0]
    shown = ask(["scontrol", "--oneliner", "show", "node", first])
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    host = found.group(1) if found else first
    try:
        family_and_address = socket.getaddrinfo(host, SLURMD_PORT, type=socket.SOCK_DGRAM)[0]
        address = str(family_and_address[4][0])
        return address_towards(f"[{address}]:{SLURMD_PORT}" if ":" in address else f"{address}:{SLURMD_PORT}")
    except OSError as error:
        raise AllocationError(f"{first} ({host}) cannot be reached from here: {error}") from error


def can_overlap(ask: Ask = ask_slurm) -> bool:
    """Whether this srun can start a step beside others (``--overlap``, since Slurm 20.11)."""
    return "--overlap" in ask(["srun", "--help"])


def join_command(allocation: Allocation, *, task: Sequence[str]) -> list[str]:
    """``srun`` that runs ``task`` once on each of the other nodes, beside the job's own steps.

    With ``--overlap`` it takes nothing from them: CPUs, memory and GPUs are shared. No ``--gres``: a step gets the
    job's GPUs of the node, which NVML must see. What comes by stdin all tasks get, its end included.
    """
    count = len(allocation.others)
    return [
        "srun", f"--jobid={allocation.job_id}", "--overlap", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", f"--nodelist={','.join(allocation.others)}", "--job-name=tidegauge", "--export=ALL",
        "--input=all", "--label", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0", *task,
    ]  # fmt: skip


def service_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without what was meant for the job: a service is not profiled, and its Python is its own."""
    return {name: value for name, value in environ.items() if not name.startswith(_FOREIGN_VARIABLES)}


def join_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """For ``join_command``: Slurm hands the job's own options (``--gpus-per-task``, …) to every srun by variables."""
    ours = service_environ(environ)
    return {
        name: value for name, value in ours.items() if name == "SLURM_CONF" or not name.startswith(_OPTION_VARIABLES)
    }
