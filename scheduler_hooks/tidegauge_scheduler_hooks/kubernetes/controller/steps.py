"""Finds the next step on one workload: a pure function of its state. Every step leaves marks that show that it was
done, so the next look, after any crash, goes on where the last one stopped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidegauge.core.jobs.kubernetes import LEAK_CONDITION, REQUEUE, RESTARTING
from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, decode_requeue
from tidegauge_scheduler_hooks.kubernetes.kueue import ACTIVE, is_active
from tidegauge_scheduler_hooks.kubernetes.owners import State, condition, is_true, time_s
from tidegauge_scheduler_hooks.kubernetes.patches import is_others_word
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of, is_same_start, told_attempt

DEACTIVATED_WITHIN_S = 900.0
"""The order is written before the Workload is switched off; a head that crashed between the two comes back and asks
again within this time (docs/actions.md)."""
CLOCKS_APART_S = 30.0
"""Between the head, which writes the time of an order, and the API server, which writes those of pods."""
MAX_MESSAGE_CHARS = 1024


@dataclass(frozen=True)
class StepSurroundings:
    """Facts from the API server that an order needs, and that cost too much to be asked always."""

    unfinished: tuple[Object, ...] = ()
    """All pods below a workload that is suspended that have not ended, watched or not; those being deleted count. Below
    one that owes a proof, those of them that can show it."""
    queue_workload: Object | None = None
    """Kueue's Workload."""


class Act(str, Enum):
    """The acts; their values are those of ``steps_total{step}``."""

    WAIT = "wait"
    DROP = "drop"
    """Remove the order: it cannot be carried out, or need not be any more."""
    SETTLE = "settle"
    """Remove the order: it is done."""
    FORGET = "forget"
    """Nobody waits for the proof of a restart any more."""
    RESUME = "resume"
    ANNOTATE = "annotate"
    """``RESUME`` for a workload of Kueue: everything but switching it on."""
    ACTIVATE = "activate"
    PROVE = "prove"
    """Tell the owner what a new pod (the only one of ``pods``) carries; without one, that none was seen."""
    MARK = "mark"
    """Put ``LEAK_CONDITION`` on ``pods``."""
    UNMARK = "unmark"


@dataclass(frozen=True)
class WorkloadStep:
    """One step. ``reason`` is for people. Steps that carry out an order have ``order``."""

    act: Act
    reason: str = ""
    order: RequeueOrder | None = None
    pods: tuple[Object, ...] = ()


def next_step(workload: Workload, around: StepSurroundings, *, now_s: float, marks: bool = True) -> WorkloadStep | None:
    """The next step. ``None``: there is nothing to do until something changes. ``marks``: pods are marked."""
    if workload.obj["metadata"].get("deletionTimestamp"):
        return None
    text = annotations_of(workload.obj).get(REQUEUE)
    if text is not None:
        try:
            order = decode_requeue(text)
        except ValueError as error:
            return WorkloadStep(Act.DROP, f"the annotation {REQUEUE} cannot be read: {error}")
        return _of_order(workload, order, around, now_s=now_s)
    return (_of_incident(workload) if marks else None) or _of_restart(workload, around)


def _of_order(workload: Workload, order: RequeueOrder, around: StepSurroundings, *, now_s: float) -> WorkloadStep:
    if workload.state is State.FINISHED:
        return WorkloadStep(Act.DROP, "it has ended", order)
    if not order.mark.startswith(f"{workload.uid}#"):
        return WorkloadStep(Act.DROP, "the order is for another object of the same name", order)
    if workload.stopped is not None:
        return WorkloadStep(Act.DROP, f"it has been stopped since then ({workload.stopped.action})", order)
    if around.queue_workload is None:
        early = _too_early_or_late(workload, order)
    else:
        early = _too_early_or_late_in_queue(workload, order, around.queue_workload, now_s=now_s)
    early = early or _ending(workload, order, around.unfinished)
    if early is not None:
        return early
    return WorkloadStep(Act.RESUME if around.queue_workload is None else Act.ANNOTATE, order.reason, order)


def _too_early_or_late(workload: Workload, order: RequeueOrder) -> WorkloadStep | None:
    if workload.state in (State.STARTING, State.RUNNING):
        return WorkloadStep(Act.DROP, "someone else resumed it", order)
    if workload.attempt >= order.attempt:
        return WorkloadStep(Act.DROP, f"attempt {order.attempt} was started before", order)
    if workload.kind.suspend is not None and is_others_word(workload.obj, workload.kind.suspend):
        return WorkloadStep(Act.DROP, "someone else has suspended it since then", order)
    return None


def _too_early_or_late_in_queue(
    workload: Workload, order: RequeueOrder, queue_workload: Object, *, now_s: float
) -> WorkloadStep | None:
    """Two objects, so three patches: annotate the owner, switch its Workload on, take the order away."""
    active = is_active(queue_workload)
    if not active and is_others_word(queue_workload, ACTIVE):
        return WorkloadStep(Act.DROP, "someone else has deactivated its Workload since then", order)
    if workload.attempt >= order.attempt:
        return WorkloadStep(Act.SETTLE if active else Act.ACTIVATE, order.reason, order)
    if workload.state is State.RUNNING and not is_same_start(order.mark, workload.incarnation):
        return WorkloadStep(Act.DROP, "Kueue has started it anew since then", order)
    if active and now_s - order.at > DEACTIVATED_WITHIN_S:
        return WorkloadStep(
            Act.DROP, "its Workload is active: someone else activated it, or it was never deactivated", order
        )
    if active:
        return WorkloadStep(Act.WAIT, "its Workload is not deactivated yet", order)
    if is_true(queue_workload, "QuotaReserved"):
        return WorkloadStep(Act.WAIT, "Kueue has not evicted its Workload yet", order)
    return None


def _ending(workload: Workload, order: RequeueOrder, unfinished: tuple[Object, ...]) -> WorkloadStep | None:
    if workload.state is not State.SUSPENDED:
        return WorkloadStep(Act.WAIT, "its controller has not reported it suspended yet", order)
    if unfinished:
        more = f" and {len(unfinished) - 3} more" if len(unfinished) > 3 else ""
        names = ", ".join(pod["metadata"]["name"] for pod in unfinished[:3])
        return WorkloadStep(Act.WAIT, f"pods have not ended: {names}{more}", order)
    return None


def _of_restart(workload: Workload, around: StepSurroundings) -> WorkloadStep | None:
    """The step for a workload whose owner waits to be told with what it was started again."""
    if RESTARTING not in annotations_of(workload.obj):
        return None
    order = workload.restarting
    if order is None or not _was_restarted(workload, order) or workload.stopped is not None:
        return WorkloadStep(Act.FORGET, order=order)
    told = _told(workload, order)
    if told is not None:
        return WorkloadStep(Act.PROVE, order.reason, order, (told,))
    if workload.state is State.FINISHED:
        return WorkloadStep(Act.PROVE, order.reason, order)
    new = tuple(
        pod for pod in around.unfinished if not pod["metadata"].get("deletionTimestamp") and _is_younger(pod, order)
    )
    if new:
        return WorkloadStep(Act.PROVE, order.reason, order, new[:1])
    return WorkloadStep(Act.WAIT, "it has no new pod yet", order) if needs_proof(workload) else None


def _was_restarted(workload: Workload, order: RequeueOrder) -> bool:
    """The patch that restarts a workload writes the order and its attempt."""
    return order.mark.startswith(f"{workload.uid}#") and order.attempt == workload.attempt


def _is_younger(pod: Object, order: RequeueOrder) -> bool:
    """When it was started again no pod of it had been left, so a pod that is older shows that it was not."""
    made_s = time_s(pod["metadata"].get("creationTimestamp"))
    return made_s is None or made_s > order.at - CLOCKS_APART_S


def needs_proof(workload: Workload) -> bool:
    """Whether it runs, was started again, and no watched pod shows with what."""
    order = workload.restarting
    return order is not None and workload.state is State.RUNNING and _told(workload, order) is None


def _told(workload: Workload, order: RequeueOrder) -> Object | None:
    """A pod that the webhook told this attempt."""
    told = (pod for pod in workload.pods if told_attempt(pod) == order.attempt)
    return next((pod for pod in told if _is_younger(pod, order)), None)


def _of_incident(workload: Workload) -> WorkloadStep | None:
    """The step for an incident, which is of one run: pods of the next run are not marked for it."""
    incident = workload.incident
    if incident is None or workload.state is not State.RUNNING or incident.mark != workload.incarnation:
        marked = tuple(pod for pod in workload.living if is_marked(pod))
        return WorkloadStep(Act.UNMARK, "the incident is over", pods=marked) if marked else None
    # The annotation, fit for a condition: whoever may write the workload may have written it.
    message = one_line(incident.text, MAX_MESSAGE_CHARS, replacement=" ")
    unmarked = tuple(
        pod
        for pod in workload.living
        if not pod["metadata"].get("deletionTimestamp")
        and not workload.is_of_earlier_attempt(pod)
        and not (is_marked(pod) and (condition(pod, LEAK_CONDITION) or {}).get("message") == message)
    )
    return WorkloadStep(Act.MARK, message, pods=unmarked) if unmarked else None


def is_marked(pod: Object) -> bool:
    return is_true(pod, LEAK_CONDITION)
