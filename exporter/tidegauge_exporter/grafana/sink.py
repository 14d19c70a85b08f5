"""``Sink`` for Grafana: draws incidents and actions into the dashboards, each once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from tidegauge_exporter.grafana.annotations import AnnotationText, annotations_of
from tidegauge_exporter.grafana.port import GrafanaPort, GrafanaRefusedError
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story

log = logging.getLogger(__name__)

NAME = "grafana"

OPEN, FINAL, GONE = "open", "final", "gone"
"""How an annotation was left: with its end to come, finished, or deleted by somebody (it is not made again)."""


class AnnotationJournal(Protocol):
    """What was said before, also by an earlier process."""

    def said(self, sink: str, key: str) -> str | None: ...

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        """``over``: nothing more will be said about it."""


class GrafanaSink:
    """Posts each annotation once, and gives a region its end when the incident is closed.

    What the journal has lost is looked for in Grafana by tags and time before it is posted.
    """

    def __init__(self, port: GrafanaPort, journal: AnnotationJournal, *, cluster: str, links: Links) -> None:
        self._port = port
        self._journal = journal
        self._cluster = cluster
        self._links = links

    @property
    def name(self) -> str:
        return NAME

    def take(self, stories: Sequence[Story]) -> None:
        """Raises ``RetryLaterError`` and ``RefusedError``. One annotation that is refused holds up no other."""
        remarks = (
            remark for story in stories for remark in annotations_of(story, cluster=self._cluster, links=self._links)
        )
        refused = [refusal for remark in remarks if (refusal := self._tell(remark)) is not None]
        if refused:
            raise refused[0]

    def _tell(self, remark: AnnotationText) -> GrafanaRefusedError | None:
        """Returns the refusal of just this one; raises those that the next one would meet as well."""
        try:
            self._bring_in_line(remark)
        except GrafanaRefusedError as error:
            if error.is_about_the_token:
                raise
            return error
        return None

    def _bring_in_line(self, remark: AnnotationText) -> None:
        wanted = FINAL if remark.final else OPEN
        said = self._journal.said(NAME, remark.key)
        if said is None:
            annotation_id = self._find(remark)
            if annotation_id is None:
                self._say(remark, self._port.annotate(remark.annotation), wanted)
                return
        else:
            number, _, state = said.partition(" ")
            if state in (wanted, FINAL, GONE):
                return
            annotation_id = int(number)
        if self._port.change_annotation(annotation_id, remark.annotation):
            self._say(remark, annotation_id, wanted)
        else:
            log.info("annotation %d (%s) was deleted in Grafana and is left so", annotation_id, remark.key)
            self._say(remark, annotation_id, GONE)

    def _find(self, remark: AnnotationText) -> int | None:
        """The annotation that an earlier process made and could not note down."""
        wanted = remark.annotation
        found = self._port.annotations(tags=wanted.tags, at_unix_ms=wanted.at_unix_ms)
        same = [one for one in found if one.at_unix_ms == wanted.at_unix_ms and one.tags == set(wanted.tags)]
        return min((one.annotation_id for one in same), default=None)

    def _say(self, remark: AnnotationText, annotation_id: int, state: str) -> None:
        self._journal.say(NAME, remark.key, f"{annotation_id} {state}", over=state != OPEN)
