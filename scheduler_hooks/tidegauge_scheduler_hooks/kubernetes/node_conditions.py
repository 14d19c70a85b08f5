"""The condition ``GpuMemoryUnheld`` of nodes: GPU memory that nobody holds, for people and for what drains nodes.

Written by the head, which is the one that has the figures and may ask the API server. Nodes that it has not told of are
left alone, so that no condition is made where no agent is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidegauge.core.detector.unheld import is_unheld
from tidegauge.core.units import format_bytes, format_count
from tidegauge.core.views import GpuView
from tidegauge_scheduler_hooks.kubernetes.owners import condition, timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import NODES, InvalidError, KubeApi, ObjectNotFoundError
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_status
from tidegauge_scheduler_hooks.one_call_each import OneCallEach
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

log = logging.getLogger(__name__)

UNHELD_CONDITION = "GpuMemoryUnheld"
LOOK_EVERY_S = 10.0
HEARTBEAT_S = 600.0
"""How often a condition is written although it is the same: twice the period of the kubelet's own."""
SILENT_S = 600.0
"""Without a report for longer, a node's GPUs are not known."""
REFUSED_FOR_S = 60.0
"""After a missing right, which somebody has to give."""
NO_NODE_FOR_S = 600.0
"""For so long a name is taken for none of a node of this cluster, once the API server says so."""
MAX_AT_ONCE = 100
"""Nodes a look: each is a request or two."""
MAX_NAMED_GPUS = 4


class NodeGpus(NamedTuple):
    """The latest report of a node."""

    hostname: str
    """The name of the Kubernetes node."""
    report_age_s: float
    gpus: Sequence[GpuView]


class NodeVerdict(NamedTuple):
    """A condition without its times."""

    status: str
    reason: str
    message: str
    about: frozenset[str] = frozenset()
    """UUIDs of the GPUs concerned."""

    @property
    def news(self) -> tuple[object, ...]:
        """What is written at once; figures wait for the next heartbeat."""
        return self.status, self.reason, self.about


SILENT = NodeVerdict("Unknown", "NoAgent", f"No agent of Tidegauge has reported for {SILENT_S / 60:.0f} minutes")


def judged(gpus: Sequence[GpuView], *, was_unheld: bool) -> NodeVerdict | None:
    """What is said of a node that reports. ``None``: what was said before, ``was_unheld``, which nothing contradicts: a
    new agent waits before it calls memory unheld, and cannot tell beside a process."""
    found = [gpu for gpu in gpus if is_unheld(gpu.unheld_for_s)]
    if found:
        named = [f"{format_bytes(gpu.unheld_bytes or 0)} of GPU {gpu.gpu} ({gpu.uuid})" for gpu in found]
        more = len(found) - MAX_NAMED_GPUS
        left_out = f", and of {format_count(more, 'more GPU')}" if more > 0 else ""
        message = f"In use, and held by no process: {', '.join(named[:MAX_NAMED_GPUS])}{left_out}"
        return NodeVerdict("True", "MemoryWithoutProcess", message, frozenset(gpu.uuid for gpu in found))
    known = [gpu for gpu in gpus if gpu.unheld_bytes is not None]
    if was_unheld and (len(known) < len(gpus) or not gpus or any(gpu.unheld_for_s is not None for gpu in gpus)):
        return None
    if not known:
        return NodeVerdict("Unknown", "CannotBeTold", "Of no GPU all processes are known that may hold its memory")
    return NodeVerdict("False", "NoMemoryWithoutProcess", "No GPU memory is known to be in use without a process")


class _Said(NamedTuple):
    """What the condition of a node is, as far as is known. Times are on the monotonic clock."""

    verdict: NodeVerdict | None
    """What is to be said, also while it cannot be written; ``None``: what an earlier head wrote, if any."""
    written: NodeVerdict | None
    status: str | None
    since: str | None
    """``lastTransitionTime``."""
    written_s: float
    heard_s: float


class NodeConditions:
    """A ``RecordWriter``; ``tick`` for one thread. ``submit`` is that of ``OneCallEach``."""

    def __init__(
        self,
        api: KubeApi,
        nodes: Callable[[], Iterable[NodeGpus]],
        *,
        submit: Callable[[Callable[[], None]], object],
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._calls = OneCallEach(submit)
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._next_s = float("-inf")
        # One call at a time has these.
        self._said: dict[str, _Said] = {}
        self._no_node_until_s: dict[str, float] = {}
        """Nodes that are none of this cluster's."""
        self._why: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the last look could not write all conditions."""
        return None if self._why is None else f"{UNHELD_CONDITION} is not written: {self._why}"

    def tick(self) -> None:
        """Look every few seconds at what is to be written; returns at once."""
        now_s = self._monotonic_s()
        if now_s >= self._next_s and self._calls.is_free(UNHELD_CONDITION):
            self._next_s = now_s + LOOK_EVERY_S
            latest: dict[str, NodeGpus] = {}
            for node in self._nodes():
                if node.hostname not in latest or node.report_age_s < latest[node.hostname].report_age_s:
                    latest[node.hostname] = node
            self._calls.submit(UNHELD_CONDITION, lambda: self._look(latest))

    def _look(self, latest: Mapping[str, NodeGpus]) -> None:
        left = MAX_AT_ONCE
        for hostname in [*latest, *(self._said.keys() - latest.keys())]:
            try:
                left -= self._look_at(hostname, latest.get(hostname))
            except (ObjectNotFoundError, InvalidError):  # a node of another kind of cluster, or gone
                self._said.pop(hostname, None)
                self._no_node_until_s[hostname] = self._monotonic_s() + NO_NODE_FOR_S
            except SchedulerError as error:
                if isinstance(error, PermanentError):
                    self._next_s = self._monotonic_s() + REFUSED_FOR_S
                if self._why != str(error):
                    log.warning("conditions of nodes are not written: %s", error)
                self._why = str(error)
                return
            if left <= 0:
                return
        self._why = None

    def _look_at(self, hostname: str, node: NodeGpus | None) -> bool:
        """Returns whether that took a request."""
        now_s, said, asked = self._monotonic_s(), self._said.get(hostname), False
        if self._no_node_until_s.get(hostname, now_s) > now_s:
            return False
        if said is None:
            if node is None or node.report_age_s > SILENT_S or not node.gpus:
                return False
            found = condition(self._api.get(NODES, None, hostname), UNHELD_CONDITION) or {}
            status, since = found.get("status"), found.get("lastTransitionTime")
            said, asked = _Said(None, None, status, since, float("-inf"), now_s), True
        if node is not None:
            said = said._replace(heard_s=now_s - node.report_age_s)
        verdict: NodeVerdict | None = SILENT
        if now_s - said.heard_s <= SILENT_S:
            before = said.status if said.verdict is None else said.verdict.status
            verdict = None if node is None else judged(node.gpus, was_unheld=before == "True") or said.verdict
        self._said[hostname] = said = said._replace(verdict=verdict)
        is_news = verdict is not None and (said.written is None or verdict.news != said.written.news)
        if verdict is None or not (is_news or now_s - said.written_s >= HEARTBEAT_S):
            return asked
        self._write(hostname, said._replace(since=said.since if verdict.status == said.status else None))
        return True

    def _write(self, hostname: str, said: _Said) -> None:
        verdict, now = said.verdict, timestamp(self._wall_s())
        assert verdict is not None
        since = said.since or now
        told = {
            "type": UNHELD_CONDITION,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since,
        }
        apply_status(self._api, NODES, {"name": hostname}, {"conditions": [told]})
        if verdict.status != said.status:
            log.info("node %s: %s is %s: %s", hostname, UNHELD_CONDITION, verdict.status, verdict.message)
        written_s = self._monotonic_s()
        self._said[hostname] = said._replace(written=verdict, status=verdict.status, since=since, written_s=written_s)
