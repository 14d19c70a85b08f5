"""Starts a job on the GPU with the probe on, and watches it with a real node agent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.cli.demo.jobs import stop_job
from tidegauge.cli.service.run import job_environ
from tidegauge.core.views import NodeView, RankView
from tidegauge.settings import Settings

DEMO_JOB = Path(sys.modules["tidegauge"].__file__ or "").parent / "cli" / "demo" / "demo_job.py"


@contextlib.contextmanager
def watched(
    command: list[str], *, run_dir: Path, level: str = "stats", fraction: float | None = None, job_id: str = "gpu-test",
    user: int | None = None,
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A job that is ended, with all that it started, on the way out. ``user``: whose it is, if not ours."""
    environ = job_environ(
        {**os.environ, "TIDEGAUGE_RUN_DIR": str(run_dir)} | ({} if user is None else {"LOGNAME": f"user{user}"}),
        level=level, job_name="test", memory_fraction=fraction, job_id=job_id,
    )  # fmt: skip
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, user=user, group=user, extra_groups=None if user is None else (),
        cwd=None if user is None else "/",
    )  # fmt: skip
    try:
        yield process
    finally:
        stop_job(process)
        process.communicate(timeout=30)


@contextlib.contextmanager
def agent_for(run_dir: Path) -> Iterator[NodeAgent]:
    agent = open_node_agent(Settings(run_dir=run_dir))
    try:
        yield agent
    finally:
        agent.close()


def poll_until(agent: NodeAgent, condition: Callable[[NodeView], bool], *, within_s: float) -> NodeView:
    """Poll as the service does, at 2 Hz, until the view satisfies ``condition``; fail with the last view."""
    end = time.monotonic() + within_s
    while True:
        agent.poll()
        view = agent.view()
        if condition(view):
            return view
        assert time.monotonic() < end, f"not within {within_s} s; the last view was {view}"
        time.sleep(0.5)


def rank(view: NodeView, number: int = 0) -> RankView | None:
    return next((r for r in view.ranks if r.identity.rank == number and r.alive), None)
