"""``SchedulerPort`` for the jobs of one Ray cluster that belongs to users. See docs/ray_jobs.md and ADR 4."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, JobTarget, SchedulerFacts
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.ports import (
    THROUGH_RANKS,
    ChangedError,
    CheckpointProgress,
    PermanentError,
    Presence,
    ProcessCommands,
    RequeueChanges,
    SchedulerError,
    TemporaryError,
)
from tidegauge_scheduler_hooks.rank_commands import cap_ranks
from tidegauge_scheduler_hooks.ray_jobs import submissions
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob, RayJobsApi
from tidegauge_scheduler_hooks.ray_jobs.remarks import FORGET_AFTER_S, forget_earlier, remark

log = logging.getLogger(__name__)

STOP_WITHIN_S = 45.0
"""Ray kills 3 s after it asked, unless the cluster's ``RAY_JOB_STOP_WAIT_TIME_S`` says otherwise."""
STOP_RETRY_S = 30.0
LOOK_EVERY_S = 0.25
REMARK_WITHIN_S = 30.0
"""For the submission that puts a remark on a job: Python and Ray start there, in 10 to 20 s on two cores that eight
processes each wanted."""


class RayJobs:
    """The Ray adapter. ``uid`` is the user of the cluster's processes: ranks of another user are not taken for its
    jobs, whatever they claim.

    Ray can neither hold a running job nor show remarks on it: a held job is one that was stopped, and ``notify`` and
    ``annotate`` refuse."""

    def __init__(
        self,
        api: RayJobsApi,
        commands: ProcessCommands,
        *,
        uid: int,
        checkpoints: RankCheckpoint | None = None,
        stop_within_s: float = STOP_WITHIN_S,
        remark_within_s: float = REMARK_WITHIN_S,
        forget_after_s: float = FORGET_AFTER_S,
    ) -> None:
        self._api = api
        self._commands = commands
        self._checkpoints = checkpoints or RankCheckpoint(commands)
        self._uid = uid
        self._stop_within_s = stop_within_s
        self._remark_within_s = remark_within_s
        self._forget_after_s = forget_after_s
        self._fractions: dict[str, float] = {}
        """Caps set by this process, by incarnation; older ones are in ``JobTarget.handle``."""

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        """Query all jobs at once. Raises ``TemporaryError``, ``PermanentError``."""
        ours = [view for view in jobs if view.ranks[0].uid == self._uid]
        if not ours:
            return {}
        known = self._api.jobs()
        facts: dict[JobKey, SchedulerFacts] = {}
        for view in ours:
            job, named = submissions.find(view, known)
            if job is not None:
                facts[view.key] = _facts(job, view, named)
        return facts

    def ends(self, jobs: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        """How these runs ended, as far as they have; of jobs that their owner named only. Raises ``TemporaryError``,
        ``PermanentError``."""
        ours = [view for view in jobs if view.ranks[0].uid == self._uid]
        known = self._api.jobs() if ours else []
        found = {view.key: submissions.end_seen(view, known) for view in ours}
        return {key: end for key, end in found.items() if end is not None}

    def remark_end(self, job: JobView, record: JobRecord, text: str) -> None:
        """Put ``text`` into the metadata of the run, if its owner named it and did not exempt it from actions. Raises
        ``TemporaryError``, ``PermanentError``."""
        known = self._api.jobs() if job.ranks[0].uid == self._uid else []
        run = submissions.run_of(job, known)
        if run is None or submissions.is_exempt(run):
            return
        if not run.finished:
            raise TemporaryError(f"job {record.job.job_id}: its submission {run.submission_id} has not ended yet")
        forget_earlier(self._api, known)
        remark(self._api, run, text, within_s=self._remark_within_s, forget_after_s=self._forget_after_s)

    def presence(self, target: JobTarget) -> Presence:
        """RUNNING also while it waits for its start. Raises ``TemporaryError``, ``PermanentError``."""
        job = self._look(target)
        if job is None:
            return Presence.GONE
        if not job.finished:
            return Presence.RUNNING
        if job.submission_id is None:
            return Presence.GONE
        if _follows(self._api.job(submissions.follower_id(job)), job):
            return Presence.REPLACED
        # Ended by us and not started again yet: the requeue has to be repeated, as for a run that still runs.
        return Presence.RUNNING if self._is_half_requeued(job) else Presence.GONE

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Always raises ``PermanentError``: Ray has no such place."""
        raise _no_place(target, text, decision_id)

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Always raises ``PermanentError``: a job's metadata cannot be changed."""
        raise _no_place(target, text, decision_id)

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        """Cap by the ranks' own command sockets; a requeue keeps the cap."""
        self._check_running(target)
        done = cap_ranks(self._commands, target, fraction)
        self._fractions[target.incarnation] = fraction
        log.info("decision %s: job %s capped at %g", decision_id, target.job.job_id, fraction)
        return done

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        self._check_running(target)
        return self._checkpoints.advance(target, decision_id=decision_id, deadline_unix_s=deadline_unix_s)

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        """Stop the run, wait until it has ended, submit it again under the id of its next attempt."""
        job = self._own(target)
        if not submissions.may_requeue(job):
            raise PermanentError(
                f"job {job.submission_id} may not be requeued: its owner's metadata does not say "
                f"{submissions.REQUEUE_KEY}=true"
            )
        next_id = submissions.follower_id(job)
        if self._is_followed(job, next_id, by=decision_id):
            return
        if job.finished and not self._is_half_requeued(job):
            raise _ended(job)
        fraction = self._fractions.get(target.incarnation, target.handle.get("memory_fraction"))
        request = submissions.follower_request(
            job, changes, target.handle, fraction=fraction, decision_id=decision_id
        )  # fmt: skip
        self._keep_packages(job)
        if not job.finished:
            self._leave(submissions.requeue_mark(job))
            self._stop(job)
            self._wait_for_end(job)
        try:
            self._api.submit(request)
        except SchedulerError:
            # It may have been taken all the same, now or by a call before this one.
            if not self._is_followed(job, next_id, by=decision_id):
                raise
        self._fractions.pop(target.incarnation, None)
        log.info("decision %s: Ray job %s continues as %s: %s", decision_id, job.submission_id, next_id, reason)

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """Stop the run. Only its owner starts it again."""
        self.cancel(target, reason, decision_id=decision_id)

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """Stop the run; returns when Ray has accepted that."""
        job = self._own(target)
        if job.finished:
            raise _ended(job)
        if self._api.has_package(submissions.requeue_mark(job)):
            # A requeue of this run failed a while ago; from now on it is not half done, but over.
            self._leave(submissions.cancel_mark(job))
        self._stop(job)
        log.info("decision %s: Ray job %s is stopped: %s", decision_id, job.submission_id, reason)

    # Looking

    def _look(self, target: JobTarget) -> RayJob | None:
        """The run as it is now; ``None``: Ray does not know it, or knows another job by its id."""
        ray_id, started_unix_ms = submissions.parse_incarnation(target.incarnation)
        job = self._api.job(ray_id) if ray_id else None
        return job if job is not None and job.started_unix_ms == started_unix_ms else None

    def _check_running(self, target: JobTarget) -> None:
        """Raises ``ChangedError`` for a run that is over."""
        job = self._look(target)
        if job is None or job.finished:
            raise ChangedError(f"job {target.job.job_id}: run {target.incarnation} has ended")

    def _own(self, target: JobTarget) -> RayJob:
        """The run, running or not, if we may end it. Raises ``ChangedError``, ``PermanentError``."""
        job = self._look(target)
        if job is None:
            raise ChangedError(f"job {target.job.job_id}: {self._api.address} does not know run {target.incarnation}")
        if job.submission_id != submissions.parse_incarnation(target.incarnation)[0]:
            raise PermanentError(
                f"job {target.job.job_id} cannot be told apart from other clusters' jobs: name it with "
                f"{submissions.NAME_VARIABLE} in the env_vars of its submission"
            )
        return job

    def _is_followed(self, job: RayJob, next_id: str, *, by: str) -> bool:
        """Whether this very decision has started the next run. Raises ``ChangedError`` if another has, and
        ``PermanentError`` if the id is another job's."""
        other = self._api.job(next_id)
        if other is None:
            return False
        if not _follows(other, job):
            raise PermanentError(
                f"job {job.submission_id} cannot be requeued: the id {next_id} belongs to another job (when that has "
                f"ended: ray job delete {next_id})"
            )
        decision = other.metadata.get(submissions.DECISION_KEY)
        if decision != by:
            raise ChangedError(f"job {job.submission_id} already continues as {next_id}, by decision {decision}")
        return True

    # Ending and starting

    def _stop(self, job: RayJob) -> None:
        assert job.submission_id is not None
        if not self._api.stop(job.submission_id):
            raise TemporaryError(f"job {job.submission_id}: Ray finds nothing to stop right now")

    def _wait_for_end(self, job: RayJob) -> None:
        assert job.submission_id is not None
        deadline_s = time.monotonic() + self._stop_within_s
        while True:
            now = self._api.job(job.submission_id)
            if now is None or now.status == "SUCCEEDED":
                raise _ended(job if now is None else now)
            if now.finished:
                return
            if time.monotonic() >= deadline_s:
                raise TemporaryError(
                    f"job {job.submission_id} is still running {self._stop_within_s:g} s after the stop request",
                    retry_after_s=STOP_RETRY_S,
                )
            time.sleep(LOOK_EVERY_S)

    def _leave(self, mark: str) -> None:
        """Leave a mark on the cluster, for ten minutes, before acting on a run.

        Without it nothing could tell, after a crash, whether its owner has stopped the run meanwhile."""
        self._api.put_package(mark, b"tidegauge")
        self._api.has_package(mark)  # what was never asked for lasts for ever

    def _is_half_requeued(self, job: RayJob) -> bool:
        """Whether a run that ended without a follower was ended for a requeue.

        A run that came to its natural end just then is over all the same."""
        if job.status == "SUCCEEDED" or not self._api.has_package(submissions.requeue_mark(job)):
            return False
        return not self._api.has_package(submissions.cancel_mark(job))

    def _keep_packages(self, job: RayJob) -> None:
        """Ray deletes a job's uploads as soon as the job has ended, unless they were requested a moment ago."""
        for uri in submissions.packages_of(job.runtime_env):
            if not self._api.has_package(uri):
                raise PermanentError(
                    f"job {job.submission_id} cannot be requeued: {uri}, which its owner uploaded, is no longer on the "
                    "cluster; they must submit it again"
                )


def _facts(job: RayJob, view: JobView, named: bool) -> SchedulerFacts:
    ends = {ActionKind.HOLD, ActionKind.CANCEL} if named else set()
    requeueable = named and submissions.may_requeue(job)
    return SchedulerFacts(
        incarnation=submissions.incarnation_of(job, named=named),
        running=not job.finished,
        requeueable=requeueable,
        exempt=submissions.is_exempt(job),
        restarts=submissions.restarts_of(job),
        started_unix_s=job.started_unix_ms / 1000,
        gpu_share=submissions.gpu_share_of(job),
        can=THROUGH_RANKS | ends | ({ActionKind.REQUEUE} if requeueable else set()),
        handle=_handle(view),
    )


def _handle(view: JobView) -> dict[str, Any]:
    """The values that all living ranks run with, for the next run."""
    ranks = [rank for rank in view.ranks if rank.alive]
    found: dict[str, set[Any]] = {
        "torch_version": {rank.identity.torch_version for rank in ranks},
        "alloc_conf": {rank.identity.alloc_conf for rank in ranks},
        "memory_fraction": {rank.cap_fraction for rank in ranks},
    }
    return {name: min(values) for name, values in found.items() if len(values) == 1 and None not in values}


def _follows(other: RayJob | None, job: RayJob) -> bool:
    incarnation = submissions.incarnation_of(job, named=True)
    return other is not None and other.metadata.get(submissions.FOLLOWS_KEY) == incarnation


def _ended(job: RayJob) -> ChangedError:
    return ChangedError(f"job {job.submission_id} has already ended ({job.status}), not by this decision")


def _no_place(target: JobTarget, text: str, decision_id: str) -> PermanentError:
    return PermanentError(
        f"decision {decision_id}: Ray has no place to show the owner of job {target.job.job_id}: {text}"
    )
