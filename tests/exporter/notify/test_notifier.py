from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from exporter.notify.telling import Clock, story
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify import notifier
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.notifier import LOOK_BACK_S, OVERLAP_S, Notifier, PartStatus, SinkWorker, StoryFetch
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from waiting import PATIENCE_S


class FakeFeed:
    def __init__(self, *stories: Story) -> None:
        self.told = list(stories)
        self.asked: list[float] = []
        self.error: Exception | None = None

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        self.asked.append(closed_since_unix_s)
        if self.error is not None:
            raise self.error
        return self.told


class Taker:
    """Says when it was told."""

    def __init__(self, name: str = "taker") -> None:
        self.name = name
        self.deliveries = Deliveries()
        self.taken = threading.Event()
        self.rounds: list[list[Story]] = []

    def check(self) -> None:
        """It works."""

    def take(self, stories: Sequence[Story]) -> None:
        self.rounds.append(list(stories))
        self.taken.set()


class Hanging(Taker):
    def __init__(self) -> None:
        super().__init__("hanging")
        self.let_go = threading.Event()

    def take(self, stories: Sequence[Story]) -> None:
        super().take(stories)
        self.let_go.wait()


def fetch(feed: FakeFeed, *workers: SinkWorker, clock: Clock | None = None) -> StoryFetch:
    clock = clock or Clock()
    return StoryFetch(feed, workers, wall_s=clock, monotonic_s=clock)


def test_the_first_question_looks_back_a_week_and_the_next_an_hour_behind_the_last_answer() -> None:
    clock, feed = Clock(), FakeFeed()
    fetching = fetch(feed, clock=clock)
    feed.error = RetryLaterError("away")
    fetching.step()
    feed.error = None
    clock.now_s += 100.0
    fetching.step()
    fetching.step()
    assert feed.asked == [NOW_S - LOOK_BACK_S, NOW_S - LOOK_BACK_S, NOW_S + 100.0 - OVERLAP_S]


def test_a_service_that_is_away_is_asked_ever_less_often_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, feed = Clock(), FakeFeed()
    fetching = fetch(feed, clock=clock)
    feed.error = RetryLaterError("connection refused", after_s=1.0)
    assert [fetching.step() for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert caplog.text.count("connection refused") == 1
    assert fetching.status == PartStatus("service", "connection refused", NOW_S)
    feed.error = None
    assert fetching.step() == 2.0
    assert fetching.status.problem is None


def test_a_defect_of_the_feed_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    feed = FakeFeed()
    feed.error = KeyError("incident")
    assert fetch(feed).step() == 2.0
    assert "Traceback" in caplog.text


def test_a_slow_service_is_not_made_slower() -> None:
    clock = Clock()

    class Slow(FakeFeed):
        def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
            clock.now_s += 3.0
            return ()

    assert fetch(Slow(), clock=clock).step() == 30.0


@pytest.mark.slow
def test_stories_reach_every_sink_whatever_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "STOP_WITHIN_S", PATIENCE_S)

    class Refusing(Taker):
        def take(self, stories: Sequence[Story]) -> None:
            super().take(stories)
            raise RefusedError("never")

    class Broken(Taker):
        def take(self, stories: Sequence[Story]) -> None:
            raise ZeroDivisionError

    hanging, well = Hanging(), Taker()
    refusing = Refusing("refusing")
    whole = Notifier(FakeFeed(story(1)), [hanging, refusing, Broken("broken"), well])
    whole.start()
    try:
        assert hanging.taken.wait(PATIENCE_S)
        assert refusing.taken.wait(PATIENCE_S)
        assert well.taken.wait(PATIENCE_S)
        well.taken.clear()
        assert well.taken.wait(PATIENCE_S)  # and again, while the other still hangs
    finally:
        hanging.let_go.set()
        assert whole.stop()
    assert well.rounds[:2] == [[story(1)], [story(1)]]
    assert len(hanging.rounds) == 1
    problems = {part.name: part.problem for part in whole.status().sinks}
    assert problems["refusing"] == "never"
    assert problems["taker"] is None
    assert whole.status().service.problem is None


def test_stopping_what_never_started_is_harmless() -> None:
    assert Notifier(FakeFeed(), [Taker()]).stop()


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.01, 2.0), (1.0, 10.0), (200.0, 30.0)])
def test_a_slow_answer_makes_the_next_question_wait_and_never_so_long_that_alerts_end(
    took_s: float, wait_s: float
) -> None:
    clock = Clock()

    class SlowFeed(FakeFeed):
        def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
            clock.now_s += took_s
            return super().stories(closed_since_unix_s=closed_since_unix_s)

    assert fetch(SlowFeed(), clock=clock).step() == pytest.approx(wait_s)
