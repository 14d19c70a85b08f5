"""A job that ``tidegauge run`` started, as its keeper writes it down and its node's agent reads it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from tidegauge.core.ids import ProcessId


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
    """One ``tidegauge run``. ``process`` and ``uid`` come from the kernel, the rest is what the keeper says."""

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
