"""``tidegauge forget`` beside a real service: coordinator and notifier come back and do not write the name again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from integration.service import Service, eventually
from person_data import ADA, BOB, fill_with_two
from person_search import places_of
from tidegauge.cluster.store import open_store, sqlite_url

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    try:
        # An Alertmanager that is away: the notifier runs, and holds stories for it.
        service.up("--set", "alertmanager_url=http://127.0.0.1:9", "--set", "keep_incidents_days=3650")
        yield service
    finally:
        service.close()


def writers(service: Service) -> set[int]:
    return {*service.coordinators(), *service.actors("NotifierActor")}


def test_a_running_service_forgets_a_user_and_goes_on(service: Service) -> None:
    store = open_store(sqlite_url(service.files.root))
    fill_with_two(store)
    store.close()
    eventually(lambda: (service.files.root / "notified.jsonl").exists(), "a notifier with its journal")
    before = writers(service)
    told = json.dumps(service.answer("/api/v1/incidents?all=1"))
    assert ADA.name in told
    done = service.call("forget", ADA.name, "--yes")
    assert done.code == 0, done.err
    eventually(lambda: len(now := writers(service)) == 2 and not now & before, "another coordinator and notifier")
    told = json.dumps(service.answer("/api/v1/incidents?all=1"))
    assert "forgotten-" in told
    assert BOB.name in told
    assert not any(word in told for word in ADA.words)
    eventually(lambda: service.call("status").code == 0, "a healthy service")
    assert places_of(ADA.words, service.files.root) == []
    assert "nothing is kept" in service.call("forget", ADA.name, "--yes").out
