"""Where one run of a workload stands, from the object, what we wrote on it, and its pods. Pure."""

from __future__ import annotations

from tidegauge_scheduler_hooks.kubernetes.intents import CANCEL, COPIED, HOLD
from tidegauge_scheduler_hooks.kubernetes.owners import State
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload
from tidegauge_scheduler_hooks.ports import Presence

_AFTER = {HOLD: Presence.HELD, CANCEL: Presence.GONE, COPIED: Presence.REPLACED}


def presence_of(incarnation: str, workload: Workload | None) -> Presence:
    """Where the run of that name is, seen that its workload looks like this (``None``: there is no such object)."""
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
    """How we ended this very run; ``None``: we did not."""
    order, stopped = workload.order, workload.stopped
    if order is not None and order.mark == incarnation:
        return Presence.REPLACED
    if stopped is not None and stopped.mark == incarnation:
        return _AFTER[stopped.action]
    return None
