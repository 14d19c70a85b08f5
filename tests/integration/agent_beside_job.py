"""A job on the rig and an agent beside it that tells its view when asked: what do the kernel and NVML show of a job?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tidegauge.probe.activation.launch import activation_environ

CONSOLE = Path(__file__).with_name("agent_console.py")


@contextlib.contextmanager
def agent_beside_job(
    command: list[str], *, environ: Mapping[str, str], folder: Path, job_id: str
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], Any]]]:
    """The job ``command``, watched at level ``stats``, and a function that returns the agent's view of now."""
    environ = {**environ, "TIDEGAUGE_RUN_DIR": str(folder / "run"), "TIDEGAUGE_STATE_DIR": str(folder / "state")}
    job_environ = {**environ, **activation_environ("stats", environ, pythonpath=True), "TIDEGAUGE_JOB_ID": job_id}
    with (
        subprocess.Popen(command, env=job_environ, start_new_session=True) as job,
        subprocess.Popen(
            [sys.executable, str(CONSOLE)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as agent,
    ):
        try:
            yield job, lambda: _view(agent)
        finally:
            agent.kill()
            os.killpg(job.pid, signal.SIGKILL)  # workers may wait for ever where they write to whom nobody reads


def _view(agent: subprocess.Popen[str]) -> Any:
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write("\n")
    agent.stdin.flush()
    return json.loads(agent.stdout.readline())
