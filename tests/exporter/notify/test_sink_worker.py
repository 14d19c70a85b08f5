from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from exporter.notify.telling import Clock, closed, escalated, story
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.notifier import (
    DEFECT_WAIT_S,
    HANGS_AFTER_S,
    MAX_OWED,
    MAX_WAIT_S,
    REFUSED_WAIT_S,
    PartStatus,
    SinkWorker,
)
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError


class FakeSink:
    """Takes everything, or raises what it is told to."""

    name = "fake"

    def __init__(self) -> None:
        self.rounds: list[list[Story]] = []
        self.error: Exception | None = None

    def take(self, stories: Sequence[Story]) -> None:
        if self.error is not None:
            raise self.error
        self.rounds.append(list(stories))


class Bench:
    def __init__(self) -> None:
        self.clock, self.sink = Clock(), FakeSink()
        self.worker = SinkWorker(self.sink, wall_s=self.clock, monotonic_s=self.clock)

    def fail(self, error: Exception) -> float | None:
        """One round that ends so; returns how long the next has to wait."""
        self.sink.error = error
        self.worker.hand_over()
        self.sink.error = None
        return self.worker.wait_s()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_sink_worker_hands_nothing_over_before_a_delivery(bench: Bench) -> None:
    assert bench.worker.wait_s() is None
    bench.worker.deliver([story(2), story(1)])
    assert bench.worker.wait_s() == 0.0
    bench.worker.hand_over()
    assert bench.sink.rounds == [[story(1), story(2)]]
    assert bench.worker.wait_s() is None


def test_sink_worker_hands_over_only_the_newest_story_of_an_incident(bench: Bench) -> None:
    bench.worker.deliver([story(1)])
    bench.worker.deliver([escalated(story(1))])
    bench.worker.hand_over()
    assert bench.sink.rounds == [[escalated(story(1))]]


def test_sink_worker_hands_over_incidents_closed_during_an_outage(bench: Bench) -> None:
    bench.worker.deliver([story(1)])
    bench.fail(RetryLaterError("away"))
    bench.worker.deliver([closed(story(1)), story(2)])
    bench.worker.deliver([story(2)])  # the service has stopped telling of incident 1
    bench.worker.hand_over()
    assert bench.sink.rounds == [[closed(story(1)), story(2)]]
    bench.worker.deliver([story(2)])
    bench.worker.hand_over()
    assert bench.sink.rounds[1:] == [[story(2)]]


def test_sink_worker_keeps_stories_of_a_failed_round(bench: Bench) -> None:
    bench.worker.deliver([closed(story(1))])
    bench.fail(RetryLaterError("away"))
    bench.worker.deliver([])
    bench.worker.hand_over()
    assert bench.sink.rounds == [[closed(story(1))]]


def test_sink_worker_keeps_deliveries_to_a_busy_sink_for_the_next_round(bench: Bench) -> None:
    class Busy(FakeSink):
        def take(self, stories: Sequence[Story]) -> None:
            super().take(stories)
            if len(self.rounds) == 1:
                worker.deliver([closed(story(1))])
                worker.deliver([])

    sink = Busy()
    worker = SinkWorker(sink, wall_s=bench.clock, monotonic_s=bench.clock)
    worker.deliver([story(1)])
    worker.hand_over()
    assert worker.wait_s() == 0.0
    worker.hand_over()
    assert sink.rounds == [[story(1)], [closed(story(1))]]


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (RetryLaterError("busy", after_s=7.0), 7.0),
        (RetryLaterError("busy", after_s=0.0), 1.0),
        (RetryLaterError("busy", after_s=1e9), MAX_WAIT_S),
        (RefusedError("token revoked"), REFUSED_WAIT_S),
        (ZeroDivisionError("a defect"), DEFECT_WAIT_S),
    ],
)
def test_a_sink_that_fails_is_left_alone_for_a_while(bench: Bench, error: Exception, wait_s: float) -> None:
    bench.worker.deliver([story(1)])
    assert bench.fail(error) == wait_s
    bench.worker.deliver([story(1)])
    assert bench.worker.wait_s() == wait_s
    bench.clock.now_s += wait_s
    assert bench.worker.wait_s() == 0.0


def test_a_refusal_is_said_once_and_its_end_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench.worker.deliver([story(1)])
        for _ in range(3):
            bench.clock.now_s += REFUSED_WAIT_S
            bench.fail(RefusedError("token revoked"))
        assert bench.worker.status() == PartStatus("fake", "token revoked", NOW_S + REFUSED_WAIT_S)
        bench.worker.hand_over()
    assert caplog.text.count("token revoked") == 1
    assert caplog.text.count("told again") == 1
    assert bench.worker.status() == PartStatus("fake", None, bench.clock.now_s)


def test_a_moments_wait_is_no_trouble_until_it_lasts(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.worker.deliver([story(1)])
    bench.fail(RetryLaterError("one message a second"))
    assert bench.worker.status().problem is None
    bench.clock.now_s += 20.0
    bench.fail(RetryLaterError("one message a second"))
    assert bench.worker.status().problem == "one message a second"
    assert caplog.text.count("one message a second") == 1


def test_a_defect_is_in_the_log_with_its_traceback(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.worker.deliver([story(1)])
    bench.fail(ZeroDivisionError("oops"))
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError" in (bench.worker.status().problem or "")


def test_a_sink_that_hangs_is_seen_to_hang(bench: Bench) -> None:
    seen = []

    class Hanging(FakeSink):
        def take(self, stories: Sequence[Story]) -> None:
            bench.clock.now_s += HANGS_AFTER_S + 24.0
            seen.append(worker.status().problem)

    worker = SinkWorker(Hanging(), wall_s=bench.clock, monotonic_s=bench.clock)
    worker.deliver([story(1)])
    worker.hand_over()
    assert seen == ["it was asked 84 s ago, and has not answered"]
    assert worker.status().problem is None


def test_sink_worker_bounds_owed_stories_and_keeps_the_newest(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.worker.deliver([closed(story(number)) for number in range(MAX_OWED + 3)])
    bench.worker.deliver([])
    bench.worker.hand_over()
    assert [told.incident.number for told in bench.sink.rounds[0]] == list(range(3, MAX_OWED + 3))
    assert "3 closed incidents are never told" in caplog.text
