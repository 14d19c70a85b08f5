"""What people say of incidents: which answer counts, and the precision that follows."""

from __future__ import annotations

import pytest

from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.grades import (
    EXAMPLES,
    RULE,
    Grade,
    GradeAnswer,
    GradedIncident,
    answer_in_words,
    counting,
    precision_rows,
    why_not_counted,
    wilson_interval,
)
from tidegauge.core.verdicts import Severity

LEAK, NOT_A_LEAK = Grade.LEAK, Grade.NOT_A_LEAK


def answer(grade: Grade, by: str = "ada", *, as_admin: bool = False, at_s: float = 1.0) -> GradeAnswer:
    return GradeAnswer(grade, by, as_admin, at_s)


def graded(
    number: int, *answers: GradeAnswer, cause: IncidentCause = IncidentCause.LEAK, told: bool = True,
    severity: Severity = Severity.CRITICAL,
) -> GradedIncident:  # fmt: skip
    return GradedIncident(number, "ada", cause, severity, 0.0, told, answers)


def test_without_an_answer_none_counts() -> None:
    assert counting(()) is None


def test_the_latest_answer_counts() -> None:
    assert counting((answer(LEAK), answer(NOT_A_LEAK, at_s=2.0))) == answer(NOT_A_LEAK, at_s=2.0)


def test_the_latest_answer_of_an_admin_counts_more_than_a_later_one_of_the_owner() -> None:
    first, second = answer(NOT_A_LEAK, "root", as_admin=True), answer(LEAK, "boss", as_admin=True, at_s=2.0)
    assert counting((answer(LEAK), first, answer(LEAK, at_s=2.0))) == first
    assert counting((first, second, answer(NOT_A_LEAK, at_s=3.0))) == second


def test_an_answer_that_does_not_count_is_told_whose_does_and_why() -> None:
    owners, admins = answer(NOT_A_LEAK, at_s=2.0), answer(LEAK, "boss", as_admin=True)
    later = answer(NOT_A_LEAK, "grace", as_admin=True, at_s=3.0)

    def said(yours: GradeAnswer, *answers: GradeAnswer) -> str | None:
        return why_not_counted(yours, answers, when=lambda at_s: f"day {at_s:.0f}")

    assert said(owners, owners) is None
    assert said(admins, owners, admins) is None
    assert said(owners, admins, owners) == (
        "It does not count: boss (admin) answered \"a leak\" on day 1, and an admin's answer counts before the owner's."
    )
    assert said(admins, admins, later) == (
        'It does not count: grace (admin) answered "not a leak" on day 3, and the later answer counts.'
    )


def test_precision_is_of_those_that_were_answered_and_says_how_many_were_not() -> None:
    incidents = [graded(1, answer(LEAK)), graded(2, answer(LEAK), told=False), graded(3, answer(NOT_A_LEAK)), graded(4)]
    (row, *_) = precision_rows(incidents)
    assert (row.group, row.told, row.would_tell, row.answered, row.leaks) == ("all", 3, 1, 3, 2)
    assert row.precision == pytest.approx(2 / 3)
    assert (row.low, row.high) == wilson_interval(2, 3)
    assert row.unanswered == 1
    assert row.precision_of_all == (2 / 4, 3 / 4)


def test_groups_are_severities_from_the_worst_and_causes_with_their_signal() -> None:
    incidents = [
        graded(1, answer(LEAK), severity=Severity.WARNING),
        graded(2, cause=IncidentCause.OUTSIDE_ALLOCATOR),
        graded(3, answer(NOT_A_LEAK)),
    ]
    rows = {row.group: (row.told, row.answered, row.precision) for row in precision_rows(incidents)}
    assert rows == {
        "all": (3, 2, 0.5),
        "severity critical": (2, 1, 0.0),
        "severity warning": (1, 1, 1.0),
        "cause leak (allocated)": (2, 2, 0.5),
        "cause outside_allocator (nontorch)": (1, 0, None),
    }
    assert list(rows)[:3] == ["all", "severity critical", "severity warning"]


def test_every_cause_of_growth_has_a_row_so_the_causes_add_up_to_all() -> None:
    """Evidence makes fragmentation an incident of CUDA graphs: it left the one row, and there was no other."""
    growth = [cause for cause in IncidentCause if cause.is_growth]
    all_of_them, *rows = precision_rows([graded(number, cause=cause) for number, cause in enumerate(growth)])
    causes = [row for row in rows if row.group.startswith("cause ")]
    assert [row.group for row in causes] == [
        "cause leak (allocated)", "cause fragmentation (reserved)", "cause cuda_graphs (reserved)",
        "cause outside_allocator (nontorch)", "cause host_memory (host)",
    ]  # fmt: skip
    assert sum(row.told for row in causes) == all_of_them.told == len(growth)


def test_of_no_incident_there_is_a_row_without_a_precision() -> None:
    (row,) = precision_rows([])
    assert (row.told, row.precision, row.low, row.high, row.precision_of_all) == (0, None, None, None, None)


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    # Of R 4.2: prop.test(part, whole, correct = FALSE)$conf.int
    [(0, 10, 0.0, 0.2775), (9, 10, 0.5958, 0.9821), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_intervals_are_wilsons(part: int, whole: int, low: float, high: float) -> None:
    assert wilson_interval(part, whole) == pytest.approx((low, high), abs=1e-4)


def test_the_rule_asks_what_stops_the_growth_and_has_examples_of_both_answers() -> None:
    assert RULE[LEAK].startswith("nothing in the job would have stopped the growth")
    assert RULE[NOT_A_LEAK].startswith("something in the job would have stopped it")
    assert {grade for grade, _ in EXAMPLES} == set(Grade)
    whole = " ".join([*RULE.values(), *(text for _, text in EXAMPLES)])
    assert all(word in whole for word in ("buffer", "meant", "cache without a bound", "CUDA graph"))


def test_an_answer_in_words_says_whose_it_is_and_why() -> None:
    assert answer_in_words(answer(LEAK)) == "a leak, says ada"
    why = answer(NOT_A_LEAK, "root", as_admin=True)._replace(comment="a replay buffer")
    assert answer_in_words(why) == "not a leak, says root (admin): a replay buffer"
