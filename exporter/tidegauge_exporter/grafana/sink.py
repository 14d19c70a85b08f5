"""The sink that draws incidents and actions into Grafana's dashboards, each once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tidegauge_exporter.grafana.annotations import AnnotationText, annotations_of
from tidegauge_exporter.grafana.values import GrafanaRefusedError
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries

if TYPE_CHECKING:
    from tidegauge_exporter.grafana.client import GrafanaClient

log = logging.getLogger(__name__)

NAME = "grafana"

OPEN, FINAL, GONE = "open", "final", "gone"
"""States of an annotation in the journal: without its end, finished, or deleted by a person (and not made again)."""


class AnnotationJournal(Protocol):
    """The record of annotations that were made, also by an earlier process."""

    def said(self, sink: str, key: str) -> str | None: ...

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        """``over``: the entry will not change any more."""


class GrafanaSink:
    """Posts each annotation once, and gives a region its end when the incident is closed.

    Before it posts an annotation that is not in the journal, it looks for it in Grafana by tags and time.
    """

    name = NAME

    def __init__(self, client: GrafanaClient, journal: AnnotationJournal, *, cluster: str, links: Links) -> None:
        self.deliveries = Deliveries()
        self._client = client
        self._journal = journal
        self._cluster = cluster
        self._links = links

    def take(self, stories: Sequence[Story]) -> None:
        """Raises ``RetryLaterError`` and ``RefusedError``. A refused annotation holds up no other."""
        remarks = (
            remark for story in stories for remark in annotations_of(story, cluster=self._cluster, links=self._links)
        )
        refused = [refusal for remark in remarks if (refusal := self._tell(remark)) is not None]
        if refused:
            raise refused[0]

    def check(self) -> None:
        self._client.check()

    def _tell(self, remark: AnnotationText) -> GrafanaRefusedError | None:
        """Returns a refusal of this annotation alone; raises one that the next annotation would meet as well."""
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
                with self.deliveries.attempt():
                    made = self._client.annotate(remark.annotation)
                self._say(remark, made, wanted)
                return
        else:
            number, _, state = said.partition(" ")
            if state in (wanted, FINAL, GONE):
                return
            annotation_id = int(number)
        with self.deliveries.attempt():
            changed = self._client.change_annotation(annotation_id, remark.annotation)
        if changed:
            self._say(remark, annotation_id, wanted)
        else:
            log.info("annotation %d (%s) was deleted in Grafana and is left so", annotation_id, remark.key)
            self._say(remark, annotation_id, GONE)

    def _find(self, remark: AnnotationText) -> int | None:
        """The id of an annotation that an earlier process made and could not record."""
        wanted = remark.annotation
        found = self._client.annotations(tags=wanted.tags, at_unix_ms=wanted.at_unix_ms)
        same = [one for one in found if one.at_unix_ms == wanted.at_unix_ms and one.tags == set(wanted.tags)]
        return min((one.annotation_id for one in same), default=None)

    def _say(self, remark: AnnotationText, annotation_id: int, state: str) -> None:
        self._journal.say(NAME, remark.key, f"{annotation_id} {state}", over=state != OPEN)
