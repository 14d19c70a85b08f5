"""The coordinator's values about nodes and events, beside ``tidegauge.core.views``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidegauge.core.ids import JobKey
from tidegauge.core.verdicts import LeakState, Verdict
from tidegauge.core.views import GpuView
from tidegauge.http.access import DoorProblem, LoginMethod

SILENT_OPENER = "the opener does not answer: new ranks of other users are not found"
"""What the head (``NodeStatus.problem``) and the node itself say."""


class NodeHealth(str, Enum):
    """The state of a node, as the coordinator sees it."""

    OK = "ok"
    """Its agent reported a moment ago."""
    WAITING = "waiting"
    """The engine lists the node, no agent has reported from it yet."""
    STALE = "stale"
    """Its agent has not been heard of for ``stale_after_s``: its figures are old, its ranks may well be training."""
    GONE = "gone"
    """The engine has declared the node dead, or it left."""


@dataclass(frozen=True)
class EngineNode:
    """An alive node as the engine (Ray's GCS) lists it."""

    node_id: str
    hostname: str
    address: str


@dataclass(frozen=True)
class NodeStatus:
    """One line of ``tidegauge status``. ``None`` means no report yet."""

    node_id: str
    hostname: str
    address: str | None
    """The node's address in the engine; ``None`` for a node known from its agent only."""
    health: NodeHealth
    agent_pid: int | None
    incarnation: str | None
    metrics_address: str | None
    last_report_age_s: float | None
    ranks: int
    """Ranks alive at the last report."""
    gpus: tuple[GpuView, ...]
    problem: str | None = None
    """What its agent's last report says is wrong, or what of it could not be understood: for people; ``None``:
    nothing."""


class EventKind(str, Enum):
    """The kind of an ``Event``."""

    NODE_JOINED = "node_joined"
    """First report of a node's agent (after a coordinator restart: the first one that this coordinator hears)."""
    AGENT_RESTARTED = "agent_restarted"
    NODE_STALE = "node_stale"
    NODE_BACK = "node_back"
    """A node that was stale reports again."""
    NODE_GONE = "node_gone"
    JOB_BEGAN = "job_began"
    """First report of a rank of this attempt (after a coordinator restart: the first one that this coordinator
    hears)."""
    RANK_VERDICT = "rank_verdict"
    """A rank's leak state changed."""


@dataclass(frozen=True)
class Event:
    """A change, in words and in figures. The service keeps a bounded list, newest last."""

    seq: int
    """1, 2, 3 … since this coordinator began."""
    at_unix_s: float
    kind: EventKind
    text: str
    node_id: str
    hostname: str
    job_id: str | None = None
    attempt: int | None = None
    rank: int | None = None
    step: int | None = None
    before: LeakState | None = None
    verdict: Verdict | None = None
    user_name: str | None = None
    """Of whose rank it tells; ``None``: of a node, which belongs to nobody."""


@dataclass(frozen=True)
class ServiceStatus:
    """Status of the service: the top of ``tidegauge status``."""

    cluster: str
    version: str
    coordinator: str
    coordinator_pid: int
    started_unix_s: float
    now_unix_s: float
    nodes: tuple[NodeStatus, ...]
    jobs_running: int
    jobs_leaking: int
    healthy: bool
    """Every alive node has an agent that reports."""
    web_access_problem: DoorProblem | None
    """Of the coordinator's files on who may come in to its pages, as they are now."""
    login_methods: tuple[LoginMethod, ...] = ()
    """The ways to say who one is that are on; none: nobody is asked."""


class AskState(str, Enum):
    """How far a memory profile is that somebody asked for."""

    ASKING = "asking"
    """The rank has not answered."""
    RECORDING = "recording"
    """It records, or its node makes the profile."""
    DONE = "done"
    FAILED = "failed"


class ProfileProblem(NamedTuple):
    """Ranks of a job of which there is no new memory profile although one is wanted."""

    job: JobKey
    ranks: tuple[int, ...]
    problem: str
    """As ``RankSummary.profile_problem``."""


class AskedProfile(NamedTuple):
    """A rank that was asked for a memory profile."""

    rank: int
    profile_id: str
    state: AskState
    asked_unix_s: float
    problem: str | None = None
    """Why it failed."""
