"""Incidents of an inference server's replicas: one each, and which of them are told as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from incident_watch import OOM, RULES, Watch, ended, replica
from sample_views import LEAK
from tidegauge.core.incidents import ChangeKind, Closure, IncidentCause, ToldAs
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.verdicts import OK, Signal
from tidegauge.core.views import JobView

FRAGMENTED = LEAK._replace(signal=Signal.RESERVED)


def told_as(watch: Watch) -> list[int]:
    """By what number each incident is told that is not closed."""
    return [one.told_as.number for one in watch.tracker.incidents if one.told_as is not None]


def on(host: str, view: JobView) -> JobView:
    return replace(view, rank_hostnames=tuple(host for _ in view.ranks))


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_eight_replicas_that_begin_to_leak_within_minutes_are_told_as_the_first(watch: Watch) -> None:
    for leaking in range(1, 9):
        watch.see(*(replica(number, LEAK if number < leaking else OK) for number in range(8)), for_s=120)
    watch.see(*map(replica, range(8)))
    first = watch.told[0].incident
    assert [one.number for one in watch.tracker.incidents] == list(range(1, 9))
    assert {one.told_as for one in watch.tracker.incidents} == {ToldAs(1, first.opened_unix_s)}


def test_replicas_that_leak_at_once_are_told_as_one(watch: Watch) -> None:
    watch.see(*map(replica, range(8)))
    assert told_as(watch) == [1] * 8


def test_a_replica_is_told_with_the_others_though_the_first_has_recovered_and_over_a_restart(watch: Watch) -> None:
    watch.see(replica(0), replica(1))
    watch.see(replica(0, OK), replica(1), for_s=RULES.recover_after_s + 2)
    assert [one.number for one in watch.tracker.incidents] == [2]
    watch.restart()
    watch.see(replica(1), replica(2))
    assert told_as(watch) == [1, 1]


def test_a_replica_whose_pod_went_while_the_coordinator_was_away_is_not_heard_of_until_it_is(watch: Watch) -> None:
    def unheard() -> list[int]:
        return [one.number for one in watch.tracker.incidents if one.unheard]

    watch.see(replica(0), replica(1))
    watch.restart()
    watch.see(replica(1), for_s=RULES.culprits_ended_after_s)
    assert unheard() == [], "a node may take so long"
    watch.see(replica(1))
    assert unheard() == [1]
    watch.see(replica(0), replica(1))
    assert unheard() == []
    watch.restart()
    watch.see(on("node7", replica(1)), for_s=RULES.absent_grace_s + 2)
    assert [one.number for one in watch.tracker.incidents] == [2]
    assert not watch.last.unheard


def test_a_replica_whose_node_reports_without_it_after_a_restart_has_ended(watch: Watch) -> None:
    watch.see(replica(0), replica(1))
    watch.restart()
    watch.see(replica(1), for_s=RULES.recover_after_s)
    assert [one.number for one in watch.tracker.incidents] == [1, 2]
    watch.see(replica(1), for_s=2)
    assert [one.number for one in watch.tracker.incidents] == [2]
    assert watch.last.closure is Closure.CULPRITS_ENDED
    watch.restart()
    watch.see(replace(replica(2, OK), stale=(0,)), for_s=RULES.recover_after_s + 2)
    assert [one.number for one in watch.tracker.incidents] == [2], "the node does not report"


@pytest.mark.parametrize("stale", [(), (0,)])
def test_that_a_replica_is_not_heard_of_is_told_within_a_minute_also_of_a_stale_one(
    watch: Watch, stale: tuple[int, ...]
) -> None:
    watch.see(replica(0))
    watch.see(replace(replica(0), stale=stale), for_s=RULES.update_every_s + 2)
    watch.restart()
    watch.see(replica(1, OK), for_s=RULES.update_every_s + 2)
    assert (watch.last.stale, watch.last.unheard) == (True, True)


def test_new_replicas_of_a_rolling_update_are_told_with_old_ones_that_still_leak_and_else_anew(watch: Watch) -> None:
    watch.see(replica("pod old-a"), replica("pod old-b"))
    watch.see(replica("pod old-b"), replica("pod new-a"), ended(replica("pod old-a")), for_s=5)
    assert told_as(watch) == [1, 1]
    watch.see(ended(replica("pod old-b")), ended(replica("pod new-a")), replica("pod new-b", OK), for_s=5)
    assert watch.tracker.incidents == ()
    watch.see(replica("pod new-b"))
    assert told_as(watch) == [4], "nothing was left of the old one"


def test_a_replica_that_ends_while_others_serve_is_not_the_end_of_the_job(watch: Watch) -> None:
    """As a ReplicaSet replaces a pod; a Job of the same name does not count."""
    watch.see(replica("pod web-1"), replica("pod web-2", OK))
    watch.see(ended(replica("pod web-1")), replica("pod web-2", OK), replica("pod web-4", OK))
    watch.see(replica("pod web-2"), replace(replica(""), replicas=None))
    watch.see(ended(replica("pod web-2")), replace(replica(""), replicas=None))
    closures = [change.incident.closure for change in watch.told if change.kind is ChangeKind.CLOSED]
    assert closures == [Closure.CULPRITS_ENDED, Closure.JOB_ENDED]


def test_another_cause_another_server_and_another_launch_in_the_replicas_are_told_apart(watch: Watch) -> None:
    watch.see(
        replica(0), replica(1, FRAGMENTED), replica(0, server="team-a/llama"), replica("replica 2, container draft")
    )
    assert told_as(watch) == [1, 2, 3, 4]
    watch.see(replica("replica 3, container draft"))
    assert told_as(watch) == [1, 2, 3, 4, 4]


def test_workloads_of_one_name_are_told_apart_also_after_a_restart(watch: Watch) -> None:
    def see(*ordinals: int) -> None:
        watch.see(replica("pod vllm-a"), *map(replica, ordinals), replace(replica(""), replicas=None))

    see(0)
    assert [one.told_as and one.told_as.number for one in watch.tracker.incidents] == [1, 2, None]
    watch.restart()
    see(0, 1)
    assert told_as(watch) == [1, 2, 2]


def test_errors_of_replicas_are_told_as_one_too(watch: Watch) -> None:
    watch.see(*(replica(number, OK, last_oom=OOM) for number in range(2)))
    assert {one.key.cause for one in watch.tracker.incidents} == {IncidentCause.OUT_OF_MEMORY}
    assert told_as(watch) == [1, 1]


def test_groups_that_are_no_replicas_are_told_apart(watch: Watch) -> None:
    watch.see(*(replace(replica(name, server="4711"), replicas=None) for name in ("", "step 1")))
    assert [one.told_as for one in watch.tracker.incidents] == [None, None]


def test_a_server_counts_once_among_the_incidents_that_a_user_may_have() -> None:
    watch = Watch(IncidentRules(most_per_tenant=2, most_with_replicas_per_tenant=10))
    watch.see(*map(replica, range(8)), replica(0, server="team-a/llama"), replica(0, server="team-a/late"))
    assert len(watch.tracker.incidents) == 9
    assert watch.tracker.crowded == {Tenant(None, "team-a")}
    watch.restart()
    watch.see(*map(replica, range(9)), replica(0, server="team-a/late"))
    assert len(watch.tracker.incidents) == 10, "one more of the same server, none of another"


def test_pods_without_end_open_a_bounded_number_of_incidents() -> None:
    watch = Watch(IncidentRules(most_per_tenant=2, most_with_replicas_per_tenant=10))
    for number in range(30):
        watch.see(replica(f"pod {number}"))
    assert [change.kind for change in watch.told].count(ChangeKind.OPENED) == 10
