"""The agent's way to a coordinator without Ray: an answer is there as soon as the report is sent."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.cluster.views import ReportReply
from tidegauge.core.views import NodeSummary


class DirectReporter:
    """``agent.runner.Reporter`` whose reports ``answer`` answers, such as ``Coordinator.report``."""

    def __init__(self, answer: Callable[[NodeSummary], ReportReply | None]) -> None:
        self._answer = answer
        self._reply: ReportReply | None = None

    def report(self, summary: NodeSummary) -> bool:
        self._reply = self._answer(summary)
        return True

    def hear(self) -> ReportReply | None:
        reply, self._reply = self._reply, None
        return reply
