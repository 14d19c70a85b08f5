"""Finds the Ray job of a watched job, reads its owner's permissions, and builds the submission of its next run. Pure.

Ray knows no restarts: a job that goes on is another submission. Ours carries ``TIDEGAUGE_ATTEMPT`` for its ranks, and
in its metadata the run that it follows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tidegauge.core.alloc_conf import CUDA_NAME, conf_names, merge_alloc_conf
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE, FRACTION_VARIABLE, SHARE_VARIABLE
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob

REQUEUE_KEY = "tidegauge.requeue"
"""Metadata, ``true``: the owner allows that the job is ended and submitted again."""
ACTIONS_KEY = "tidegauge.actions"
"""Metadata, ``off``: the owner exempts the job from actions."""
FOLLOWS_KEY = "tidegauge.follows"
"""Our metadata: the incarnation that this submission goes on from."""
DECISION_KEY = "tidegauge.decision"
"""Our metadata: the decision behind that."""

END_KEY = "tidegauge.end"
"""Our metadata: how the job ended and what it used."""


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


ENTRYPOINT_KEYS: Mapping[str, Callable[[str], Any]] = {
    "entrypoint_num_cpus": float,
    "entrypoint_num_gpus": float,
    "entrypoint_memory": int,
    "entrypoint_resources": _json_object,
    "entrypoint_label_selector": _json_object,
}
"""Resources that Ray reserves for the entrypoint. The API does not return them, so the owner repeats them in the
metadata, as ``tidegauge.entrypoint_num_gpus`` and so on; the last two are JSON objects."""

ENDS = {"SUCCEEDED": JobEnd.COMPLETED, "FAILED": JobEnd.FAILED, "STOPPED": JobEnd.CANCELLED}
"""By the status of a submission."""

NAME_VARIABLE = "TIDEGAUGE_JOB_ID"

RAY_ID_PREFIX = "ray-"
"""The probe's prefix for a job that has no name but ``RAY_JOB_ID``."""
REDACTED = "<redacted>"
"""Ray's replacement of variables for clients that it takes for a browser."""


def incarnation_of(job: RayJob, *, named: bool) -> str:
    """``ID@TIME``, by submission id or, if it was not found by its name, Ray's job id.

    An id can be used again once its job was deleted; the time (ms) tells the two apart."""
    return f"{job.submission_id if named else job.ray_job_id}@{job.started_unix_ms}"


def parse_incarnation(text: str) -> tuple[str, int | None]:
    """Id and time of ``incarnation_of``; of any other text ``None`` for the time."""
    ray_id, _, started = text.rpartition("@")
    return ray_id, int(started) if started.isascii() and started.isdigit() else None


def find(view: JobView, jobs: Iterable[RayJob]) -> tuple[RayJob | None, bool]:
    """The Ray job that ``view`` is, and whether it was found by a name that its owner chose.

    ``RAY_JOB_ID`` is 01000000 in every cluster and proves nothing about the job: good enough to talk to the very ranks
    that were seen, not to end a job. ``None`` if there is none, or more than one."""
    found = tuple(jobs)
    named = [job for job in found if job.submission_id and job.environ.get(NAME_VARIABLE) == view.job_id]
    if named:
        return _run_seen(view, named), True
    if not view.job_id.startswith(RAY_ID_PREFIX):
        return None, False
    ray_job_id = view.job_id[len(RAY_ID_PREFIX) :]
    return next((job for job in found if job.ray_job_id == ray_job_id), None), False


def _run_seen(view: JobView, named: Iterable[RayJob]) -> RayJob | None:
    """The run that these ranks are of: one that began before they were last seen, and not a later attempt.

    Ranks of a run that has just been replaced are seen a little longer; they must not be taken for the next one."""
    seen_unix_ms = max(rank.last_sample_unix_s for rank in view.ranks) * 1000
    could_be = [job for job in named if restarts_of(job) <= view.attempt and job.started_unix_ms <= seen_unix_ms]
    active = [job for job in could_be if not job.finished]
    if len(active) > 1:
        return None
    return active[0] if active else max(could_be, key=lambda job: job.started_unix_ms, default=None)


def run_of(view: JobView, jobs: Iterable[RayJob]) -> RayJob | None:
    """The run that these ranks were of; ``None``: no name tells which it was."""
    job, named = find(view, jobs)
    if job is None or not named or restarts_of(job) != view.ranks[0].identity.restarts:
        return None
    return job


def end_seen(view: JobView, jobs: Iterable[RayJob]) -> JobEnd | None:
    """How the run ended that these ranks were of; ``None``: it has not, or no name tells which run it was."""
    job = run_of(view, jobs)
    return None if job is None else ENDS.get(job.status)


def may_requeue(job: RayJob) -> bool:
    """Whether the owner allows that the job is ended and submitted again."""
    return job.metadata.get(REQUEUE_KEY, "").lower() == "true"


def is_exempt(job: RayJob) -> bool:
    """Whether the owner exempted the job from actions."""
    return job.metadata.get(ACTIONS_KEY, "").lower() == "off"


def restarts_of(job: RayJob) -> int:
    """``TIDEGAUGE_ATTEMPT``; 0 where it is absent or no number."""
    text = job.environ.get(ATTEMPT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def gpu_share_of(job: RayJob) -> float | None:
    """``TIDEGAUGE_GPU_SHARE``, above 0 and at most 1; else ``None``."""
    try:
        share = float(job.environ.get(SHARE_VARIABLE, ""))
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def follower_id(job: RayJob) -> str:
    """The id of the run after this one: always the same, so that Ray refuses to start it twice."""
    assert job.submission_id is not None
    restarts = restarts_of(job)
    base = job.submission_id
    if FOLLOWS_KEY in job.metadata:
        base = base.removesuffix(_suffix(restarts))
    return base + _suffix(restarts + 1)


def _suffix(restarts: int) -> str:
    return f"-attempt-{restarts}"


def follower_request(
    job: RayJob, changes: RequeueChanges, handle: Mapping[str, Any], *, fraction: float | None, decision_id: str
) -> dict[str, Any]:
    """The submission of the next run of ``job``: the same, but for ``changes``, ``fraction`` and our own marks.

    ``handle`` is the ranks' own report, as ``RayJobs.describe`` left it. Raises ``PermanentError``."""
    environ = dict(job.environ)
    if REDACTED in environ.values():
        raise PermanentError(f"job {job.submission_id} cannot be submitted again: its cluster does not show variables")
    if fraction is not None:
        environ[FRACTION_VARIABLE] = format(fraction, ".6g")
    environ.update(_alloc_conf(environ, changes.alloc_conf, handle))
    environ.update(changes.environ)
    environ[ATTEMPT_VARIABLE] = str(restarts_of(job) + 1)
    metadata = {key: text for key, text in job.metadata.items() if key != END_KEY}
    return {
        "entrypoint": job.entrypoint,
        "submission_id": follower_id(job),
        "runtime_env": {**job.runtime_env, "env_vars": environ},
        "metadata": {**metadata, FOLLOWS_KEY: incarnation_of(job, named=True), DECISION_KEY: decision_id},
        **_entrypoint_needs(job),
    }


def _alloc_conf(
    environ: Mapping[str, str], settings: Mapping[str, str], handle: Mapping[str, Any]
) -> Mapping[str, str]:
    torch_version, in_force = handle.get("torch_version"), handle.get("alloc_conf")
    if in_force and not any(environ.get(name) for name in conf_names(torch_version)):
        environ = {CUDA_NAME: in_force}  # it comes from the nodes: a variable of the job's would take its place
    return merge_alloc_conf(environ, settings, torch_version=torch_version)


def _entrypoint_needs(job: RayJob) -> dict[str, Any]:
    needs: dict[str, Any] = {}
    for name, read in ENTRYPOINT_KEYS.items():
        text = job.metadata.get(f"tidegauge.{name}")
        if text is None:
            continue
        try:
            needs[name] = read(text)
        except ValueError as error:
            raise PermanentError(
                f"job {job.submission_id} cannot be submitted again: its metadata tidegauge.{name} is {text[:80]!r}"
            ) from error
    return needs


def packages_of(runtime_env: Mapping[str, Any]) -> Iterator[str]:
    """The packages that the owner's client uploaded to the cluster: ``gcs://…``, anywhere in the environment."""
    for value in runtime_env.values():
        values: Iterable[Any] = value if isinstance(value, list) else (value,)
        yield from (one for one in values if isinstance(one, str) and one.startswith("gcs://"))


def requeue_mark(job: RayJob) -> str:
    """The name of the package that marks a run as ended for a requeue."""
    return _mark("requeue", job)


def cancel_mark(job: RayJob) -> str:
    """The name of the package that voids the requeue mark: the run is ended for good."""
    return _mark("cancel", job)


def _mark(what: str, job: RayJob) -> str:
    digest = hashlib.sha256(incarnation_of(job, named=True).encode()).hexdigest()
    return f"gcs://tidegauge-{what}-{digest[:32]}.zip"
