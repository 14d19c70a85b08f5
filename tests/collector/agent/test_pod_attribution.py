"""Whose word counts on a rank in a pod: claims against the kernel, the head and the kubelet, alone and in the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import GIB, PID, UUID0, UUID1, FakeNode, FakeRank, FakeRecords, FakeSteps, gpu_reading, identity
from tidegauge.agent.attribution import (
    MAX_ATTEMPT,
    Attribution,
    AttributionSources,
    IdentityProof,
    PodProof,
    SourceAnswer,
    attribute,
)
from tidegauge.agent.kubernetes.pods import PATIENCE_S, REFRESH_S, PodBook
from tidegauge.agent.ports import HeldBy, NoPlace, ProcessFacts, SourceHealth
from tidegauge.core.ids import JobId, RankIdentity
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts, PodPlace
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.views import RankView

UID = 1000
MAIN, SIDE = "7f3a" * 16, "ab12" * 16
POD = PodCgroup("8a1c4f3e-09b2-4d5e-8f10-1234567890ab", MAIN)
FACTS = PodFacts(
    POD.pod_uid, "team-a", "llm-0", "llm", "JobSet", attempt=2, user_name="ada", containers={MAIN: "train"}
)  # fmt: skip
PROCESS = ProcessFacts(PID, UID, None, POD)
OWN = "local-node-a-4242-777"
TRAIN = HeldBy("team-a", "llm-0", "train")
LINGER_S = 120.0
SILENT_S = PATIENCE_S + 1.0
CARDS = (gpu_reading(UUID0, 0, processes={PID.pid: GIB}), gpu_reading(UUID1, 1))
NEIGHBOUR = HeldBy("team-b", "notebook", "jupyter")


def claim(
    job_id: str = "team-a/llm", scheduler: str | None = "kubernetes", attempt: int = 0, each: int = 1
) -> RankIdentity:
    return identity(job_id=JobId(job_id), scheduler=scheduler, attempt=attempt, attempts_each=each)


def shown(claimed: RankIdentity, known: IdentityProof) -> Attribution:
    return attribute(claimed, known, PROCESS, hostname="node-a")


def in_pod(facts: PodFacts | None = FACTS, *holders: HeldBy) -> IdentityProof:
    return IdentityProof(pod=PodProof(POD, facts, frozenset(holders)))


# --- the head has said who the pod is


@pytest.mark.parametrize(
    ("claimed", "overruled"),
    [
        ("team-a/llm", set()),
        ("team-a/llm-workers-0", set()),  # the Job that the JobSet made: what its pod was started with
        ("local-llm-0-1-1", set()),
        ("torchrun-llm-0-29500", set()),
        ("team-b/llm", {"job_id"}),
        ("kube-system/coredns", {"job_id"}),
    ],
)
def test_the_heads_word_counts_whatever_is_claimed(claimed: str, overruled: set[str]) -> None:
    found = shown(claim(claimed, scheduler=None), in_pod())
    assert found.identity[:2] == ("team-a/llm", 2)
    assert (found.identity.scheduler, found.identity.job_name, found.user_name) == ("kubernetes", "llm", "ada")
    assert found.pod == PodPlace(POD.pod_uid, "team-a", "llm-0", "train", job_known=True)
    assert found.overruled == overruled


def test_a_pod_without_an_owner_belongs_to_its_namespace() -> None:
    facts = PodFacts(POD.pod_uid, "team-a", "shell", "shell", "Pod")
    assert shown(claim(), in_pod(facts)).user_name == "team-a"


@pytest.mark.parametrize(
    ("claimed", "each", "starts", "attempt"), [(0, 1, 0, 0), (0, 1, 3, 3), (7, 1, 3, 3), (6, 4, 3, 14), (3, 0, 1, 1)]
)
def test_starts_of_the_workload_and_those_within_a_pod_make_the_attempt(
    claimed: int, each: int, starts: int, attempt: int
) -> None:
    facts = PodFacts(POD.pod_uid, "team-a", "llm-0", "llm", "Job", attempt=starts)
    found = shown(claim(attempt=claimed, each=each), in_pod(facts))
    assert (found.identity.attempt, found.overruled) == (attempt, frozenset())


@given(
    st.integers(0, MAX_ATTEMPT), st.integers(0, MAX_ATTEMPT), st.integers(0, 1 << 40), st.text(min_size=1),
    st.sampled_from([None, "slurm", "local", "ray", "kubernetes"]),
)  # fmt: skip
def test_no_claim_changes_job_or_starts(
    attempt: int, each: int, starts: int, job_id: str, scheduler: str | None
) -> None:
    facts = PodFacts(POD.pod_uid, "team-a", "llm-0", "llm", "Job", attempt=starts)
    found = shown(claim(job_id, scheduler, attempt, each), in_pod(facts)).identity
    assert (found.job_id, found.scheduler) == ("team-a/llm", "kubernetes")
    assert found.attempt == MAX_ATTEMPT or found.attempt // max(1, each) == starts


def test_a_container_that_the_head_has_not_heard_of_is_the_kubelets() -> None:
    facts = PodFacts(POD.pod_uid, "team-a", "llm-0", "llm", "Job", containers={SIDE: "side"})
    cases = {(): None, (TRAIN,): "train", (TRAIN, NEIGHBOUR): "train", (NEIGHBOUR,): None}
    for holders, container in cases.items():
        found = shown(claim(), in_pod(facts, *holders))
        assert found.pod == PodPlace(POD.pod_uid, "team-a", "llm-0", container, job_known=True)


# --- it has not


def test_the_kubelet_names_the_pod_and_refuses_another_namespaces_job() -> None:
    for claimed, job_id, overruled in (
        ("team-a/llm", "team-a/llm", set()),
        ("team-b/llm", "team-a/llm-0", {"job_id"}),
        ("local-llm-0-1-1", "team-a/llm-0", set()),
        ("7", "team-a/llm-0", set()),
    ):
        found = shown(claim(claimed, "local"), in_pod(None, TRAIN))
        assert (found.identity.job_id, found.identity.scheduler) == (job_id, "kubernetes")
        assert found.pod == PodPlace(POD.pod_uid, "team-a", "llm-0", "train")
        assert (set(found.overruled), found.user_name) == (overruled, "team-a")


def test_on_a_shared_card_nothing_is_named_but_what_its_holders_have_in_common() -> None:
    found = shown(claim("team-b/llm"), in_pod(None, TRAIN, NEIGHBOUR))
    assert (found.pod, found.identity.job_id) == (PodPlace(POD.pod_uid), OWN)
    found = shown(claim("team-b/llm"), in_pod(None, TRAIN, TRAIN._replace(pod="llm-1")))
    assert found.pod == PodPlace(POD.pod_uid, "team-a")
    assert (found.identity.job_id, set(found.overruled)) == (OWN, {"job_id"})
    found = shown(claim("team-b/llm"), in_pod(None, TRAIN, TRAIN._replace(container="side")))
    assert found.pod == PodPlace(POD.pod_uid, "team-a", "llm-0")
    assert found.identity.job_id == "team-a/llm-0"


def test_pod_attribution_leaves_an_unknown_pod_unverified_and_without_an_owner() -> None:
    found = shown(claim("sweep-3"), in_pod(None))
    assert (found.identity.job_id, found.pod) == ("sweep-3", PodPlace(POD.pod_uid))
    assert found.pod is not None
    assert not found.pod.job_known
    assert found.user_name == str(UID), "which is another person's login on the node"


@pytest.mark.parametrize("job_id", ["7", "7_3"])
def test_in_a_pod_that_nobody_knows_there_is_no_slurm_job(job_id: str) -> None:
    found = shown(claim(job_id, "slurm"), in_pod(None))
    assert (found.identity.job_id, found.identity.scheduler) == (OWN, "kubernetes")


@given(st.text(min_size=1), st.sampled_from([None, "slurm", "local", "kubernetes"]))
def test_no_claim_leaves_a_namespace_that_the_kubelet_names(job_id: str, scheduler: str | None) -> None:
    found = shown(claim(job_id, scheduler), in_pod(None, TRAIN)).identity
    assert found.job_id.startswith("team-a/")


@given(
    st.one_of(st.text(min_size=1), st.sampled_from(["team-b/llm", "team-b/Llm", "team-b/", "team-a/../team-b/llm"])),
    st.sampled_from([(), (TRAIN, NEIGHBOUR), (TRAIN, TRAIN._replace(pod="llm-1"))]),
)
def test_a_pod_that_the_head_does_not_know_gets_into_no_job_of_another_namespace(
    job_id: str, holders: tuple[HeldBy, ...]
) -> None:
    """The head stays silent for ever about a pod without the label, which whoever makes the pod may leave out."""
    found = shown(claim(job_id), in_pod(None, *holders)).identity.job_id
    confirmed = {held.namespace for held in holders} == {"team-a"}
    assert "/" not in found or (confirmed and found.startswith("team-a/"))


# --- in no pod


@given(st.from_regex(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,100}", fullmatch=True), st.booleans())
def test_no_claim_from_outside_makes_a_workload(job_id: str, outside: bool) -> None:
    found = shown(claim(job_id, "kubernetes"), IdentityProof(outside=outside))
    assert (found.identity.job_id, found.identity.scheduler, found.pod) == (OWN, "local", None)
    assert found.overruled == {"job_id", "scheduler"}


@pytest.mark.parametrize("job_id", ["sweeps/Lr-3", "a/b/c", "my-experiment", "/llm", "team-a/"])
def test_outside_of_pods_a_name_that_no_workload_can_have_is_kept(job_id: str) -> None:
    assert shown(claim(job_id, "local"), IdentityProof()).identity.job_id == job_id


# --- attribution


def attribution(slurm: SlurmPlace | NoPlace = NoPlace.NOT_ASKED, pods: PodBook | None = None) -> AttributionSources:
    return AttributionSources(FakeSteps({PID: slurm}), FakeRecords(), pods)


def test_slurmd_is_heard_before_the_pod_and_the_pod_before_a_cgroup_of_slurms() -> None:
    seven = SlurmPlace(JobId("7"), "0")
    found = attribution(pods=PodBook())
    assert found.evidence(SourceAnswer(seven, NoPlace.WAITING), PROCESS) == IdentityProof(seven)
    both = ProcessFacts(PID, UID, seven, POD)
    assert found.evidence(SourceAnswer(NoPlace.OUTSIDE, FACTS), both) == in_pod()


def test_pod_attribution_has_no_evidence_while_a_source_is_pending() -> None:
    found = attribution(pods=PodBook())
    assert found.evidence(SourceAnswer(NoPlace.WAITING, FACTS), PROCESS) is None
    assert found.evidence(SourceAnswer(NoPlace.OUTSIDE, NoPlace.WAITING), PROCESS) is None
    assert found.evidence(SourceAnswer(NoPlace.OUTSIDE, NoPlace.SILENT), PROCESS) == in_pod(None)


def test_a_process_in_no_pod_waits_for_no_head() -> None:
    found = attribution(pods=PodBook())
    facts = ProcessFacts(PID, UID, None)
    word = found.ask(facts, SourceAnswer(), (), alive=True)
    assert found.evidence(word, facts) == IdentityProof()


def test_pod_attribution_is_skipped_if_kubernetes_is_off() -> None:
    found = attribution()
    word = found.ask(PROCESS, SourceAnswer(), (), alive=True)
    assert found.evidence(word, PROCESS) == IdentityProof()


# --- in the agent


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run", readings=CARDS, linger_s=LINGER_S)


def start(node: FakeNode, job_id: str = "team-b/llm", pod: PodCgroup = POD) -> FakeRank:
    rank = node.start_rank(pod=pod, who=claim(job_id))
    rank.record()
    node.poll()
    return rank


def ranks(node: FakeNode) -> list[RankView]:
    return list(node.agent.view().ranks)


def wanted(node: FakeNode) -> tuple[str, ...]:
    return node.agent.summary(node_id="n", incarnation="i", metrics_address=None).pods_wanted


def test_a_rank_is_shown_when_the_head_has_said_who_its_pod_is(node: FakeNode) -> None:
    start(node)
    assert (ranks(node), wanted(node)) == ([], (POD.pod_uid,))
    node.agent.hear_of_pods([FACTS])
    node.poll()
    [rank] = ranks(node)
    assert (rank.identity.job_id, rank.identity.attempt, rank.user_name) == ("team-a/llm", 2, "ada")
    assert rank.pod == PodPlace(POD.pod_uid, "team-a", "llm-0", "train", job_known=True)
    assert rank.summary().pod == rank.pod
    assert node.agent.view().claims_overruled == {"job_id": 1}
    assert wanted(node) == ()


def test_while_the_head_is_silent_the_kubelet_names_the_rank(node: FakeNode) -> None:
    node.holders.holders[UUID0] = frozenset({TRAIN})
    start(node)
    node.poll(SILENT_S)
    [rank] = ranks(node)
    assert (rank.identity.job_id, rank.user_name) == ("team-a/llm-0", "team-a")
    assert rank.pod == PodPlace(POD.pod_uid, "team-a", "llm-0", "train")
    assert wanted(node) == (POD.pod_uid,), "the head may come back"
    node.agent.hear_of_pods([FACTS])
    node.poll()
    assert [rank.identity.job_id for rank in ranks(node)] == ["team-a/llm"]


def test_a_card_that_a_rank_only_claims_gives_it_no_name(node: FakeNode) -> None:
    node.holders.holders[UUID1] = frozenset({NEIGHBOUR})
    rank = node.start_rank(pod=POD, who=claim("team-b/notebook")._replace(device_uuids=(UUID1,)))
    rank.record()
    node.poll()
    node.poll(SILENT_S)
    assert [rank.pod for rank in ranks(node)] == [PodPlace(POD.pod_uid)]


def test_pod_attribution_keeps_the_kubelets_answer_while_nvml_fails(node: FakeNode) -> None:
    node.holders.holders[UUID0] = frozenset({TRAIN})
    start(node)
    node.poll(SILENT_S)
    node.gpus.failing = True
    node.poll()
    assert [rank.identity.job_id for rank in ranks(node)] == ["team-a/llm-0"]


def test_an_owner_who_is_named_later_is_shown(node: FakeNode) -> None:
    start(node)
    node.agent.hear_of_pods([FACTS])
    node.poll()
    node.poll(REFRESH_S)
    assert wanted(node) == (POD.pod_uid,)
    changed = PodFacts(POD.pod_uid, "team-a", "llm-0", "llm", "JobSet", attempt=2, user_name="grace")
    node.agent.hear_of_pods([changed])
    node.poll()
    assert [rank.user_name for rank in ranks(node)] == ["grace"]


def test_a_rank_that_ended_keeps_its_job_and_its_pod_is_forgotten_with_it(node: FakeNode) -> None:
    rank = start(node)
    node.agent.hear_of_pods([FACTS])
    node.poll()
    node.end(rank)
    node.poll()
    assert [(view.identity.job_id, view.alive) for view in ranks(node)] == [("team-a/llm", False)]
    node.poll(REFRESH_S)
    assert wanted(node) == (POD.pod_uid,)
    node.poll(LINGER_S)
    node.poll()
    assert wanted(node) == ()


def test_a_rank_that_ends_before_the_head_answers_is_still_told_apart(node: FakeNode) -> None:
    node.end(start(node))
    node.poll()
    assert ranks(node) == []
    node.agent.hear_of_pods([FACTS])
    node.poll()
    assert [(view.identity.job_id, view.alive) for view in ranks(node)] == [("team-a/llm", False)]


def test_agent_exports_success_and_duration_of_kubelet_queries(node: FakeNode) -> None:
    node.poll()
    assert "pod_resources" not in node.agent.view().collect_success
    node.holders.how = SourceHealth(False, 5.0)
    node.poll()
    assert node.agent.view().collect_success["pod_resources"] is False
    assert node.agent.view().collect_duration_s["pod_resources"] == 5.0


def test_the_kubelet_is_asked_no_more_when_the_agent_ends(node: FakeNode) -> None:
    node.agent.close()
    assert node.holders.closed
