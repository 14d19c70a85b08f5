"""A feed's patience and what it knows, by a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException

from scheduler_hooks.kubernetes.watch_world import WatchWorld
from tidegauge_scheduler_hooks.kubernetes.client import feeds
from tidegauge_scheduler_hooks.kubernetes.client.feeds import pause_s
from tidegauge_scheduler_hooks.kubernetes.ports import PODS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchWorld]:
    world = WatchWorld(tmp_path)
    with world.server:
        yield world


def test_a_feed_without_a_watch_for_a_minute_does_not_know_any_more(world: WatchWorld) -> None:
    now_s = 0.0
    feed = feeds.Feed(world.api, PODS, None, label_selector=None, resync_s=300.0, clock=lambda: now_s)
    feed.read()
    assert not feed.synced
    world.watches.put(iter([]))
    feed.read(watch=True, resource_version="1").close()
    now_s = feeds.MAX_AWAY_S
    assert feed.synced
    assert not feed.current
    now_s += 0.1
    assert not feed.synced
    assert "watch pods in all namespaces: no answer" in str(feed.problem)
    opened = feed.read(watch=True, resource_version="1")
    assert feed.synced
    now_s = 3600.0
    assert feed.synced  # as long as a watch is open
    assert feed.current
    opened.close()
    assert not feed.current


def test_a_list_is_due_after_its_time_whatever_the_watch_does(world: WatchWorld) -> None:
    now_s = 0.0
    feed = feeds.Feed(world.api, PODS, None, label_selector=None, resync_s=300.0, clock=lambda: now_s)
    feed.read()
    now_s = 299.0
    world.watches.put(iter([]))
    feed.read(watch=True).close()
    now_s = 300.0
    with pytest.raises(ApiException) as again:
        feed.read(watch=True)
    assert again.value.status == 410


@given(failures=st.integers(1, 10_000), spread=st.floats(0, 1), refused=st.booleans())
def test_pauses_grow_up_to_a_limit(failures: int, spread: float, refused: bool) -> None:
    wait_s = pause_s(failures, refused=refused, spread=spread)
    assert pause_s(0, refused=refused, spread=spread) == 0 < wait_s
    if refused:
        assert 45 <= wait_s <= 75
    else:
        assert wait_s <= pause_s(failures + 1, refused=False, spread=spread) <= feeds.MAX_PAUSE_S
