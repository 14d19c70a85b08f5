"""Every brake: when it holds, what it says, when it lets go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policy_runs import Run, policy
from sample_views import NOW_S
from scheduler_values import JOB, facts, incident, record, scheduler_facts, target
from tidegauge.core.evidence.brief import EvidenceBrief, EvidenceCause
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import IncidentCause, IncidentKey, IncidentState
from tidegauge.core.incidents.actions import ActionKind, GroupTarget, JobFacts, Outcome, RankTarget
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.policy.brakes import BRAKES, PASSING
from tidegauge_scheduler_hooks.policy.state import PolicyState

REQUEUE = "[{action: requeue, without_checkpoint: true}]"
CAP = "[{action: cap}]"
BESIDE = target(
    others=(GroupTarget(JOB._replace(group="step 1"), "step 1", (RankTarget(0, "n", ProcessId(7, 7), 0),)),)
)
"""A run of the job in which another launch lives."""

Change = Callable[[Run], None]


def of_facts(**changes: Any) -> Change:
    def change(run: Run) -> None:
        run.facts = replace(run.facts, **changes)

    return change


def of_scheduler(**changes: Any) -> Change:
    return of_facts(scheduler_facts=scheduler_facts(**changes))


def of_incident(**changes: Any) -> Change:
    def change(run: Run) -> None:
        run.incident = replace(run.incident, **changes)

    return change


def of_state(**changes: Any) -> Change:
    def change(run: Run) -> None:
        run.state = replace(run.state, **changes)

    return change


SAYS_NO: list[tuple[str, str, dict[str, Any], Change, str]] = [
    ("paused", CAP, {}, of_state(paused="by root: cluster upgrade"), "actions are paused: by root: cluster upgrade"),
    ("recovering", CAP, {}, of_incident(state=IncidentState.RECOVERING), "the condition has cleared for now"),
    ("exempt", CAP, {}, of_scheduler(exempt=True), "the owner opted out of actions"),
    ("exempt", REQUEUE, {}, of_scheduler(can=frozenset({ActionKind.NOTIFY}), only_told="it serves"), "it serves"),
    ("exempt", CAP, {"exempt": {"users": "a*"}}, of_facts(), "user ada is exempt"),
    ("exempt", CAP, {"exempt": {"job_names": ["llm-*"]}}, of_facts(), "job name llm-pretrain is exempt"),
    ("exempt", CAP, {"exempt": {"accounts": ["phys*"]}}, of_facts(), "account physics is exempt"),
    ("exempt", CAP, {"exempt": {"partitions": ["gpu"]}}, of_facts(), "partition gpu is exempt"),
    ("exempt", CAP, {"exempt": {"namespaces": ["team-?"]}}, of_facts(), "namespace team-a is exempt"),
    ("exempt", CAP, {"exempt": {"qos": ["normal"]}}, of_facts(), "QOS normal is exempt"),
    ("no_adapter", CAP, {}, of_facts(scheduler_facts=None), "no scheduler adapter knows this job (scheduler local)"),
    ("unsupported", REQUEUE, {}, of_scheduler(can=frozenset({ActionKind.NOTIFY})), "local cannot requeue this job"),
    ("not_running", CAP, {}, of_facts(running=False), "the job is no longer running"),
    ("not_running", CAP, {}, of_scheduler(running=False), "the job is no longer running"),
    ("not_running", CAP, {}, of_facts(target=target(JobKey("4711", 1, 1001))), "already in another attempt"),
    ("stale", CAP, {}, of_facts(stale=True), "not all ranks are reporting"),
    ("stale", CAP, {}, of_incident(stale=True), "not all ranks are reporting"),
    ("no_living_culprit", CAP, {}, of_facts(culprits=()), "ended or recovered, and no other rank is affected"),
    ("no_living_culprit", REQUEUE, {}, of_facts(culprits=()), "ended or recovered, and no other rank is affected"),
    ("severity", CAP, {}, of_incident(severity=Severity.WARNING), "severity is warning, actions require critical"),
    ("min_age", CAP, {"min_age": "5m"}, of_facts(), "has been open for 0 s, actions require 5 min"),
    ("min_age", CAP, {"min_age": "5m"}, of_scheduler(min_age_s=600.0), "open for 0 s, its team requires 10 min"),
    ("min_age", CAP, {"min_age": "5m"}, of_scheduler(min_age_s=60.0), "open for 0 s, actions require 5 min"),
    ("not_requeueable", REQUEUE, {}, of_scheduler(requeueable=False), "the owner has not allowed a requeue"),
    (
        "no_checkpoint",
        "[{action: checkpoint}]",
        {},
        of_facts(checkpoint=None),
        "the job has no way to checkpoint on request",
    ),
    (
        "no_checkpoint",
        "[{action: checkpoint}]",
        {},
        of_facts(checkpoint=None, groups_without_checkpoint=("step 1",)),
        "the job (group of ranks step 1) has no way to checkpoint on request",
    ),
    ("proof", REQUEUE, {}, of_facts(target=BESIDE), "other groups of ranks are running"),
    (
        "no_fraction",
        CAP,
        {},
        of_facts(cap_fraction=None, cap_explanation="no share"),
        "the cap cannot be computed: no share",
    ),
    ("no_change", CAP, {}, of_facts(limit_fraction=0.5), "a cap of 0.5 is already in force"),
    (
        "no_change",
        "[{action: requeue, without_checkpoint: true, alloc_conf: {expandable_segments: True}}]",
        {},
        of_facts(alloc_conf="max_split_size_mb:64,expandable_segments:True"),
        "a restart with it would change nothing",
    ),
    (
        "allocator_setting",
        "[{action: requeue, without_checkpoint: true, alloc_conf: {large_segment_size_mb: 32}}]",
        {},
        of_facts(torch_version="2.10.0+cu128"),
        "torch 2.10.0+cu128 does not support large_segment_size_mb: the job would not start",
    ),
    (
        "allocator_setting",
        "[{action: requeue, without_checkpoint: true, alloc_conf: {large_segment_size_mb: 32}}]",
        {},
        of_facts(torch_version=None),
        "the job's torch version is unknown",
    ),
    (
        "cuda_graphs",
        "[{action: requeue, without_checkpoint: true, alloc_conf: {expandable_segments: True, max_split_size_mb: 64}}]",
        {},
        of_incident(key=IncidentKey(facts().target.job, IncidentCause.CUDA_GRAPHS)),
        "CUDA graph private pools are growing, and expandable_segments does not fix that",
    ),
    (
        "cuda_graphs",
        "[{action: requeue, without_checkpoint: true, alloc_conf: {expandable_segments: True}}]",
        {},
        of_incident(evidence=(EvidenceBrief("auto-1", 1, NOW_S, cause=EvidenceCause.CUDA_GRAPHS),)),
        "CUDA graph private pools are growing, and expandable_segments does not fix that",
    ),
    (
        "requeues",
        "[{action: requeue, without_checkpoint: true, when_used_up: leave}]",
        {"requeues_per_job": 0},
        of_facts(),
        "Tidegauge has already requeued it 0 times",
    ),
    ("warnings", REQUEUE, {"warnings_before_stop": 2}, of_facts(), "0 of 2 required warnings delivered"),
    ("proof", "[{action: hold}]", {}, of_facts(), "has no checkpoint before this rung"),
    (
        "actions_per_hour",
        CAP,
        {"actions_per_hour": 0},
        of_facts(),
        "0 actions on all jobs in the last hour, the limit is 0",
    ),
    ("actions_per_user_per_hour", CAP, {"actions_per_user_per_hour": 0}, of_facts(), "0 actions on jobs of ada"),
    ("actions_per_job_per_hour", CAP, {"actions_per_job_per_hour": 0}, of_facts(), "0 actions on this job in"),
]


@pytest.mark.parametrize(("brake", "ladder", "brakes", "change", "reason"), SAYS_NO)
def test_a_brake_holds_and_says_why(
    brake: str, ladder: str, brakes: dict[str, Any], change: Change, reason: str
) -> None:
    run = Run(policy(ladder, **brakes), of_job=facts(cap_fraction=0.5))
    change(run)
    (held,) = run.at(0)
    assert held == f"withheld {run.last.action.value}: {brake}"
    assert reason in run.last.reason
    assert run.at(1) == []


def test_an_out_of_memory_error_is_acted_on_though_it_has_ended_its_rank() -> None:
    run = Run(policy(REQUEUE), of_job=facts(culprits=()))
    run.incident = replace(run.incident, key=run.incident.key._replace(cause=IncidentCause.OUT_OF_MEMORY))
    assert run.at(0) == ["do requeue"]


def test_a_culprit_that_lives_or_that_nobody_looked_for_holds_nothing() -> None:
    assert Run(policy(REQUEUE), of_job=facts(culprits=(1,))).at(0) == ["do requeue"]
    assert Run(policy(REQUEUE), of_job=facts(culprits=None)).at(0) == ["do requeue"]


def test_every_brake_is_tried_here() -> None:
    tried = {brake for brake, *_ in SAYS_NO}
    names = {brake.name for brake in BRAKES}
    assert names - tried == {"tries", "user_breaker", "breaker"}, "these have tests of their own"
    assert names > PASSING


def test_a_healthy_case_is_held_by_none() -> None:
    assert Run(policy(REQUEUE)).at(0) == ["do requeue"]
    assert Run(policy(CAP), of_job=facts(cap_fraction=0.5, limit_fraction=0.6)).at(0) == ["do cap"]


@pytest.mark.parametrize(
    "change",
    [of_scheduler(exempt=True), of_facts(stale=True), of_facts(running=False), of_incident(severity=Severity.NOTE)],
)
def test_words_are_not_held_by_what_holds_actions(change: Change) -> None:
    run = Run(policy("[{action: notify}]", min_age="5m", actions_per_hour=0))
    change(run)
    assert run.at(0) == ["do notify"]


@pytest.mark.parametrize(
    "change",
    [of_scheduler(exempt=True), of_facts(stale=True), of_facts(scheduler_facts=None), of_scheduler(can=frozenset())],
)
def test_evidence_is_held_neither_by_what_holds_actions_nor_by_a_scheduler(change: Change) -> None:
    run = Run(policy("[{action: snapshot}]", min_age="5m", actions_per_hour=0))
    change(run)
    assert run.at(0) == ["do snapshot"]


def test_evidence_is_collected_by_policies_that_warn_and_not_by_those_that_observe() -> None:
    ladder = "[{action: snapshot}, {action: cap}]"
    assert Run(policy(ladder, mode="warn")).at(0) == ["do snapshot"]
    assert Run(policy(ladder, mode="observe")).at(0)[0] == "would snapshot"


@pytest.mark.parametrize(
    ("admin", "team", "who"), [("warning", "critical", "its team requires"), ("critical", "warning", "actions require")]
)
def test_team_asks_for_more_severity_than_the_policy_and_never_for_less(admin: str, team: str, who: str) -> None:
    asked = scheduler_facts(min_severity=Severity(team))
    run = Run(policy(CAP, min_severity=admin), of_job=facts(cap_fraction=0.5, scheduler_facts=asked))
    run.incident = incident(severity=Severity.WARNING, opened_unix_s=NOW_S)
    assert run.at(0) == ["withheld cap: severity"]
    assert run.last.reason == f"severity is warning, {who} critical"


@pytest.mark.parametrize("cause", [IncidentCause.SHARE_EXCEEDED, IncidentCause.OUT_OF_MEMORY])
def test_severity_is_asked_of_forecasts_only(cause: IncidentCause) -> None:
    run = Run(policy(CAP), of_job=facts(cap_fraction=0.5))
    run.incident = incident(cause, severity=Severity.WARNING, opened_unix_s=NOW_S)
    assert run.at(0) == ["do cap"]


@pytest.mark.parametrize(
    ("rung", "change"),
    [
        ("{action: cap}", of_facts(cap_fraction=None)),
        ("{action: cap}", of_facts(limit_fraction=0.4)),
        ("{action: annotate}", of_scheduler(can=frozenset({ActionKind.NOTIFY}))),
    ],
)
def test_a_word_or_cap_that_has_nothing_to_do_is_left_out(rung: str, change: Change) -> None:
    run = Run(policy(f"[{rung}, {{action: notify}}]"), of_job=facts(cap_fraction=0.5))
    change(run)
    withheld, done = run.at(0)
    assert withheld.startswith("withheld")
    assert done == "do notify"


def test_messages_that_come_too_close_count_as_one_warning() -> None:
    ladder = "[{action: notify}, {action: notify, after: 30s}, {action: hold, without_checkpoint: true}]"
    run = Run(policy(ladder, warnings_before_stop=2, warning_interval=60))
    assert run.until(3600, step=30) == [(0, "do notify"), (30, "do notify"), (30, "withheld hold: warnings")]
    assert run.last.reason == "1 of 2 required warnings delivered"


def test_the_last_warning_gives_its_time_before_the_stop() -> None:
    run = Run(policy("[{action: notify}, {action: hold, without_checkpoint: true}]", warnings_before_stop=1))
    assert run.until(60, step=30) == [(0, "do notify"), (0, "withheld hold: warnings"), (60, "do hold")]
    assert "the last counted warning was 0 s ago, a stop requires 60 s" in run.decisions[1].reason


def test_a_message_that_was_not_delivered_is_no_warning() -> None:
    ladder = "[{action: notify, tries: 1}, {action: hold, without_checkpoint: true}]"
    run = Run(policy(ladder, warnings_before_stop=1))
    run.at(0)
    run.finish(0, Outcome.FAILED)
    assert run.until(3600) == [(0, "withheld hold: warnings")]


def test_a_limit_lets_go_when_the_hour_is_over() -> None:
    run = Run(
        policy("[{action: cap}, {action: checkpoint}]", actions_per_job_per_hour=1), of_job=facts(cap_fraction=0.5)
    )
    assert run.until(7200) == [
        (0, "do cap"),
        (0, "withheld checkpoint: actions_per_job_per_hour"),
        (3600, "do checkpoint"),
    ]


def test_a_checkpoint_is_not_asked_for_where_the_stop_would_not_be_allowed() -> None:
    run = Run(policy("[{action: checkpoint}, {action: requeue}]", actions_per_job_per_hour=1))
    assert run.at(0) == ["withheld checkpoint: actions_per_job_per_hour"]
    assert "(this one needs two)" in run.last.reason


def test_a_failed_action_counts_as_one() -> None:
    run = Run(policy("[{action: cap, tries: 5}]", actions_per_hour=2), of_job=facts(cap_fraction=0.5))
    made = run.until(600, outcome=Outcome.FAILED)
    assert made == [(0, "do cap"), (60, "do cap"), (120, "withheld cap: actions_per_hour")]


def acted_on(*jobs: JobFacts) -> list[list[str]]:
    """What is decided on one job after the other, where a user may have one action an hour."""
    rules = policy(CAP, actions_per_user_per_hour=1, breaker={"share": 1.0})
    state, made = PolicyState(), []
    for number, of_job in enumerate(jobs, start=1):
        run = Run(rules, of_job=of_job, job=of_job.target.job, number=number)
        run.state = state
        made.append(run.at(0))
        state = run.state
    return made


def on_kubernetes(job_id: str, user_name: str, uid: int = 1000) -> JobFacts:
    job = JobKey(job_id, 0, uid)
    return facts(job, target=target(job, scheduler="kubernetes"), user_name=user_name, cap_fraction=0.5)


HELD = ["withheld cap: actions_per_user_per_hour"]


def test_elsewhere_a_user_is_a_uid() -> None:
    ada = [facts(JobKey(name, 0, 1001), cap_fraction=0.5) for name in ("1", "2")]
    namesake = facts(JobKey("3", 0, 1002), cap_fraction=0.5)
    assert acted_on(*ada, namesake) == [["do cap"], HELD, ["do cap"]]


def test_on_kubernetes_a_namespace_is_counted_together_whatever_names_its_pods_bear() -> None:
    """All its containers may run as the same uid, and one user's as several; a name may anybody write."""
    assert acted_on(
        on_kubernetes("team-a/llm", "ada"),
        on_kubernetes("team-a/eval", "ada", uid=0),
        on_kubernetes("team-a/other", "grace"),
        on_kubernetes("team-b/llm", "ada"),
    ) == [["do cap"], HELD, HELD, ["do cap"]]


def test_policy_brake_recognises_a_counted_user_from_the_audit() -> None:
    first, second = on_kubernetes("team-a/llm", "ada"), on_kubernetes("team-a/eval", "ada", uid=0)
    rules = policy(CAP, actions_per_user_per_hour=1)
    run = Run(rules, of_job=first, job=first.target.job)
    assert run.at(0) == ["do cap"]
    again = Run(rules, of_job=second, job=second.target.job, number=2)
    again.state = PolicyState().with_records([record(run.last)])
    assert again.at(0) == HELD


class Cluster:
    """Several users' jobs that all are to be capped, decided in one state."""

    def __init__(self, *, jobs_running: int, **breaker: Any) -> None:
        self.policy = policy(CAP, breaker=breaker)
        self.state = PolicyState()
        self.jobs_running = jobs_running

    def run(self, number: int, second: float) -> Run:
        job = JobKey(f"job{number}", 0, 1000 + number)
        one = Run(self.policy, of_job=self._facts(job))
        one.incident = incident(job=job, number=number, opened_unix_s=NOW_S)
        one.state = self.state
        one.at(second)
        self.state = one.state
        return one

    def _facts(self, job: JobKey) -> JobFacts:
        return facts(job, cap_fraction=0.5, jobs_running=self.jobs_running)

    def reset(self, second: float) -> None:
        self.state = replace(self.state, breaker_reset_s=NOW_S + second)


def told(run: Run) -> list[str]:
    return [f"{one.disposition.value}{f': {one.brake}' if one.brake else ''}" for one in run.decisions]


def test_the_breaker_opens_before_too_many_jobs_are_touched_and_says_so() -> None:
    cluster = Cluster(jobs_running=40, share=0.1, min_jobs=1)
    assert [told(cluster.run(number, 0)) for number in range(1, 6)] == [["do"]] * 4 + [["withheld: breaker"]]
    assert cluster.state.breaker == (
        "the circuit breaker opened: 5 jobs would have been acted on within 60 min, the limit is 4 of 40 "
        "running, at 2027-01-15 08:00 UTC"
    )


def test_an_open_breaker_holds_everything_long_after_its_window_until_a_person_resets_it() -> None:
    cluster = Cluster(jobs_running=10, share=0.1, min_jobs=1)
    cluster.run(1, 0)
    cluster.run(2, 0)
    assert told(cluster.run(3, 90_000)) == ["withheld: breaker"]
    cluster.reset(90_000)
    assert cluster.state.breaker is None
    assert told(cluster.run(3, 90_001)) == ["do"]
    assert told(cluster.run(2, 90_001)) == ["withheld: breaker"], "it opens anew"
    assert cluster.state.breaker is not None


def test_a_breaker_that_was_reset_counts_from_then_on() -> None:
    cluster = Cluster(jobs_running=10, share=0.2, min_jobs=1)
    for number in range(1, 4):
        cluster.run(number, 0)
    cluster.reset(10)
    assert told(cluster.run(3, 20)) == ["do"]
    assert told(cluster.run(4, 20)) == ["do"]
    assert told(cluster.run(5, 20)) == ["withheld: breaker"]


def test_a_small_cluster_may_always_touch_a_few_jobs() -> None:
    cluster = Cluster(jobs_running=2, share=0.1, min_jobs=2)
    assert [told(cluster.run(number, 0)) for number in (1, 2)] == [["do"], ["do"]]


def test_policy_breaker_in_act_ignores_openings_in_observe() -> None:
    cluster = Cluster(jobs_running=10, share=0.1, min_jobs=1)
    cluster.policy = policy(CAP, mode="observe", breaker={"share": 0.1, "min_jobs": 1})
    assert [told(cluster.run(number, 0)) for number in (1, 2)] == [["would"], ["withheld: breaker"]]
    assert cluster.state.breaker is None
    assert cluster.state.breaker_opening(real=False) is not None
    cluster.policy = policy(CAP, breaker={"share": 0.1, "min_jobs": 1})
    assert told(cluster.run(2, 1)) == ["do"]


def test_policy_breaker_stays_open_after_a_restart() -> None:
    cluster = Cluster(jobs_running=10, share=0.1, min_jobs=1)
    cluster.run(1, 0)
    held = cluster.run(2, 0)
    assert PolicyState().with_decisions(held.decisions).breaker == cluster.state.breaker
    assert cluster.state.forget(NOW_S + 10**7, open_incidents=[]).breaker == cluster.state.breaker
