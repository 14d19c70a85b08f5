"""Telling an owner, by all ways that there are: through the job's scheduler, and by a messenger."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegauge.core.incidents.actions import Decision
from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge_scheduler_hooks.ports import Messenger, PermanentError, SchedulerError, SchedulerPort, TemporaryError

_WHERE: Mapping[str, str] = {KUBERNETES: "by an Event on the workload"}
"""Where an owner reads it, by adapter. A line on the standard error of a rank goes with the Event, if it can."""


def tell_owner(decision: Decision, port: SchedulerPort | None, messenger: Messenger | None) -> str:
    """One way that works is enough: a messenger that is away must not undo what the terminal has shown. Returns what
    was done, for people.

    Raises ``TemporaryError`` if no way works now, ``PermanentError`` if none ever will, and ``ChangedError``.
    """
    ways: list[Callable[[], str]] = []
    if port is not None and decision.facts.scheduler_facts is not None:  # else it does not know the job
        ways.append(lambda: _through_the_scheduler(decision, port))
    if messenger is not None:
        ways.append(lambda: messenger.tell(decision))
    results = [_tried(way) for way in ways]
    told = [result for result in results if isinstance(result, str)]
    failed = [result for result in results if not isinstance(result, str)]
    if told:
        return "; ".join([f"the owner was told {' and '.join(told)}", *(f"not otherwise: {error}" for error in failed)])
    for error in failed:
        if isinstance(error, TemporaryError):
            raise error
    raise PermanentError("; ".join(map(str, failed)) or "there is no way to tell the owner")


def _tried(way: Callable[[], str]) -> str | SchedulerError:
    try:
        return way()
    except (TemporaryError, PermanentError) as error:
        return error


def _through_the_scheduler(decision: Decision, port: SchedulerPort) -> str:
    text = decision.parameters.get("text", decision.reason)
    port.notify(decision.target, text, decision_id=decision.decision_id)
    return _WHERE.get(decision.target.scheduler, "where the job prints")
