"""``tidegauge run -- CMD``: start a command with its GPU memory watched."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import socket
import sys
import time

from tidegauge.cli.errors import USAGE, CommandError
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.probe.levels import LEVELS

HELP = "run a command with the memory profile switched on: tidegauge run -- torchrun train.py"


NOT_RUNNABLE, NOT_FOUND = 126, 127
"""What shells answer for a command that cannot be run, and for one that does not exist."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-profile", nargs="?", const="auto", choices=LEVELS, metavar="LEVEL",
        help=f"how closely to watch: {', '.join(LEVELS)} (default: TIDEGAUGE_PROFILE, else auto)",
    )  # fmt: skip
    parser.add_argument(
        "--memory-fraction", type=_fraction, metavar="F",
        help="share of each GPU (above 0, at most 1) that PyTorch's allocator may take",
    )  # fmt: skip
    parser.add_argument("--job-name", metavar="NAME", help="what people call this job (default: the command's name)")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- CMD …", help="what to run")


def run(args: argparse.Namespace) -> int:
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise CommandError("there is no command to run; say: tidegauge run -- torchrun train.py", exit_code=USAGE)
    if shutil.which(command[0]) is None:
        raise CommandError(f"{command[0]}: there is no such command here", exit_code=NOT_FOUND)
    level = args.memory_profile or os.environ.get("TIDEGAUGE_PROFILE") or "auto"
    if level not in LEVELS:
        raise CommandError(f"TIDEGAUGE_PROFILE={level!r} is not one of {', '.join(LEVELS)}", exit_code=USAGE)
    environ = job_environ(
        os.environ,
        level=level,
        job_name=args.job_name or os.path.basename(command[0]),
        memory_fraction=args.memory_fraction,
    )
    if level != "off":
        job_id = environ.get("TIDEGAUGE_JOB_ID") or environ["SLURM_JOB_ID"]  # job_environ sees to one of them
        print(f"tidegauge: watching job {job_id} ({level}); see `tidegauge jobs`", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise CommandError(f"{command[0]}: {_why_not(error)}", exit_code=NOT_RUNNABLE) from error


def job_environ(
    environ: os._Environ[str] | dict[str, str],
    *,
    level: str,
    job_name: str,
    memory_fraction: float | None = None,
    job_id: str | None = None,
) -> dict[str, str]:
    """The environment for a watched job: the switch (design 3.1), its identity, and the probe's way in."""
    result = dict(environ)
    # The job may run in an environment that does not have Tidegauge: the folder works in both.
    result.update(activation_environ(level, result, pythonpath=True))
    result.setdefault("TIDEGAUGE_JOB_NAME", job_name)
    if job_id is not None:
        result["TIDEGAUGE_JOB_ID"] = job_id
    elif not any(result.get(name) for name in ("TIDEGAUGE_JOB_ID", "SLURM_JOB_ID")):
        result["TIDEGAUGE_JOB_ID"] = new_job_id()
    if memory_fraction is not None:
        result["TIDEGAUGE_MEMORY_FRACTION"] = repr(memory_fraction)
    return result


def _why_not(error: OSError) -> str:
    """Why a file that is there and executable does not run (execve(2))."""
    if error.errno == errno.ENOEXEC:
        return "it is no program: a script begins with a line such as #!/bin/sh, or is named after its interpreter"
    if error.errno == errno.ENOENT:
        return "the interpreter in its first line does not exist"
    return f"it cannot be run: {error.strerror}"


def new_job_id() -> str:
    """A name for a job that no scheduler has named: host, second and pid make it unique on a cluster."""
    return f"local-{socket.gethostname().split('.')[0]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value
