"""What stays of a job: figures over its whole life, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import GIB, LEAK, MIB, NOW_S, identity, job_view, rank_summary, rank_view
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.job_records.memory import MemorySoFar
from tidegauge.core.job_records.record import (
    MAX_INCIDENTS,
    JobEnd,
    JobEvent,
    JobRecord,
    RankPeak,
    lost,
    record_of,
    with_events,
)
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, LeakState, Severity
from tidegauge.core.views import JobView, RankSummary

CAP, SNAPSHOT = ActionKind.CAP, ActionKind.SNAPSHOT
LAUNCH = LaunchSummary(
    ProcessId(7, 7), 1001, "4711", "llm-pretrain", 0, LaunchState.RUNNING, False, False, None, NOW_S - 500.0
)
OOM = OomRecord(NOW_S - 1.0, 200, 2 * GIB, GIB, 80 * GIB, 78 * GIB, 79 * GIB)


def healthy(*ranks: RankSummary, **changes: Any) -> JobView:
    return job_view(ranks=ranks or (rank_summary(0),), state=LeakState.OK, severity=None, suspects=(), **changes)


def ended(*ranks: RankSummary, **changes: Any) -> JobView:
    over = [replace(rank, alive=False) for rank in ranks or (rank_summary(0, detached=True),)]
    return healthy(*over, running=False, **changes)


def end_of(*ranks: RankSummary, **changes: Any) -> JobEnd | None:
    return record_of([ended(*ranks, **changes)], None, now_s=NOW_S).end


def test_a_running_job_has_no_end_and_its_fullest_rank_is_by_its_own_limit() -> None:
    of_small = rank_summary(0, reserved_bytes=10 * GIB, reserved_peak_bytes=15 * GIB, limit_bytes=16 * GIB)
    of_large = rank_summary(1, reserved_bytes=40 * GIB, reserved_peak_bytes=40 * GIB, limit_bytes=80 * GIB)
    record = record_of([healthy(of_small, of_large, launch=LAUNCH, rank_hostnames=("a", "b"))], None, now_s=NOW_S)
    assert (record.ended_unix_s, record.end, record.started_unix_s) == (None, None, NOW_S - 500.0)
    assert record.fullest[:5] == RankPeak(0, "a", 10 * GIB, 15 * GIB, 16 * GIB)[:5]
    assert (record.job, record.world_size, record.nodes, record.steps) == (job_view().key, 2, 1, 200)


def test_memory_outside_pytorch_counts_for_which_rank_is_the_fullest() -> None:
    """Of a job that needed 28.9 GiB on a GPU it was told that it needed 17.5 GiB."""
    first = rank_summary(0, reserved_bytes=17 * GIB, nontorch_bytes=512 * MIB, limit_bytes=80 * GIB)
    other = rank_summary(1, reserved_bytes=16 * GIB, nontorch_bytes=12 * GIB, limit_bytes=80 * GIB)
    unknown = rank_summary(2, reserved_bytes=18 * GIB, nontorch_bytes=None, limit_bytes=80 * GIB)
    record, memory = None, MemorySoFar()
    for view in (healthy(first, other, unknown), healthy(first)):
        record = record_of([view], record, now_s=1)
        memory.look([view])
    assert record is not None
    assert (record.fullest.rank, record.fullest.reserved_bytes) == (1, 16 * GIB)
    assert [peak.rank for peak in memory.memory().peaks] == [1, 2, 0]


def test_what_no_earlier_run_did_stays_with_the_record() -> None:
    first = record_of([healthy(change="its peak is beyond")], None, now_s=NOW_S)
    assert record_of([ended()], first, now_s=NOW_S + 1.0).change == "its peak is beyond"


def test_the_record_says_what_it_ran_on() -> None:
    pod = PodPlace("uid", "team-a", "trainer-0")
    who = identity(0, script="-m trainer", script_sha256="ab", arguments="--lr 1")
    first = rank_summary(0, pod=pod, identity=who)
    record = record_of([healthy(first, rank_summary(1), rank_summary(2, uuid=None))], None, now_s=1)
    assert (record.script, record.script_sha256, record.arguments) == ("-m trainer", "ab", "--lr 1")
    assert (record.torch_version, record.alloc_conf) == ("2.13.0", "expandable_segments:True")
    assert (record.namespace, record.gpus) == ("team-a", 2)
    in_slurm = rank_summary(0, slurm=SlurmPlace(JobId("4711"), "0", account="physics", partition="gpu"))
    of_slurm = record_of([healthy()], record_of([healthy(in_slurm)], None, now_s=1), now_s=2)
    assert (of_slurm.account, of_slurm.partition) == ("physics", "gpu")
    silent = rank_summary(0, identity=identity(0, torch_version=None, alloc_conf=None), uuid=None)
    later = record_of([healthy(silent)], record, now_s=2)
    assert (later.torch_version, later.alloc_conf) == ("2.13.0", "expandable_segments:True")
    assert (later.namespace, later.gpus, later.script) == ("team-a", 2, "-m trainer")


def test_gpus_of_two_hosts_with_the_same_uuid_are_two() -> None:
    alike = rank_summary(0), rank_summary(1, uuid=rank_summary(0).uuid)
    assert record_of([healthy(*alike, rank_hostnames=("a", "b"))], None, now_s=1).gpus == 2
    assert record_of([healthy(*alike, rank_hostnames=("a", "a"))], None, now_s=1).gpus == 1


def test_memory_outside_pytorch_and_of_the_host_is_the_highest_so_far() -> None:
    first = record_of([healthy(rank_summary(0, nontorch_bytes=GIB, host_rss_bytes=9 * GIB))], None, now_s=1)
    later = rank_summary(0, nontorch_bytes=2 * GIB, host_rss_bytes=None, step=300)
    peak = record_of([healthy(later)], first, now_s=2).fullest
    assert (peak.nontorch_bytes, peak.host_bytes, peak.steps) == (2 * GIB, 9 * GIB, 300)


LARGE = {"allocated_bytes": 1400 * MIB, "reserved_bytes": 1522 * MIB, "limit_bytes": 3 * GIB, "nontorch_bytes": 7 * MIB}
CAPPED = {
    "allocated_bytes": 290 * MIB,
    "reserved_bytes": 302 * MIB,
    "limit_bytes": 307 * MIB,
    "nontorch_bytes": 5 * MIB,
}


@pytest.mark.parametrize("order", [(LARGE, CAPPED), (CAPPED, LARGE), (LARGE, CAPPED, LARGE)])
def test_peak_and_limit_are_those_of_the_fullest_moment(order: Sequence[dict[str, int]]) -> None:
    """A rank that was started again under a smaller cap was told as 1.5 GiB of 307 MiB."""
    record, memory = None, MemorySoFar()
    for number, figures in enumerate(order):
        view = healthy(rank_summary(0, process=ProcessId(number, 1), host_rss_bytes=number, **figures))
        record = record_of([view], record, now_s=number)
        memory.look([view])
    assert record is not None
    for peak in (record.fullest, *memory.memory().peaks):
        assert {name: getattr(peak, name) for name in CAPPED} == CAPPED
        assert peak.host_bytes == len(order) - 1, "memory of the host has nothing to do with the limit"


def test_a_limit_that_is_known_later_is_that_of_the_peak_before_if_that_fits() -> None:
    first = record_of([healthy(rank_summary(0, reserved_bytes=9 * GIB, limit_bytes=None))], None, now_s=1)
    known = record_of([healthy(rank_summary(0, reserved_bytes=GIB, limit_bytes=16 * GIB))], first, now_s=2)
    assert (known.fullest.reserved_bytes, known.fullest.limit_bytes) == (9 * GIB, 16 * GIB)
    capped = record_of([healthy(rank_summary(0, reserved_bytes=GIB, limit_bytes=2 * GIB))], first, now_s=2)
    assert (capped.fullest.reserved_bytes, capped.fullest.limit_bytes) == (GIB, 2 * GIB)


def test_a_cap_below_what_a_rank_once_held_is_not_the_limit_of_that_peak() -> None:
    capped = rank_summary(0, reserved_bytes=GIB, reserved_peak_bytes=8 * GIB, limit_bytes=2 * GIB)
    other = rank_summary(1, reserved_bytes=GIB, reserved_peak_bytes=GIB, limit_bytes=2 * GIB)
    assert record_of([healthy(capped)], None, now_s=1).fullest[2:5] == (capped.allocated_bytes, 8 * GIB, None)
    assert record_of([healthy(capped, other)], None, now_s=1).fullest.rank == 1


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.none() | st.integers(0, 9), st.none() | st.integers(1, 9), st.integers(0, 1)),
        min_size=1,
    )
)
def test_no_share_is_above_all_of_the_limit(looks: list[tuple[int, int | None, int | None, int]]) -> None:
    record, memory = None, MemorySoFar()
    for reserved, peak, limit, number in looks:
        rank = rank_summary(number, reserved_bytes=reserved, reserved_peak_bytes=peak, limit_bytes=limit)
        record = record_of([healthy(rank)], record, now_s=1)
        memory.look([healthy(rank)])
    assert record is not None
    for told in (record.fullest, *memory.memory().peaks):
        assert told.limit_bytes is None or told.reserved_bytes <= told.limit_bytes


def test_retries_and_ooms_are_the_most_and_fragmentation_is_the_last_reading() -> None:
    first = rank_summary(0, inactive_split_bytes=9, alloc_retries=3, ooms=1)
    record = record_of([healthy(first)], None, now_s=1)
    after_a_reset = rank_summary(0, inactive_split_bytes=5, alloc_retries=0, ooms=0)
    record = record_of([healthy(after_a_reset)], record, now_s=2)
    of_older_agent = record_of([healthy(rank_summary(0))], record, now_s=3).fullest
    for peak in record.fullest, of_older_agent:
        assert (peak.inactive_split_bytes, peak.alloc_retries, peak.ooms) == (5, 3, 1)


def test_a_summary_carries_retries_ooms_and_fragmentation() -> None:
    summary = rank_view(0, alloc_retries=2, ooms=1).summary()
    assert (summary.inactive_split_bytes, summary.alloc_retries, summary.ooms) == (300 * MIB, 2, 1)


def test_incidents_and_actions_are_noted_once_each_and_stay() -> None:
    job = job_view().key
    first = record_of([healthy()], None, now_s=1)
    opened, snapshot, capped = JobEvent(job, 7), JobEvent(job, action=SNAPSHOT), JobEvent(job, action=CAP)
    noted = with_events(first, [opened, capped, snapshot, opened, capped])
    later = record_of([healthy()], noted, now_s=2)
    assert (later.incidents, later.actions) == ((7,), ("cap", "snapshot"))
    many = with_events(later, [JobEvent(job, number) for number in range(100)])
    assert (len(many.incidents), many.incidents[-1]) == (MAX_INCIDENTS, 99)


def test_without_a_launch_it_started_when_it_was_first_seen() -> None:
    first = record_of([healthy()], None, now_s=NOW_S)
    assert record_of([healthy()], first, now_s=NOW_S + 60.0).started_unix_s == NOW_S


def test_the_record_keeps_the_worst_and_the_highest_of_the_whole_life() -> None:
    full = rank_summary(0, allocated_peak_bytes=30 * GIB, reserved_peak_bytes=33 * GIB, verdict=LEAK, last_oom=OOM)
    first = record_of([job_view(ranks=(full,))], None, now_s=NOW_S)
    after_a_reset = rank_summary(0, step=300, allocated_peak_bytes=12 * GIB, reserved_peak_bytes=34 * GIB, verdict=OK)
    record = record_of([healthy(after_a_reset)], first, now_s=NOW_S + 9.0)
    assert (record.state, record.severity, record.steps) == (LeakState.LEAK, Severity.CRITICAL, 300)
    assert (record.fullest.allocated_bytes, record.fullest.reserved_bytes) == (30 * GIB, 34 * GIB)
    assert record.ooms == 1


def test_peaks_are_the_highest_that_the_agent_read_where_it_says() -> None:
    rank = rank_summary(0, allocated_highest_bytes=30 * GIB, reserved_highest_bytes=33 * GIB)
    peak = record_of([healthy(rank)], None, now_s=NOW_S).fullest
    assert (peak.allocated_bytes, peak.reserved_bytes) == (30 * GIB, 33 * GIB)


def test_all_groups_of_a_job_are_one_record() -> None:
    evaluator = healthy(rank_summary(0, step=5), group="g2", world_size=1)
    record = record_of([healthy(), evaluator], None, now_s=NOW_S)
    assert (record.job.group, record.world_size) == ("", 3)
    over = replace(evaluator, running=False)
    assert record_of([healthy(), over], None, now_s=NOW_S).world_size == 2, "a step that is over counts no more"


def test_how_it_ended() -> None:
    clean, cut_off = rank_summary(0, detached=True), rank_summary(1)
    assert end_of(clean) is JobEnd.ENDED
    assert end_of(clean, cut_off) is JobEnd.KILLED
    assert end_of(clean, rank_summary(1, last_oom=OOM)) is JobEnd.OOM
    assert end_of(clean, cut_off, stale=(1,)) is JobEnd.UNKNOWN, "its node is away, and nobody saw its end"


@pytest.mark.parametrize(
    ("rank", "end"),
    [
        (rank_summary(0, detached=True, step=201, last_oom=OOM), JobEnd.ENDED),  # it was caught, and steps went on
        (rank_summary(0, detached=True, step=0, last_oom=OOM._replace(step=0)), JobEnd.OOM),
        (
            rank_summary(0, detached=True, step=0, last_oom=OOM._replace(step=0, at_unix_s=NOW_S - 600.0)),
            JobEnd.ENDED,  # it counts no steps, and lived on
        ),
    ],
)
def test_an_oom_that_the_job_survived_is_not_its_end(rank: RankSummary, end: JobEnd) -> None:
    record = record_of([ended(rank)], None, now_s=NOW_S)
    assert (record.end, record.ooms) == (end, 1)


def test_the_end_stays_while_ranks_are_forgotten_one_by_one() -> None:
    first = record_of([ended(rank_summary(0, last_oom=OOM), rank_summary(1))], None, now_s=NOW_S)
    later = record_of([ended(rank_summary(1, detached=True))], first, now_s=NOW_S + 100.0)
    assert (later.end, later.ended_unix_s) == (JobEnd.OOM, NOW_S)


def test_a_job_that_goes_on_has_not_ended() -> None:
    first = record_of([ended()], None, now_s=NOW_S)
    again = record_of([healthy()], first, now_s=NOW_S + 30.0)
    assert (again.end, again.ended_unix_s, again.started_unix_s) == (None, None, NOW_S)


def test_of_a_lost_job_nobody_knows_how_it_ended() -> None:
    record = lost(record_of([healthy()], None, now_s=NOW_S))
    assert (record.end, record.ended_unix_s) == (JobEnd.UNKNOWN, NOW_S)
    done = record_of([ended()], None, now_s=NOW_S)
    assert lost(done) is done


def test_a_job_whose_nodes_differ_on_its_owner_is_nobodys() -> None:
    def owner(before: JobRecord | None, *names: str) -> str:
        return record_of([healthy(user_name=name) for name in names], before, now_s=NOW_S).user_name

    first = record_of([healthy(user_name="1001")], None, now_s=NOW_S)
    assert owner(first, "ada") == "ada"
    assert owner(first, "ada", "bob") == "ada, bob"
    assert owner(first, "1001") == "1001"


def test_a_rank_of_another_id_is_another_job() -> None:
    other = rank_summary(0, identity=identity(0, attempt=1))
    assert record_of([healthy(other, attempt=1)], None, now_s=NOW_S).job.attempt == 1
