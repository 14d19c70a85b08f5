"""``MemoryPolicy``: what a team allows in its namespace, merged, heeded by the adapter, and said in its status."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.kubernetes.kube_world import UNCHANGED, KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.verdicts import Severity
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.policy_status import PolicyStatuses
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.team_policies import (
    ALWAYS,
    MAX_AGE_S,
    MEMORY_POLICIES,
    NARROWED,
    SAYS_NOTHING,
    TeamPolicies,
    TeamWord,
    acceptance,
    in_force,
    merged_words,
    read_policy,
)
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

WORDS = [action.value for action in NARROWED]


def policy(name: str = "team", namespace: str = NAMESPACE, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "generation": 3}, "spec": spec}


def test_policy_narrows_what_is_done_and_never_what_is_told() -> None:
    word = read_policy(policy(allowedActions=["cap"])).word
    assert word.allowed == {ActionKind.CAP, *ALWAYS}
    assert read_policy(policy(allowedActions=[])).word.allowed == ALWAYS
    assert read_policy(policy(mayRequeue=True)).word == TeamWord(frozenset(ActionKind), True, ("team",))


@pytest.mark.parametrize(
    ("spec", "allowed", "refused"),
    [
        ({"allowedActions": ["cap", "explode"]}, {"cap"}, "'explode' is not an action"),
        ({"allowedActions": ["notify"]}, set(), "'notify' is not an action"),
        ({"allowedActions": "cap"}, set(), "allowedActions is not a list"),
        ({"allowedActions": ["cap"], "mayRequeue": True}, {"cap"}, "mayRequeue allows what allowedActions leaves out"),
        ({"thresholds": {}}, set(), "thresholds is not known"),
        ({"allowedActions": ["cap"], "mayRequeue": True, "onlyAtNight": True}, set(), "onlyAtNight is not known"),
        ({"minSeverity": "note"}, set(), "minSeverity is none of warning, critical"),
        ({"minSeverity": None}, set(), "minSeverity is none of warning, critical"),
        ({"minAgeSeconds": "1h"}, set(), "minAgeSeconds is no whole number from 1 to 604800"),
        ({"minAgeSeconds": True}, set(), "minAgeSeconds is no whole number from 1 to 604800"),
    ],
)
def test_part_that_is_not_understood_is_refused_and_allows_nothing(
    spec: dict[str, Any], allowed: set[str], refused: str
) -> None:
    read = read_policy(policy(**spec))
    assert {action.value for action in read.word.allowed - ALWAYS} == allowed
    assert not read.word.may_requeue
    assert read.refused == (refused,)
    accepted, message = acceptance(read, in_force([read.word]))
    assert not accepted
    assert message.endswith(f"Refused: {refused}")


def test_spec_that_is_no_object_allows_nothing() -> None:
    read = read_policy({**policy(), "spec": ["cap"]})
    assert (read.word.allowed, read.refused) == (ALWAYS, ("spec is not an object",))


def test_status_of_a_policy_from_a_newer_definition_says_that_nothing_is_done() -> None:
    read = read_policy(policy(newThing=True))
    assert acceptance(read, in_force([read.word])) == (
        False, "Done in this namespace, beside messages: nothing. Refused: newThing is not known"
    )  # fmt: skip


def test_status_says_what_is_in_force() -> None:
    assert said(allowedActions=["cap", "requeue"], mayRequeue=True) == (
        "Done in this namespace, beside messages: cap, requeue; workloads may be requeued"
    )
    assert said(allowedActions=[]).endswith(": nothing")
    assert said(mayRequeue=False).endswith(": all that the admin's policy decides")


def said(**spec: Any) -> str:
    return in_force([read_policy(policy(**spec)).word])


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "allowedActions": st.lists(st.sampled_from(WORDS)),
        "mayRequeue": st.booleans(),
        "minSeverity": st.sampled_from(["warning", "critical"]),
        "minAgeSeconds": st.integers(1, MAX_AGE_S),
    },
)


def _level(word: TeamWord) -> int:
    return 0 if word.min_severity is None else word.min_severity.level


@given(st.lists(SPECS, max_size=3))
def test_several_policies_allow_what_each_allows_in_any_order(specs: list[dict[str, Any]]) -> None:
    words = [read_policy(policy(f"p{number}", **spec)).word for number, spec in enumerate(specs)]
    merged = merged_words(words)
    assert {merged_words(order) for order in itertools.permutations(words)} == {merged}
    assert all(merged.allowed <= word.allowed for word in words)
    assert not merged.may_requeue or ActionKind.REQUEUE in merged.allowed
    assert all((merged.min_age_s or 0) >= (word.min_age_s or 0) for word in words)
    assert all(_level(merged) >= _level(word) for word in words)
    assert merged_words([]) == SAYS_NOTHING


class PolicyWorld(KubeWorld):
    """A job of an owner who says nothing, under policies of the namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.policies = TeamPolicies(self.kube)
        self.port = self.another_port(policies=self.policies)

    def says(self, name: str = "team", namespace: str = NAMESPACE, **spec: Any) -> None:
        self.kube.put(MEMORY_POLICIES, policy(name, namespace, **spec))

    def may(self, job: JobView) -> set[ActionKind]:
        facts = self.facts(job)
        assert facts is not None
        return set(facts.can)


@pytest.fixture
def world() -> PolicyWorld:
    return PolicyWorld()


def test_what_the_team_leaves_out_is_not_done(world: PolicyWorld) -> None:
    job = world.start_job()
    assert ActionKind.HOLD in world.may(job)
    target = world.target(job)
    world.says(allowedActions=["cap"])
    assert world.may(job) == {ActionKind.NOTIFY, ActionKind.CAP}
    with pytest.raises(PermanentError, match="no hold: MemoryPolicy team of its namespace does not allow it"):
        world.port.hold(target, "leaks", decision_id="d-1")
    assert not world.running(job)["spec"].get("suspend")
    world.port.notify(target, "it leaks", decision_id="d-2")


def test_thresholds_of_the_team_come_to_the_policy_and_are_the_strictest_of_several(world: PolicyWorld) -> None:
    job = world.start_job()
    world.says("one", minSeverity="critical", minAgeSeconds=60)
    world.says("two", minSeverity="warning", minAgeSeconds=1800)
    world.says("others", namespace="team-b", minAgeSeconds=3600)
    facts = world.facts(job)
    assert facts is not None
    assert (facts.min_severity, facts.min_age_s) == (Severity.CRITICAL, 1800)
    assert ActionKind.HOLD in facts.can


class CountedPolicies(TeamPolicies):
    reads = 0

    def by_namespace(self) -> Mapping[str, TeamWord]:
        self.reads += 1
        return super().by_namespace()


def test_policy_from_a_newer_definition_lets_nothing_be_done(world: PolicyWorld) -> None:
    job = world.start_job()
    world.says(newThing=True)
    assert world.may(job) == {ActionKind.NOTIFY}


def test_policies_are_read_once_for_all_workloads(world: PolicyWorld) -> None:
    policies = CountedPolicies(world.kube)
    jobs = [world.start_job() for _ in range(3)]
    assert len(world.another_port(policies=policies).describe(jobs)) == len(jobs)
    assert policies.reads == 1


def test_policy_of_another_namespace_says_nothing(world: PolicyWorld) -> None:
    job = world.start_job()
    world.says(namespace="team-b", allowedActions=[])
    assert ActionKind.HOLD in world.may(job)


def test_team_may_let_its_workloads_be_requeued(world: PolicyWorld) -> None:
    job = world.start_job(actions=None)
    facts = world.facts(job)
    assert facts is not None
    assert not facts.requeueable
    world.says(mayRequeue=True)
    facts = world.facts(job)
    assert facts is not None
    assert facts.requeueable
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d-1")
    assert world.running(job)["spec"]["suspend"] is True


def test_owner_who_keeps_his_workload_is_heeded_all_the_same(world: PolicyWorld) -> None:
    job = world.start_job(actions="keep")
    world.says(mayRequeue=True)
    facts = world.facts(job)
    assert facts is not None
    assert facts.exempt


def test_nothing_is_done_while_policies_are_not_known(world: PolicyWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.kube.store(MEMORY_POLICIES).problem = "may not list memorypolicies"
    with pytest.raises(TemporaryError, match="MemoryPolicies unknown: may not list"):
        world.facts(job)
    with pytest.raises(TemporaryError, match="MemoryPolicies unknown"):
        world.port.hold(target, "leaks", decision_id="d-1")


def test_without_the_definition_there_are_none() -> None:
    world = KubeWorld()
    world.kube.missing_kinds.add("MemoryPolicy")
    world.port = world.another_port(policies=TeamPolicies(world.kube))
    facts = world.facts(world.start_job())
    assert facts is not None
    assert ActionKind.HOLD in facts.can


class StatusWorld:
    """A controller that leads."""

    def __init__(self) -> None:
        self.world = KubeWorld()
        self.kube = self.world.kube
        self.keys: list[WorkKey] = []
        self.now_s = 1_700_000_000.0
        self.statuses = PolicyStatuses(
            self.kube, self.kube, on_key=self.keys.append, counts=StepCounts(), now_s=lambda: self.now_s
        )

    def work(self) -> None:
        keys, self.keys[:] = list(self.keys), []
        for key in keys:
            self.statuses.reconcile(key)

    def condition(self, name: str = "team") -> Any:
        (found,) = self.kube.peek(MEMORY_POLICIES, NAMESPACE, name)["status"]["conditions"]
        return found


def test_status_is_written_once_for_each_generation() -> None:
    world = StatusWorld()
    world.kube.put(MEMORY_POLICIES, policy(allowedActions=["cap"]))
    world.work()
    first = world.condition()
    assert (first["status"], first["reason"], first["observedGeneration"]) == ("True", "InForce", 3)
    world.statuses.tell_all()
    assert world.keys == []
    world.now_s += 60
    changed = world.kube.peek(MEMORY_POLICIES, NAMESPACE, "team")
    changed["metadata"]["generation"], changed["spec"] = 4, {"allowedActions": []}
    world.kube.put(MEMORY_POLICIES, changed)
    world.work()
    second = world.condition()
    assert (second["observedGeneration"], second["lastTransitionTime"]) == (4, first["lastTransitionTime"])
    assert second["message"].endswith(": nothing")
    changed["metadata"]["generation"], changed["spec"] = 5, {"allowedActions": ["explode"]}
    world.kube.put(MEMORY_POLICIES, {**changed, "status": {"conditions": [second]}})
    world.work()
    assert (world.condition()["status"], world.condition()["reason"]) == ("False", "PartsRefused")
    assert world.condition()["lastTransitionTime"] != first["lastTransitionTime"]


def test_status_of_each_of_several_says_what_is_in_force_and_which_one_narrows() -> None:
    world = StatusWorld()
    world.kube.put(MEMORY_POLICIES, policy("wide", mayRequeue=True))
    world.kube.put(MEMORY_POLICIES, policy("others", "team-b", allowedActions=["hold"]))
    world.work()
    alone = "Done in this namespace, beside messages: all that the admin's policy decides; workloads may be requeued"
    assert world.condition("wide")["message"] == alone
    world.kube.put(MEMORY_POLICIES, policy("narrow", allowedActions=[]))
    world.work()
    both = "Done in this namespace, beside messages: nothing, by narrow, wide together; narrowed by narrow"
    assert {world.condition(name)["message"] for name in ("wide", "narrow")} == {both}
    world.kube.remove(MEMORY_POLICIES, NAMESPACE, "narrow")
    world.work()
    assert world.condition("wide")["message"] == alone


def test_policy_that_went_while_no_controller_led_is_no_longer_named() -> None:
    world = StatusWorld()
    world.kube.put(MEMORY_POLICIES, policy("wide", mayRequeue=True))
    world.kube.put(MEMORY_POLICIES, policy("narrow", allowedActions=[]))
    world.work()
    world.kube.remove(MEMORY_POLICIES, NAMESPACE, "narrow")
    world.keys.clear()
    world.statuses.tell_all()
    world.work()
    assert "narrow" not in world.condition("wide")["message"]


def test_names_of_many_policies_are_cut_to_what_a_status_holds() -> None:
    reads = [read_policy(policy(f"p{number:03}", allowedActions=[])) for number in range(500)]
    merged = merged_words(read.word for read in reads)
    assert in_force([read.word for read in reads]).endswith(
        ": nothing, by p000, p001, p002 and 497 more together; narrowed by p000, p001, p002 and 497 more"
    )
    assert merged.why_not(ActionKind.HOLD) == (
        "MemoryPolicy p000, p001, p002 and 497 more of its namespace does not allow it"
    )
