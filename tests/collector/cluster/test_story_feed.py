"""Incidents as the notifier reads them: over real sockets from the coordinator's own pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from loop_store import FakeIncidents, FakeStore, told_store
from sample_views import GIB, NOW_S
from scheduler_values import incident
from tidegauge.cluster.api.http_api import HttpApi, Request, Route, json_route
from tidegauge.cluster.api.loop_api import loop_routes
from tidegauge.cluster.api.story_feed import ApiFeed
from tidegauge.core.incidents import ChangeKind, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.http.server import Response
from tidegauge_exporter.notify.ports import RetryLaterError

POINTS = (MemoryPoint(NOW_S - 10.0, 190, 59 * GIB, 61 * GIB, None), MemoryPoint(NOW_S, 200, 60 * GIB, 62 * GIB, 1))


class Service:
    """The pages of a store, which counts what it is asked."""

    def __init__(self) -> None:
        self.store: FakeStore = told_store()
        self.asked: list[str] = []
        self.has_memory = True
        self.url: str | None = None
        self.odd: set[str] = set()
        """Numbers of incidents whose page fails."""

    def serve(self) -> HttpApi:
        routes = loop_routes(lambda: self.store, lambda: LoopStatus("act", None))
        pages = {**routes, "/api/v1/memory": json_route(self._memory)}
        api = HttpApi({path: self._counted(path, page) for path, page in pages.items()}, host="127.0.0.1", port=0)
        api.start()
        self.url = api.url
        return api

    def _counted(self, path: str, page: Route) -> Route:
        def answer(request: Request) -> Response:
            self.asked.append(path)
            assert request.query.get("number") not in self.odd, "a defect that this incident brings out"
            return page(request)

        return answer

    def _memory(self, request: Request) -> object:
        assert self.has_memory, "a coordinator that was restarted"
        query = request.query
        rank = int(query["rank"])
        return {"ranks": [{"rank": rank, "points": POINTS if query["incident"] == "1" else ()}]}


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    api = service.serve()
    yield service
    api.stop()


@pytest.fixture
def feed(service: Service) -> ApiFeed:
    return ApiFeed(lambda: service.url)


def test_story_is_all_that_the_service_knows(service: Service, feed: ApiFeed) -> None:
    open_one, closed_one = feed.stories(closed_since_unix_s=0.0)
    assert (open_one.incident.number, closed_one.incident.number) == (1, 2)
    assert open_one.incident == service.store.incidents.incident(1)
    assert [change.kind.value for change in open_one.history] == ["opened", "updated", "escalated", "updated"]
    assert list(open_one.decisions) == list(service.store.audit.records_of(1))
    assert open_one.memory == POINTS
    assert closed_one.incident.state is IncidentState.CLOSED


def test_story_feed_omits_incidents_closed_before_the_cutoff(feed: ApiFeed) -> None:
    assert [story.incident.number for story in feed.stories(closed_since_unix_s=NOW_S - 60.0)] == [1]


def test_story_feed_does_not_reread_unchanged_incidents(service: Service, feed: ApiFeed) -> None:
    feed.stories(closed_since_unix_s=0.0)
    service.asked.clear()
    feed.stories(closed_since_unix_s=0.0)
    assert service.asked == ["/api/v1/incident-marks"]
    last = service.store.incidents.story[-1]
    later = replace(last.incident, updated_unix_s=NOW_S + 5.0)
    service.store.incidents.story.append(last._replace(at_unix_s=NOW_S + 5.0, incident=later))
    changed, _ = feed.stories(closed_since_unix_s=0.0)
    assert changed.incident.updated_unix_s == NOW_S + 5.0
    assert service.asked[1:] == ["/api/v1/incident-marks", "/api/v1/incident", "/api/v1/memory"]


def test_story_is_told_without_a_picture_where_nobody_remembers_the_memory(service: Service, feed: ApiFeed) -> None:
    service.has_memory = False
    assert [story.memory for story in feed.stories(closed_since_unix_s=0.0)] == [(), ()]


def test_service_that_is_away_is_asked_again_later(service: Service, feed: ApiFeed) -> None:
    service.url = None
    with pytest.raises(RetryLaterError, match="not available"):
        feed.stories(closed_since_unix_s=0.0)
    service.url = "http://127.0.0.1:1"
    with pytest.raises(RetryLaterError, match="no answer from"):
        feed.stories(closed_since_unix_s=0.0)


def opened(*numbers: int) -> FakeStore:
    return FakeStore(FakeIncidents([IncidentChange(ChangeKind.OPENED, NOW_S, incident(number=n)) for n in numbers]))


def numbers(feed: ApiFeed) -> list[int]:
    return [story.incident.number for story in feed.stories(closed_since_unix_s=0.0)]


def test_incidents_that_cannot_be_read_silence_no_other(service: Service, feed: ApiFeed) -> None:
    service.store = opened(*range(1, 9))
    service.odd = {"8", "7"}
    assert numbers(feed) == [6, 5, 4, 3, 2, 1]
    service.odd = {"8", "7", "6", "5", "4"}
    assert numbers(feed) == [6, 5, 4, 3, 2, 1]  # as they were known
    service.odd = set()
    assert numbers(feed) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_however_many_cannot_be_read_the_rest_is_told_in_the_end(service: Service, feed: ApiFeed) -> None:
    service.store = opened(*range(1, 9))
    service.odd = {"8", "7", "6", "5", "4"}
    with pytest.raises(RetryLaterError, match="500"):
        feed.stories(closed_since_unix_s=0.0)
    for _ in range(3):
        assert numbers(feed) == [3, 2, 1]


def test_a_thousand_at_once_are_read_a_part_at_a_time_and_none_is_forgotten(service: Service) -> None:
    now_s = 0.0

    def monotonic_s() -> float:
        nonlocal now_s
        now_s += 1.0
        return now_s

    feed = ApiFeed(lambda: service.url, monotonic_s=monotonic_s)
    service.store = opened(*range(1, 25))
    over = incident(number=30, state=IncidentState.CLOSED, closed_unix_s=NOW_S - 7200.0)
    service.store.incidents.story.append(IncidentChange(ChangeKind.CLOSED, NOW_S - 7200.0, over))
    assert numbers(feed) == list(range(24, 15, -1))
    later = [[told.incident.number for told in feed.stories(closed_since_unix_s=NOW_S)] for _ in range(4)]
    assert later == [list(range(24, 6, -1)), [*range(24, 0, -1), 30], list(range(24, 0, -1)), list(range(24, 0, -1))]
