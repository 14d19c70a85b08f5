"""``RankGroups``: launches that run side by side are told apart, and nothing else is."""

from __future__ import annotations

from random import Random
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.rank_groups import GroupMember, RankGroup, RankGroups


def member(
    pid: int, rank: int = 0, world_size: int = 1, *, node: str = "n1", lives: bool = True, run_id: Optional[str] = None,
    store: Optional[str] = None, step: Optional[str] = None, parent: Optional[int] = 1, attempt: int = 0, each: int = 1,
) -> GroupMember:  # fmt: skip
    above = None if parent is None else ProcessId(parent, parent)
    return GroupMember(
        (node, ProcessId(pid, pid)), rank, world_size, lives, run_id, store, step, above, attempt=attempt,
        attempts_each=each,
    )  # fmt: skip


def launch(first_pid: int, world_size: int, **facts: object) -> list[GroupMember]:
    """As torchrun starts them: one parent, a store of their own."""
    facts = {"parent": first_pid - 1, "store": f"n1:{first_pid}", "run_id": f"run {first_pid}", **facts}
    return [member(first_pid + rank, rank, world_size, **facts) for rank in range(world_size)]  # type: ignore[arg-type]


def ended(members: list[GroupMember]) -> list[GroupMember]:
    return [one._replace(lives=False) for one in members]


def said(groups: tuple[RankGroup, ...]) -> dict[str, list[int]]:
    """Pids by the group's name."""
    return {group.name: sorted(process.pid for _, process in group.places) for group in groups}


def test_rank_groups_put_one_launch_in_one_unnamed_group() -> None:
    assert said(RankGroups().look(launch(100, 3))) == {"": [100, 101, 102]}
    two_nodes = [member(7, 0, 2, store="n1:29500"), member(9, 1, 2, store="n1:29500", node="n2", parent=3)]
    assert said(RankGroups().look(two_nodes)) == {"": [7, 9]}


def test_two_steps_side_by_side_are_two_groups_named_by_their_step() -> None:
    groups = RankGroups().look([*launch(100, 2, step="0"), *launch(200, 1, step="1")])
    assert said(groups) == {"step 0": [100, 101], "step 1": [200]}
    assert [group.key for group in groups] == ["", "step 1"], "the first keeps the name it had alone"


def test_two_launches_in_one_step_are_named_by_their_launchers() -> None:
    assert said(RankGroups().look([*launch(100, 2), *launch(200, 2)])) == {"pid 99": [100, 101], "pid 199": [200, 201]}


def test_groups_that_one_parent_started_are_named_by_their_own_first_rank() -> None:
    """As Ray's raylet is the parent of all workers: its pid would name none of the groups."""
    found = RankGroups().look([*launch(100, 2, parent=9), *launch(200, 2, parent=9)])
    assert said(found) == {"pid 100": [100, 101], "pid 200": [200, 201]}


def test_containers_of_a_pod_and_pods_of_a_job_are_named_by_what_tells_them_apart() -> None:
    def inside(pid: int, pod: str, container: str) -> GroupMember:
        return member(pid, parent=pid - 1)._replace(pod=pod, container=container)

    assert said(RankGroups().look([inside(7, "llm-0", "train"), inside(9, "llm-0", "eval")])) == {
        "container train": [7],
        "container eval": [9],
    }
    assert said(RankGroups().look([inside(7, "llm-0", "main"), inside(9, "llm-1", "main")])) == {
        "pod llm-0": [7],
        "pod llm-1": [9],
    }


def test_evaluations_in_a_loop_beside_a_trainer_are_one_group() -> None:
    """``for …; do python eval.py; done``: the shell starts each, when the one before has ended."""
    groups, trainer = RankGroups(), launch(100, 2)
    before: list[GroupMember] = []
    for pid in (200, 210, 220, 230):
        found = groups.look([*trainer, *ended(before), member(pid, parent=50)])
        assert said(found) == {"pid 99": [100, 101], "pid 200": [*(one.place[1].pid for one in before), pid]}
        groups.look([*trainer, *ended([*before, member(pid, parent=50)])])
        before = [member(pid, parent=50)]
    beside = groups.look([*trainer, member(230, parent=50), member(240, parent=50)])
    assert said(beside) == {"pid 99": [100, 101], "pid 200": [230], "pid 240": [240]}, "two at a time are two"


def test_a_program_that_starts_its_own_ranks_and_uses_a_gpu_itself_is_of_their_launch() -> None:
    """``mp.spawn``: the ranks name their world, the program does not."""
    program = member(99, parent=1)
    ranks = [member(100 + rank, rank, 2, store="n1:1", parent=99) for rank in range(2)]
    assert said(RankGroups().look([program, *ranks])) == {"": [99, 100, 101]}
    beside = member(200, parent=1)
    assert sorted(len(group.places) for group in RankGroups().look([program, *ranks, beside])) == [1, 3]


def test_the_first_group_that_another_knew_stays_the_first_though_a_later_one_is_seen_before_it() -> None:
    first, second = launch(100, 1, step="0"), launch(200, 1, step="1")
    groups = RankGroups()
    groups.remember(0, RankGroup("", "step 0", frozenset([first[0].place])))
    assert said(groups.look(second)) == {"step 1": [200]}
    assert {group.key: group.name for group in groups.look([*first, *second])} == {"": "step 0", "step 1": "step 1"}


def test_trainings_packed_into_a_node_are_a_group_each() -> None:
    packed = [member(pid, parent=1) for pid in range(100, 108)]
    assert said(RankGroups().look(packed)) == {f"pid {pid}": [pid] for pid in range(100, 108)}


@pytest.mark.parametrize("step", [None, "0"])
def test_a_trainer_beside_an_evaluator_that_is_not_distributed(step: Optional[str]) -> None:
    groups = RankGroups().look([*launch(100, 4, step=step), member(200, step=step)])
    assert sorted(len(group.places) for group in groups) == [1, 4]


def test_ranks_that_name_their_store_differently_are_one_launch() -> None:
    """``localhost`` on one node; or a program that sets another port for a second process group."""
    ranks = [member(7, 0, 2, store="localhost:1"), member(9, 1, 2, store="n1:1")]
    assert said(RankGroups().look(ranks)) == {"": [7, 9]}


def test_steps_of_one_world_are_one_group() -> None:
    """``srun -w node torchrun …`` for each node: the store and the world are one."""
    ranks = [member(7, 0, 2, store="n1:1", step="0"), member(9, 1, 2, store="n1:1", step="1", node="n2")]
    assert said(RankGroups().look(ranks)) == {"": [7, 9]}


def test_single_trainings_with_the_variables_of_one_script_are_told_apart_by_their_steps() -> None:
    ranks = [member(7, store="n1:1", step="0"), member(9, store="n1:1", step="1", node="n2")]
    assert said(RankGroups().look(ranks)) == {"step 0": [7], "step 1": [9]}


def test_a_helper_that_inherited_its_ranks_number_is_of_its_group() -> None:
    trains = launch(100, 2)
    helper = trains[1]._replace(place=("n1", ProcessId(150, 150)), parent=trains[1].place[1])
    assert said(RankGroups().look([*trains, helper])) == {"": [100, 101, 150]}
    both = RankGroups().look([*trains, helper, *launch(200, 2)])
    assert said(both) == {"pid 99": [100, 101, 150], "pid 199": [200, 201]}


def test_rank_0_that_started_the_others_is_of_their_group() -> None:
    """Lightning: rank 0 is the script itself and the parent of the others."""
    zero = member(100, 0, 3, parent=1, store="n1:5")
    rest = [member(100 + rank, rank, 3, parent=100, store="n1:5") for rank in (1, 2)]
    assert said(RankGroups().look([zero, *rest])) == {"": [100, 101, 102]}
    again = [one._replace(place=("n1", ProcessId(one.place[1].pid + 50, 999 + one.rank))) for one in [zero, *rest]]
    again = [again[0], *(one._replace(parent=again[0].place[1]) for one in again[1:])]
    groups = RankGroups().look([zero, *rest, *again])
    assert sorted(said(groups).values()) == [[100, 101, 102], [150, 151, 152]]


def test_a_rank_that_does_not_know_its_store_yet_joins_those_that_miss_it() -> None:
    ranks = launch(100, 3)
    ranks[0] = ranks[0]._replace(store=None, run_id=None)
    assert said(RankGroups().look(ranks)) == {"": [100, 101, 102]}


def test_a_program_that_is_started_again_stays_the_same_group() -> None:
    groups, first, second = RankGroups(), launch(100, 2), launch(200, 2)
    groups.look(first)
    assert said(groups.look([*ended(first), *second])) == {"": [100, 101, 200, 201]}


def test_groups_keep_their_names_when_others_end() -> None:
    groups, first, second, third = (
        RankGroups(),
        launch(100, 1, step="0"),
        launch(200, 1, step="1"),
        launch(300, 1, step="2"),
    )
    groups.look(first)
    groups.look([*first, *second])
    assert said(groups.look([*ended(first), *second])) == {"step 0": [100], "step 1": [200]}
    assert said(groups.look(second)) == {"step 1": [200]}
    assert said(groups.look([*second, *third])) == {"step 1": [200], "step 2": [300]}
    assert [group.key for group in groups.look([*second, *third])] == ["step 1", "step 2"], "nobody becomes the first"


def test_rank_groups_restore_a_remembered_group() -> None:
    groups, second = RankGroups(), launch(200, 1, step="1")
    groups.remember(0, RankGroup("step 1", "step 1", frozenset([second[0].place])))
    assert [group.key for group in groups.look(second)] == ["step 1"]


def test_ranks_that_learn_their_numbers_later_were_never_several_groups() -> None:
    """``mp.spawn`` in a Slurm job: until torch.distributed is set up each is rank 0 of 1."""
    groups = RankGroups()
    early = [member(100 + rank, 0, 1) for rank in range(4)]
    assert len(groups.look(early)) == 4
    assert said(groups.look([one._replace(rank=at, world_size=4) for at, one in enumerate(early)])) == {
        "": [100, 101, 102, 103]
    }


def test_the_same_rank_twice_under_one_parent_is_told_apart_by_the_order_of_start() -> None:
    ranks = [member(pid, pid % 2, 2, store="n1:1") for pid in (100, 101, 110, 111)]
    assert sorted(said(RankGroups().look(ranks)).values()) == [[100, 101], [110, 111]]


def restarted(members: list[GroupMember], first_pid: int, attempt: int) -> list[GroupMember]:
    """As torchrun does it: the launcher, its run id and its store stay."""
    return [
        one._replace(place=(one.place[0], ProcessId(first_pid + one.rank, first_pid + one.rank)), attempt=attempt)
        for one in members
    ]


def test_an_elastic_restart_of_one_of_two_launches_takes_its_name_along() -> None:
    groups, first, second = RankGroups(), launch(100, 2, each=4), launch(200, 2, each=4)
    before = groups.look([*first, *second])
    assert said(before) == {"pid 99": [100, 101], "pid 199": [200, 201]}
    again = restarted(second, 300, 1)
    half = groups.look([*first, *second, again[0]])  # its old ranks end while its new ones begin
    assert said(half) == {"pid 99": [100, 101], "pid 199": [200, 201, 300]}
    after = groups.look([*first, *ended(second), *again])
    assert said(after) == {"pid 99": [100, 101], "pid 199": [200, 201, 300, 301]}
    assert [group.key for group in after] == [group.key for group in before] == ["", "pid 199"]
    assert said(groups.look([*first, *again])) == {"pid 99": [100, 101], "pid 199": [300, 301]}
    last = restarted(first, 400, 1)
    assert said(groups.look([*ended(first), *last, *again])) == {"pid 99": [100, 101, 400, 401], "pid 199": [300, 301]}


def test_a_launch_that_begins_beside_a_restarted_one_gives_both_a_name() -> None:
    groups, first, second = RankGroups(), launch(100, 2, each=4), launch(200, 2, each=4)
    again = restarted(first, 150, 1)
    assert said(groups.look(first)) == {"": [100, 101]}
    assert said(groups.look([*ended(first), *again])) == {"": [100, 101, 150, 151]}
    assert said(groups.look([*again, *second])) == {"pid 99": [150, 151], "pid 199": [200, 201]}


def test_launches_of_a_restarted_job_have_names_though_they_count_their_attempts_differently() -> None:
    """``--max-restarts 3`` beside a launch without restarts, in the second run of a requeued job."""
    found = RankGroups().look([*launch(100, 2, attempt=4, each=4), *launch(200, 2, attempt=1)])
    assert said(found) == {"pid 99": [100, 101], "pid 199": [200, 201]}


def test_a_launch_over_two_nodes_is_one_group_while_only_one_of_its_launchers_has_restarted() -> None:
    """torchelastic's launchers count their restarts each by itself, and the other only joins anew."""
    here = [member(100 + rank, rank, 4, parent=99, run_id="r", each=4) for rank in (0, 1)]
    there = [member(100 + rank, rank, 4, parent=99, run_id="r", each=4, node="n2") for rank in (2, 3)]
    for known in (True, False):
        groups = RankGroups()
        if known:
            groups.look([*here, *there])
        again = restarted(here, 300, 1)
        found = groups.look([*(ended(here) if known else ()), *again, *there])
        assert [group.name for group in found] == [""]
        swapped = [one._replace(rank=one.rank - 2) for one in restarted(there, 400, 0)]
        last = [one._replace(rank=one.rank + 2) for one in restarted(again, 500, 2)]
        assert [group.name for group in groups.look([*ended(again), *ended(there), *swapped, *last])] == [""]


def test_a_requeued_job_begins_with_new_names() -> None:
    groups, first, second = RankGroups(), launch(100, 1, step="0"), launch(200, 1, step="1")
    groups.look([*first, *second])
    one, other = launch(300, 1, step="0", attempt=1), launch(400, 1, step="1", attempt=1)
    found = groups.look([*ended(first), *ended(second), *one])
    assert [(group.key, group.name) for group in found] == [("", "step 0"), ("step 1", "step 1"), ("", "")]
    found = groups.look([*one, *other])
    assert [(group.key, group.name) for group in found] == [("", "step 0"), ("step 1", "step 1")]


def test_rank_groups_restore_a_remembered_group_of_the_same_attempt_only() -> None:
    groups, first = RankGroups(), launch(100, 1, step="1", attempt=5, each=4)
    groups.remember(4, RankGroup("step 1", "step 1", frozenset([first[0].place])))
    groups.remember(0, RankGroup("", "step 0", frozenset([("n9", ProcessId(1, 1))])))
    assert [group.key for group in groups.look(first)] == ["step 1"]
    assert [group.key for group in groups.look(launch(300, 1, step="7"))] == ["step 7"], "its first is known"


def test_of_two_launches_that_go_on_with_one_the_second_is_new() -> None:
    """Ranks of attempt 1 on two nodes, both rank 1, while rank 0 of attempt 0 still ran: the coordinator raised."""
    groups, first = RankGroups(), member(1, 0, 2)
    groups.look([first])
    both = [member(2, 1, 2, attempt=1, each=2), member(3, 1, 2, node="n2", attempt=1, each=2)]
    found = groups.look([first._replace(attempts_each=2), *both])
    assert said(found) == {"pid 1": [1, 2], "pid 3": [3]}


MEMBER = st.builds(
    member,
    st.integers(1, 12), st.integers(0, 3), st.integers(4, 5),
    node=st.sampled_from(["n1", "n2"]), lives=st.booleans(),
    run_id=st.sampled_from([None, "a"]), store=st.sampled_from([None, "x", "y"]),
    step=st.sampled_from([None, "0", "1"]), parent=st.integers(1, 12) | st.none(),
    attempt=st.integers(0, 5), each=st.sampled_from([1, 3]),
)  # fmt: skip
MEMBERS = st.lists(MEMBER, min_size=1, max_size=10, unique_by=lambda one: one.place)
HEARD_TWICE = st.lists(
    st.builds(
        member, st.integers(1, 4), st.integers(0, 3), st.integers(4, 5), node=st.sampled_from(["n1", "n2"]),
        lives=st.booleans(), attempt=st.integers(0, 2), each=st.just(2),
    ),
    min_size=1, max_size=10, unique_by=lambda one: (one.place, one.rank, one.attempt, one.lives),
)  # fmt: skip


@given(st.lists(HEARD_TWICE, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_in_which_ranks_were_heard(
    looks: list[list[GroupMember]], random: Random
) -> None:
    groups, others = RankGroups(), RankGroups()
    for members in looks:
        shuffled = list(members)
        random.shuffle(shuffled)
        assert groups.look(members) == others.look(shuffled)


@given(st.lists(HEARD_TWICE, min_size=1, max_size=4))
def test_a_second_look_at_the_same_changes_nothing(looks: list[list[GroupMember]]) -> None:
    groups = RankGroups()
    for members in looks:
        assert groups.look(members) == groups.look(members)


@given(st.lists(MEMBERS, min_size=1, max_size=4))
def test_every_process_is_in_one_group_and_no_two_living_ranks_of_an_attempt_of_it_are_the_same(
    looks: list[list[GroupMember]],
) -> None:
    groups = RankGroups()
    for members in looks:
        found = groups.look(members)
        places = [place for group in found for place in group.places]
        assert sorted(places) == sorted(one.place for one in members)
        by_place = {one.place: one for one in members}
        starts = [
            {by_place[place].attempt // by_place[place].attempts_each for place in group.places} for group in found
        ]
        assert all(len(start) == 1 for start in starts), "a group is of one start of the job"
        for start in {number for numbers in starts for number in numbers}:
            of_start = [group for group, numbers in zip(found, starts) if start in numbers]
            assert len({group.key for group in of_start}) == len({group.name for group in of_start}) == len(of_start)
        for group in found:
            for attempt in range(6):
                there = [by_place[place] for place in group.places]
                living = [one for one in there if one.lives and one.attempt == attempt]
                heads = {one.place for one in living}
                numbers = [one.rank for one in living if one.launcher not in heads]
                assert len(numbers) == len(set(numbers))


def replica(pid: int, name: str, rank: int = 0, world_size: int = 1, **facts: object) -> GroupMember:
    return member(pid, rank, world_size, **facts)._replace(replica=name, pod=f"pod-{pid}")  # type: ignore[arg-type]


def test_replicas_of_a_server_are_groups_from_the_start_also_one_alone_and_while_no_rank_is_there_twice() -> None:
    groups = RankGroups()
    alone = replica(100, "replica 0", 0, 2, store="a:1", run_id="r")
    assert said(groups.look([alone])) == {"replica 0": [100]}
    # The second rank of the first is not there yet, nor the first of the second: together they would make a launch.
    half = replica(200, "replica 1", 1, 2, store="a:1", run_id="r", node="n2")
    found = groups.look([alone, half])
    assert said(found) == {"replica 0": [100], "replica 1": [200]}
    assert [(group.key, group.replica) for group in found] == [(name, name) for name in ("replica 0", "replica 1")]
    assert [groups.key_of(one.place) for one in (alone, half)] == ["replica 0", "replica 1"]


def test_a_replica_that_is_started_again_elsewhere_stays_the_same_group() -> None:
    groups, others = RankGroups(), [replica(pid, f"replica {pid}") for pid in (1, 2)]
    groups.look([*others, replica(100, "replica 0", node="n1", parent=7)])
    old = ended([replica(100, "replica 0", node="n1", parent=7)])
    again = groups.look([*others, *old, replica(300, "replica 0", node="n2", parent=9)])
    assert said(again) == {"replica 0": [100, 300], "replica 1": [1], "replica 2": [2]}


def test_launches_within_a_replica_are_told_apart_and_named_by_both() -> None:
    groups = RankGroups()
    ranks = [*launch(100, 2, step="0"), *launch(200, 1, step="1")]
    for name in ("replica 0", "replica 1"):
        found = groups.look([one._replace(replica=name) for one in ranks])
        assert said(found) == {f"{name}, step 0": [100, 101], f"{name}, step 1": [200]}
        assert [group.key for group in found] == [name, f"{name}, step 1"]


def test_a_replica_is_named_by_itself_whatever_another_coordinator_remembered() -> None:
    groups, one = RankGroups(), replica(100, "replica 0")
    groups.remember(0, RankGroup("replica 0", "replica 0", frozenset([one.place])))
    assert [(group.key, group.name) for group in groups.look([one])] == [("replica 0", "replica 0")]
