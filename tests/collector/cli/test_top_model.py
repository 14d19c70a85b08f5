"""What ``tidegauge top`` shows, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_of_ranks import jobs_of
from sample_views import GIB, LEAK, identity, rank_summary
from scheduler_values import incident
from tidegauge.cli.top.columns import name_job_shortly
from tidegauge.cli.top.model import (
    IncidentRow,
    Selection,
    Sort,
    by_job,
    find_job,
    incident_rows,
    job_rows,
    key_of,
    rank_rows,
)
from tidegauge.cluster.api.overview import JobLine, RankLine, job_line, job_page
from tidegauge.cluster.coordinator.grouping import RankOnNode
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents import IncidentCause, IncidentKey
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.verdicts import OK, Band, LeakState, Severity

TASK = SlurmPlace(JobId("4711"), "0", array_job_id=4700, array_task_id=3)


def leak(seconds: float | None, *, per_step: float = 1.0, state: LeakState = LeakState.LEAK) -> Any:
    return LEAK._replace(
        state=state,
        seconds_to_oom=None if seconds is None else Band(seconds / 2, seconds, seconds * 2),
        bytes_per_step=Band(per_step, per_step, per_step),
    )


def a_job(
    job_id: str, *, verdict: Any = OK, user: str = "ada", slurm: SlurmPlace | None = None, **changes: Any
) -> JobLine:
    rank = rank_summary(identity=identity(job_id=JobId(job_id)), verdict=verdict, user_name=user, slurm=slurm)
    (job,) = jobs_of([RankOnNode(rank, "node7", False, "id")])
    return job_line(job, lambda _, __: ())._replace(**changes)


def ranks(*verdicts: Any) -> tuple[RankLine, ...]:
    views = [rank_summary(number, verdict=verdict) for number, verdict in enumerate(verdicts)]
    (job,) = jobs_of([RankOnNode(view, f"node{n // 2}", False, "id") for n, view in enumerate(views)])
    return job_page(job, lambda _, __: (), now_unix_s=1.0).ranks


def line_of(number: int, **changes: Any) -> IncidentRow:
    about = incident(number=number, **changes)
    return IncidentRow(about, about.ranks, None)


def ids(jobs: list[JobLine], **choice: Any) -> list[str]:
    return [row.job.job_id for row in job_rows(jobs, (), Selection(**choice))]


def test_top_model_sorts_by_earliest_predicted_oom() -> None:
    jobs = [a_job("never"), a_job("late", verdict=leak(9000)), a_job("soon", verdict=leak(60))]
    assert ids(jobs) == ["soon", "late", "never"]


def test_without_an_end_in_sight_the_surer_then_the_graver_then_the_fuller_comes_first() -> None:
    note = leak(None)._replace(severity=Severity.NOTE)
    jobs = [
        a_job("ok"),
        a_job("full", used_share=0.9, first=a_job("x").first._replace(reserved_bytes=70 * GIB)),
        a_job("perhaps", verdict=leak(None, state=LeakState.SUSPECTED)),
        a_job("note", verdict=note),
        a_job("leak", verdict=leak(None)),
    ]
    assert ids(jobs) == ["leak", "note", "perhaps", "full", "ok"]


def test_jobs_are_sorted_by_share_of_memory_by_growth_and_by_name() -> None:
    jobs = [
        a_job("10", used_share=0.5, verdict=leak(10, per_step=5.0)),
        a_job("9", used_share=None),
        a_job("9b", used_share=0.9, verdict=leak(20, per_step=7.0)),
    ]
    assert ids(jobs, sort=Sort.MEMORY) == ["9b", "10", "9"]
    assert ids(jobs, sort=Sort.GROWTH) == ["9b", "10", "9"]
    assert ids(jobs, sort=Sort.NAME) == ["9", "9b", "10"], "numbers in names count as numbers"


@pytest.mark.parametrize("sort", list(Sort))
def test_jobs_that_have_ended_come_last_whatever_the_order(sort: Sort) -> None:
    jobs = [a_job("a", verdict=leak(1), used_share=1.0, running=False), a_job("b")]
    assert ids(jobs, sort=sort) == ["b", "a"]


def test_the_latest_attempt_comes_first_where_all_else_is_alike() -> None:
    jobs = [a_job("x", attempt=0), a_job("x", attempt=2), a_job("x", attempt=1)]
    assert [row.job.attempt for row in job_rows(jobs, (), Selection(Sort.NAME))] == [2, 1, 0]


@given(st.permutations([a_job(str(n), verdict=leak(n or None)) for n in range(5)]), st.sampled_from(list(Sort)))
def test_the_order_does_not_depend_on_the_answers_order(jobs: list[JobLine], sort: Sort) -> None:
    assert ids(jobs, sort=sort) == ids(jobs[::-1], sort=sort)


def test_a_text_is_looked_for_in_all_that_names_a_job_in_either_case() -> None:
    jobs = [a_job("4711", job_name="LLM-pretrain"), a_job("4712", job_name=None, user="grace", scheduler="ray")]
    for text, found in (("llm", ["4711"]), ("471", ["4711", "4712"]), ("GRACE", ["4712"]), ("ray", ["4712"])):
        assert ids(jobs, text=text, sort=Sort.NAME) == found
    assert ids(jobs, text="node7", sort=Sort.NAME) == ["4711", "4712"]
    assert ids(jobs, text="nobody") == []


def test_top_model_filters_jobs_by_user() -> None:
    jobs = [a_job("1"), a_job("2", user="adam")]
    assert ids(jobs, user="ada") == ["1"]


def test_a_choice_is_said_in_words() -> None:
    assert Selection().words(whose=True) == "by time to OOM"
    choice = Selection(Sort.NAME, user="ada", text="llm")
    assert choice.words(whose=True) == "by name, of ada, with 'llm'"
    assert choice.words(whose=False) == "by name, with 'llm'"


def test_a_job_is_shown_with_its_own_incidents_the_gravest_first() -> None:
    mine = JobKey("4711", 0, 1001)
    told = [
        line_of(1, severity=Severity.WARNING, job=mine),
        line_of(2, job=mine),
        line_of(3, job=mine._replace(uid=6666)),
    ]
    (row,) = job_rows([a_job("4711")], told, Selection())
    assert row.key == mine == key_of(row.job)
    assert [line.incident.number for line in row.incidents] == [2, 1]
    assert {key: len(lines) for key, lines in by_job(told).items()} == {mine: 2, mine._replace(uid=6666): 1}


def test_incidents_follow_the_choice_too() -> None:
    told = [line_of(1), line_of(2, user_name="grace"), line_of(3, severity=Severity.WARNING)]
    assert [line.incident.number for line in incident_rows(told, Selection())] == [2, 1, 3]
    assert [line.incident.number for line in incident_rows(told, Selection(user="ada"))] == [1, 3]
    assert [line.incident.number for line in incident_rows(told, Selection(text="pretrain", user="grace"))] == [2]
    assert incident_rows(told, Selection(text="fragmentation")) == []


def test_ranks_are_sorted_by_what_is_asked_for() -> None:
    told = ranks(OK, leak(100, per_step=1.0), leak(50, per_step=3.0), OK)
    fuller = [rank._replace(reserved_bytes=79 * GIB) if rank.rank == 3 else rank for rank in told]
    orders = {
        sort: [rank.rank for rank in rank_rows(fuller, Selection(sort))]
        for sort in (Sort.TIME, Sort.MEMORY, Sort.GROWTH, Sort.NAME)
    }
    assert orders == {
        Sort.TIME: [2, 1, 3, 0], Sort.MEMORY: [3, 0, 1, 2], Sort.GROWTH: [2, 1, 0, 3], Sort.NAME: [0, 1, 2, 3],
    }  # fmt: skip


def test_ranks_that_have_ended_come_last_and_are_found_by_host_number_and_state() -> None:
    told = [rank._replace(alive=rank.rank != 1) for rank in ranks(OK, leak(5), OK)]
    assert [rank.rank for rank in rank_rows(told, Selection())] == [0, 2, 1]
    assert [rank.rank for rank in rank_rows(told, Selection(text="node1"))] == [2]
    assert [rank.rank for rank in rank_rows(told, Selection(text="rank 0"))] == [0]
    assert [rank.rank for rank in rank_rows(told, Selection(text="LEAK"))] == [1]
    in_pods = [rank._replace(pod=f"team-a/train-{rank.rank}-x7k2p") for rank in told]
    assert [rank.rank for rank in rank_rows(in_pods, Selection(text="train-2"))] == [2]
    assert len(rank_rows(told, Selection(user="nobody"))) == 3, "a job's ranks are all of one user"


def test_a_job_is_found_by_its_id_the_running_one_and_its_latest_attempt() -> None:
    old, now = a_job("4711", attempt=3, running=False), a_job("4711", attempt=1)
    assert find_job([old, now, a_job("4712")], "4711") == [now]
    assert find_job([old, now._replace(attempt=2), now], "4711") == [now._replace(attempt=2)]
    assert find_job([now], "471") == []


def test_a_task_of_an_array_is_found_and_chosen_by_the_name_that_squeue_shows() -> None:
    task, other = a_job("4711", slurm=TASK), a_job("4712")
    assert (task.array, other.array) == ("4700_3", None)
    assert find_job([other, task], "4700_3") == find_job([other, task], "4711") == [task]
    assert find_job([other, task], "4711 (4700_3)") == find_job([other, task], "4700_3 (4700_3)") == [task]
    assert [row.job for row in job_rows([other, task], (), Selection(text="4700_"))] == [task]


def test_a_job_is_found_with_all_groups_that_run_and_a_group_by_the_name_that_tables_print() -> None:
    first = a_job("j", group_name="pid 7")
    second = a_job("j", verdict=LEAK, attempt=1, group="pid 9", group_name="pid 9")
    jobs = [first, second, second._replace(attempt=0, running=False), a_job("j2")]
    assert find_job(jobs, "j") == [second, first], "the most alarming first"
    for name in ("j (pid 9, attempt 1)", "j (pid 9, 1)"):
        assert find_job(jobs, name) == [second]
    assert find_job(jobs, "j (pid 7)") == [first]
    assert find_job(jobs, "j (pid 9)") == [jobs[2]], "by its whole name also one that has ended"
    assert find_job(jobs, "j (pid 8)") == []
    ended = [job._replace(running=False) for job in jobs]
    assert find_job(ended, "j") == [ended[1]]


def test_a_job_is_found_by_the_name_that_its_owner_gave_it_in_place_of_an_id_that_was_made_up() -> None:
    job = a_job("local-n1-7-9", job_name="llm")
    assert find_job([job], "llm") == [job]
    assert find_job([a_job("4711", job_name="llm")], "llm") == [], "a scheduler's id is a name of its own"


def test_a_row_goes_by_that_name_too_and_its_page_says_the_id() -> None:
    (row,) = job_rows([a_job("local-n1-7-9", job_name="llm", attempt=1)], (), Selection())
    assert name_job_shortly(row.called, width=8) == "llm (1)"
    assert (row.key.job_id, row.other_name) == ("local-n1-7-9", "local-n1-7-9")
    (row,) = job_rows([a_job("4711", job_name="llm")], (), Selection())
    assert (name_job_shortly(row.called), row.other_name) == ("4711", "llm")
    (row,) = job_rows([a_job("local-n1-7-9", job_name=None)], (), Selection())
    assert (name_job_shortly(row.called), row.other_name) == ("local-n1-7-9", None)


def test_two_groups_of_one_job_are_two_rows_each_with_its_incidents() -> None:
    first, second = a_job("j", group_name="step 0"), a_job("j", group="step 1", group_name="step 1")
    about = line_of(7, key=IncidentKey(key_of(second), IncidentCause.LEAK))
    rows = {row.called.group: row for row in job_rows([first, second], (about,), Selection())}
    assert {name: [line.incident.number for line in row.incidents] for name, row in rows.items()} == {
        "step 0": [],
        "step 1": [7],
    }
    assert len({row.key for row in rows.values()}) == 2
    assert name_job_shortly(rows["step 1"].called) == "j (step 1)"
