"""The messages. An agent sends a report, ``core.views.NodeSummary``; the coordinator answers with a ``ReportReply``, or
with a ``ReportRefusal`` if it cannot understand the report.

They and all that they hold are frozen values that the annotations of their fields describe wholly. Whoever changes one
reads "The messages between nodes" in docs/upgrade.md first: tests/collector/protocol tells what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.rank_groups import NameOfGroup
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.core.orders import Order
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.views import NodeSummary


class ProtocolVersion(NamedTuple):
    """``minor`` grows by one in a release whose messages say more than those before, ``major`` where nothing else
    helps."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


VERSION: Final = ProtocolVersion(1, 1)
"""Of this release."""


def understands(other: ProtocolVersion) -> bool:
    """Whether this release and one that speaks ``other`` understand each other: one release apart."""
    return other.major == VERSION.major and abs(other.minor - VERSION.minor) <= 1


@dataclass(frozen=True)
class ReportReply:
    """The coordinator's answer to an agent's report."""

    accepted: bool
    """False for a report older than one already known (a late retry): nothing changed, nothing is to be done."""
    coordinator: str
    """Changes when the coordinator restarts."""
    orders: tuple[Order, ...] = ()
    """What the agent is to do on its node; repeated until it has reported the results."""
    job_settings: tuple[JobSettings, ...] | None = None
    """All settings for jobs that ought to lie on the node, if it has others; ``None``: it has these."""
    profiles_kept: tuple[str, ...] = ()
    """Ids of the report's memory profiles that need not be sent again."""
    evidence_kept: tuple[str, ...] = ()
    """Ids of ``NodeSummary.evidence`` that are in the database, or that nobody wants: the agent may forget them."""
    snapshots_wanted: frozenset[str] | None = None
    """Keys of snapshots on this node's disk that open incidents refer to, and that must stay; ``None``: unknown now, so
    that only want of room allows deleting one."""
    forgotten: tuple[Forgotten, ...] = ()
    """Persons whose snapshots on this node are to be deleted."""
    pods: tuple[PodFacts, ...] = ()
    """Those of ``NodeSummary.pods_wanted`` that the API server knows."""
    peer_bounds: tuple[PeerBound, ...] = ()
    """All of this node's ranks whose growth ends by what evidence found on a peer of them."""
    group_names: tuple[NameOfGroup, ...] = ()
    """What the groups of this node's ranks are called, of jobs that have several."""
    report_every_s: float = 0.0
    """How often the agent is to report while nothing happens on its node; never more often than its own setting."""


@dataclass(frozen=True)
class ReportRefusal:
    """The coordinator's answer to a report that it cannot understand."""

    problem: str
    """For people."""


MESSAGES: Final[Mapping[str, type]] = {"report": NodeSummary, "reply": ReportReply, "refusal": ReportRefusal}
"""By the name that stands for the type in the bytes."""

MAY_LACK_ITEMS: Final[Mapping[type, frozenset[str]]] = {
    NodeSummary: frozenset({"gpus", "order_results", "evidence", "profiles", "ended_launches"}),
    ReportReply: frozenset({"orders", "forgotten", "pods", "peer_bounds", "group_names"}),
    ReportRefusal: frozenset(),
}
"""The lists whose unreadable items are left out of a message. An item that is missing from one of the others would
mean something: a rank or a launch that its node does not name has ended, settings that a reply does not name are
deleted."""

MAX_ITEMS: Final[Mapping[type, Mapping[str, int]]] = {
    NodeSummary: {
        "ranks": 4096,
        "gpus": 256,
        "gpus.process_bytes": 65_536,
        "launches": 4096,
        "ended_launches": 4096,
        "order_results": 16_384,
        "evidence": 4096,
        "profiles": 4096,
        "pods_wanted": 4096,
    },
    ReportReply: {},
    ReportRefusal: {},
}
"""How many items a node's lists may have, and ``gpus.process_bytes`` on all GPUs together; a message with more is
refused before they are read. An agent watches 1,024 ranks, 512 launches and as many pods, and sends four pieces of each
kind. NVIDIA's driver manages 32 GPUs (``NV_MAX_DEVICES`` of its open kernel modules), each of at most seven MIG
instances; of a node's processes an agent looks at 65,536, and a context takes more than 100 MiB of a GPU."""
