"""Acts of people in words, and which of them is in force."""

from __future__ import annotations

import pytest

from tidegauge.core.incidents.acts import (
    ActKind,
    ActOutcome,
    ActWay,
    PersonAct,
    acknowledgement,
    act_in_words,
    exemption_in_force,
    told_acts,
)
from tidegauge.core.incidents.grades import Grade

ACT = PersonAct("a", 1, ActKind.ACKNOWLEDGE, "ada", False, 100.0, outcome=ActOutcome.DONE)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (ACT, "ada acknowledged the incident"),
        (ACT._replace(way=ActWay.SLACK, by="root", as_admin=True), "root (admin) acknowledged the incident, on Slack"),
        (ACT._replace(kind=ActKind.EXEMPT, until_unix_s=900.0), "ada exempted the job from actions until 900"),
        (ACT._replace(kind=ActKind.EXEMPT, until_unix_s=100.0), "ada ended the exemption of the job"),
        (ACT._replace(kind=ActKind.LEAK, outcome=ActOutcome.REFUSED, detail="a fact"), "ada, leak, refused: a fact"),
        (ACT._replace(kind=ActKind.NOT_A_LEAK, outcome=ActOutcome.BEGUN), "ada, not a leak, in progress"),
        (ACT._replace(by=None, outcome=ActOutcome.REFUSED), "somebody unknown, acknowledge, refused"),
    ],
)
def test_an_act_is_said_in_one_sentence(act: PersonAct, words: str) -> None:
    assert act_in_words(act, when=lambda at_s: f"{at_s:g}") == words


def test_the_latest_acknowledgement_counts_until_somebody_takes_it_back() -> None:
    second = ACT._replace(by="root")
    back = ACT._replace(kind=ActKind.UNACKNOWLEDGE)
    refused = ACT._replace(by="mallory", outcome=ActOutcome.REFUSED)
    assert acknowledgement([]) is None
    assert acknowledgement([ACT, second, refused]) == second
    assert acknowledgement([ACT, second, back, refused]) is None
    assert acknowledgement([ACT, back, second]) == second
    assert told_acts([ACT, refused]) == [ACT]


def test_the_latest_exemption_counts_also_if_it_is_the_shorter_one() -> None:
    long, short = (ACT._replace(kind=ActKind.EXEMPT, until_unix_s=until_s) for until_s in (900.0, 200.0))
    assert exemption_in_force([long], now_unix_s=899.0) == long
    assert exemption_in_force([long, short], now_unix_s=300.0) is None
    assert exemption_in_force([short, long._replace(outcome=ActOutcome.FAILED)], now_unix_s=150.0) == short


def test_two_acts_are_answers_to_whether_it_was_a_leak() -> None:
    assert {kind: kind.grade for kind in ActKind if kind.grade} == {
        ActKind.LEAK: Grade.LEAK,
        ActKind.NOT_A_LEAK: Grade.NOT_A_LEAK,
    }
