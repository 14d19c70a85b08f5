"""`jobs_of`: which ranks make a job, and who speaks for a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs_of_ranks import jobs_of
from sample_views import LEAK, identity, rank_summary
from tidegauge.cluster.api.route_access import may_see
from tidegauge.cluster.coordinator.grouping import RankOnNode
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import RankSummary
from tidegauge.http.access import Viewer


def on(
    *ranks: RankSummary, host: str = "a", stale: bool = False, launch: LaunchSummary | None = None
) -> list[RankOnNode]:
    return [RankOnNode(rank, host, stale, f"node-{host}", launch) for rank in ranks]


def launched(pid: int) -> LaunchSummary:
    return LaunchSummary(
        ProcessId(pid, 1), 1001, "4711", None, restarts=0, state=LaunchState.RUNNING, requeueable=True, exempt=False,
        gpu_share=None, started_unix_s=1e9,
    )  # fmt: skip


def test_the_leaking_rank_is_named_and_the_healthy_one_is_not() -> None:
    (job,) = jobs_of(on(rank_summary(0), rank_summary(1, verdict=LEAK)))
    assert (job.state, job.suspects, job.signal, job.severity) == (LeakState.LEAK, (1,), LEAK.signal, LEAK.severity)
    assert not job.common


def test_ranks_that_all_grow_alike_are_a_common_rise() -> None:
    (job,) = jobs_of(on(*(rank_summary(rank, verdict=LEAK) for rank in range(2))))
    assert (job.suspects, job.common) == ((0, 1), True)


def test_each_attempt_is_a_job_of_its_own() -> None:
    again = rank_summary(0, identity=identity(0, attempt=1))
    assert [job.attempt for job in jobs_of(on(rank_summary(0), again))] == [1, 0]


def test_another_user_who_claims_the_same_job_id_does_not_touch_the_job() -> None:
    hostile = rank_summary(0, uid=6666, user_name="mallory", verdict=LEAK)
    jobs = {job.user_name: job for job in jobs_of(on(rank_summary(0), hostile))}
    assert (jobs["ada"].state, jobs["mallory"].state) == (LeakState.OK, LeakState.LEAK)


def test_a_job_whose_ranks_have_owners_of_several_names_is_nobodys_in_particular() -> None:
    (job,) = jobs_of(on(rank_summary(0, user_name="bob"), rank_summary(1, user_name="alice")))
    assert job.user_name == "alice, bob"


def test_a_node_that_knows_a_uid_by_no_name_leaves_the_word_to_the_others() -> None:
    nameless = rank_summary(0)
    (job,) = jobs_of(on(replace(nameless, user_name=str(nameless.uid)), rank_summary(1, user_name="ada")))
    assert job.user_name == "ada"
    assert may_see(Viewer("ada", sees_all=False, reads_metrics=False), job)
    assert not may_see(Viewer(str(nameless.uid), sees_all=False, reads_metrics=False), job)


def test_the_living_process_speaks_for_a_rank_not_the_dead_one_with_the_newer_sample() -> None:
    dead = rank_summary(0, alive=False, verdict=LEAK, last_sample_unix_s=2e9)
    living = rank_summary(0, process=ProcessId(77, 77))
    (job,) = jobs_of(on(dead, living))
    assert (job.ranks, job.state) == ((living,), LeakState.OK)


def test_of_two_dead_processes_of_a_rank_the_one_that_its_agent_still_tells_of_speaks() -> None:
    """The agent knows which came after the other; of the one that it does not name any more nobody saw the end."""
    vanished = on(rank_summary(0, alive=False, step=500))[0]._replace(named=False)
    last = rank_summary(0, process=ProcessId(77, 77), alive=False, detached=True, step=0, last_sample_unix_s=1.0)
    for members in ([vanished, *on(last)], [*on(last), vanished]):
        (job,) = jobs_of(members)
        assert job.ranks == (last,)


def test_a_fresh_node_speaks_for_a_rank_that_moved_there_from_a_silent_one() -> None:
    moved = rank_summary(0, process=ProcessId(77, 77), last_sample_unix_s=1.0)
    (job,) = jobs_of(on(rank_summary(0), host="silent", stale=True) + on(moved, host="fresh"))
    assert (job.ranks, job.hostnames, job.stale) == ((moved,), ("fresh",), ())


def test_the_most_alarming_job_comes_first() -> None:
    calm, leaking = rank_summary(0, identity=identity(0, job_id=JobId("1"))), rank_summary(0, verdict=LEAK)
    assert [job.job_id for job in jobs_of(on(calm, leaking))] == ["4711", "1"]


def test_ranks_stand_in_order_wherever_they_come_from() -> None:
    ranks = [rank_summary(0, identity=identity(n, world_size=11)) for n in (10, 2, 0)]
    (job,) = jobs_of(on(*ranks))
    assert ([rank.identity.rank for rank in job.ranks], job.world_size) == ([0, 2, 10], 11)


def test_every_rank_has_its_node_and_host_beside_it() -> None:
    (job,) = jobs_of(on(rank_summary(1), host="b") + on(rank_summary(0), host="a"))
    assert (job.rank_nodes, job.rank_hostnames) == (("node-a", "node-b"), ("a", "b"))


def test_a_job_whose_living_ranks_descend_from_one_launch_has_that() -> None:
    dead = rank_summary(1, alive=False)
    (job,) = jobs_of(on(rank_summary(0), launch=launched(7)) + on(dead, launch=None))
    assert (job.launch, job.launch_node) == (launched(7), "node-a")


@pytest.mark.parametrize(
    "others",
    [
        on(rank_summary(1), launch=None),
        on(rank_summary(1), launch=launched(8)),
        on(rank_summary(1), host="b", launch=launched(7)),
    ],
    ids=["one without", "two launches", "two nodes"],
)
def test_ranks_that_do_not_all_descend_from_one_launch_have_none(others: list[RankOnNode]) -> None:
    (job,) = jobs_of(on(rank_summary(0), launch=launched(7)) + others)
    assert (job.launch, job.launch_node) == (None, None)


def test_a_job_of_several_launches_is_exempt_if_one_of_them_is() -> None:
    exempt = replace(launched(8), exempt=True)
    (job,) = jobs_of(on(rank_summary(0), launch=launched(7)) + on(rank_summary(1), host="b", launch=exempt))
    assert (job.launch, job.exempt) == (None, True)
    (job,) = jobs_of(on(rank_summary(0), launch=launched(7)) + on(rank_summary(1), host="b", launch=launched(7)))
    assert not job.exempt


def test_a_job_without_a_living_rank_has_no_launch() -> None:
    # Its keeper may be in another attempt by now, and nothing may be done to that on account of this one.
    (job,) = jobs_of(on(rank_summary(0, alive=False), launch=launched(7)))
    assert job.launch is None
