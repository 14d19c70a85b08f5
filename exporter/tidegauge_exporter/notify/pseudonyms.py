"""A sink that everybody sees, with pseudonyms in place of users' names."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge_exporter.messages.pseudonyms import story_with_pseudonym
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.notifier import Sink


class PseudonymSink:
    """``sink`` as it is, told of pseudonyms."""

    def __init__(self, sink: Sink, pseudonyms: Pseudonyms) -> None:
        self._sink = sink
        self._pseudonyms = pseudonyms

    @property
    def name(self) -> str:
        return self._sink.name

    @property
    def deliveries(self) -> Deliveries:
        return self._sink.deliveries

    def check(self) -> None:
        self._sink.check()

    def take(self, stories: Sequence[Story]) -> None:
        self._sink.take([story_with_pseudonym(story, self._pseudonyms) for story in stories])
