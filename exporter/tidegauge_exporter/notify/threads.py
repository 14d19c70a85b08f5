"""What the journal keeps of each conversation: values, and how they are written there. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from tidegauge.core.jobs.tenants import Tenant
from tidegauge_exporter.messages.chat import Posted

SLACK = "slack"
"""The name under which the journal keeps what was said in the channel."""
MAX_TOLD = 200
"""Keys of lines that are kept; of older ones only the time."""


@dataclass(frozen=True)
class Thread:
    """The thread of an incident, or its place in a storm's."""

    channel: str
    ts: str
    face: str
    """``story_lines.face`` of what the head says."""
    body: str
    """``story_lines.message_digest`` of it."""
    shown_unix_s: float
    in_storm: bool = False
    """It is a reply in the thread of a storm, and has no replies of its own."""
    plotted: str = ""
    """The worst severity that there was when the forecast was drawn last; empty: it was not."""
    told: tuple[str, ...] = ()
    """Keys of lines, in the order in which they were told."""
    told_before_unix_s: float = 0.0
    """Lines that are older were told or left out."""

    @property
    def posted(self) -> Posted:
        return Posted(self.channel, self.ts)

    def with_told(self, *keys: str, at_unix_s: float) -> Thread:
        """``at_unix_s``: when the latest of these lines happened."""
        told = (*self.told, *keys)
        if len(told) <= MAX_TOLD:
            return replace(self, told=told)
        return replace(self, told=told[-MAX_TOLD // 2 :], told_before_unix_s=max(self.told_before_unix_s, at_unix_s))


@dataclass(frozen=True)
class Storm:
    """The one thread for many incidents that began together."""

    channel: str
    ts: str
    joined_unix_s: float
    """When the last incident came."""
    began_unix_s: float = 0.0
    """When the first came; 0: not known, it began under an earlier version."""
    numbers: tuple[int, ...] = ()
    tenants: tuple[str, ...] = ()
    """Whose incidents these are."""
    face: str = ""
    """Of all its incidents, as its head says."""
    shown_unix_s: float = 0.0
    over: bool = False
    """All of them are closed, and no more join."""

    @property
    def posted(self) -> Posted:
        return Posted(self.channel, self.ts)


@dataclass(frozen=True)
class AlertPost:
    """The message about a group of Alertmanager."""

    channel: str
    ts: str
    alerts: str
    """``digest`` of which alerts it tells of."""
    firing: bool
    at_unix_s: float
    """When that was told."""

    @property
    def posted(self) -> Posted:
        return Posted(self.channel, self.ts)


Kept = TypeVar("Kept")


def to_text(kept: Thread | Storm | AlertPost) -> str:
    """For the journal: fields that have their default are left out."""
    values = {field.name: getattr(kept, field.name) for field in fields(kept)}
    changed = {field.name: values[field.name] for field in fields(kept) if values[field.name] != field.default}
    return json.dumps(changed, separators=(",", ":"))


def from_text(kind: Callable[..., Kept], text: str | None) -> Kept | None:
    """``None`` for ``None``, and for what this version does not understand: then it is begun anew."""
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
    """``json.dumps`` of one, read again; ``None`` as above."""
    try:
        return None if text is None else Posted(*json.loads(text))
    except (ValueError, TypeError):
        return None
