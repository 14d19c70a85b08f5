"""A job that ``tidegauge run`` started: the record that its keeper writes, the summary that its node's agent reports.

The record is JSON beside the rings, written under the user's own name, so to whoever reads it every word is a claim;
what is too long, of the wrong type or out of range makes the whole record refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Optional

from tidegauge.core.ids import ProcessId

VERSION = 1
MAX_RECORD_BYTES = 64 << 10
MAX_TEXT_CHARS = 500
MAX_ID_CHARS = 200
MAX_DECISIONS = 32
"""Decision ids that are remembered; older ones are about attempts that are over anyway."""
MAX_TEXTS = 5
_MAX_RESTARTS = 1 << 24


class LaunchState(str, Enum):
    """The state of a keeper."""

    RUNNING = "running"
    STOPPING = "stopping"
    """The command is being ended: to start again, or for good."""
    HELD = "held"
    """Ended by an action; starts again when a person says so. The keeper has left, or is about to."""
    ENDED = "ended"


@dataclass(frozen=True)
class LaunchSummary:
    """One ``tidegauge run``. ``process`` and ``uid`` come from the kernel, everything else from the launcher itself."""

    process: ProcessId
    uid: int
    job_id: str
    job_name: Optional[str]
    restarts: int
    """How often the command was started again: ``TIDEGAUGE_ATTEMPT`` of the current one."""
    state: LaunchState
    requeueable: bool
    """``tidegauge run --requeue``: the command may be ended and started again."""
    exempt: bool
    """``tidegauge run --no-actions``."""
    gpu_share: Optional[float]
    """``tidegauge run --gpu-share``: above 0 and at most 1."""
    started_unix_s: float
    """When the current attempt began."""
    remarks: tuple[str, ...] = ()
    """What actions remarked on the job, oldest first."""
    exit_status: Optional[int] = None
    """Of the command, negative for a signal, once it has ended for good."""
    cancelled: bool = False
    """It ended because a person or an action ended it."""


class LaunchRecord(NamedTuple):
    """Everything that a keeper reports. Times are unix seconds."""

    process: ProcessId
    """The keeper, as it sees itself: in a container, with the pid that it has there."""
    job_id: str
    job_name: Optional[str]
    restarts: int
    state: LaunchState
    requeueable: bool
    exempt: bool
    gpu_share: Optional[float]
    started_unix_s: float
    """When the current attempt began."""
    decisions: tuple[str, ...] = ()
    """Ids of the decisions that were carried out or begun, oldest first."""
    messages: tuple[str, ...] = ()
    """What the owner was told last."""
    remarks: tuple[str, ...] = ()
    """What was remarked on the job, for whoever looks at it."""
    exit_status: Optional[int] = None
    """As in the summary; records of earlier versions have none."""
    cancelled: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain lists, dicts and scalars."""
        return {
            **self._asdict(),
            "version": VERSION,
            "process": list(self.process),
            "state": self.state.value,
            "decisions": list(self.decisions),
            "messages": list(self.messages),
            "remarks": list(self.remarks),
        }


def encode_launch_record(record: LaunchRecord) -> bytes:
    """The JSON that ``decode_launch_record`` reads."""
    return json.dumps(record.as_json(), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def decode_launch_record(data: bytes) -> LaunchRecord:
    """The record in ``data``. Raises ``ValueError`` with what is wrong."""
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"it is longer than {MAX_RECORD_BYTES} bytes")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(raw, dict):
        raise ValueError("it is not a JSON object")
    if raw.get("version") != VERSION:
        raise ValueError(f"its version is {str(raw.get('version'))[:20]}, this one reads {VERSION}")
    share = raw.get("gpu_share")
    return LaunchRecord(
        process=_process(raw.get("process")),
        job_id=_text(raw.get("job_id"), "job_id"),
        job_name=None if raw.get("job_name") is None else _text(raw["job_name"], "job_name"),
        restarts=_count(raw.get("restarts"), "restarts", _MAX_RESTARTS),
        state=LaunchState(raw.get("state")),
        requeueable=_flag(raw.get("requeueable"), "requeueable"),
        exempt=_flag(raw.get("exempt"), "exempt"),
        gpu_share=None if share is None else _number(share, "gpu_share", most=1.0),
        started_unix_s=_number(raw.get("started_unix_s"), "started_unix_s", most=1e11),
        decisions=_texts(raw.get("decisions"), "decisions", MAX_DECISIONS),
        messages=_texts(raw.get("messages"), "messages", MAX_TEXTS),
        remarks=_texts(raw.get("remarks"), "remarks", MAX_TEXTS),
        exit_status=_exit_status(raw.get("exit_status")),
        cancelled=_flag(raw.get("cancelled", False), "cancelled"),
    )


def _process(value: object) -> ProcessId:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("process is not [pid, start ticks]")
    return ProcessId(_count(value[0], "pid", 1 << 31), _count(value[1], "start ticks", 1 << 62))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS or not value.isprintable():
        raise ValueError(f"{name} is not a line of at most {MAX_TEXT_CHARS} characters")
    return value


def _texts(value: object, name: str, most: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{name} is not a list of at most {most} texts")
    return tuple(_text(one, name) for one in value)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is not true or false")
    return value


def _count(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is not a count")
    return value


def _exit_status(value: object) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -128 <= value <= 255:
        raise ValueError("exit_status is not from -128 to 255")
    return value


def _number(value: object, name: str, *, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ValueError(f"{name} is not a number above 0 and at most {most:g}")
    return float(value)
