"""Answers requests to a keeper, and changes its job's record accordingly. Knows no process, no file and no socket.

A request is written down under its decision id before it begins, so that a repeated request is carried out once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from tidegauge.core.alloc_conf import merge_alloc_conf
from tidegauge.core.jobs.launches import MAX_DECISIONS, MAX_ID_CHARS, MAX_TEXTS, LaunchRecord, LaunchState
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge.core.text import one_line

CHANGED, BUSY, REFUSED = "changed", "busy", "refused"
"""Kinds of an error: the job is not that run any more; ask again later; it will not be done however often one asks."""

DEFAULT_GRACE_S = 30.0
"""As long as torchrun gives its ranks between SIGTERM and SIGKILL, and as Kubernetes gives a pod."""
MAX_GRACE_S = 3600.0
MAX_SAID_CHARS = 2000
"""Characters of one text for the terminal."""


@dataclass(frozen=True)
class Stop:
    """A request to end the command."""

    then: LaunchState
    """``RUNNING``: start it again. ``HELD``, ``ENDED``: leave."""
    reason: str
    grace_s: float


class RequestError(Exception):
    """The request is refused. The message is for people."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class KeeperRequests:
    """The job's record, its next environment, and the requested stop."""

    def __init__(
        self,
        record: LaunchRecord,
        environ: Mapping[str, str],
        *,
        save: Callable[[LaunchRecord], None],
        say: Callable[[str], None],
        held_back: Callable[[], Optional[str]],
    ) -> None:
        """``save`` writes the record, ``say`` prints to the owner; neither raises. ``held_back`` gives the reason why
        the command cannot be ended right now, or ``None``."""
        self.record = record
        self.environ = dict(environ)
        """Of the attempt that runs, with what is to change for the next."""
        self.stop: Optional[Stop] = None
        self._save = save
        self._say = say
        self._held_back = held_back
        self.changed_environ: dict[str, str] = {}
        """Variables that differ from the environment that ``tidegauge run`` was started with."""
        self.told: deque[str] = deque(maxlen=MAX_TEXTS)
        """The last messages to the owner, whole."""
        self._table: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "notify": self._notify,
            "annotate": self._annotate,
            "cap": self._cap,
            "requeue": self._requeue,
            "hold": self._hold,
            "cancel": self._cancel,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out ``{"command": NAME, …}``: ``{"ok": true, …}``, or ``{"error": …, "kind": …}``."""
        name = request.get("command")
        if name == "describe":
            return {"ok": True, **self.record.as_json()}
        try:
            if not isinstance(name, str) or name not in self._table:
                known = ", ".join(["describe", *self._table])
                raise RequestError(f"no such command: {str(name)[:40]} (there are {known})", REFUSED)
            if _decision_id(request) in self.record.decisions:
                return {"ok": True, "already": True}
            self._check_run(request)
            self._table[name](request)
        except RequestError as error:
            return {"error": str(error), "kind": error.kind}
        return {"ok": True}

    def attempt_began(self, now_unix_s: float, *, restarts: int) -> None:
        self.stop = None
        self._set(state=LaunchState.RUNNING, restarts=restarts, started_unix_s=now_unix_s)

    def ended(self, state: LaunchState, *, exit_status: int, cancelled: bool = False) -> None:
        """It has ended for good."""
        self._set(state=state, exit_status=exit_status, cancelled=cancelled)

    def _check_run(self, request: Mapping[str, Any]) -> None:
        restarts = request.get("restarts")
        job, now = self.record.job_id, self.record.restarts
        if isinstance(restarts, bool) or not isinstance(restarts, int):
            raise RequestError("restarts must say which attempt is meant, counted from 0", REFUSED)
        if restarts != now:
            raise RequestError(f"job {job} is in attempt {now} now, not in attempt {restarts}", CHANGED)
        if self.stop is not None or self.record.state is not LaunchState.RUNNING:
            raise RequestError(f"job {job} is already being stopped", CHANGED)

    def _notify(self, request: Mapping[str, Any]) -> None:
        text = _text(request, "text")
        message = one_line(" / ".join(text.splitlines()))
        self._done(request, messages=(*self.record.messages, message)[-MAX_TEXTS:])
        self.told.append(text)
        self._say(text)

    def _annotate(self, request: Mapping[str, Any]) -> None:
        self._done(request, remarks=(*self.record.remarks, one_line(_text(request, "text")))[-MAX_TEXTS:])

    def _cap(self, request: Mapping[str, Any]) -> None:
        self._refuse_if_exempt()
        fraction = request.get("fraction")
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
            raise RequestError("fraction must be a number above 0 and at most 1", REFUSED)
        self._done(request)
        self._change({FRACTION_VARIABLE: repr(float(fraction))})

    def _requeue(self, request: Mapping[str, Any]) -> None:
        if not self.record.requeueable:
            self._refuse("its owner did not allow a requeue (tidegauge run --requeue)")
        settings = _words(request, "alloc_conf")
        version = request.get("torch_version")
        changes = merge_alloc_conf(
            self.environ, settings, torch_version=version if isinstance(version, str) else None
        )  # fmt: skip
        changes.update(_words(request, "environ"))
        self._end(request, LaunchState.RUNNING)
        self._change(changes)
        told = "".join(f"\nwith {name}={value}" for name, value in changes.items())
        self._say(f"stopping and restarting this job: {_reason(request)}{told}")

    def _hold(self, request: Mapping[str, Any]) -> None:
        self._end(request, LaunchState.HELD)
        self._say(f"stopping and holding this job: {_reason(request)}")

    def _cancel(self, request: Mapping[str, Any]) -> None:
        self._end(request, LaunchState.ENDED)
        self._say(f"stopping this job for good: {_reason(request)}")

    def _end(self, request: Mapping[str, Any], then: LaunchState) -> None:
        self._refuse_if_exempt()
        grace_s = request.get("grace_s", DEFAULT_GRACE_S)
        if isinstance(grace_s, bool) or not isinstance(grace_s, (int, float)) or not 0 <= grace_s < math.inf:
            raise RequestError("grace_s must be a number of seconds", REFUSED)
        stop = Stop(then, _reason(request), float(min(grace_s, MAX_GRACE_S)))
        held_back = self._held_back()
        if held_back is not None:
            raise RequestError(f"job {self.record.job_id}: {held_back}", BUSY)
        self.stop = stop
        self._done(request, state=LaunchState.STOPPING)

    def _refuse_if_exempt(self) -> None:
        if self.record.exempt:
            self._refuse("its owner exempted it from actions (tidegauge run --no-actions)")

    def _refuse(self, why: str) -> NoReturn:
        raise RequestError(f"job {self.record.job_id}: {why}", REFUSED)

    def _change(self, changes: Mapping[str, str]) -> None:
        self.environ.update(changes)
        self.changed_environ.update(changes)

    def _done(self, request: Mapping[str, Any], **changes: Any) -> None:
        """Write down that a request is done, with its changes to the record; only then it begins."""
        self._set(decisions=(*self.record.decisions, request["id"])[-MAX_DECISIONS:], **changes)

    def _set(self, **changes: Any) -> None:
        self.record = self.record._replace(**changes)
        self._save(self.record)


def _reason(request: Mapping[str, Any]) -> str:
    return one_line(str(request.get("reason") or "no reason given"))


def _text(request: Mapping[str, Any], name: str) -> str:
    """The text of a field, cut to ``MAX_SAID_CHARS``: half a message is better than none."""
    text = request.get(name)
    if not isinstance(text, str) or not text:
        raise RequestError(f"{name} must be a text", REFUSED)
    return text[:MAX_SAID_CHARS]


def _decision_id(request: Mapping[str, Any]) -> str:
    decision_id = request.get("id")
    if not isinstance(decision_id, str) or not decision_id or decision_id != one_line(decision_id, MAX_ID_CHARS):
        raise RequestError(f"id must be one line of at most {MAX_ID_CHARS} characters", REFUSED)
    return decision_id


def _words(request: Mapping[str, Any], name: str) -> dict[str, str]:
    """Settings or variables: names and values that an environment can hold."""
    words = request.get(name) or {}
    fine = isinstance(words, dict) and all(
        word and word.isprintable() and not set(word) & set("=,:") and isinstance(value, str) and value.isprintable()
        for word, value in words.items()
    )
    if not fine:
        raise RequestError(f"{name} must be an object of texts", REFUSED)
    return dict(words)
