"""A storm on a cluster where something happens all the time: it takes so many and lasts so long, and then another
begins. In between nothing is told twice, nothing is lost, and nothing grows."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from exporter.notify.channel import Channel, away_at
from exporter.notify.telling import closed, escalated, warning
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify import storms as storms_module
from tidegauge_exporter.notify.notifier import OVERLAP_S
from tidegauge_exporter.notify.storms import MAX_INCIDENTS_PER_STORM, MAX_STORM_S, MAX_THREADS, QUIET_S, SHOW_EVERY_S
from tidegauge_exporter.notify.threads import Storm, from_text

BEAT_S = 1200.0
"""An incident so often keeps a storm from ever being quiet."""
WEEK_S = 7 * 86400.0
MAX_LINE_BYTES = 4096


def kept(channel: Channel) -> list[Storm]:
    """The storms that the journal knows, oldest first."""
    texts = [channel.journal.said("slack", key) for key in channel.journal.keys("slack", "storm/")]
    return sorted((storm for text in texts if (storm := from_text(Storm, text))), key=lambda storm: float(storm.ts))


def told_of(channel: Channel) -> Counter[int]:
    """How many messages there are about each incident, wherever."""
    return Counter(
        int(said.versions[0].split()[1])
        for said in channel.chat.said.values()
        if said.versions[0].startswith("incident ")
    )


def longest_line(channel: Channel) -> int:
    return max(len(line) for line in channel.path.read_bytes().splitlines())


class BusyCluster:
    """``count`` incidents every 20 minutes, each of which lasts for ten; told as the service tells them."""

    def __init__(self, channel: Channel, count: int) -> None:
        self._channel = channel
        self._count = count
        self.began = 0

    def burst(self, count: int) -> list[Story]:
        now_s = self._channel.clock.now_s
        numbers = range(self.began + 1, self.began + count + 1)
        self.began += count
        return [warning(number, opened_unix_s=now_s) for number in numbers]

    def pass_s(self, whole_s: float, *lasting: Story) -> None:
        recent: list[Story] = []
        for _ in range(int(whole_s / BEAT_S)):
            fresh = self.burst(self._count)
            self._channel.take(*lasting, *recent, *fresh, after_s=BEAT_S / 2)
            over_s = self._channel.clock.now_s + BEAT_S / 2
            over = [closed(story, over_s - NOW_S) for story in fresh]
            self._channel.take(*lasting, *recent, *over, after_s=BEAT_S / 2)
            recent = [story for story in (*recent, *over) if (story.incident.closed_unix_s or 0.0) > over_s - OVERLAP_S]


@pytest.mark.parametrize(("count", "whole_s"), [(1, WEEK_S), (12, WEEK_S / 4)])
def test_a_week_without_half_an_hour_of_rest_is_no_storm_without_end(
    channel: Channel, count: int, whole_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of lines, and no power failure
    cluster = BusyCluster(channel, count)
    channel.take(*cluster.burst(8))
    cluster.pass_s(whole_s / 2)
    channel.restart()
    cluster.pass_s(whole_s / 2)
    assert told_of(channel) == Counter(range(1, cluster.began + 1))
    found = kept(channel)
    assert max(len(storm.numbers) for storm in found) <= MAX_INCIDENTS_PER_STORM
    assert all(storm.joined_unix_s - storm.began_unix_s <= MAX_STORM_S for storm in found)
    assert longest_line(channel) < MAX_LINE_BYTES
    if count == 1:
        assert len(found) == 1  # one in twenty minutes is none
    else:
        assert len(found) > 5
        # The one of now, and the one that a restart knew a part of only, which waits for a week.
        assert sum(not storm.over for storm in found) <= 3


def test_storm_keeps_no_reference_to_closed_incidents(channel: Channel) -> None:
    first = [warning(number) for number in range(1, 9)]
    channel.take(*first)
    over = [closed(story) for story in first[:-1]]
    channel.take(*over, first[-1], after_s=SHOW_EVERY_S)
    stories = [weakref.ref(story.incident) for story in over[MAX_THREADS:]]
    over.clear()
    channel.take(first[-1])
    gc.collect()
    assert [story() for story in stories] == [None, None]
    assert channel.chat.heads()[-1] == "storm 6:closed 7:closed 8:open"


def test_a_thousand_at_once_are_several_storms(channel: Channel) -> None:
    told = [warning(number) for number in range(1, 1001)]
    channel.take(*told)
    channel.take(*told, after_s=SHOW_EVERY_S)
    assert [len(storm.numbers) for storm in kept(channel)] == [200, 200, 200, 200, 195]
    assert told_of(channel) == Counter(range(1, 1001))


def test_beyond_the_last_place_the_ordinary_rules_hold(channel: Channel) -> None:
    told = [warning(number) for number in range(1, MAX_INCIDENTS_PER_STORM + MAX_THREADS)]
    channel.take(*told)
    for number in range(MAX_INCIDENTS_PER_STORM + MAX_THREADS, MAX_INCIDENTS_PER_STORM + 3 * MAX_THREADS + 1):
        told.append(warning(number))
        channel.take(*told, after_s=QUIET_S - 10.0 if len(told) == MAX_INCIDENTS_PER_STORM + MAX_THREADS else 1.0)
    (full, second) = kept(channel)
    assert full.numbers == tuple(range(MAX_THREADS + 1, MAX_INCIDENTS_PER_STORM + MAX_THREADS + 1))
    assert second.numbers == tuple(
        range(MAX_INCIDENTS_PER_STORM + 2 * MAX_THREADS + 1, MAX_INCIDENTS_PER_STORM + 3 * MAX_THREADS + 1)
    )
    assert told_of(channel) == Counter(range(1, len(told) + 1))


def test_storm_at_capacity_gives_the_worst_incidents_their_own_threads(channel: Channel) -> None:
    told = [warning(number) for number in range(1, MAX_INCIDENTS_PER_STORM + MAX_THREADS)]
    channel.take(*told)
    (storm,) = kept(channel)
    assert len(storm.numbers) == MAX_INCIDENTS_PER_STORM - 1
    worst = escalated(warning(700), 0.0)
    channel.take(*told, warning(800), warning(900), worst, after_s=QUIET_S - 10.0)
    (storm,) = kept(channel)
    assert storm.numbers[-1] == 900
    heads = {said.versions[0].split()[1] for said in channel.chat.said.values() if said.thread is None}
    assert {"700", "800"} <= heads


def test_storm_at_capacity_follows_its_open_incidents_to_their_end(channel: Channel) -> None:
    lasting = [warning(number) for number in range(1, 9)]
    channel.take(*lasting)
    cluster = BusyCluster(channel, 3)
    cluster.began = 8
    cluster.pass_s(2 * MAX_STORM_S, *lasting)
    old = kept(channel)[0]
    lasting = [*lasting[:7], escalated(lasting[7], channel.clock.now_s - NOW_S)]
    channel.take(*lasting, after_s=SHOW_EVERY_S)
    replies = {said.text for said in channel.chat.said.values() if said.thread == old.ts}
    assert "incident 8 open critical 1006632960" in replies
    channel.restart()
    over_s = channel.clock.now_s - NOW_S
    channel.take(*(closed(story, over_s) for story in lasting), after_s=SHOW_EVERY_S)
    replies = {said.text for said in channel.chat.said.values() if said.thread == old.ts}
    assert "incident 8 closed critical 1006632960" in replies


def test_storms_of_an_older_notebook_go_on_and_end(channel: Channel) -> None:
    numbers = list(range(1, 1501))
    older = {"channel": "C-gpu-memory", "ts": "9.0", "joined_unix_s": NOW_S, "numbers": numbers, "uids": [1001]}
    young = {**older, "ts": "10.0", "numbers": [1501, 1502]}
    for storm in (older, young):
        channel.journal.say("slack", f"storm/{storm['ts']}", json.dumps(storm))
    channel.restart()
    channel.take(warning(1503), warning(1504))
    full, joined = kept(channel)
    assert full.numbers == tuple(numbers)
    assert joined.numbers == (1501, 1502, 1503, 1504)
    assert joined.began_unix_s == NOW_S
    assert not channel.chat.heads()


@fewer(2)
@given(
    pauses_s=st.lists(st.floats(0.0, 2000.0), min_size=1, max_size=40),
    failing=st.lists(st.booleans(), max_size=80),
)
def test_between_storms_nothing_is_told_twice_or_lost(pauses_s: list[float], failing: list[bool]) -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(storms_module, "MAX_INCIDENTS_PER_STORM", 3):
        channel = Channel(Path(folder) / "notified.jsonl")
        channel.chat.before = away_at(failing)
        channel.take_one_more_each(pauses_s)
        found = kept(channel)
        channel.journal.close()
    assert told_of(channel) == Counter(range(1, len(pauses_s) + 1))
    assert all(len(storm.numbers) <= 3 for storm in found)
    places = Counter(number for storm in found for number in storm.numbers)
    assert max(places.values(), default=1) == 1
