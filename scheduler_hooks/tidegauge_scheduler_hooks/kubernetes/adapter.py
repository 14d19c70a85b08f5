"""``SchedulerPort`` for Kubernetes. See docs/kubernetes_actions.md."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, JobTarget, SchedulerFacts
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.jobs.kubernetes import (
    ACTIONS,
    CHANGES,
    ENDED,
    INCIDENT,
    KEEP,
    MAY_REQUEUE,
    RECOMMENDED,
    REMARK,
    REQUEUE,
    STOPPED,
    namespace_of,
)
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.kubernetes.events import (
    CANCELLED_EVENT,
    ENDED_EVENT,
    HELD_EVENT,
    INCIDENT_EVENT,
    MAX_NOTE_BYTES,
    REMARK_EVENT,
    REQUEUED_EVENT,
    cut,
    record_event,
)
from tidegauge_scheduler_hooks.kubernetes.facts_of_workloads import can_do, facts_of, find, is_ours
from tidegauge_scheduler_hooks.kubernetes.intents import CANCEL, HOLD, Changes, IncidentIntent, Stopped, merged
from tidegauge_scheduler_hooks.kubernetes.memory_incidents import write_incident
from tidegauge_scheduler_hooks.kubernetes.owners import BY_NAME, KINDS, State, unread_object
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import (
    ConflictError,
    ForbiddenError,
    KubeApi,
    Object,
    ObjectNotFoundError,
)
from tidegauge_scheduler_hooks.kubernetes.recommendations import recommendation
from tidegauge_scheduler_hooks.kubernetes.requeues import encoded, requeue_order, wanted_changes
from tidegauge_scheduler_hooks.kubernetes.run_ends import EndedRun, end_of, goes_on
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_annotations
from tidegauge_scheduler_hooks.kubernetes.stops import TRIES, Stops, goes_by_condition, take_marks_off
from tidegauge_scheduler_hooks.kubernetes.team_policies import SAYS_NOTHING, TeamPolicies, TeamWord
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    CheckpointProgress,
    PermanentError,
    Presence,
    ProcessCommands,
    RequeueChanges,
    SchedulerError,
    TemporaryError,
)
from tidegauge_scheduler_hooks.rank_commands import cap_ranks, tell_through_rank

log = logging.getLogger(__name__)

_AFTER = {HOLD: Presence.HELD, CANCEL: Presence.GONE}


def presence_of(incarnation: str, workload: Workload | None) -> Presence:
    """The state of the run ``incarnation``, given its present workload (``None``: there is no such object)."""
    if workload is None or not incarnation.startswith(f"{workload.uid}#"):
        return Presence.GONE
    now = workload.state
    if now is State.FINISHED:
        return Presence.GONE
    ended = _ended_by_us(incarnation, workload)
    if now is State.RUNNING:
        if workload.incarnation != incarnation:
            return Presence.REPLACED
        return Presence.RUNNING if ended is None else Presence.STOPPING
    if now is State.STARTING:
        return Presence.REPLACED
    if now is State.STOPPING or workload.living:
        return Presence.STOPPING
    if ended is not None:
        return ended
    if workload.order is not None:
        # A later run that was ended so that it starts again.
        return Presence.REPLACED
    # Somebody else suspended it: Kueue, which starts it again by itself, or a person, who has to.
    return Presence.REPLACED if workload.queue is not None and workload.stopped is None else Presence.HELD


def _ended_by_us(incarnation: str, workload: Workload) -> Presence | None:
    """The state to expect if Tidegauge ended this very run; ``None``: it did not."""
    order, stopped = workload.order, workload.stopped
    if order is not None and order.mark == incarnation:
        return Presence.REPLACED
    if stopped is not None and stopped.mark == incarnation:
        return _AFTER[stopped.action]
    return None


CONTROLLER_AWAY_S = 60.0
"""A Lease that is older than this has no holder: leaders renew it every few seconds."""


class KubernetesScheduler:
    """The Kubernetes adapter. A job is the owner of the pods of its ranks, as the API server says; the kernel tells the
    pod of each rank.

    ``kinds``: those that may be acted on. ``requeue_unasked``: all workloads may be requeued that do not forbid it, not
    only those whose owner allowed it. ``policies``: what teams say of their namespaces. ``controller_age_s``: the
    seconds since the controller renewed its Lease; ``None``: there is none."""

    def __init__(
        self,
        api: KubeApi,
        directory: PodDirectory,
        ranks: ProcessCommands,
        *,
        controller_age_s: Callable[[], float | None],
        kinds: Collection[str] = tuple(KINDS),
        checkpoints: RankCheckpoint | None = None,
        requeue_unasked: bool = False,
        shared_gpu_replicas: int | None = None,
        policies: TeamPolicies | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._directory = directory
        self._ranks = ranks
        self._controller_age_s = controller_age_s
        self._kinds = frozenset(kinds)
        self._checkpoints = checkpoints or RankCheckpoint(ranks)
        self._requeue_unasked = requeue_unasked
        self._shared_gpu_replicas = shared_gpu_replicas
        self._policies = policies
        self._wall_s = wall_s
        self._stops = Stops(api)
        self._refused: set[tuple[str, str]] = set()
        """Kinds by namespace that no annotation could be written on the last time, which was logged."""

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        """Facts from the watches, without a request. Raises ``TemporaryError`` while they do not know the pods."""
        ours = [view for view in jobs if is_ours(view)]
        if ours:
            _check_known(self._directory.problem)
        teams = self._teams() if ours else {}
        found = ((view, find(view, self._directory.owned, self._directory.with_pods)) for view in ours)
        return {
            view.key: facts_of(
                workload,
                view,
                kinds=self._kinds,
                requeue_unasked=self._requeue_unasked,
                shared_gpu_replicas=self._shared_gpu_replicas,
                team=teams.get(workload.namespace, SAYS_NOTHING),
            )
            for view, workload in found
            if workload is not None
        }

    def ends(self, jobs: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        """How these runs ended, from the watches, without a request. Raises ``TemporaryError`` while they do not know
        the pods."""
        ours = [view for view in jobs if is_ours(view)]
        if ours:
            _check_known(self._directory.problem)
        found = {view.key: self._end_of(view) for view in ours}
        return {key: end for key, end in found.items() if end is not None}

    def remark_end(self, job: JobView, record: JobRecord, text: str) -> None:
        """Leave an Event and the annotation ``ENDED`` on the workload, if it is there still."""
        _check_known(self._directory.problem)
        run = self._run_of(job)
        if run is None or run.is_deleted:
            return
        if goes_on(run):
            raise TemporaryError(f"job {record.job.job_id}: its pods still run")
        # By its text: the next run of the same object has another one, a repetition the same.
        once = f"{record.job.job_id} {text}"
        self._record(run.workload, ENDED_EVENT, text, once, warning=record.end is JobEnd.OOM)
        said = {ENDED: cut(text, MAX_NOTE_BYTES), RECOMMENDED: recommendation(record)}
        with suppress(ObjectNotFoundError):  # it was deleted meanwhile
            self._say_of_end(run.workload, {name: text for name, text in said.items() if text is not None})

    def show_incident(self, incident: Incident, records: Sequence[DecisionRecord], job: JobView | None) -> None:
        """Write the ``MemoryIncident`` of an incident whose ranks are really in pods of that workload."""
        run = None if job is None else self._run_of(job)
        namespace = namespace_of(incident.key.job.job_id)
        if namespace is None:
            return
        try:
            write_incident(self._api, incident, records, None if run is None else run.workload, namespace)
        except ObjectNotFoundError as error:
            # Without its workload there is none to write to, or somebody deleted it.
            if error.kind_missing:
                raise

    def presence(self, target: JobTarget) -> Presence:
        """Look by one GET of the workload. Raises ``TemporaryError``, ``PermanentError``."""
        return presence_of(target.incarnation, self._look(target))

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Leave a warning Event on the workload, and print on the standard error of its first rank. The annotation
        ``INCIDENT`` is for the controller, which marks the pods."""
        workload = self._check_running(target)
        self._record(workload, INCIDENT_EVENT, text, decision_id)
        try:
            tell_through_rank(self._ranks, target, text, decision_id=decision_id)
        except SchedulerError as error:
            log.info("decision %s: owner notified by Event only: %s", decision_id, error)
        incident = IncidentIntent(decision_id, target.incarnation, text, self._wall_s())
        self._mark(workload, partial(self._check_running, target), lambda now: {INCIDENT: _incident(now, incident)})

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Leave an Event, and replace the annotation ``REMARK``."""
        workload = self._check_running(target)
        self._record(workload, REMARK_EVENT, text, decision_id, warning=False)
        self._mark(workload, partial(self._check_running, target), lambda _: {REMARK: cut(text, MAX_NOTE_BYTES)})

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        """Cap by the ranks' own command sockets now, and by the annotation ``CHANGES`` of the workload for every pod
        that is made from now on."""
        workload = self._check_may(target, ActionKind.CAP)
        later = Changes(environ={FRACTION_VARIABLE: f"{fraction:.6g}"})
        remembered = workload.why_not_stoppable() is None
        if remembered:
            self._annotate(
                partial(self._check_running, target), lambda now: {CHANGES: encoded(now, merged(now.changes, later))}
            )
        done = cap_ranks(self._ranks, target, fraction)
        log.info("decision %s: %s capped at %g", decision_id, workload.title, fraction)
        return f"{done}, and in later pods" if remembered else f"{done}; later runs are not capped"

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        """Ask by the ranks' own command sockets. Once they were asked, their proof does not wait for the API server."""
        try:
            self._check_may(target, ActionKind.CHECKPOINT)
        except TemporaryError:
            if not self._checkpoints.has_asked(target, decision_id):
                raise
        return self._checkpoints.advance(target, decision_id=decision_id, deadline_unix_s=deadline_unix_s)

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        """Suspend with an order to the controller, which starts the workload again when its pods are gone."""
        wanted = wanted_changes(target, changes)
        self._check_controller(target)

        def order(workload: Workload) -> Mapping[str, str | None]:
            self._refuse_unless(target, workload, ActionKind.REQUEUE)
            asked = self._team(workload).may_requeue or MAY_REQUEUE in workload.words
            if not self._requeue_unasked and not asked:
                raise PermanentError(
                    f"{workload.title} may not be requeued: its annotation {ACTIONS} does not say {MAY_REQUEUE}"
                )
            text = requeue_order(
                workload,
                wanted,
                reason,
                decision_id=decision_id,
                at_unix_s=self._wall_s(),
                earlier=[self._directory.earlier(pod) for pod in workload.living],
            )
            self._check_unmarked(workload)
            return {REQUEUE: text, STOPPED: None}

        self._stop(target, order, decision_id, REQUEUED_EVENT, f"suspended for a requeue: {reason}")

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """Suspend until a person resumes it."""
        write = self._stopped(target, ActionKind.HOLD, HOLD, reason, decision_id)
        self._stop(target, write, decision_id, HELD_EVENT, f"suspended until someone resumes it: {reason}")

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """Suspend for good: the object stays, so that its owner can read why. Nothing is ever deleted."""
        write = self._stopped(target, ActionKind.CANCEL, CANCEL, reason, decision_id)
        self._stop(target, write, decision_id, CANCELLED_EVENT, f"stopped for good (suspended, not deleted): {reason}")

    # Looking

    def _team(self, workload: Workload) -> TeamWord:
        """What its namespace says. Raises ``TemporaryError``: that is not known."""
        return self._teams().get(workload.namespace, SAYS_NOTHING)

    def _teams(self) -> Mapping[str, TeamWord]:
        """What namespaces say. Raises ``TemporaryError``."""
        if self._policies is None:
            return {}
        _check_known(self._policies.problem, what="MemoryPolicies")
        return self._policies.by_namespace()

    def _end_of(self, view: JobView) -> JobEnd | None:
        run = self._run_of(view)
        return None if run is None else end_of(run)

    def _run_of(self, view: JobView) -> EndedRun | None:
        """The run that all of these ranks were in, by the kernel and the API server."""
        if any(rank.pod is None or not rank.pod.job_known for rank in view.ranks):
            return None
        run = self._directory.ended_run(rank.pod.pod_uid for rank in view.ranks if rank.pod is not None)
        return None if run is None or run.workload.job_id != view.job_id else run

    def _look_again(self, workload: Workload) -> Workload:
        """Raises ``ObjectNotFoundError``, also where another object has the name by now."""
        obj = self._api.get(workload.kind.resource, workload.namespace, workload.name)
        if obj["metadata"]["uid"] != workload.uid:
            raise ObjectNotFoundError(f"{workload.title} is another one by now")
        return Workload(workload.kind, obj, foreign=workload.foreign)

    def _look(self, target: JobTarget) -> Workload | None:
        """The workload as it is now; ``None``: there is none."""
        kind = BY_NAME.get(str(target.handle.get("kind")))
        namespace, _, _ = target.job.job_id.partition("/")
        name, foreign = target.handle.get("name"), target.handle.get("foreign")
        if kind is None or not isinstance(name, str):
            return None
        _check_known(self._directory.problem_below(kind))
        try:
            obj = self._api.get(kind.resource, namespace, name) if kind.is_read else _unread(target, namespace, name)
        except ObjectNotFoundError:
            return None
        workload = Workload(kind, obj, tuple(self._directory.pods_of(obj)), foreign)
        there = kind.is_read or workload.living  # its pods alone say that it is there
        return workload if there and workload.job_id == target.job.job_id else None

    def _check_running(self, target: JobTarget) -> Workload:
        """The workload, if this very run of it goes on. Raises ``ChangedError``."""
        return _running(target, self._look(target))

    def _check_may(self, target: JobTarget, action: ActionKind) -> Workload:
        """The running workload, if the action is allowed on it."""
        workload = self._check_running(target)
        self._refuse_unless(target, workload, action)
        return workload

    def _refuse_unless(self, target: JobTarget, workload: Workload, action: ActionKind) -> None:
        """Raises ``ChangedError``, and ``PermanentError`` where its owner, its kind or the setting forbids it."""
        _running(target, workload)
        if KEEP in workload.words:
            raise PermanentError(
                f"{workload.title}: no action allowed: {ACTIONS} says {KEEP} on it or on one of its pods"
            )
        why_not = self._team(workload).why_not(action)
        if why_not is not None:
            raise PermanentError(f"{workload.title}: no {action.value}: {why_not}")
        if action not in can_do(workload, self._kinds):
            unset = f"{workload.kind.name} is not in the setting kubernetes_kinds"
            acted_on = workload.kind.name in self._kinds
            why = workload.why_only_told() or (workload.why_not_stoppable() if acted_on else unset)
            raise PermanentError(f"{workload.title}: no {action.value}: {why}")

    def _check_controller(self, target: JobTarget) -> None:
        """Without a controller the workload would stay suspended. Raises ``TemporaryError``."""
        away = self._controller_away()
        if away is not None:
            raise TemporaryError(
                f"job {target.job.job_id} is not suspended: no controller would resume it ({away}; kubectl get lease "
                "in Tidegauge's namespace, docs/kubernetes_controller.md)"
            )

    def _controller_away(self) -> str | None:
        """Why there is no active controller; ``None``: there is one."""
        age_s = self._controller_age_s()
        if age_s is None:
            return "there is none"
        if age_s <= CONTROLLER_AWAY_S:
            return None
        return "it does not renew its Lease" if math.isinf(age_s) else f"no Lease renewal for {age_s:.0f} s"

    def _check_unmarked(self, workload: Workload) -> None:
        """Otherwise its own ``podFailurePolicy`` might fail it when it is suspended. Raises ``TemporaryError``."""
        if goes_by_condition(workload, self._directory.links_of(workload.obj)):
            take_marks_off(self._api, workload, controller_away=self._controller_away())

    # Acting

    def _stopped(
        self, target: JobTarget, action: ActionKind, word: str, reason: str, decision_id: str
    ) -> Callable[[Workload], Mapping[str, str | None]]:
        def write(workload: Workload) -> Mapping[str, str | None]:
            self._refuse_unless(target, workload, action)
            text = encoded(workload, Stopped(decision_id, word, reason, self._wall_s(), target.incarnation))
            if action is ActionKind.HOLD:  # one that is cancelled may fail
                self._check_unmarked(workload)
            return {STOPPED: text, REQUEUE: None}

        return write

    def _stop(
        self,
        target: JobTarget,
        write: Callable[[Workload], Mapping[str, str | None]],
        decision_id: str,
        event_reason: str,
        note: str,
    ) -> None:
        def look() -> Workload:
            found = self._look(target)
            if found is None:
                raise ChangedError(f"job {target.job.job_id}: the workload no longer exists")
            return found

        before = self._stops.stop(look, write, incarnation=target.incarnation, decision_id=decision_id)
        if before is None:
            return
        log.info("decision %s: %s %s", decision_id, before.title, note)
        try:
            self._record(before, event_reason, note, decision_id)
        except SchedulerError as error:
            log.warning("decision %s: done, but the Event could not be written: %s", decision_id, error)

    def _annotate(self, look: Callable[[], Workload], value: Callable[[Workload], Mapping[str, str | None]]) -> None:
        """Write annotations on the workload that ``look`` reads anew, unless they are there (``None``: not)."""
        for _ in range(TRIES):
            workload = look()
            wanted = value(workload)
            there = annotations_of(workload.obj)
            if all(there.get(name) == text for name, text in wanted.items()):
                return
            patch = annotate_patch(workload.obj, wanted)
            try:
                self._api.patch(workload.kind.resource, workload.namespace, workload.name, patch)
            except ConflictError:
                continue
            return
        raise TemporaryError(f"{workload.title}: another client keeps changing it")

    def _mark(
        self, workload: Workload, look: Callable[[], Workload], value: Callable[[Workload], Mapping[str, str | None]]
    ) -> None:
        self._where_allowed(workload, lambda: self._annotate(look, value))

    def _say_of_end(self, workload: Workload, said: Mapping[str, str]) -> None:
        """By server-side apply, as nobody else writes these: others' changes are no conflict."""

        def write() -> None:
            obj = self._look_again(workload).obj
            there = annotations_of(obj)
            if {name: there[name] for name in (ENDED, RECOMMENDED) if name in there} != said:
                apply_annotations(self._api, workload.kind.resource, obj["metadata"], said)

        self._where_allowed(workload, write)

    def _where_allowed(self, workload: Workload, write: Callable[[], None]) -> None:
        """Annotate if a role allows it: one for messages alone has no patch, and the owner has the Event."""
        kind, where = workload.kind.name, (workload.kind.name, workload.namespace)
        if kind not in self._kinds:
            return
        try:
            write()
        except ForbiddenError as error:
            if where not in self._refused:
                log.info("%s is not annotated, nor is any other %s there: %s", workload.title, kind, error)
            self._refused.add(where)
        else:
            self._refused.discard(where)

    def _record(self, workload: Workload, reason: str, note: str, decision_id: str, *, warning: bool = True) -> None:
        regarding = (workload.kind.resource, workload.obj)
        record_event(self._api, regarding, reason=reason, note=note, decision_id=decision_id, warning=warning)


def _check_known(problem: str | None, *, what: str = "pods") -> None:
    if problem is not None:
        raise TemporaryError(f"{what} unknown: {problem}")


def _unread(target: JobTarget, namespace: str, name: str) -> Object:
    """An owner that is not read, with the uid of the run that was judged."""
    return unread_object(namespace, name, target.incarnation.partition("#")[0])


def _running(target: JobTarget, workload: Workload | None) -> Workload:
    seen = presence_of(target.incarnation, workload)
    if workload is None or seen is not Presence.RUNNING:
        raise ChangedError(f"job {target.job.job_id}: run {target.incarnation} is over ({seen.value})")
    return workload


def _incident(workload: Workload, incident: IncidentIntent) -> str:
    """The annotation, or the present one if this decision wrote it."""
    before = workload.incident
    same = before is not None and (before.decision, before.mark) == (incident.decision, incident.mark)
    return annotations_of(workload.obj)[INCIDENT] if same else encoded(workload, incident)
