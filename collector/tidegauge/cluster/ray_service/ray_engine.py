"""The only module that imports Ray: one coordinator actor on the head, one agent actor on every alive node, and a
notifier actor on the head if notifications are configured.

All actors are thin: each reads ``node.json`` of its node, builds a plain class and starts its threads.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tidegauge.cluster.incident_loops.notifying import OwnerNotified, is_notifier_wanted, tells_owners
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
from tidegauge.cluster.ray_service.agent_reconciler import EngineError
from tidegauge.cluster.ray_service.agent_service import open_agent_service
from tidegauge.cluster.ray_service.node_command import NODE_SPEC_VARIABLE
from tidegauge.cluster.ray_service.service_logs import log_to
from tidegauge.cluster.service_record import NodeSpec, StateFiles, announce, read_spec
from tidegauge.cluster.views import EngineNode
from tidegauge.core.incidents.actions import Decision
from tidegauge.core.views import NodeSummary
from tidegauge.osproc.processes import let_training_go_first
from tidegauge.protocol.coding import decode, encode
from tidegauge.protocol.messages import ReportReply
from tidegauge.settings import Settings, comma_separated

log = logging.getLogger(__name__)

NAMESPACE = "tidegauge"
COORDINATOR = "tidegauge-coordinator"
NOTIFIER = "tidegauge-notifier"
AGENT_PREFIX = "tidegauge-agent-"
CALL_TIMEOUT_S = 5.0
ASK_AGAIN_S = 0.5
TELL_TIMEOUT_S = 30.0
"""A message and its plot are three or four requests to Slack."""


def deploy(spec: NodeSpec, *, timeout_s: float) -> str:
    """Make sure that the coordinator runs, which creates the agents, and the notifier if one is configured; returns the
    URL of the coordinator's API.

    For a short-lived process on the head, which connects to Ray and disconnects. Raises ``EngineError``.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = spec.token_file
    try:
        ray.init(address=spec.head_address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        url = _url_of_the_coordinator(timeout_s)
        if is_notifier_wanted(Settings(**spec.settings), os.environ):
            _on_the_head(NotifierActor, NOTIFIER)
        return url
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(f"Ray at {spec.head_address}: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()


def _url_of_the_coordinator(timeout_s: float) -> str:
    """Asks repeatedly while the coordinator is unavailable: after a restart of the engine with saved state, Ray takes
    seconds to restart the coordinator."""
    until_s = time.monotonic() + timeout_s
    while True:
        left_s = max(until_s - time.monotonic(), 0.0)
        try:
            return str(ray.get(_on_the_head(CoordinatorActor, COORDINATOR).url.remote(), timeout=left_s))
        except ray.exceptions.ActorUnavailableError:
            if left_s <= 0:
                raise
            time.sleep(ASK_AGAIN_S)


class RayEngine:
    """``agent_reconciler.Engine`` on Ray, for use inside the coordinator actor."""

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        try:
            return tuple(
                EngineNode(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"])
                for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it untyped
                if node["Alive"]
            )
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise EngineError(str(error)) from error

    def ensure_agent(self, node_id: str) -> None:
        try:
            ray.remote(AgentActor).options(
                name=AGENT_PREFIX + node_id, get_if_exists=True, lifetime="detached",
                max_restarts=-1, max_task_retries=0, num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            ).remote(node_id)  # fmt: skip
        except (ray.exceptions.RayError, ValueError, RuntimeError) as error:
            raise EngineError(str(error)) from error

    def hold_agent(self, node_id: str) -> None:
        try:
            ray.get_actor(AGENT_PREFIX + node_id, namespace=NAMESPACE).hold.remote()
        except (ray.exceptions.RayError, ValueError) as error:
            raise EngineError(str(error)) from error

    def end_agent(self, node_id: str) -> None:
        try:
            ray.kill(ray.get_actor(AGENT_PREFIX + node_id, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            return  # it is gone already
        except ray.exceptions.RayError as error:
            raise EngineError(str(error)) from error


class CoordinatorActor:
    """The coordinator as an actor, which Ray restarts wherever the head is."""

    def __init__(self) -> None:
        # Here, because agents import this module too: the database's libraries alone are 25 MiB in each.
        from tidegauge.cluster.coordinator.coordinator import Coordinator
        from tidegauge.cluster.coordinator.forgotten_list import read_forgotten
        from tidegauge.cluster.coordinator.report_endpoint import ReportEndpoint
        from tidegauge.cluster.incident_loops.action_loop import DAY_S, ActionLoop, open_actions
        from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
        from tidegauge.cluster.pseudonym_key import pseudonyms_of
        from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService, keep_pauses_short
        from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
        from tidegauge.cluster.ray_service.login_methods import open_login_methods
        from tidegauge.http.door_start import open_door

        keep_pauses_short()
        spec, files = _this_node()
        log_to(files.logs / "coordinator.log")
        settings = Settings(**spec.settings)
        coordinator = Coordinator(
            wall_s=time.time, monotonic_s=time.monotonic, incarnation=uuid.uuid4().hex[:12], linger_s=settings.linger_s,
        )  # fmt: skip
        coordinator.forget(read_forgotten(files.forgotten))
        self._endpoint = ReportEndpoint(coordinator, monotonic_s=time.monotonic)
        tell = RayTeller().tell if tells_owners(settings, os.environ) else None
        actions = ActionLoop(
            lambda: open_actions(settings, coordinator, files, tell=tell),
            keep_incidents_s=settings.keep_incidents_days * DAY_S,
            keep_jobs_s=settings.keep_jobs_days * DAY_S,
        )
        has_notifier = is_notifier_wanted(settings, os.environ)
        if has_notifier:
            actions.telling.expect()
        self._telling = actions.telling
        pages = exporter_pages(settings, pseudonyms=pseudonyms_of(settings, files), has_notifier=has_notifier)
        self._service = CoordinatorService(
            coordinator, RayEngine(), pages, actions,
            cluster=settings.cluster, host=settings.listen_host, port=settings.api_port,
            advertise_host=spec.node_address, asks=EvidenceAsks(files.asks),
            door=open_door(settings, what="the API", beside=open_login_methods(settings)),
            local_socket=files.api_socket, public_url=settings.public_url,
            admins=comma_separated(settings.api_admins),
        )  # fmt: skip
        self._service.start()
        announce(files.api, self._service.url)
        let_training_go_first()

    def report(self, node_id: str, message: bytes) -> bytes:
        """The only call from another node. Its name and its arguments are part of the protocol (docs/upgrade.md)."""
        return self._endpoint.answer(node_id, message)

    def notifier_says(self, standing: Mapping[str, str]) -> None:
        self._telling.say(standing)

    def url(self) -> str:
        return self._service.url


class NotifierActor:
    """The notifier as an actor, which Ray restarts wherever the head is."""

    def __init__(self) -> None:
        from tidegauge.cluster.ray_service.notifier import NotifierService

        spec, files = _this_node()
        log_to(files.logs / "notifier.log")
        self._service = NotifierService(Settings(**spec.settings), files, os.environ, say=_say_to_coordinator)
        self._service.start()
        let_training_go_first()

    def tell(self, decision: Decision) -> OwnerNotified:
        return self._service.tell(decision)


class RayTeller:
    """Implements ``notifying.Tell`` by a call of the notifier actor."""

    def tell(self, decision: Decision) -> OwnerNotified:
        try:
            notifier: Any = ray.get_actor(NOTIFIER, namespace=NAMESPACE)
            told: Any = ray.get(notifier.tell.remote(decision), timeout=TELL_TIMEOUT_S)
        except (ray.exceptions.RayError, ValueError) as error:
            log.debug("no answer from the notifier: %s", error)
            return OwnerNotified(problem="no answer from the notifier", retry_after_s=CALL_TIMEOUT_S)
        assert isinstance(told, OwnerNotified)
        return told


class AgentActor:
    """One node's agent as an actor. Threads that it starts here do all its work, so that a restart starts them too."""

    def __init__(self, node_id: str) -> None:
        spec, files = _this_node()
        log_to(files.logs / "agent.log")
        place = AgentPlace(files.agent_place, AgentKind.ENGINE)
        self._service = open_agent_service(
            spec, files, node_id=node_id, reporter=RayReporter(), place=place, take=place.take_over
        )
        self._service.start()
        announce(files.agent, self._service.metrics_address or "")

    def hold(self) -> None:
        """Sleep for ever in the actor's main thread.

        An idle actor's main thread wakes every 10 ms to look for signals (hard-coded in Ray): 0.5 % of a core for
        nothing. While a method runs it does not. The price is that no other method can be called any more.
        """
        while True:
            time.sleep(3600)


class RayReporter:
    """Implements ``agent.runner.Reporter`` by calls of the coordinator actor: never waits, one call at a time.

    While the coordinator is away (restarted in 1-2 s, with its whole node in about 15 s) reports are skipped, not
    queued: each holds everything that the coordinator needs.
    """

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._coordinator: Any = None
        self._under_way: Future[Any] | None = None
        self._on_reply: Callable[[], None] = lambda: None
        self._sent_s = 0.0
        self._reply: ReportReply | None = None
        """Not heard yet."""
        self._left_out: str | None = None

    def report(self, summary: NodeSummary) -> bool:
        """Raises ``EngineError`` if it, or the one before, failed or was not answered."""
        try:
            if self._is_under_way():
                return False
            if self._coordinator is None:
                self._coordinator = ray.get_actor(COORDINATOR, namespace=NAMESPACE)
            self._under_way = self._coordinator.report.remote(summary.node_id, encode(summary)).future()
            self._sent_s = self._monotonic_s()
            self._under_way.add_done_callback(lambda _: self._on_reply())
        except (ray.exceptions.RayError, ValueError) as error:
            raise self._lost(error) from error
        return True

    def hear(self) -> ReportReply | None:
        """Raises ``EngineError`` for a report that failed or was not answered."""
        try:
            self._is_under_way()
        except (ray.exceptions.RayError, ValueError) as error:
            raise self._lost(error) from error
        reply, self._reply = self._reply, None
        return reply

    def listen(self, on_reply: Callable[[], None]) -> None:
        self._on_reply = on_reply

    def _lost(self, error: Exception) -> EngineError:
        # The handle of an actor that died for good never works again; a fresh one costs one look-up.
        self._coordinator = self._under_way = None
        return EngineError(str(error))

    def _take(self, answer: object) -> None:
        """Raises ``ProtocolError``, a ``ValueError``, where either side does not understand the other."""
        received = decode(ReportReply, answer)
        if received.left_out != self._left_out and received.left_out is not None:
            log.warning("the coordinator: %s", received.left_out)
        self._left_out = received.left_out
        if received.message.accepted:  # one that came late says nothing of what is wanted
            self._reply = received.message

    def _is_under_way(self) -> bool:
        """Whether the call before is still unanswered; raises what it raised."""
        if self._under_way is None:
            return False
        if self._under_way.done():
            answered, self._under_way = self._under_way, None
            self._take(answered.result())
            return False
        if self._monotonic_s() - self._sent_s > CALL_TIMEOUT_S:
            self._under_way = self._coordinator = None
            raise EngineError(f"no answer from the coordinator for {CALL_TIMEOUT_S:.0f} s")
        return True


def _on_the_head(actor: type, name: str) -> Any:
    """The detached actor of this name, created if it does not exist."""
    return ray.remote(actor).options(
        name=name, get_if_exists=True, lifetime="detached", max_restarts=-1, max_concurrency=8,
        # Wherever the head is now: its node id changes when the head restarts.
        num_cpus=0, resources={"node:__internal_head__": 0.001},
    ).remote()  # fmt: skip


def _say_to_coordinator(standing: Mapping[str, str]) -> None:
    try:
        ray.get_actor(COORDINATOR, namespace=NAMESPACE).notifier_says.remote(dict(standing))
    except (ray.exceptions.RayError, ValueError) as error:
        log.debug("the notifier's status could not be reported to the coordinator: %s", error)


def _this_node() -> tuple[NodeSpec, StateFiles]:
    spec = read_spec(Path(os.environ[NODE_SPEC_VARIABLE]))
    return spec, StateFiles(Path(spec.state_dir))
