"""Entries of the journal about conversations, and their texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from tidegauge.core.jobs.tenants import Tenant
from tidegauge_exporter.notify.ports import Posted

SLACK = "slack"
"""The channel's name in the journal."""
MAX_TOLD = 200
"""Bound of kept keys of lines; of older lines only the time is kept."""


@dataclass(frozen=True)
class Conversation:
    """An entry about one message."""

    channel: str
    ts: str

    @property
    def posted(self) -> Posted:
        return Posted(self.channel, self.ts)


@dataclass(frozen=True)
class Thread(Conversation):
    """The thread of an incident, or its place in that of a storm, or of the growth that an error ended."""

    face: str
    """``story_lines.face`` of the head."""
    body: str
    """A digest of the head."""
    shown_unix_s: float
    in_storm: bool = False
    """True for a reply in the thread of a storm, or of growth, which has no replies of its own."""
    plotted: str = ""
    """The peak severity at the latest plot; empty: no plot yet."""
    told: tuple[str, ...] = ()
    """Keys of sent lines in their order."""
    told_before_unix_s: float = 0.0
    """Time before which all lines were sent or left out."""
    replicas: int = 0
    """Of a server: how many replicas its latest message about them named, the head included."""

    def with_told(self, *keys: str, at_unix_s: float) -> Thread:
        """The thread with further sent lines; ``at_unix_s`` is the time of the latest of them."""
        told = (*self.told, *keys)
        if len(told) <= MAX_TOLD:
            return replace(self, told=told)
        return replace(self, told=told[-MAX_TOLD // 2 :], told_before_unix_s=max(self.told_before_unix_s, at_unix_s))


@dataclass(frozen=True)
class Storm(Conversation):
    """The one thread for many incidents that began together."""

    joined_unix_s: float
    """Time of the last incident."""
    began_unix_s: float = 0.0
    """Time of the first incident; 0: unknown, it began under an earlier version."""
    numbers: tuple[int, ...] = ()
    tenants: tuple[str, ...] = ()
    face: str = ""
    """A digest of all its incidents in its head."""
    shown_unix_s: float = 0.0
    over: bool = False
    """True if all of them are closed, and no more join."""


@dataclass(frozen=True)
class AlertPost(Conversation):
    """The message about a group of Alertmanager."""

    alerts: str
    """A digest of the alerts in the message."""
    firing: bool
    at_unix_s: float


Kept = TypeVar("Kept")


def to_text(kept: Conversation) -> str:
    """The text in the journal, without fields that have their default."""
    values = {field.name: getattr(kept, field.name) for field in fields(kept)}
    changed = {field.name: values[field.name] for field in fields(kept) if values[field.name] != field.default}
    return json.dumps(changed, separators=(",", ":"))


def from_text(kind: Callable[..., Kept], text: str | None) -> Kept | None:
    """The entry; ``None`` for a missing text, and for one that this version does not understand."""
    if text is None:
        return None
    try:
        raw: dict[str, Any] = json.loads(text)
        if "uids" in raw:  # of a storm of an earlier version
            raw["tenants"] = [str(Tenant(uid)) for uid in raw.pop("uids")]
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()})
    except (ValueError, TypeError, AttributeError):
        return None


def posted_from(text: str | None) -> Posted | None:
    """The ``Posted`` in a text of ``json.dumps``; ``None`` as in ``from_text``."""
    try:
        return None if text is None else Posted(*json.loads(text))
    except (ValueError, TypeError):
        return None
