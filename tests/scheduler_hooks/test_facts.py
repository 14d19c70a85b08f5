"""What a policy gets to know of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sample_views import GIB, MIB, identity, job_view, rank_summary, uuid_of
from scheduler_values import scheduler_facts
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import CheckpointWay, JobFacts, RankTarget, SchedulerFacts
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.views import JobView, RankSummary
from tidegauge_scheduler_hooks.facts import end_with, job_facts, surroundings

USABLE = {uuid_of(gpu): 80 * GIB for gpu in range(4)}


def rank(number: int, *, claims: dict[str, Any] | None = None, **changes: Any) -> RankSummary:
    """A rank on GPU ``number``."""
    return rank_summary(number, identity=identity(number, **(claims or {})), **changes)


def job(*ranks: RankSummary, host: str = "node7", **changes: Any) -> JobView:
    """A job with all its ranks on one node."""
    places = {"rank_nodes": (f"engine-{host}",) * len(ranks), "rank_hostnames": (host,) * len(ranks)}
    return job_view(ranks=ranks, **places, **changes)


def other_job(*ranks: RankSummary, **changes: Any) -> JobView:
    """Somebody else's."""
    theirs = (replace(one, identity=one.identity._replace(job_id=JobId("4712")), uid=1002) for one in ranks)
    return job(*theirs, job_id="4712", **changes)


def facts_of(one: JobView, *others: JobView, said: SchedulerFacts | None = None) -> JobFacts:
    return job_facts(one, surroundings([one, *others], USABLE), said or scheduler_facts())


def test_the_target_is_this_run_and_its_living_ranks() -> None:
    facts = facts_of(job(rank(0), rank(1, alive=False), rank(2, step=412)))
    assert facts.target.job == JobKey("4711", 0, 1001)
    assert facts.target.incarnation == "0@1800000000.0"
    assert facts.target.handle == {"pid": 900, "start_ticks": 4_000}
    assert facts.target.ranks == (
        RankTarget(0, "engine-node7", ProcessId(1000, 5_000), 200),
        RankTarget(2, "engine-node7", ProcessId(1002, 5_002), 412),
    )


def test_a_job_that_no_adapter_knows_has_no_incarnation() -> None:
    one = job(rank(0))
    facts = job_facts(one, surroundings([one], USABLE), None)
    assert facts.scheduler_facts is None
    assert (facts.target.scheduler, facts.target.incarnation) == ("slurm", "")
    assert facts.running


def test_facts_say_running_only_if_ranks_and_scheduler_do() -> None:
    assert facts_of(job(rank(0))).running
    assert not facts_of(job(rank(0)), said=scheduler_facts(running=False)).running
    assert not facts_of(job(rank(0, alive=False), running=False)).running


def test_old_figures_of_a_living_rank_make_it_stale() -> None:
    assert facts_of(job(rank(0), rank(1), stale=(1,))).stale
    alone = rank(0, claims={"world_size": 1})
    assert not facts_of(job(alone, rank(1, alive=False), stale=(1,))).stale


def test_the_owners_word_above_any_of_its_ranks_exempts_a_job() -> None:
    for exempt in (False, True):
        said = facts_of(job(rank(0), rank(1), exempt=exempt)).scheduler_facts
        assert said is not None
        assert said.exempt is exempt


def test_a_job_of_which_not_all_ranks_are_known_is_stale() -> None:
    assert facts_of(job(rank(0))).stale
    assert not facts_of(job(rank(0), rank(1))).stale


def test_a_job_that_goes_on_with_fewer_ranks_is_not_stale() -> None:
    ended = rank(1, alive=False)
    assert not facts_of(job(rank(0, claims={"world_size": 1}), ended)).stale


@pytest.mark.parametrize(
    ("claims", "way"),
    [
        ([None, None], None),
        (["callback", None], CheckpointWay.CALLBACK),
        (["signal", "signal"], CheckpointWay.SIGNAL),
        (["signal", "callback"], CheckpointWay.CALLBACK),
        (["smoke", None], None),
    ],
)
def test_facts_allow_a_checkpoint_if_one_rank_can_be_asked(claims: list[str | None], way: CheckpointWay | None) -> None:
    ranks = [rank(number, claims={"checkpoint": claim}) for number, claim in enumerate(claims)]
    assert facts_of(job(*ranks)).checkpoint is way


def test_a_rank_that_ended_cannot_be_asked_for_a_checkpoint() -> None:
    facts = facts_of(job(rank(0, claims={"checkpoint": "callback"}, alive=False), rank(1)))
    assert facts.checkpoint is None


def test_another_job_on_the_same_gpu_shares_it() -> None:
    mine = job(rank(0), rank(1))
    assert facts_of(mine, other_job(rank(1))).shared_gpu
    assert not facts_of(mine, other_job(rank(2))).shared_gpu
    assert not facts_of(mine, other_job(rank(1), host="node8")).shared_gpu
    assert not facts_of(mine, other_job(rank(1, alive=False))).shared_gpu
    assert not facts_of(job(rank(0, uuid=None)), other_job(rank(0, uuid=None))).shared_gpu


def test_another_users_word_that_it_is_on_a_gpu_is_not_enough() -> None:
    claim = rank(1, uid=1002, nontorch_bytes=None)
    assert not facts_of(job(rank(1)), other_job(claim)).shared_gpu, "the driver does not list it there"
    assert facts_of(job(rank(1)), job(replace(claim, uid=1001), job_id="4712")).shared_gpu, "one's own word is"


def test_a_job_does_not_share_a_gpu_with_its_own_other_attempt() -> None:
    assert not facts_of(job(rank(0)), job(rank(0), attempt=1)).shared_gpu


def test_the_same_job_id_of_another_user_is_another_job() -> None:
    assert facts_of(job(rank(0)), job(rank(0, uid=1002))).shared_gpu


def test_version_and_settings_are_those_that_all_ranks_have() -> None:
    same = facts_of(job(rank(0), rank(1)))
    assert (same.torch_version, same.alloc_conf) == ("2.13.0", "expandable_segments:True")
    mixed = facts_of(job(rank(0), rank(1, claims={"torch_version": "2.9.1", "alloc_conf": None})))
    assert (mixed.torch_version, mixed.alloc_conf) == (None, None)


def test_the_lowest_cap_in_force_counts() -> None:
    assert facts_of(job(rank(0), rank(1))).limit_fraction is None
    capped = job(rank(0, cap_fraction=0.5), rank(1, cap_fraction=0.4), rank(2, cap_fraction=0.1, alive=False))
    assert facts_of(capped).limit_fraction == 0.4


def test_the_cap_comes_from_the_share_that_the_scheduler_knows() -> None:
    mine = job(rank(0, nontorch_bytes=512 * MIB, claims={"gpu_share": 0.1}))
    facts = facts_of(mine, said=scheduler_facts(gpu_share=0.5))
    assert facts.cap_fraction == pytest.approx((40 * GIB - 512 * MIB) / (80 * GIB), abs=1e-6)
    assert facts.cap_explanation is not None
    assert "measured" in facts.cap_explanation


def test_a_claimed_share_counts_where_the_scheduler_says_nothing_but_never_for_more() -> None:
    claimed = facts_of(job(rank(0, nontorch_bytes=512 * MIB, claims={"gpu_share": 0.25})))
    assert claimed.cap_fraction == pytest.approx((20 * GIB - 512 * MIB) / (80 * GIB), abs=1e-6)
    greedy = job(rank(0, claims={"gpu_share": 1.0}))
    assert facts_of(greedy, other_job(rank(0))).cap_fraction == facts_of(job(rank(0)), other_job(rank(0))).cap_fraction
    assert facts_of(greedy, other_job(rank(0))).cap_fraction is not None


def test_jobs_that_run_are_counted_this_one_included() -> None:
    assert facts_of(job(rank(0)), other_job(rank(1)), other_job(rank(2, alive=False), running=False)).jobs_running == 2


# --- groups of ranks


def group(key: str, name: str, *ranks: RankSummary, **changes: Any) -> JobView:
    """Another launch in the same job: its processes are others."""
    moved = (replace(one, process=ProcessId(one.process.pid + 100, 7)) for one in ranks)
    return job(*moved, group=key, group_name=name, **changes)


def both(way: str | None, other: str | None, **changes: Any) -> JobFacts:
    mine = job(*(rank(number, claims={"checkpoint": way}) for number in range(2)), group_name="step 0")
    beside = rank(0, claims={"checkpoint": other, "world_size": 1})
    return facts_of(mine, group("step 1", "step 1", beside, **changes))


def test_the_other_groups_of_a_job_that_live_are_in_the_target() -> None:
    facts = both("callback", "callback")
    assert [(one.called, [rank.process.pid for rank in one.ranks]) for one in facts.target.groups] == [
        ("step 0", [1000, 1001]),
        ("step 1", [1100]),
    ]
    assert len(facts.target.processes) == 3
    ended = group("step 1", "step 1", rank(0, alive=False), running=False)
    assert facts_of(job(rank(0), rank(1)), ended).target.others == ()
    assert facts_of(job(rank(0), rank(1)), other_job(rank(0))).target.others == ()


@pytest.mark.parametrize(
    ("way", "other", "of_job", "without"),
    [
        ("callback", "callback", CheckpointWay.CALLBACK, ()),
        ("callback", "signal", CheckpointWay.CALLBACK, ()),
        ("callback", None, None, ("step 1",)),
        (None, "callback", None, ("step 0",)),
        (None, None, None, ("step 0", "step 1")),
        ("callback", "none", CheckpointWay.CALLBACK, ()),
        ("none", "signal", CheckpointWay.SIGNAL, ()),
        ("none", "none", CheckpointWay.NONE, ()),
    ],
)
def test_a_job_can_be_asked_if_every_group_can_or_says_that_it_has_nothing_to_save(
    way: str | None, other: str | None, of_job: CheckpointWay | None, without: tuple[str, ...]
) -> None:
    facts = both(way, other)
    assert (facts.checkpoint, facts.groups_without_checkpoint) == (of_job, without)


def test_old_figures_or_an_exemption_of_one_group_count_for_the_whole_job() -> None:
    assert not both("callback", "callback").stale
    assert both("callback", "callback", stale=(0,)).stale
    assert both("callback", "callback", exempt=True).scheduler_facts == scheduler_facts(exempt=True)


def test_with_a_tidegauge_run_ends_only_what_descends_from_it() -> None:
    """A rank of the same user that claims the job's id elsewhere is no part of what is ended."""
    keeper = LaunchSummary(
        ProcessId(9, 9), 1001, "4711", None, 0, LaunchState.RUNNING, requeueable=True, exempt=False, gpu_share=None,
        started_unix_s=1.0,
    )  # fmt: skip
    mine = job(*(rank(number, launch=keeper.process) for number in range(2)), launch=keeper, launch_node="engine-node7")
    inside = group("pid 9", "pid 9", rank(0, launch=keeper.process))
    outside = group("pid 5", "pid 5", rank(0))
    elsewhere = job(rank(0, launch=keeper.process), host="node8", group="pid 6", group_name="pid 6")
    assert end_with(mine, [mine, inside, outside, elsewhere]) == [inside]
    assert end_with(outside, [mine, inside, outside]) == [mine, inside], "Slurm ends all of them"


def test_containers_of_one_workload_end_together_whatever_their_uids() -> None:
    def container(uid: int) -> JobView:
        one = rank(0, claims={"scheduler": "kubernetes", "job_id": JobId("team-a/llm")}, uid=uid)
        return job(one, job_id="team-a/llm", scheduler="kubernetes")

    first, second = container(0), container(1000)
    assert end_with(first, [first, second]) == [second]
    on_a_node = replace(second, scheduler="slurm")
    assert end_with(on_a_node, [first, on_a_node]) == [], "a job id outside pods is a claim"
