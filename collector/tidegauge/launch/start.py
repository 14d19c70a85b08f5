"""Starts the command of ``tidegauge run``: with a keeper, unless another program would restart it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from tidegauge.core.jobs.launches import LaunchRecord, LaunchState
from tidegauge.core.jobs.variables import KEEPER_VARIABLE
from tidegauge.core.run_dirs import LAUNCH_SUFFIX, process_of
from tidegauge.core.text import one_line
from tidegauge.launch.keeper import READ_SIGNALS, Keeper, Launch
from tidegauge.launch.launch_files import open_launch_files
from tidegauge.osproc.kernel_calls import SignalFile, become_subreaper
from tidegauge.osproc.processes import descends, identity_of

_OTHERS = (
    ("SLURM_JOB_ID", "Slurm"),
    ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
    ("RAY_JOB_ID", "Ray"),
    ("RAY_JOB_CONFIG_JSON_ENV_VAR", "Ray"),  # the entrypoint of a submitted job has this, its workers the other
)


class CannotKeepError(Exception):
    """The machine does not allow this process to keep another. Nothing was started."""


def other_keeper(environ: Mapping[str, str]) -> Optional[str]:
    """The scheduler that restarts jobs here, as text; ``None`` where there is none and a keeper is useful."""
    for name, who in _OTHERS:
        if environ.get(name):
            return who
    outer = process_of(environ.get(KEEPER_VARIABLE, "") + LAUNCH_SUFFIX)
    if outer is not None and identity_of(outer.pid) == outer and descends(os.getpid(), outer.pid):
        return "the tidegauge run around this one"
    return None


def keep(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    again: Sequence[str],
    requeueable: bool,
    exempt: bool,
    gpu_share: Optional[float],
    at_end: Callable[[], None] = lambda: None,
) -> int:
    """Start ``command`` and stay with it to its end; the exit status as a shell would give it.

    ``again`` is the command line that starts all of this anew; ``at_end`` is called once the command has ended and
    signals reach this process as before. Does not return where the command was ended by SIGINT:
    then this process ends by it too, for a shell that runs a loop stops only for that.

    Raises ``CannotKeepError``, and ``OSError`` where the command cannot be started.
    """
    process = identity_of(os.getpid())
    if process is None:
        raise CannotKeepError("/proc cannot be read")
    # Ignored by whoever started us (nohup, a shell's background job) they stay so, for us and for the command.
    read = [number for number in READ_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    signals = _signal_file(read)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, [*read, signal.SIGTTOU])
    launch = Launch(
        command=command,
        environ={**environ, KEEPER_VARIABLE: f"{process.pid}-{process.start_ticks}"},
        record=LaunchRecord(
            process=process,
            job_id=one_line(environ["TIDEGAUGE_JOB_ID"]),
            job_name=one_line(environ.get("TIDEGAUGE_JOB_NAME", "")) or None,
            restarts=0,
            state=LaunchState.RUNNING,
            requeueable=requeueable,
            exempt=exempt,
            gpu_share=gpu_share,
            started_unix_s=time.time(),
        ),
        again=again,
        child_mask=frozenset(blocked_before),
    )
    try:
        exit_code = Keeper(launch, signals, open_launch_files(environ, process)).run()
    finally:
        signals.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
    at_end()
    if exit_code == -signal.SIGINT:
        _end_by_interrupt()
    return exit_code if exit_code >= 0 else 128 - exit_code


def _signal_file(numbers: Sequence[int]) -> SignalFile:
    """Raises ``CannotKeepError``; then nothing about this process has changed."""
    try:
        signals = SignalFile(numbers)
        become_subreaper()
    except (ImportError, AttributeError, OSError) as error:
        raise CannotKeepError(str(error)) from error
    return signals


def _end_by_interrupt() -> None:
    """End by SIGINT as the command did: a shell script continues after any exit code, and stops after this."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
