"""``tidegauge run -- CMD`` runs a command with GPU-memory profiling."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import add_examples, file_to_write, group
from tidegauge.cli.errors import EXTRAS_NEED_PYTHON, CommandError, UsageError
from tidegauge.core.ids import MADE_UP
from tidegauge.core.jobs.checkpoint_signal import ALLOWED, SIGNAL_VARIABLE, parse_signal
from tidegauge.core.jobs.fraction import start_fraction
from tidegauge.core.jobs.variables import FRACTION_VARIABLE, SHARE_VARIABLE, parse_fraction
from tidegauge.launch.command_names import command_name
from tidegauge.launch.keeper import say
from tidegauge.launch.start import CannotKeepError, keep, other_keeper
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.probe.checkpoint.files import PATH_VARIABLE
from tidegauge.probe.checkpoint.signal import signal_name
from tidegauge.probe.levels import LEVELS, WATCHING_LEVELS

if TYPE_CHECKING:
    from tidegauge.cli.verdict.process import VerdictProcess

HELP = "run a command and watch its GPU memory: tidegauge run -- torchrun train.py"


NOT_RUNNABLE, NOT_FOUND = 126, 127
"""Exit codes of shells for a command that cannot be run, and for one that does not exist."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-profile", nargs="?", const="auto", choices=LEVELS, metavar="LEVEL",
        help=f"profiling level: {', '.join(LEVELS)} (default: TIDEGAUGE_PROFILE, else auto)",
    )  # fmt: skip
    limits = group(parser, "memory limits")
    limits.add_argument(
        "--memory-fraction", type=_fraction, metavar="F",
        help="fraction of each GPU (above 0, at most 1) that the PyTorch allocator may reserve",
    )  # fmt: skip
    limits.add_argument(
        "--gpu-share", type=_share, metavar="F",
        help="fraction of each GPU allocated to this job, such as 1/4 or 0.25; without --memory-fraction it is the "
        "cap, less room for the CUDA context",
    )  # fmt: skip
    parser.add_argument(
        "--job-name", metavar="NAME", help="display name of the job (default: its Slurm name, else its script's)"
    )
    verdict = group(parser, "verdict without a service")
    verdict.add_argument("--live", action="store_true", help="print what is found while the command runs")
    verdict.add_argument(
        "--report", type=_report, metavar="FILE",
        help="write the HTML report to FILE (default: tidegauge-report-JOB.html here, only if memory grows)",
    )  # fmt: skip
    verdict.add_argument("--no-verdict", action="store_true", help="do not judge the job, and write no report")
    actions = group(parser, "actions and checkpoints")
    actions.add_argument(
        "--requeue", action="store_true",
        help="allow Tidegauge to stop and restart the command if the admin's policy says so; the command must resume "
        "from its last checkpoint by itself",
    )  # fmt: skip
    actions.add_argument("--no-actions", action="store_true", help="watch and report only: no actions on this job")
    actions.add_argument(
        "--checkpoint-signal", nargs="?", const="USR1", type=_signal_name, metavar="NAME",
        help="signal on which every rank writes a checkpoint (without NAME: USR1); needs --checkpoint-path",
    )  # fmt: skip
    actions.add_argument(
        "--checkpoint-path", action="append", type=_path, metavar="PATH",
        help="file or folder where checkpoints are written, checked to verify a checkpoint; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--with-service", action="store_true",
        help="inside a Slurm allocation: start a service on its nodes for this command only; results go to "
        "./tidegauge-JOBID",
    )  # fmt: skip
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- CMD …", help="command to run")
    add_examples(
        parser,
        "tidegauge run -- torchrun --nproc-per-node=8 train.py",
        "tidegauge run --memory-profile=trace -- python train.py",
        "tidegauge run --requeue --checkpoint-signal --checkpoint-path ckpt -- torchrun train.py",
    )


def run(args: argparse.Namespace) -> int:
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise UsageError("no command to run; example: tidegauge run -- torchrun train.py")
    if shutil.which(command[0]) is None and not (os.sep in command[0] and Path(command[0]).exists()):
        raise CommandError(f"{command[0]}: command not found", exit_code=NOT_FOUND)
    _open_standard_streams()
    level = args.memory_profile or os.environ.get("TIDEGAUGE_PROFILE") or "auto"
    if level not in LEVELS:
        raise UsageError(f"TIDEGAUGE_PROFILE={level!r} is not one of {', '.join(LEVELS)}")
    if level == "off" and args.with_service:
        raise UsageError("--with-service cannot be combined with the memory profile off")
    given_name = os.environ.get("TIDEGAUGE_JOB_NAME") or os.environ.get("SLURM_JOB_NAME")
    environ = job_environ(
        {**os.environ, **_checkpoint_environ(args, os.environ)},
        level=level,
        job_name=args.job_name or given_name or command_name(command),
        memory_fraction=args.memory_fraction,
    )
    if args.gpu_share is not None:
        environ[SHARE_VARIABLE] = repr(args.gpu_share)
        if not environ.get(FRACTION_VARIABLE) and args.gpu_share < 1:
            environ[FRACTION_VARIABLE] = repr(start_fraction(args.gpu_share))
    other = "TIDEGAUGE_PROFILE=off" if level == "off" else other_keeper(os.environ)
    idle = [flag for flag, given in (("--requeue", args.requeue), ("--no-actions", args.no_actions)) if given]
    if other is not None and idle:
        _say(f"{' and '.join(idle)} ignored ({other}), see docs/run.md")
    verdict, why_not = _start_verdict(command, environ, args, level=level, other=other)
    idle = [flag for flag, given in (("--live", args.live), ("--report", args.report is not None)) if given]
    if verdict is None and idle:
        _say(f"{' and '.join(idle)} ignored ({why_not}), see docs/run.md")
    if level != "off":
        job_id = environ.get("TIDEGAUGE_JOB_ID") or environ["SLURM_JOB_ID"]  # job_environ sees to one of them
        where = "" if args.with_service else "; see `tidegauge jobs`"  # that service says itself where it is asked
        where = where if verdict is None else "; verdict at the end"
        _say(f"watching job {job_id} ({level}){where}")
    try:
        if args.with_service:
            from tidegauge.cli.service.with_service import run_with_service

            return run_with_service(command, environ)
        if other is None:
            at_end = _at_end(command, environ, args, level=level) if verdict is None else verdict.end
            return _keep(command, environ, args, at_end)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise CommandError(f"{command[0]}: {_why_not(error)}", exit_code=NOT_RUNNABLE) from error


def _open_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed: else the first pipe or file would take its place."""
    for _ in range(3):
        descriptor = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(descriptor, True)
        if descriptor > 2:
            os.close(descriptor)
            return


def _say(text: str) -> None:
    say(text, below_the_command=False)


def _start_verdict(
    command: list[str], environ: dict[str, str], args: argparse.Namespace, *, level: str, other: str | None
) -> tuple[VerdictProcess | None, str]:
    """Start to judge the job, where nobody else does; else ``None`` and why not."""
    if args.with_service:
        return None, "--with-service"
    if other is not None or args.no_verdict or level not in WATCHING_LEVELS:
        return None, other or ("--no-verdict" if args.no_verdict else f"--memory-profile={level}")
    if sys.version_info < EXTRAS_NEED_PYTHON:
        return None, f"it needs Python {'.'.join(map(str, EXTRAS_NEED_PYTHON))} or later"
    from tidegauge.agent.run_dirs.presence import is_watched
    from tidegauge.cli.verdict.process import run_dirs, start_verdict

    if is_watched(run_dirs(environ)):
        return None, "a service watches this job"
    try:
        return start_verdict(command, environ, report=args.report, live=args.live), ""
    except OSError as error:
        return None, str(error)


def _at_end(command: list[str], environ: dict[str, str], args: argparse.Namespace, *, level: str) -> Callable[[], None]:
    """What to do when a command has ended that is not judged here: say what it used, if somebody else watches it."""
    if args.no_verdict or level not in WATCHING_LEVELS or sys.version_info < EXTRAS_NEED_PYTHON:
        return lambda: None
    from tidegauge.cli.verdict.process import start_verdict

    try:
        return start_verdict(command, environ, figures=True).end
    except OSError as error:
        _say(f"what the job used is not printed at its end: {error}")
        return lambda: None


def _keep(command: list[str], environ: dict[str, str], args: argparse.Namespace, at_end: Callable[[], None]) -> int:
    """Run ``command`` with a keeper, or without if there cannot be one. The pipes to a judging process go with this
    process: it ends by itself where the command does not start."""
    try:
        return keep(
            command,
            environ,
            again=["tidegauge", *sys.argv[1:]],
            requeueable=args.requeue,
            exempt=args.no_actions,
            gpu_share=parse_fraction(environ.get(SHARE_VARIABLE, "")),
            at_end=at_end,
        )
    except CannotKeepError as error:
        _say(f"this job cannot be requeued or notified ({error})")
        os.execvpe(command[0], command, environ)


def _checkpoint_environ(args: argparse.Namespace, environ: os._Environ[str]) -> dict[str, str]:
    """The variables that tell the ranks how checkpoints are requested. Raises ``CommandError``."""
    found = {}
    if args.checkpoint_signal is not None:
        found[SIGNAL_VARIABLE] = args.checkpoint_signal
    if args.checkpoint_path:
        found[PATH_VARIABLE] = os.pathsep.join(args.checkpoint_path)
    both = {**environ, **found}
    if found and not (both.get(SIGNAL_VARIABLE) and both.get(PATH_VARIABLE)):
        raise UsageError(
            "--checkpoint-signal and --checkpoint-path go together: the signal requests a checkpoint, and a new file "
            "at the path proves that it was written"
        )
    return found


def job_environ(
    environ: os._Environ[str] | dict[str, str],
    *,
    level: str,
    job_name: str,
    memory_fraction: float | None = None,
    job_id: str | None = None,
) -> dict[str, str]:
    """The environment of a profiled job: level, identity, and the folder that activates the probe."""
    result = dict(environ)
    # The job may run in an environment that does not have Tidegauge: the folder works in both.
    result.update(activation_environ(level, result, pythonpath=True))
    result["TIDEGAUGE_JOB_NAME"] = job_name
    if job_id is not None:
        result["TIDEGAUGE_JOB_ID"] = job_id
    elif not any(result.get(name) for name in ("TIDEGAUGE_JOB_ID", "SLURM_JOB_ID")):
        result["TIDEGAUGE_JOB_ID"] = new_job_id()
    if memory_fraction is not None:
        result[FRACTION_VARIABLE] = repr(memory_fraction)
    return result


def _why_not(error: OSError) -> str:
    """The reason why an existing executable file does not run (execve(2))."""
    if error.errno == errno.ENOEXEC:
        return "not an executable format: a script needs a first line such as #!/bin/sh, or an interpreter before it"
    if error.errno == errno.ENOENT:
        return "the interpreter in its first line does not exist"
    return f"cannot be run: {error.strerror}"


def new_job_id() -> str:
    """An id for a job without a scheduler: host, second and pid make it unique on a cluster."""
    return f"{MADE_UP}{socket.gethostname().split('.')[0]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def _share(text: str) -> float:
    """A share such as ``1/4`` or ``0.25``. Raises ``argparse.ArgumentTypeError``."""
    try:
        share = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction above 0 and at most 1, such as 1/4 or 0.25")
    return share


def _signal_name(text: str) -> str:
    number = parse_signal(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {ALLOWED}")
    return signal_name(number)


def _report(text: str) -> Path:
    return Path(os.path.abspath(file_to_write(text)))  # the job may change its directory


def _path(text: str) -> str:
    path = os.path.abspath(text)
    if not text or os.pathsep in path:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid path (empty, or contains {os.pathsep!r})")
    return path
