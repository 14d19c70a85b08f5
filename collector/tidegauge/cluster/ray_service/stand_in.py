"""``python -m tidegauge.cluster.ray_service.stand_in NODE_JSON`` is the node's agent while the engine has none there.

It serves ``/metrics`` at the same address, judges, collects evidence and keeps the agent's state; it is linked to no
coordinator. It ends when the engine's agent asks for the place (SIGTERM), or when it finds the place taken.

It is not nice, as the engine's actors are: mostly the engine is starting beside it, which takes what there is of the
unit's processors for seconds, and scrapes would wait for that.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
from tidegauge.cluster.ray_service.agent_service import open_agent_service
from tidegauge.cluster.ray_service.service_logs import log_to
from tidegauge.cluster.service_record import RecordError, StateFiles, announce, read_spec
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.messages import ReportReply

log = logging.getLogger("tidegauge.cluster.ray_service.stand_in")


class NotLinked:
    """The ``Reporter`` of an agent without a coordinator: it sends nothing, which is no error."""

    def report(self, _: NodeSummary) -> bool:
        return False

    def hear(self) -> ReportReply | None:
        return None


def main(argv: Sequence[str]) -> int:
    try:
        spec = read_spec(Path(argv[1]))
    except RecordError as error:
        print(error, file=sys.stderr)
        return 3
    files = StateFiles(Path(spec.state_dir))
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    log_to(files.logs / "agent.log")
    place = AgentPlace(files.agent_place, AgentKind.STAND_IN)
    if not place.take():
        return 0
    service = open_agent_service(spec, files, node_id="", reporter=NotLinked(), place=place)
    service.start()
    announce(files.agent, service.metrics_address or "")
    log.info("at work beside the engine, not linked to the coordinator; /metrics is at %s", service.metrics_address)
    signal.sigwait(stops)
    service.stop()
    log.info("the place is free for the engine's agent")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
