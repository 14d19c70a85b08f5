"""The agent's way to a coordinator without Ray: an answer is there as soon as the report is sent."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.agent.runner import ReportAnswer
from tidegauge.core.views import NodeSummary


class DirectReporter:
    """The ``Reporter`` whose reports ``answer`` answers, such as ``Coordinator.report`` in the same process."""

    def __init__(self, answer: Callable[[NodeSummary], ReportAnswer | None]) -> None:
        self._answer = answer
        self._reply: ReportAnswer | None = None

    def report(self, summary: NodeSummary) -> bool:
        self._reply = self._answer(summary)
        return True

    def hear(self) -> ReportAnswer | None:
        reply, self._reply = self._reply, None
        return reply
