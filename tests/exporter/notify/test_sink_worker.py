from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from exporter.notify.telling import Clock, closed, escalated, story
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries, DeliveryOutcome
from tidegauge_exporter.notify.notifier import (
    CHECK_AGAIN_S,
    CHECK_EVERY_S,
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
        self.deliveries = Deliveries(wall_s=Clock())
        self.rounds: list[list[Story]] = []
        self.error: Exception | None = None
        self.check_error: Exception | None = None

    def check(self) -> None:
        if self.check_error is not None:
            raise self.check_error

    def take(self, stories: Sequence[Story]) -> None:
        if self.error is not None:
            raise self.error
        if stories:
            with self.deliveries.attempt():
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


def test_a_sink_is_not_said_to_work_before_a_check_or_a_message_has_succeeded(bench: Bench) -> None:
    bench.worker.deliver([])
    bench.worker.hand_over()  # with nothing to send, nothing is asked
    status = bench.worker.status()
    assert (status.problem, status.is_tried) == (None, False)
    assert bench.worker.figures().works is None
    bench.worker.check()
    assert bench.worker.status().is_tried
    assert bench.worker.figures().works is True


def test_a_message_that_is_delivered_shows_that_a_sink_works(bench: Bench) -> None:
    bench.worker.deliver([story(1)])
    bench.worker.hand_over()
    assert bench.worker.status().is_tried


def test_a_sink_is_checked_at_the_start_then_hourly_and_every_minute_while_it_fails(bench: Bench) -> None:
    assert bench.worker.check_wait_s() == 0.0
    bench.sink.check_error = RefusedError("token revoked")
    bench.worker.check()
    assert bench.worker.check_wait_s() == CHECK_AGAIN_S
    assert bench.worker.status().problem == "token revoked"
    assert bench.worker.figures().works is False
    bench.clock.now_s += CHECK_AGAIN_S
    bench.sink.check_error = None
    bench.worker.check()
    assert bench.worker.check_wait_s() == CHECK_EVERY_S
    assert bench.worker.status().problem is None


def test_a_round_without_messages_ends_no_problem_that_a_check_found(bench: Bench) -> None:
    bench.sink.check_error = RefusedError("token revoked")
    bench.worker.check()
    bench.worker.deliver([])
    bench.worker.hand_over()
    assert bench.worker.status().problem == "token revoked"


def test_a_sink_that_refuses_stories_is_checked_within_a_minute(bench: Bench) -> None:
    bench.worker.check()
    bench.worker.deliver([story(1)])
    bench.fail(RefusedError("token revoked"))
    assert bench.worker.check_wait_s() == CHECK_AGAIN_S


def test_stories_are_handed_over_at_once_when_a_check_finds_the_sink_mended(bench: Bench) -> None:
    bench.worker.deliver([story(1)])
    assert bench.fail(RefusedError("token revoked")) == REFUSED_WAIT_S
    bench.sink.check_error = RefusedError("token revoked")
    bench.worker.check()
    assert bench.worker.wait_s() == REFUSED_WAIT_S
    bench.sink.check_error = None
    bench.worker.check()
    assert bench.worker.wait_s() == 0.0


def test_a_defect_in_a_check_is_a_problem_and_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.sink.check_error = ZeroDivisionError("oops")
    bench.worker.check()
    assert "ZeroDivisionError" in (bench.worker.status().problem or "")
    assert "Traceback" in caplog.text


def test_figures_count_the_incidents_that_wait_and_for_how_long(bench: Bench) -> None:
    first, second = story(1), story(2)
    assert bench.worker.figures()[3:] == (0, 0.0)
    bench.worker.deliver([first])
    bench.clock.now_s += 20.0
    bench.worker.deliver([first, second])
    bench.clock.now_s += 5.0
    assert bench.worker.figures()[3:] == (2, 25.0)
    bench.fail(RetryLaterError("away"))
    assert bench.worker.figures()[3:] == (2, 25.0)
    bench.worker.hand_over()
    assert bench.worker.figures()[3:] == (0, 0.0)
    bench.worker.deliver([escalated(first), second])
    bench.clock.now_s += 3.0
    assert bench.worker.figures()[3:] == (1, 3.0)


def test_closed_incidents_that_are_never_told_are_counted_as_dropped(bench: Bench) -> None:
    bench.worker.deliver([closed(story(number)) for number in range(MAX_OWED + 3)])
    bench.worker.deliver([])
    assert bench.worker.figures().deliveries.totals[DeliveryOutcome.DROPPED] == 3
