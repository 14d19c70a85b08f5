"""What an agent remembers of its pods: whom it asks for, how long it waits, what it forgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_node import FakeClock
from tidegauge.agent.kubernetes.pods import MAX_PODS, PATIENCE_S, REFRESH_S, PodBook
from tidegauge.agent.ports import NoPlace
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts

MAIN = "a" * 64
SIDE = "b" * 64
POD = PodCgroup("u1", MAIN)
FACTS = PodFacts("u1", "team-a", "llm-0", "llm", "Job", attempt=1, containers={MAIN: "train"})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def book(clock: FakeClock) -> PodBook:
    return PodBook(monotonic_s=clock.monotonic_s)


def test_a_pod_is_waited_for_with_patience_and_then_no_more(book: PodBook, clock: FakeClock) -> None:
    assert book.facts_of(POD) is NoPlace.WAITING
    clock.pass_s(PATIENCE_S)
    assert book.facts_of(POD) is NoPlace.WAITING
    clock.pass_s(0.1)
    assert book.facts_of(POD) is NoPlace.SILENT


def test_facts_that_come_late_are_heard_all_the_same(book: PodBook, clock: FakeClock) -> None:
    book.facts_of(POD)
    clock.pass_s(10 * PATIENCE_S)
    assert book.wanted() == ("u1",)
    book.hear([FACTS])
    assert book.facts_of(POD) == FACTS


def test_pod_book_asks_only_for_pods_with_ranks(book: PodBook) -> None:
    assert book.wanted() == ()
    book.facts_of(POD)
    assert book.wanted() == ("u1",)
    book.hear([FACTS])
    assert book.wanted() == ()


def test_pod_book_ignores_facts_it_did_not_ask_for(book: PodBook) -> None:
    book.hear([FACTS])
    assert book.facts_of(POD) is NoPlace.WAITING


def test_facts_are_asked_for_again_now_and_then(book: PodBook, clock: FakeClock) -> None:
    book.facts_of(POD)
    book.hear([FACTS])
    clock.pass_s(REFRESH_S)
    assert book.wanted() == ("u1",)
    book.hear([replace(FACTS, user_name="ada")])
    assert book.wanted() == ()
    assert book.facts_of(POD) == replace(FACTS, user_name="ada")


def test_a_container_that_just_started_is_asked_for_at_once_but_not_for_ever(book: PodBook, clock: FakeClock) -> None:
    book.facts_of(POD)
    book.hear([FACTS])
    book.facts_of(PodCgroup("u1", SIDE))
    assert book.wanted() == ("u1",)
    book.hear([FACTS])
    clock.pass_s(PATIENCE_S + 0.1)
    assert book.wanted() == ()


def test_pods_without_facts_come_first(book: PodBook, clock: FakeClock) -> None:
    book.facts_of(POD)
    book.hear([FACTS])
    clock.pass_s(REFRESH_S)
    for number in range(MAX_PODS):
        book.facts_of(PodCgroup(f"new-{number}", None))
    wanted = book.wanted()
    assert len(wanted) == MAX_PODS
    assert "u1" not in wanted


@pytest.mark.parametrize(("heard", "attempt"), [(0, 1), (1, 1), (3, 3)])
def test_an_attempt_never_falls(book: PodBook, heard: int, attempt: int) -> None:
    """Pods of earlier attempts, by which they were counted, are deleted while this one runs."""
    book.facts_of(POD)
    book.hear([FACTS])
    book.hear([replace(FACTS, attempt=heard)])
    assert book.facts_of(POD) == replace(FACTS, attempt=attempt)


def test_the_attempts_of_another_workload_are_not_its_own(book: PodBook) -> None:
    book.facts_of(POD)
    book.hear([FACTS])
    found = replace(FACTS, job_name="llm-set", kind="JobSet", attempt=0)
    book.hear([found])
    assert book.facts_of(POD) == found


def test_a_pod_that_is_gone_is_forgotten(book: PodBook, clock: FakeClock) -> None:
    book.facts_of(POD)
    book.hear([FACTS])
    book.keep({"u2"})
    assert book.wanted() == ()
    clock.pass_s(10 * PATIENCE_S)
    assert book.facts_of(POD) is NoPlace.WAITING
