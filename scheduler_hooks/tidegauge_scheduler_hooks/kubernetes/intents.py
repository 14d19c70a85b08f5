"""Intents for a workload, as annotations on the workload itself: written by the head, read by the controller.

A suspended object that says why survives every crash, and its owner sees it with ``kubectl describe``. Everyone who may
write the object may write these, too, so decoding trusts nothing: it takes only texts that ``encode`` writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegauge.core.jobs.settings import MAX_VALUE_CHARS

MAX_INTENT_BYTES = 4096
MAX_ATTEMPT = 1_000_000
MAX_TIME_S = 1e12
"""Thirty thousand years. JSON has whole numbers that no float can hold."""
MAX_TEXT_CHARS = 500
"""For reasons, texts and names: a longer one is cut when it is written, and refused when it is read."""

HOLD, CANCEL = "hold", "cancel"
ACTIONS = (HOLD, CANCEL)


@dataclass(frozen=True)
class Changes:
    """Changes to the owner's environment for an attempt (annotation ``CHANGES``)."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables to set; the injection takes only Tidegauge's own and the allocator's."""
    alloc_conf: Mapping[str, str] = field(default_factory=dict)
    """Allocator settings to merge into those of the job."""
    torch_version: str | None = None
    """The job's: it decides which variable carries ``alloc_conf``."""

    def __bool__(self) -> bool:
        return bool(self.environ or self.alloc_conf)


@dataclass(frozen=True)
class RequeueOrder:
    """A workload that is started again (annotation ``REQUEUE``, and afterwards ``RESTARTING``)."""

    decision: str
    attempt: int
    """The new ``ATTEMPT``."""
    reason: str
    at: float
    """Unix seconds."""
    mark: str
    """The incarnation that was ended."""
    environ: Mapping[str, str] = field(default_factory=dict)
    alloc_conf: Mapping[str, str] = field(default_factory=dict)
    torch_version: str | None = None

    @property
    def changes(self) -> Changes:
        return Changes(self.environ, self.alloc_conf, self.torch_version)


@dataclass(frozen=True)
class Stopped:
    """A workload that does not start again by itself (annotation ``STOPPED``)."""

    decision: str
    action: str
    """``hold`` or ``cancel``."""
    reason: str
    at: float
    mark: str = ""
    """The incarnation that was ended: the annotation says nothing about a later one."""


@dataclass(frozen=True)
class IncidentIntent:
    """An incident of one run of a workload (annotation ``INCIDENT``)."""

    decision: str
    mark: str
    """The incarnation that it is about."""
    text: str
    """The text that its owner got."""
    at: float


def encode(intent: Changes | RequeueOrder | Stopped | IncidentIntent) -> str:
    """The annotation's text; long reasons are cut. Raises ``ValueError`` if it is longer than ``MAX_INTENT_BYTES`` even
    so, or if ``decode`` would refuse it."""
    raw = asdict(intent)
    for name in ("reason", "decision", "mark", "text"):
        if name in raw:
            raw[name] = raw[name][:MAX_TEXT_CHARS]
    # Texts are ours, but may repeat what a job calls itself: halves of surrogate pairs cannot be sent.
    text = json.dumps(raw, sort_keys=True, ensure_ascii=False).encode(errors="replace").decode()
    _DECODERS[type(intent)](text)
    return text


def decode_requeue(text: str) -> RequeueOrder:
    """Raises ``ValueError`` for anything that ``encode`` does not write."""
    raw = _object(text)
    attempt = raw.get("attempt")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or not 0 < attempt <= MAX_ATTEMPT:
        raise ValueError("attempt is not a count")
    return RequeueOrder(
        decision=_text(raw, "decision"),
        attempt=attempt,
        reason=_text(raw, "reason"),
        at=_time(raw),
        mark=_text(raw, "mark"),
        environ=_texts(raw, "environ"),
        alloc_conf=_texts(raw, "alloc_conf"),
        torch_version=_torch_version(raw),
    )


def decode_stopped(text: str) -> Stopped:
    """Raises ``ValueError`` for anything that ``encode`` does not write."""
    raw = _object(text)
    action = _text(raw, "action")
    if action not in ACTIONS:
        raise ValueError(f"action is not one of {', '.join(ACTIONS)}")
    mark = _text(raw, "mark") if "mark" in raw else ""
    return Stopped(_text(raw, "decision"), action, _text(raw, "reason"), _time(raw), mark)


def decode_changes(text: str) -> Changes:
    """Raises ``ValueError`` for anything that ``encode`` does not write; ``torch_version`` may be left out."""
    raw = _object(text)
    return Changes(_texts(raw, "environ"), _texts(raw, "alloc_conf"), _torch_version(raw))


def decode_incident(text: str) -> IncidentIntent:
    """Raises ``ValueError`` for anything that ``encode`` does not write."""
    raw = _object(text)
    return IncidentIntent(_text(raw, "decision"), _text(raw, "mark"), _text(raw, "text"), _time(raw))


_DECODERS: Mapping[type, Callable[[str], object]] = {
    Changes: decode_changes,
    RequeueOrder: decode_requeue,
    Stopped: decode_stopped,
    IncidentIntent: decode_incident,
}


def merged(before: Changes, after: Changes) -> Changes:
    """``before``, and ``after`` where both say something."""
    return Changes(
        {**before.environ, **after.environ},
        {**before.alloc_conf, **after.alloc_conf},
        after.torch_version or before.torch_version,
    )


def _object(text: str) -> Mapping[str, Any]:
    if len(text.encode(errors="replace")) > MAX_INTENT_BYTES:
        raise ValueError(f"longer than {MAX_INTENT_BYTES} bytes")
    try:
        raw = json.loads(text)
        json.dumps(raw, ensure_ascii=False).encode()  # halves of surrogate pairs, which nothing can send on
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    return raw


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    if not isinstance(found, str) or len(found) > MAX_TEXT_CHARS:
        raise ValueError(f"{name} is not a text of at most {MAX_TEXT_CHARS} characters")
    return found


def _texts(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    found = raw.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not an object")
    for key, value in found.items():
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS or "\0" in value + key:
            raise ValueError(f"a value of {name} is not a usable text")
    return found


def _time(raw: Mapping[str, Any]) -> float:
    found = raw.get("at")
    if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) < MAX_TIME_S:
        raise ValueError("at is not a time")
    return float(found)


def _torch_version(raw: Mapping[str, Any]) -> str | None:
    found = raw.get("torch_version")
    if not (found is None or (isinstance(found, str) and len(found) <= MAX_TEXT_CHARS)):
        raise ValueError("torch_version is not a text")
    return found
