"""Whose word counts on a rank's job: claims against slurmd, the kernel and the prolog, alone and in the agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import PID, FakeNode, FakeRank, FakeRecords, FakeSteps, identity
from tidegauge.agent.attribution import (
    MAX_ATTEMPT,
    Attribution,
    AttributionSources,
    IdentityProof,
    SourceAnswer,
    attribute,
)
from tidegauge.agent.ports import NoPlace, ProcessFacts, SourceHealth
from tidegauge.core.ids import JobId, ProcessId, RankIdentity
from tidegauge.core.jobs.slurm import SlurmJobRecord, SlurmPlace
from tidegauge.core.views import RankView

ALICE = 5001
FACTS = ProcessFacts(PID, ALICE, None)
OWN = "local-node-a-4242-777"
SEVEN = SlurmPlace(JobId("7"), "0")
AT_SEVEN = IdentityProof(SEVEN)
OUTSIDE = IdentityProof(outside=True)


def claim(job_id: str = "7", scheduler: str | None = "slurm", attempt: int = 0, each: int = 1) -> RankIdentity:
    return identity(job_id=JobId(job_id), scheduler=scheduler, attempt=attempt, attempts_each=each)


def shown(claimed: RankIdentity, known: IdentityProof) -> Attribution:
    return attribute(claimed, known, FACTS, hostname="node-a")


# --- job


@pytest.mark.parametrize(
    ("claimed", "overruled"),
    [("7", set()), ("3_4", set()), ("8", {"job_id"}), ("mine", {"job_id"}), ("7x", {"job_id"}), ("a_4", {"job_id"})],
)
def test_slurmds_word_counts_whatever_is_claimed(claimed: str, overruled: set[str]) -> None:
    found = shown(claim(claimed, scheduler=None), AT_SEVEN)
    assert (found.identity.job_id, found.identity.scheduler, found.identity.hostname) == ("7", "slurm", "node-a")
    assert found.overruled == overruled


@pytest.mark.parametrize(
    ("claimed", "overruled"), [("7", set()), ("3_4", set()), ("3_5", {"job_id"}), ("4_3", {"job_id"})]
)
def test_the_name_of_a_task_is_compared_where_it_is_known(claimed: str, overruled: set[str]) -> None:
    known = IdentityProof(SEVEN._replace(array_job_id=3, array_task_id=4))
    assert shown(claim(claimed), known).overruled == overruled


@pytest.mark.parametrize("job_id", ["8", "8_1", "0"])
@pytest.mark.parametrize("scheduler", ["slurm", "local", None])
def test_a_process_outside_slurm_is_in_no_slurm_job(job_id: str, scheduler: str | None) -> None:
    found = shown(claim(job_id, scheduler), OUTSIDE)
    assert found.identity.job_id == OWN
    assert found.identity.scheduler != "slurm"
    assert "job_id" in found.overruled


def test_a_process_outside_slurm_keeps_a_name_of_its_own() -> None:
    found = shown(claim("torchrun-n1-29500", "local"), OUTSIDE)
    assert found == Attribution(claim("torchrun-n1-29500", "local")._replace(hostname="node-a"))
    found = shown(claim("my-experiment", "slurm"), OUTSIDE)
    assert (found.identity.job_id, found.identity.scheduler) == ("my-experiment", "local")
    assert found.overruled == {"scheduler"}


def test_attribution_accepts_the_claim_without_a_source_to_ask() -> None:
    assert shown(claim("8"), IdentityProof()) == Attribution(claim("8")._replace(hostname="node-a"))


# --- attempt


@pytest.mark.parametrize(
    ("claimed", "each", "restarts", "attempt", "overruled"),
    [
        (0, 1, 0, 0, set()),
        (2, 1, 2, 2, set()),
        (6, 4, 1, 6, set()),  # the second elastic restart after a requeue
        (0, 1, 3, 3, {"attempt"}),
        (7, 1, 0, 0, {"attempt"}),
        (2, 4, 1, 6, {"attempt"}),
        (5, 0, 1, 1, {"attempt"}),
    ],
)
def test_the_prolog_counts_restarts_and_the_launcher_those_within(
    claimed: int, each: int, restarts: int, attempt: int, overruled: set[str]
) -> None:
    found = shown(claim(attempt=claimed, each=each), IdentityProof(SEVEN, restarts=restarts))
    assert (found.identity.attempt, set(found.overruled)) == (attempt, overruled)


def test_without_the_prolog_the_attempt_is_the_claim() -> None:
    assert shown(claim(attempt=5), AT_SEVEN).identity.attempt == 5


@given(
    st.integers(0, MAX_ATTEMPT), st.integers(1, MAX_ATTEMPT), st.integers(0, 9_999_999_999), st.text(min_size=1),
    st.sampled_from([None, "slurm", "local", "ray"]),
)  # fmt: skip
def test_no_claim_changes_job_or_restarts(
    attempt: int, each: int, restarts: int, job_id: str, scheduler: str | None
) -> None:
    found = shown(claim(job_id, scheduler, attempt, each), IdentityProof(SEVEN, restarts=restarts)).identity
    assert (found.job_id, found.scheduler) == ("7", "slurm")
    assert found.attempt == MAX_ATTEMPT or found.attempt // each == restarts


@given(st.from_regex(r"[0-9]{1,12}(_[0-9]{1,12})?", fullmatch=True), st.sampled_from([None, "slurm", "local"]))
def test_no_claim_from_outside_makes_a_slurm_job(job_id: str, scheduler: str | None) -> None:
    found = shown(claim(job_id, scheduler), OUTSIDE).identity
    assert (found.job_id, found.scheduler == "slurm") == (OWN, False)


# --- attribution


def attribution(
    word: SlurmPlace | NoPlace = NoPlace.NOT_ASKED, record: SlurmJobRecord | None = None
) -> AttributionSources:
    return AttributionSources(FakeSteps({PID: word}), FakeRecords({} if record is None else {"7": record}))


def evidence(
    found: AttributionSources, word: SlurmPlace | NoPlace, facts: ProcessFacts = FACTS
) -> IdentityProof | None:
    return found.evidence(SourceAnswer(word, NoPlace.NOT_ASKED), facts)


@pytest.mark.parametrize("word", [NoPlace.NOT_ASKED, NoPlace.SILENT, NoPlace.OUTSIDE])
def test_the_cgroup_is_the_second_witness(word: NoPlace) -> None:
    facts = ProcessFacts(PID, ALICE, SlurmPlace(JobId("9"), "batch"))
    assert evidence(attribution(), word, facts) == IdentityProof(SlurmPlace(JobId("9"), "batch"))


def test_slurmd_is_heard_before_the_cgroup() -> None:
    facts = ProcessFacts(PID, ALICE, SlurmPlace(JobId("9"), "batch"))
    assert evidence(attribution(), SEVEN, facts) == AT_SEVEN


def test_attribution_has_no_evidence_while_slurmd_is_pending() -> None:
    assert evidence(attribution(), NoPlace.WAITING) is None


def test_attribution_marks_a_process_outside_only_after_slurmd_answers() -> None:
    words = (NoPlace.NOT_ASKED, NoPlace.SILENT, NoPlace.OUTSIDE)
    assert [evidence(attribution(), word) for word in words] == [IdentityProof(), IdentityProof(), OUTSIDE]


def test_the_prolog_tells_restarts_and_the_task_of_an_array() -> None:
    record = SlurmJobRecord(JobId("7"), ALICE, 2, 3, 4, "gpu", account="physics")
    found = evidence(attribution(record=record), SEVEN)
    assert found == IdentityProof(SlurmPlace(JobId("7"), "0", 3, 4, "physics", "gpu"), restarts=2)


def test_a_record_of_another_users_job_is_ignored_and_told() -> None:
    found = evidence(attribution(record=SlurmJobRecord(JobId("7"), 5002, 2, 3, 4)), SEVEN)
    assert found == IdentityProof(SEVEN, of_another_user=True)
    assert found is not None
    assert shown(claim(attempt=9), found) == Attribution(
        claim(attempt=9)._replace(hostname="node-a"), frozenset({"job_user"})
    )


def test_attribution_marks_a_process_that_ended_before_slurmd_answered_as_outside() -> None:
    waiting = attribution(NoPlace.WAITING)
    assert waiting.ask(FACTS, SourceAnswer(), (), alive=True).slurm is NoPlace.WAITING
    assert waiting.ask(FACTS, SourceAnswer(), (), alive=False).slurm is NoPlace.OUTSIDE
    assert waiting.ask(FACTS, SourceAnswer(SEVEN), (), alive=False).slurm == SEVEN


# --- in the agent


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    found = FakeNode(tmp_path / "run")
    found.steps.unless = NoPlace.WAITING
    return found


def start(node: FakeNode, job_id: str = "8", process: ProcessId = PID) -> FakeRank:
    rank = node.start_rank(process=process, who=claim(job_id))
    rank.record()
    node.poll()
    return rank


def ranks(node: FakeNode) -> list[RankView]:
    return list(node.agent.view().ranks)


def test_a_rank_is_shown_when_slurmd_has_said_its_word(node: FakeNode) -> None:
    start(node)
    assert ranks(node) == []
    node.steps.words[PID] = SEVEN
    node.poll()
    [rank] = ranks(node)
    assert (rank.identity.job_id, rank.slurm) == ("7", SEVEN)
    assert rank.summary().slurm == SEVEN
    assert node.agent.view().claims_overruled == {"job_id": 1}


def test_attribution_keeps_samples_read_before_slurmd_answers(node: FakeNode) -> None:
    rank = start(node)
    for _ in range(4):
        rank.record()
    node.poll()
    node.steps.words[PID] = SEVEN
    node.poll()
    assert ranks(node)[0].steps == 5
    assert node.agent.view().detector_points == 5


def test_a_rank_that_slurmd_does_not_know_is_a_job_of_its_own(node: FakeNode) -> None:
    node.steps.words[PID] = NoPlace.OUTSIDE
    start(node)
    [rank] = ranks(node)
    assert (rank.identity.job_id, rank.identity.scheduler, rank.slurm) == (OWN, "local", None)
    assert node.agent.view().claims_overruled == {"job_id": 1, "scheduler": 1}


def test_a_rank_that_slurmd_takes_in_later_moves_to_its_job(node: FakeNode) -> None:
    node.steps.words[PID] = NoPlace.OUTSIDE
    start(node)
    node.steps.words[PID] = SEVEN
    node.poll()
    assert [rank.identity.job_id for rank in ranks(node)] == ["7"]


def test_a_silent_slurmd_leaves_the_claim_without_a_place(node: FakeNode) -> None:
    node.steps.words[PID] = NoPlace.SILENT
    start(node)
    [rank] = ranks(node)
    assert (rank.identity.job_id, rank.slurm) == ("8", None)


def test_a_rank_that_ends_unasked_names_no_slurm_job(node: FakeNode) -> None:
    node.end(start(node))
    node.poll()
    node.poll()
    assert [(rank.identity.job_id, rank.alive) for rank in ranks(node)] == [(OWN, False)]


def test_a_rank_keeps_its_job_when_it_ends(node: FakeNode) -> None:
    node.steps.words[PID] = SEVEN
    rank = start(node)
    del node.steps.words[PID]
    node.end(rank)
    node.poll()
    assert [(rank.identity.job_id, rank.alive, rank.slurm) for rank in ranks(node)] == [("7", False, SEVEN)]


def test_a_later_claim_is_measured_by_the_same_evidence(node: FakeNode) -> None:
    node.steps.words[PID] = SEVEN
    node.records.records["7"] = SlurmJobRecord(JobId("7"), os.getuid(), 1)
    rank = start(node)
    node.records.records.clear()  # the epilog
    rank.publish(claim("9", attempt=44))
    node.poll()
    [view] = ranks(node)
    assert (view.identity.job_id, view.identity.attempt) == ("7", 1)


def test_agent_exports_success_and_duration_of_slurm_queries(node: FakeNode) -> None:
    node.poll()
    assert "slurm" not in node.agent.view().collect_success
    node.steps.how = SourceHealth(False, 5.0)
    node.poll()
    assert node.agent.view().collect_success["slurm"] is False
    assert node.agent.view().collect_duration_s["slurm"] == 5.0


def test_slurmd_is_asked_no_more_when_the_agent_ends(node: FakeNode) -> None:
    node.agent.close()
    assert node.steps.closed
