"""``SchedulerPort`` for Slurm. See docs/slurm_actions.md and ADR 11."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import JobTarget, SchedulerFacts
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.jobs.settings import JobSettings, decode, encode, settings_name
from tidegauge.core.jobs.slurm import KEEP, MAY_REQUEUE, comment_words
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge.core.text import one_line
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    CheckpointProgress,
    PermanentError,
    Presence,
    ProcessCommands,
    RequeueChanges,
    SchedulerError,
    SettingsStore,
    TemporaryError,
)
from tidegauge_scheduler_hooks.rank_commands import cap_ranks, tell_through_rank
from tidegauge_scheduler_hooks.slurm.commands import SlurmCommands
from tidegauge_scheduler_hooks.slurm.facts_of_jobs import by_number, ended_by_number, facts_of, find, needs_nodes
from tidegauge_scheduler_hooks.slurm.job_states import ENDS
from tidegauge_scheduler_hooks.slurm.jobs_json import SlurmJob
from tidegauge_scheduler_hooks.slurm.squeue_rows import SqueueRow, parse_incarnation, presence_of

log = logging.getLogger(__name__)


MAX_COMMENT_BYTES = 1024
"""slurmctld refuses longer ones (``MAX_STR_LEN``)."""
MAX_REMARK_BYTES = 300
_REMARK = re.compile(r" ?\[tidegauge says: [^\[\]]*\]")
_WORD_MARK = re.compile("tidegauge:", re.IGNORECASE)


def with_remark(comment: str, text: str) -> str | None:
    """``comment`` with our remark in place of an earlier one; ``None`` if there is no room beside the owner's words.

    The remark holds no ``tidegauge:WORD``: only the owner allows a requeue or exempts a job."""
    own = without_remark(comment)
    remark = f"[tidegauge says: {_tame(text)}]"
    found = f"{own} {remark}" if own else remark
    return found if len(found.encode(errors="surrogateescape")) <= MAX_COMMENT_BYTES else None


def without_remark(comment: str) -> str:
    """The owner's part of the comment."""
    return _REMARK.sub("", comment)


END_MARK = "TG1: "
"""Our part of an AdminComment begins with it."""
MAX_END_BYTES = 500
_BARE = " A-Za-z0-9.,;:%()/_+-"
_OUR_END = re.compile(
    rf" ?\b{END_MARK}ended after (?:[{_BARE}]* has all of it(?:; tidegauge report \d+ makes a page of its incident)?"
    rf"|[{_BARE}]*)",
    re.IGNORECASE,
)
"""By the first and the last words of ``end_sentence``: behind one that was cut, bare text counts as ours."""
_NOT_BARE = re.compile(f"[^{_BARE}]")
_UNSAFE = re.compile(r"[^ !#-&(-\[\]-~]")
"""What sacctmgr may not give back as it was: quotes, backslashes, control characters."""
_OF_JOBSTATS = "JS1:"
_PADDED = re.compile(r"JS1:[A-Za-z0-9+/]+=+")
"""A summary of jobstats that is read, as base64 is, up to its padding."""


def with_end(admin_comment: str, text: str, *, keeps_case: bool) -> str | None:
    """``admin_comment`` with our line on a job's end in place of an earlier one; ``None`` if what another tool wrote
    there would not stay as it is, or could not be read any more."""
    bare = _NOT_BARE.sub("", " ".join(text.replace("×", "x").split()))[:MAX_END_BYTES]
    ours = f"{END_MARK}{bare}"
    if ours.lower() in admin_comment.lower():
        return admin_comment
    theirs = _OUR_END.sub("", admin_comment)
    if _OUR_END.match(admin_comment):
        theirs = theirs.removeprefix(" ")
    if _UNSAFE.search(theirs) or (theirs != theirs.lower() and not keeps_case):
        return None
    if theirs.startswith(_OF_JOBSTATS) and not _PADDED.fullmatch(theirs):
        return None
    return f"{theirs} {ours}" if theirs else ours


def _tame(text: str) -> str:
    line = " ".join(one_line(text, None, replacement=" ").split())
    plain = _WORD_MARK.sub("tidegauge ", line.replace("[", "(").replace("]", ")"))
    return plain.encode()[:MAX_REMARK_BYTES].decode(errors="ignore")


REMARKS_AGAIN_S = 3600.0
"""After Slurm has refused a remark on an end."""
NODES_FOR_S = 600.0
"""The lifetime of the nodes' gres; they change when an admin changes slurm.conf."""


class SlurmScheduler:
    """The Slurm adapter. ``requeue_unasked``: the site allows a requeue of every job that Slurm would requeue, not only
    of those whose owner allowed it.

    A job is one of slurmctld's that belongs to the user of the ranks, and whose slurmd confirms that they are in it."""

    def __init__(
        self,
        commands: SlurmCommands,
        ranks: ProcessCommands,
        settings: SettingsStore,
        *,
        checkpoints: RankCheckpoint | None = None,
        requeue_unasked: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands = commands
        self._ranks = ranks
        self._settings = NextSettings(settings)
        self._checkpoints = checkpoints or RankCheckpoint(ranks)
        self._requeue_unasked = requeue_unasked
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._node_gres: Mapping[str, str] = {}
        self._nodes_until_s = float("-inf")
        self._no_remarks_until_s = float("-inf")

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        """Query all jobs with one squeue. Raises ``TemporaryError``, ``PermanentError``."""
        views = by_number(jobs)
        if not views:
            return {}
        found = find(views, self._commands.jobs(list(views)))
        node_gres = self._nodes([job for _, job in found])
        return {
            view.key: facts_of(job, view, requeue_unasked=self._requeue_unasked, node_gres=node_gres)
            for view, job in found
        }

    def ends(self, jobs: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        """How these runs ended, as far as slurmctld knows (any more), with one squeue. Raises ``TemporaryError``,
        ``PermanentError``."""
        views = ended_by_number(jobs)
        states = self._commands.states(list(views)) if views else []
        told = {
            view.key: state.end_of(view.ranks[0].identity.restarts)
            for state in states
            for view in views.get(state.job_id, ())
            if state.uid == view.key.uid
        }
        return {key: end for key, end in told.items() if end is not None}

    def remark_end(self, job: JobView, record: JobRecord, text: str) -> None:  # noqa: ARG002
        """Write into the job's AdminComment in slurmdbd, behind what another tool wrote there. Where that is not
        allowed, or there is no slurmdbd, it says so once an hour. Raises ``TemporaryError``."""
        number = next(iter(ended_by_number([job])), None)
        if number is None or self._monotonic_s() < self._no_remarks_until_s:
            return
        try:
            found = self._commands.accounted(number)
            if found is None:
                raise TemporaryError(f"job {number}: slurmdbd does not know it yet")
            if found.state not in ENDS:
                raise TemporaryError(f"job {number}: slurmdbd says {found.state}")
            before = found.admin_comment
            after = with_end(before, text, keeps_case=not before or self._commands.accounting_keeps_case())
            if after is not None and after != before:
                self._commands.set_admin_comment(found.name, after)
        except PermanentError as error:
            self._no_remarks_until_s = self._monotonic_s() + REMARKS_AGAIN_S
            log.warning("no end is written into AdminComment: %s", error)

    def presence(self, target: JobTarget) -> Presence:
        """Query one job with squeue. Raises ``TemporaryError``, ``PermanentError``."""
        return self._look(target)[0]

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Print on the standard error of the first rank's step: Slurm lets only root, SlurmUser and the owner speak to
        a job (``scontrol notify``), not an Operator."""
        self._check_running(target)
        tell_through_rank(self._ranks, target, text, decision_id=decision_id)

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Write into the job's comment, behind its owner's words and in place of our last remark."""
        look = _one_job(target, self._check_running(target))
        comment = with_remark(look.comment, text)
        if comment is None:
            raise PermanentError(f"job {target.job.job_id}: no room for a note in the owner's comment")
        if comment != look.comment:
            self._commands.set_comment(_name(target), comment)
        log.info("decision %s: comment set on job %s", decision_id, target.job.job_id)

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        """Cap by the ranks' own command sockets now, by the settings of the job for later attempts."""
        look = self._check_may_act(target)
        self._settings.cap(target, fraction, from_restart=look.restarts)
        done = cap_ranks(self._ranks, target, fraction)
        log.info("decision %s: job %s capped at %g", decision_id, target.job.job_id, fraction)
        return f"{done}, and on later attempts"

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        """Ask by the ranks' own command sockets. Once they were asked, their proof does not wait for slurmctld."""
        try:
            self._check_may_act(target)
        except TemporaryError:
            if not self._checkpoints.has_asked(target, decision_id):
                raise
        return self._checkpoints.advance(target, decision_id=decision_id, deadline_unix_s=deadline_unix_s)

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        """Store settings, then ``scontrol requeue``: id, options and environment stay. The job starts again after
        Slurm's own wait, two minutes by default."""
        look = self._check_can_restart(target)
        if not self._requeue_unasked and MAY_REQUEUE not in comment_words(look.comment):
            raise PermanentError(f"job {target.job.job_id} may not be requeued: its owner's comment does not say "
                                 f"tidegauge:{MAY_REQUEUE}")  # fmt: skip
        before = self._settings.prepare(target, changes, from_restart=look.restarts + 1)
        try:
            # Waiting for the nodes may have taken a while.
            self._check_can_restart(target)
            self._replace_run(target, self._commands.requeue)
        except (PermanentError, ChangedError):
            self._settings.undo(before)
            raise
        log.info("decision %s: Slurm job %s requeued: %s", decision_id, target.job.job_id, reason)

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """``scontrol requeuehold``: the job waits until its owner or an admin releases it."""
        self._check_can_restart(target)
        self._replace_run(target, self._commands.requeue_held)
        log.info("decision %s: Slurm job %s requeued and held: %s", decision_id, target.job.job_id, reason)

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        _one_job(target, self._check_may_act(target))
        self._commands.cancel(_name(target))
        log.info("decision %s: Slurm job %s is cancelled: %s", decision_id, target.job.job_id, reason)

    # Looking

    def _look(self, target: JobTarget) -> tuple[Presence, SqueueRow | None]:
        run = parse_incarnation(target.incarnation)
        if run is None or str(run.job_id) != target.job.job_id:
            return Presence.GONE, None
        look = self._commands.look(_name(target))
        return presence_of(run, target.job.uid, look), look

    def _check_running(self, target: JobTarget) -> SqueueRow:
        """The job, if this very run of it goes on. Raises ``ChangedError``."""
        seen, look = self._look(target)
        if look is None or seen is not Presence.RUNNING:
            raise ChangedError(f"job {target.job.job_id}: run {target.incarnation} is over ({seen.value})")
        return look

    def _check_may_act(self, target: JobTarget) -> SqueueRow:
        """The running job, unless its owner has exempted it by now. Raises ``PermanentError`` too."""
        look = self._check_running(target)
        if KEEP in comment_words(look.comment):
            raise PermanentError(f"job {target.job.job_id}: no action allowed: its comment says tidegauge:{KEEP}")
        return look

    def _check_can_restart(self, target: JobTarget) -> SqueueRow:
        """The job, if this very run of it may be acted on and Slurm can requeue it. Raises as ``_check_may_act``."""
        look = _one_job(target, self._check_may_act(target))
        if not look.batch:
            raise PermanentError(f"job {target.job.job_id} cannot be requeued: only sbatch jobs can")
        if not look.may_requeue:
            raise PermanentError(f"job {target.job.job_id} cannot be requeued: it was submitted with --no-requeue")
        return look

    # Acting

    def _replace_run(self, target: JobTarget, act: Callable[[str], None]) -> None:
        """Have the run ended so that another can follow, and look at the result. A lost answer is no failure if the run
        has been replaced, and an accepted command may still have come too late."""
        try:
            act(_name(target))
        except TemporaryError:
            if self._seen(target) not in (Presence.REPLACED, Presence.HELD):
                raise
        else:
            if self._seen(target) is Presence.GONE:
                raise ChangedError(f"job {target.job.job_id} ended before it could be requeued")

    def _seen(self, target: JobTarget) -> Presence:
        try:
            return self.presence(target)
        except SchedulerError:
            return Presence.UNKNOWN

    def _nodes(self, jobs: Sequence[SlurmJob]) -> Mapping[str, str]:
        """The gres of all nodes, asked for where a job's share cannot be computed without them."""
        if not any(needs_nodes(job.gres) for job in jobs):
            return {}
        with self._lock:
            if self._monotonic_s() < self._nodes_until_s:
                return self._node_gres
        try:
            found = self._commands.node_gres()
        except SchedulerError as error:
            log.warning("GPU shares unknown: %s", error)
            return {}
        with self._lock:
            self._node_gres, self._nodes_until_s = found, self._monotonic_s() + NODES_FOR_S
        return found


def _one_job(target: JobTarget, look: SqueueRow) -> SqueueRow:
    """``look``, if commands with its name mean this job and no other. Raises ``PermanentError``."""
    if look.het:
        raise PermanentError(f"job {target.job.job_id} is part of a heterogeneous job, on which Tidegauge does not act")
    if look.array and "_" not in _name(target):
        raise PermanentError(f"job {target.job.job_id} is an array, and the task is unknown")
    return look


def _name(target: JobTarget) -> str:
    """The name for commands: an array's number alone would mean all of its tasks."""
    return str(target.handle.get("name", target.job.job_id))


LAID_DOWN_WITHIN_S = 30.0
"""Nodes report about once a second; one that is busy takes longer, one that is silent is not waited for."""


class NextSettings:
    """Works on the store that hands settings to the nodes."""

    def __init__(self, store: SettingsStore) -> None:
        self._store = store

    def cap(self, target: JobTarget, fraction: float, *, from_restart: int) -> None:
        """Store a memory fraction for all further attempts, and for processes that the present one starts. Raises
        ``AuditError``."""
        before = self._now(target)
        environ = {**before.environ, FRACTION_VARIABLE: f"{fraction:.6g}"}
        self._put(target, before, replace(before, environ=environ, from_restart=from_restart))

    def prepare(self, target: JobTarget, changes: RequeueChanges, *, from_restart: int) -> JobSettings | None:
        """Store ``changes`` and wait until all nodes have them; returns the settings before, for ``undo``, and ``None``
        if there is nothing to store.

        Raises ``PermanentError`` for settings that are not allowed, ``AuditError``, and ``TemporaryError`` if a
        reporting node does not have them: the job could start there without."""
        before = self._now(target)
        if not changes.alloc_conf and not changes.environ:
            return None
        after = replace(
            before,
            environ={**before.environ, **changes.environ},
            alloc_conf={**before.alloc_conf, **changes.alloc_conf},
            from_restart=from_restart,
            torch_version=target.handle.get("torch_version") or before.torch_version,
        )
        self._put(target, before, after)
        without = self._store.missing_on(timeout_s=LAID_DOWN_WITHIN_S)
        if without:
            hosts = ", ".join(sorted(without)[:5]) + (" …" if len(without) > 5 else "")
            raise TemporaryError(
                f"job {target.job.job_id} is not requeued: its settings are not on {hosts} after "
                f"{LAID_DOWN_WITHIN_S:g} s, so it might restart there without them (see tidegauge status)"
            )
        return before

    def undo(self, before: JobSettings | None) -> None:
        """Restore the settings after a requeue that did not happen. Raises ``AuditError``."""
        if before is not None:
            self._store.put(before)

    def _now(self, target: JobTarget) -> JobSettings:
        job_id, uid = target.job.job_id, target.job.uid
        return self._store.get(job_id, uid) or JobSettings(job_id, uid)

    def _put(self, target: JobTarget, before: JobSettings, after: JobSettings) -> None:
        _check(target, after)
        if after != before:
            self._store.put(after)


def _check(target: JobTarget, settings: JobSettings) -> None:
    """Raises ``PermanentError`` for settings that a node would refuse."""
    try:
        if settings_name(settings.job_id) is None:
            raise ValueError("its name cannot be a file name")
        _check_texts(settings.environ)
        _check_texts(settings.alloc_conf)
        decode(encode(settings))
    except ValueError as error:
        raise PermanentError(f"job {target.job.job_id}: these settings cannot be applied: {error}") from error


def _check_texts(values: Mapping[str, object]) -> None:
    wrong = [name for name, value in values.items() if not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{wrong[0]} is not a text")
