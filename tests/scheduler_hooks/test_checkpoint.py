"""`RankCheckpoint`: all ranks save at the same step, once, whoever asks and however often; and what counts as proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_values import JOB, target
from tidegauge.core.incidents.actions import GroupTarget, JobTarget
from tidegauge_scheduler_hooks.checkpoint import MEASURE_S, RankCheckpoint
from tidegauge_scheduler_hooks.ports import CheckpointProgress, CheckpointStage, TemporaryError
from training_ranks import FakeCommands, FakeTime, TrainingRank

DEADLINE_UNIX_S = 2e9


class Job:
    """Ranks, and a coordinator that may be replaced by a fresh one."""

    def __init__(self, ranks: int = 2, *, steps_per_s: float = 10.0, answer_s: float = 1.0) -> None:
        self.time = FakeTime(100.0)
        self.ranks = [TrainingRank(rank, self.time, steps_per_s) for rank in range(ranks)]
        self.commands = FakeCommands(self.time, self.ranks, answer_s=answer_s)
        self.restart()

    def restart(self) -> None:
        self.checkpoints = RankCheckpoint(
            self.commands, monotonic_s=self.time.monotonic_s, sleep=self.time.sleep
        )  # fmt: skip

    def target(self) -> JobTarget:
        return target(ranks=tuple(rank.target for rank in self.ranks))

    def advance(self, decision_id: str = "d-1") -> CheckpointProgress:
        return self.checkpoints.advance(self.target(), decision_id=decision_id, deadline_unix_s=DEADLINE_UNIX_S)

    def saved_at(self) -> list[list[int]]:
        for rank in self.ranks:
            rank.live()
        return [rank.saves for rank in self.ranks]

    def pass_s(self, seconds: float) -> None:
        self.time.sleep(seconds)
        self.saved_at()


@pytest.mark.parametrize("steps_per_s", [0.01, 0.2, 1.0, 10.0, 400.0])
@pytest.mark.parametrize("answer_s", [0.01, 1.0, 4.0])
def test_all_ranks_save_once_at_the_same_step_whatever_their_pace(steps_per_s: float, answer_s: float) -> None:
    job = Job(4, steps_per_s=steps_per_s, answer_s=answer_s)
    assert job.advance().stage is CheckpointStage.ASKED
    while (progress := job.advance()).stage is CheckpointStage.ASKED:
        job.pass_s(1.0)
    assert progress.stage is CheckpointStage.PROVEN
    assert "4 of 4 ranks saved" in progress.detail
    (saves,) = {tuple(saves) for saves in job.saved_at()}
    assert len(saves) == 1
    assert {request["ranks"] for request in job.commands.sent("checkpoint")} == {4}


def test_a_slow_job_is_asked_for_a_step_that_is_near() -> None:
    job = Job(steps_per_s=1 / 30)
    at_step = job.ranks[0].step
    job.advance()
    assert job.commands.sent("checkpoint")[-1]["at_step"] <= at_step + 3


def test_checkpoint_that_is_proven_sends_no_further_requests() -> None:
    job = Job()
    job.advance()
    job.pass_s(30)
    assert {job.advance().stage for _ in range(3)} == {CheckpointStage.PROVEN}
    assert len(job.commands.sent("checkpoint")) == 2


def test_a_coordinator_that_was_restarted_looks_and_does_not_ask_again() -> None:
    job = Job()
    job.advance()
    job.restart()
    assert job.advance().stage is CheckpointStage.ASKED
    job.pass_s(30)
    job.restart()
    assert job.advance().stage is CheckpointStage.PROVEN
    assert len(job.commands.sent("checkpoint")) == 2


def test_a_coordinator_that_died_while_it_asked_is_followed_by_one_that_asks_all() -> None:
    job = Job()
    job.ranks[1].misses = {"checkpoint"}
    with pytest.raises(TemporaryError):
        job.advance()
    job.ranks[0].requests["d-1"].update(stage="waiting", withdrawn=False, at_step=10**6)  # as if it had not come back
    job.ranks[1].misses = set()
    job.restart()
    assert job.advance().stage is CheckpointStage.ASKED
    job.pass_s(60)
    first, second = job.saved_at()
    assert first == second
    assert len(first) == 1


def test_a_step_that_was_over_is_tried_again_further_away() -> None:
    job = Job(answer_s=0.1)
    tried: list[int] = []

    def get_faster_at_first(request: Mapping[str, Any]) -> None:
        if request["command"] == "checkpoint":
            for rank in job.ranks:
                rank.ahead += 0 if tried else 500
            tried.append(request["at_step"])

    job.commands.on_request = get_faster_at_first
    assert job.advance().stage is CheckpointStage.ASKED
    job.pass_s(60)
    assert len(tried) == 2
    assert job.saved_at() == [[tried[1]], [tried[1]]]


def test_checkpoint_is_proven_by_the_ranks_with_a_callback() -> None:
    job = Job(4)
    for rank in job.ranks[1:]:
        rank.means = None
    job.advance()
    job.pass_s(30)
    assert job.advance().stage is CheckpointStage.PROVEN
    assert job.saved_at()[1:] == [[], [], []]
    assert {request["ranks"] for request in job.commands.sent("checkpoint")} == {1}


def test_a_callback_is_preferred_to_a_signal() -> None:
    job = Job()
    job.ranks[0].means = "signal"
    job.advance()
    assert [name for name, request in job.commands.log if request["command"] == "checkpoint"] == ["rank 1"]


def test_by_signal_one_rank_with_a_fresh_file_is_proof() -> None:
    job = Job()
    for rank in job.ranks:
        rank.means = "signal"
    job.ranks[1].fails = True
    job.advance()
    job.pass_s(30)
    assert job.advance().stage is CheckpointStage.PROVEN


def test_by_callback_one_rank_that_failed_is_the_end_of_it() -> None:
    job = Job()
    job.ranks[1].fails = True
    job.advance()
    job.pass_s(30)
    progress = job.advance()
    assert progress.stage is CheckpointStage.REFUSED
    assert progress.detail == "rank 1: the callback raised OSError: disk full"


def test_a_job_without_means_refuses() -> None:
    job = Job()
    for rank in job.ranks:
        rank.means = None
    progress = job.advance()
    assert progress.stage is CheckpointStage.REFUSED
    assert "callback" in progress.detail
    assert job.commands.sent("checkpoint") == []


def test_ranks_that_count_differently_are_not_asked() -> None:
    job = Job()
    job.ranks[1].ahead = 5000
    progress = job.advance()
    assert progress.stage is CheckpointStage.REFUSED
    assert "tidegauge.step()" in progress.detail
    assert job.commands.sent("checkpoint") == []


@pytest.mark.parametrize("lost", ["ping", "checkpoint_status", "checkpoint"])
def test_a_rank_that_does_not_answer_is_asked_again_later_and_nobody_saves_alone(lost: str) -> None:
    job = Job()
    job.ranks[1].deaf_to = {lost}
    with pytest.raises(TemporaryError):
        job.advance()
    job.pass_s(60)
    assert job.saved_at() == [[], []]
    job.ranks[1].deaf_to = set()
    assert job.advance().stage is CheckpointStage.ASKED
    job.pass_s(60)
    assert job.advance().stage is CheckpointStage.PROVEN
    first, second = job.saved_at()
    assert first == second


def test_a_rank_that_ends_before_it_saved_is_no_proof() -> None:
    job = Job()
    job.advance()
    job.ranks[1].gone = True
    job.pass_s(30)
    progress = job.advance()
    assert progress.stage is CheckpointStage.REFUSED
    assert "rank 1 ended before it saved" in progress.detail


def test_a_silent_rank_is_waited_for_once_the_job_was_asked() -> None:
    job = Job()
    job.advance()
    job.pass_s(30)
    job.ranks[1].misses = {"checkpoint_status"}
    progress = job.advance()
    assert progress.stage is CheckpointStage.ASKED
    assert "1 of 2 ranks saved" in progress.detail
    job.ranks[1].misses = set()
    assert job.advance().stage is CheckpointStage.PROVEN


def test_a_job_that_makes_no_steps_is_asked_for_the_next_ones() -> None:
    job = Job(steps_per_s=0.0, answer_s=0.5)
    began_s = job.time.now_s
    assert job.advance().stage is CheckpointStage.ASKED
    assert job.time.now_s - began_s < MEASURE_S + 10
    assert 1 <= job.commands.sent("checkpoint")[-1]["at_step"] <= 3


@pytest.mark.parametrize(("left_s", "within_s"), [(60.0, 57.0), (4.0, 2.0), (0.0, 0.0), (-3600.0, 0.0)])
def test_ranks_are_told_how_long_it_is_good_for_because_their_clocks_may_be_wrong(
    left_s: float, within_s: float
) -> None:
    job = Job()
    job.checkpoints = RankCheckpoint(
        job.commands, monotonic_s=job.time.monotonic_s, sleep=job.time.sleep, wall_s=lambda: DEADLINE_UNIX_S - left_s
    )
    job.advance()
    assert {request["within_s"] for request in job.commands.sent("checkpoint")} == {within_s}


class TestGroupsOfRanks:
    """Two launches side by side in one job: each is asked for a step of its own; the job has saved when both have."""

    def setup_method(self) -> None:
        self.job = Job(0)
        self.trainer = [TrainingRank(rank, self.job.time, 10.0) for rank in range(2)]
        self.other = TrainingRank(0, self.job.time, 0.02, launcher_pid=2000)
        self.job.commands = FakeCommands(self.job.time, [*self.trainer, self.other])
        self.job.ranks = [*self.trainer, self.other]
        self.job.restart()
        beside = GroupTarget(JOB._replace(group="step 1"), "step 1", (self.other.target,))
        ranks = tuple(rank.target for rank in self.trainer)
        self.target = target(ranks=ranks, group_name="step 0", others=(beside,))

    def advance(self) -> CheckpointProgress:
        return self.job.checkpoints.advance(self.target, decision_id="d-1", deadline_unix_s=DEADLINE_UNIX_S)

    def test_both_save_at_steps_of_their_own_and_it_is_proven_when_both_have(self) -> None:
        assert self.advance().stage is CheckpointStage.ASKED
        self.job.pass_s(5)
        assert [len(rank.saves) for rank in self.trainer] == [1, 1]
        assert (progress := self.advance()).stage is CheckpointStage.ASKED, "the other has not saved yet"
        assert "step 0: 2 of 2 ranks saved" in progress.detail
        self.job.pass_s(200)
        assert (progress := self.advance()).stage is CheckpointStage.PROVEN
        assert "step 1: 1 of 1 rank saved" in progress.detail
        assert self.trainer[0].saves == self.trainer[1].saves != self.other.saves
        assert self.job.checkpoints.has_asked(self.target, "d-1")

    def test_checkpoint_is_refused_if_one_group_has_no_rank_to_ask(self) -> None:
        self.other.means = None
        assert (progress := self.advance()).stage is CheckpointStage.REFUSED
        assert progress.detail.startswith("step 1: no rank can be asked")
        self.job.pass_s(200)
        assert [rank.saves for rank in self.trainer] == [[], []], "nobody saves for nothing"

    def test_checkpoint_is_refused_if_one_group_fails(self) -> None:
        self.other.fails = True
        self.advance()
        self.job.pass_s(200)
        assert (progress := self.advance()).stage is CheckpointStage.REFUSED
        assert progress.detail == "step 1: rank 0: the callback raised OSError: disk full"

    def test_checkpoint_skips_a_group_with_nothing_to_save(self) -> None:
        self.other.means = "none"
        self.advance()
        self.job.pass_s(30)
        assert (progress := self.advance()).stage is CheckpointStage.PROVEN
        assert "step 1: nothing to save" in progress.detail
        assert {name for name, request in self.job.commands.log if request["command"] == "checkpoint"} == {
            "rank 0", "rank 1",
        }  # fmt: skip
        assert self.other.saves == []

    def test_of_one_group_all_have_to_say_that_there_is_nothing_to_save(self) -> None:
        self.trainer[0].means = "none"
        self.trainer[1].means = self.other.means = None
        assert self.advance().stage is CheckpointStage.REFUSED

    def test_checkpoint_asks_other_groups_while_one_is_silent(self) -> None:
        self.other.misses = {"checkpoint_status", "ping"}
        with pytest.raises(TemporaryError):
            self.advance()
        self.job.pass_s(10)
        assert [len(rank.saves) for rank in self.trainer] == [1, 1]
        self.other.misses = set()
        self.advance()
        self.job.pass_s(200)
        assert self.advance().stage is CheckpointStage.PROVEN

    def test_a_coordinator_that_was_restarted_looks_at_both_and_asks_nobody_again(self) -> None:
        self.advance()
        self.job.pass_s(5)
        self.job.restart()
        self.advance()
        self.job.pass_s(200)
        self.job.restart()
        assert self.advance().stage is CheckpointStage.PROVEN
        assert len(self.job.commands.sent("checkpoint")) == 3
