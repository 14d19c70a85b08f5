"""Agents' reports as they arrive: bytes in, bytes out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.report_times import IMPOSSIBLE_TIMES, with_possible_times
from tidegauge.cluster.views import SILENT_OPENER
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.coding import ProtocolError, decode, encode
from tidegauge.protocol.messages import ReportRefusal
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)


class ReportEndpoint:
    """Hands reports to the coordinator, and its replies back. One that cannot be understood is answered by a
    ``ReportRefusal``; ``NodeStatus.problem`` and the log then say why, the log once. Thread-safe."""

    def __init__(self, coordinator: Coordinator, *, monotonic_s: Callable[[], float]) -> None:
        self._coordinator = coordinator
        self._monotonic_s = monotonic_s
        self._few_lines = FewLines(_log)

    def answer(self, node_id: str, message: object) -> bytes:
        """``node_id``: who sends it, for a message that does not come to say so itself."""
        try:
            received = decode(NodeSummary, message)
            if received.message.node_id != node_id:
                raise ProtocolError("its message names another node than the one that sent it")
        except ProtocolError as error:
            self._tell(node_id, f"its report was refused: {error}")
            return encode(ReportRefusal(str(error)))
        summary = with_possible_times(received.message, self._coordinator.now_unix_s())
        impossible = None if summary is received.message else IMPOSSIBLE_TIMES
        silent = SILENT_OPENER if summary.opener_answers is False else None
        self._tell(node_id, "; ".join(filter(None, (received.left_out, impossible, silent))) or None)
        return encode(self._coordinator.report(summary))

    def _tell(self, node_id: str, problem: str | None) -> None:
        if self._coordinator.note_problem(node_id, problem) and problem is not None:
            hostname = self._coordinator.hostname_of(node_id)
            self._few_lines.say(logging.WARNING, "node %s: %s", hostname, problem, now_s=self._monotonic_s())
