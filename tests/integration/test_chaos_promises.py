"""The chaos suite's own judgement: each broken promise is seen. No cluster: what a site would show, by hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from chaos.promises import (
    PROMISES,
    Account,
    Attempt,
    JobRecord,
    Page,
    Step,
    allowed_gap,
    broken_series,
    disturbed,
    interrupted,
    longest_gap,
    lost,
    moved_onset,
    twice,
    unseen,
)
from chaos.scrapes import watched_of
from chaos.table import Row, as_table

JOB = JobRecord("leaky", running=True, starts=1, pids={0: 7, 1: 8}, saved_for=(), messages=1)


def decision(action: str, *, outcome: str | None = "done", started_s: float | None = 5.0) -> dict[str, Any]:
    about = {"action": action, "incident": {"job_name": "leaky"}}
    return {"decision": about, "outcome": outcome, "started_s": started_s}


def account() -> Account:
    incident = {
        "number": 1, "key": {"job": "leaky", "cause": "leak"}, "job_name": "leaky", "opened_unix_s": 10.0,
        "closed_unix_s": None, "closure": None, "snapshots": ["n:/a"], "reports": [],
    }  # fmt: skip
    return Account(
        incidents={1: incident},
        lines={1: {("opened", 10.0), ("evidence", 12.0)}},
        decisions={"1:leak:0:1": decision("notify")},
        snapshots={"n:/a": "digest"},
    )


def changed(**values: Any) -> Account:
    """The same with other values in incident 1."""
    one = account()
    one.incidents[1].update(values)
    return one


def test_chaos_promises_hold_if_nothing_changed() -> None:
    assert lost(account(), account()) == []
    assert interrupted({1}, account(), ["leaky"]) == []
    assert twice(JOB, account()) == []
    assert disturbed(JOB, JOB, requeues=0) == []


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (replace(account(), incidents={}), "incident 1 is lost"),
        (changed(opened_unix_s=11.0), "incident 1 is another one"),
        (changed(snapshots=[]), "some of its snapshots"),
        (replace(account(), lines={1: {("opened", 10.0)}}), "('evidence', 12.0)"),
        (replace(account(), decisions={}), "the decision 1:leak:0:1 is lost"),
        (replace(account(), decisions={"1:leak:0:1": decision("notify", outcome="failed")}), "was done, and is failed"),
        (replace(account(), snapshots={"n:/a": "cannot be read"}), "the snapshot n:/a"),
    ],
)
def test_chaos_promise_names_a_record_that_is_lost_or_changed(now: Account, word: str) -> None:
    (said,) = lost(account(), now)
    assert word in said


def test_a_closed_incident_that_is_open_again_is_named() -> None:
    (said,) = lost(changed(closed_unix_s=20.0), account())
    assert said == "incident 1 was closed, and is not"


def test_an_incident_that_was_closed_though_its_job_goes_on_is_named() -> None:
    now = changed(closed_unix_s=20.0, closure="job_ended")
    assert interrupted({1}, now, ["leaky"]) == ["incident 1 was closed (job_ended), though its job goes on"]
    assert interrupted({1}, now, []) == []


def test_a_second_open_incident_about_the_same_is_named() -> None:
    now = account()
    now.incidents[2] = {**deepcopy(now.incidents[1]), "number": 2}
    (said,) = interrupted({1}, now, ["leaky"])
    assert said.startswith("more than one incident is open")


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (replace(JOB, starts=2), "was started again 1 times, and the audit has 0 times requeue"),
        (replace(JOB, saved_for=("a",)), "saved 1 times, and the audit has 0 times checkpoint"),
        (replace(JOB, messages=2), "was told of an incident 2 times, and the audit has 1 times notify"),
    ],
)
def test_chaos_promise_names_an_action_missing_from_the_audit(job: JobRecord, word: str) -> None:
    (said,) = twice(job, account())
    assert word in said


def test_two_checkpoints_for_one_request_are_named() -> None:
    now = account()
    now.decisions |= {"a": decision("checkpoint"), "b": decision("checkpoint")}
    assert twice(replace(JOB, saved_for=("a", "a")), now) == ["leaky saved twice for a"]


def test_a_decision_that_was_never_begun_explains_nothing() -> None:
    now = account()
    now.decisions["q"] = decision("requeue", outcome="superseded", started_s=None)
    assert len(twice(replace(JOB, starts=2), now)) == 1


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (replace(JOB, running=False), "has ended"),
        (replace(JOB, starts=2, pids={0: 9, 1: 10}), "was started again 1 times, 0 of them by a requeue"),
        (replace(JOB, pids={0: 7, 1: 9}), "has other processes"),
    ],
)
def test_a_job_that_does_not_go_on_as_it_was_is_named(now: JobRecord, word: str) -> None:
    (said,) = disturbed(JOB, now, requeues=0)
    assert word in said


def test_a_restart_that_the_audit_explains_disturbs_nobody() -> None:
    assert disturbed(JOB, replace(JOB, starts=2, pids={0: 9, 1: 10}), requeues=1) == []


def test_gaps_are_counted_within_one_process_and_not_while_it_saves() -> None:
    steps = [Step(7, 1, 1.0), Step(7, 2, 1.5), Step(7, 3, 5.5), Step(9, 3, 20.0), Step(9, 4, 20.2)]
    assert longest_gap(steps, saving=()) == 4.0
    assert longest_gap(steps, saving={2}) == 0.5


def test_a_gap_is_allowed_by_what_was_usual_before() -> None:
    assert allowed_gap(0.1) == 2.0
    assert allowed_gap(1.5) == 4.5


STEPS = 'tidegauge_rank_steps_total{UUID="GPU-0",attempt="1",job_id="7",rank="0"}'
EARLIER = STEPS.replace('attempt="1"', 'attempt="0"')
CLAIMED = STEPS.replace('UUID="GPU-0",', "")
LEAK = 'tidegauge_rank_leak_state{UUID="GPU-0",attempt="1",job_id="7",rank="0"}'
OTHERS = 'tidegauge_rank_steps_total{UUID="GPU-1",attempt="0",job_id="8",rank="0"}'
SEVEN, EIGHT = Attempt("7", 1), Attempt("8", 0)


def pages(*times_s: float, **more: float) -> list[Page]:
    """Pages at these times, with a rank whose steps are ten times the time, and its leak."""
    return [Page(at_s, {STEPS: 10 * at_s, LEAK: 2.0, **more}) for at_s in times_s]


def test_a_page_is_read_for_counters_of_ranks_and_verdicts() -> None:
    text = (
        f"# TYPE tidegauge_rank_steps_total counter\n{STEPS} 700.0\n{LEAK} 2.0\ntidegauge_records_lost_total 1.2e+06\n"
    )
    text += 'tidegauge_rank_allocated_bytes{job_id="7",rank="0"} 5.0\n'
    page = watched_of(text, 3.0)
    assert page == Page(3.0, {STEPS: 700.0, LEAK: 2.0, "tidegauge_records_lost_total": 1.2e6})


def test_chaos_promises_hold_if_every_scrape_has_the_rank() -> None:
    seen = pages(*(0.5 * at for at in range(60)))
    assert unseen(seen, 5.0, 29.5, jobs={SEVEN}) == 0.5
    assert broken_series(seen, 5.0, jobs={SEVEN}) == []
    assert moved_onset(100, 110, 400) == []


@pytest.mark.parametrize(
    ("seen", "gap_s"),
    [
        (pages(4.0, 5.0, 17.0, 18.0, 20.0), 12.0),  # nobody answered
        ([*pages(4.0, 5.0), Page(10.0, {OTHERS: 1.0}), *pages(17.0, 20.0)], 12.0),  # without the rank
        (pages(4.0, 5.0, 6.0), 14.0),  # not yet again
        (pages(4.0, 19.0, 20.0), 14.0),  # the trouble began at 5
        ([], 15.0),
    ],
)
def test_chaos_promise_measures_how_long_a_rank_was_missing_in_metrics(seen: list[Page], gap_s: float) -> None:
    assert unseen(seen, 5.0, 20.0, jobs={SEVEN}) == gap_s


def test_a_rank_that_was_ended_on_purpose_leaves_no_gap_and_its_page_does() -> None:
    seen = [Page(4.0, {STEPS: 1.0, OTHERS: 1.0}), *(Page(at, {OTHERS: at}) for at in (6.0, 8.0, 10.0))]
    assert unseen(seen, 5.0, 10.0, jobs={SEVEN, EIGHT}) == 5.0
    assert unseen(seen, 5.0, 10.0, jobs={EIGHT}) == 2.0
    assert unseen(seen, 5.0, 10.0, jobs=()) == 2.0
    assert unseen(seen[:1], 5.0, 10.0, jobs=()) == 5.0


def test_counters_of_an_earlier_attempt_and_of_who_claims_to_be_the_rank_may_end() -> None:
    seen = [Page(4.0, {STEPS: 1.0, EARLIER: 90.0, CLAIMED: 5.0}), *(Page(at, {STEPS: at}) for at in (6.0, 8.0, 10.0))]
    seen.append(Page(10.0, {STEPS: 10.0, CLAIMED: 1.0}))
    assert unseen(seen, 5.0, 10.0, jobs={SEVEN}) == 2.0
    assert broken_series(seen, 5.0, jobs={SEVEN}) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({STEPS: 59.0}, 'job_id="7",rank="0"} fell from 60 to 59'),
        ({LEAK: 0.0}, "was 2, and then 0"),
        ({LEAK: 1.0}, "was 2, and then 1"),
    ],
)
def test_chaos_promise_names_a_counter_that_fell_and_a_leak_that_is_none(changed: dict[str, float], word: str) -> None:
    seen = [*pages(4.0, 6.0), Page(7.0, {STEPS: 70.0, LEAK: 2.0, **changed}), *pages(8.0)]
    (said,) = broken_series(seen, 5.0, jobs={SEVEN})
    assert word in said


def test_a_series_that_was_away_is_compared_with_what_it_was_before() -> None:
    (said,) = broken_series([*pages(4.0, 6.0), Page(7.0, {}), Page(8.0, {STEPS: 1.0, LEAK: 2.0})], 5.0, jobs={SEVEN})
    assert "fell from 60 to 1" in said
    assert (
        broken_series([Page(3.0, {LEAK: 2.0}), Page(4.0, {LEAK: 1.0}), Page(6.0, {LEAK: 2.0})], 5.0, jobs={SEVEN}) == []
    )
    assert broken_series([Page(4.0, {OTHERS: 2.0}), Page(6.0, {OTHERS: 1.0})], 5.0, jobs={SEVEN}) == []


def test_an_onset_that_was_found_anew_or_is_gone_is_named() -> None:
    assert moved_onset(100, 410, 400) == [
        "the onset of the leak was step 100, and is 410; the trouble began at step 400"
    ]
    assert len(moved_onset(100, 300, 400)) == 1
    assert len(moved_onset(100, None, 400)) == 1
    assert moved_onset(None, 410, 400) == []


def test_a_row_fails_by_a_broken_promise_a_missed_bound_or_no_service() -> None:
    fine = Row("agent", 30.0, seconds=3.0, broken={promise: [] for promise in PROMISES})
    assert fine.passed
    assert not replace(fine, seconds=30.1).passed
    assert not replace(fine, seconds=None).passed
    assert not replace(fine, failure="no incident").passed
    assert not replace(fine, broken={PROMISES[0]: ["leaky has ended"]}).passed


def test_the_table_says_which_promise_was_broken() -> None:
    row = Row("agent", 30.0, seconds=3.0, broken={promise: [] for promise in PROMISES} | {PROMISES[1]: ["lost"]})
    assert as_table([row]).splitlines()[1].split()[:6] == ["agent", "yes", "NO", "yes", "yes", "yes"]
    assert row.troubles() == ["agent: nothing lost: lost"]


def test_a_row_names_what_was_measured() -> None:
    said = Row("agent", 30.0, seconds=3.0, unseen_s=1.25, load=12.4).measures()
    assert said[0] == "whole after 3.0 s"
    assert said[-2:] == ["/metrics gap 1.2 s", "load 12"]
