"""The agent's way to a coordinator without Ray: an answer is there as soon as the report is sent."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.core.views import NodeSummary
from tidegauge.protocol.messages import ReportReply


class DirectReporter:
    """The ``Reporter`` whose reports ``answer`` answers, such as ``Coordinator.report`` in the same process."""

    def __init__(self, answer: Callable[[NodeSummary], ReportReply | None]) -> None:
        self._answer = answer
        self._reply: ReportReply | None = None

    def report(self, summary: NodeSummary) -> bool:
        self._reply = self._answer(summary)
        return True

    def hear(self) -> ReportReply | None:
        reply, self._reply = self._reply, None
        return reply

    def listen(self, on_reply: Callable[[], None]) -> None:
        """A reply never comes later."""
