"""Puts a line into the metadata of a Ray job that has ended, where ``ray job list`` and the dashboard show it.

Ray's API cannot change a job. So the cluster changes it by its own Ray: a submission of ours, there for seconds, runs
``PROGRAM`` on the head node. What that calls is not public; where another Ray has none of it, the submission fails and
there is no remark. See ADR 4.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Iterable
from typing import Any

from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob, RayJobsApi
from tidegauge_scheduler_hooks.ray_jobs.submissions import END_KEY, incarnation_of

LOOK_EVERY_S = 0.5
FORGET_AFTER_S = 5.0
"""Between the end of a submission of ours and its deletion. Ray's monitor looks at each job once a second, and writes
down again, as failed, one that is gone when it first sees the end."""
PREFIX = "tidegauge-remark-"
"""Of the ids of our submissions."""
PROGRAM = """
import asyncio, dataclasses, os, sys
from ray._raylet import GcsClient
from ray.dashboard.modules.job.common import JobInfoStorageClient
job_id, start_time, key, text = sys.argv[1:]
async def remark():
    jobs = JobInfoStorageClient(GcsClient(address=os.environ["RAY_ADDRESS"]))
    info = await jobs.get_info(job_id)
    if info is not None and info.status.is_terminal() and str(info.start_time) == start_time:
        await jobs.put_info(job_id, dataclasses.replace(info, metadata={**(info.metadata or {}), key: text}))
asyncio.run(remark())
"""
"""Another job of that id, and one that its owner has started again or deleted, it leaves alone."""


def remark(api: RayJobsApi, job: RayJob, text: str, *, within_s: float, forget_after_s: float) -> None:
    """Put ``text`` into the metadata of ``job``, which has ended and has a submission id. Blocks for up to ``within_s``
    and ``forget_after_s``, and the time of a few requests. Raises ``TemporaryError``, ``PermanentError``."""
    assert job.submission_id is not None
    request = _request(job, text)
    ours = request["submission_id"]
    if job.metadata.get(END_KEY) != text and api.job(ours) is None:
        api.submit(request)
    deadline_s = time.monotonic() + within_s
    while (state := api.job(ours)) is not None and not state.finished:
        if time.monotonic() >= deadline_s:
            raise TemporaryError(f"job {job.submission_id}: {ours}, which is to remark on its end, has not ended yet")
        time.sleep(LOOK_EVERY_S)
    if state is not None:
        time.sleep(forget_after_s)
        api.delete(ours)
    now = api.job(job.submission_id)
    if now is not None and now.metadata.get(END_KEY) != text:
        raise PermanentError(
            f"job {job.submission_id}: no remark on its end: on {api.address} `python` has no Ray, or a Ray that keeps "
            "jobs in another way"
        )


def forget_earlier(api: RayJobsApi, jobs: Iterable[RayJob]) -> None:
    """Delete what is left of our earlier submissions among ``jobs``: of a head that was killed, or of a busy cluster.
    Raises ``TemporaryError``, ``PermanentError``."""
    for job in jobs:
        if job.submission_id is not None and job.submission_id.startswith(PREFIX) and job.finished:
            api.delete(job.submission_id)


def _request(job: RayJob, text: str) -> dict[str, Any]:
    incarnation = incarnation_of(job, named=True)
    digest = hashlib.sha256(f"{incarnation} {text}".encode()).hexdigest()
    arguments = [str(job.submission_id), str(job.started_unix_ms), END_KEY, text]
    return {
        "entrypoint": shlex.join(["python", "-c", PROGRAM, *arguments]),
        "submission_id": f"{PREFIX}{digest[:32]}",
        "runtime_env": {},
        "metadata": {"tidegauge.remarks": incarnation},
    }
