"""``python -m tidegauge.cluster.ray_service.stand_in NODE_JSON`` is the node's agent while the engine has none there.

It imports what an agent needs and waits for the place, so that its start costs no time when an agent is missed. Then it
serves ``/metrics`` at the same address, judges, collects evidence and keeps the agent's state; it is linked to no
coordinator. It ends when the engine's agent asks for the place (SIGTERM), and while it waits, with its supervisor.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
from tidegauge.cluster.ray_service.agent_service import open_agent_service
from tidegauge.cluster.ray_service.service_logs import log_to
from tidegauge.cluster.service_record import RecordError, StateFiles, announce, read_spec
from tidegauge.core.views import NodeSummary
from tidegauge.osproc.kernel_calls import end_with_parent
from tidegauge.protocol.messages import ReportReply

log = logging.getLogger("tidegauge.cluster.ray_service.stand_in")


class NotLinked:
    """The ``Reporter`` of an agent without a coordinator: it sends nothing, which is no error."""

    def report(self, _: NodeSummary) -> bool:
        return False

    def hear(self) -> ReportReply | None:
        return None

    def listen(self, on_reply: Callable[[], None]) -> None:
        """There is none."""


def main(argv: Sequence[str]) -> int:
    try:
        spec = read_spec(Path(argv[1]))
    except RecordError as error:
        print(error, file=sys.stderr)
        return 3
    files = StateFiles(Path(spec.state_dir))
    with contextlib.suppress(OSError, ImportError):
        end_with_parent(signal.SIGTERM)  # the next supervisor's may be of another release
    log_to(files.logs / "agent.log")
    stops = {signal.SIGTERM, signal.SIGINT}
    place = AgentPlace(files.agent_place, AgentKind.STAND_IN)

    def take() -> None:
        place.wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        with contextlib.suppress(OSError, ImportError):
            end_with_parent(0)

    service = open_agent_service(spec, files, node_id="", reporter=NotLinked(), place=place, take=take)
    service.start()
    announce(files.agent, service.metrics_address or "")
    log.info("at work beside the engine, not linked to the coordinator; /metrics is at %s", service.metrics_address)
    signal.sigwait(stops)
    service.stop()
    log.info("the place is free for the engine's agent")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
