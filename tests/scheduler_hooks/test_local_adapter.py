"""`LocalScheduler` without processes: what it makes of views, of keepers' answers and of their refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sample_views import identity, job_view, rank_summary
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents.actions import ActionKind, JobTarget
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.orders import GONE, Reply
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    PermanentError,
    Presence,
    RequeueChanges,
    SchedulerError,
    TemporaryError,
)
from tidegauge_scheduler_hooks.tidegauge_run.adapter import BUSY_RETRY_S, LocalScheduler
from training_ranks import FakeCommands, FakeTime, TrainingRank

LAUNCH = LaunchSummary(
    ProcessId(900, 4000), 1001, "4711", "llm", restarts=2, state=LaunchState.RUNNING, requeueable=True, exempt=False,
    gpu_share=0.25, started_unix_s=1.7e9,
)  # fmt: skip
DESCRIBED = {"ok": True, "restarts": 2, "state": "running"}


def kept(**changes: Any) -> JobView:
    """A two-rank job that LAUNCH keeps."""
    return job_view(scheduler="local", rank_nodes=("n-0", "n-0"), launch=replace(LAUNCH, **changes), launch_node="n-0")


def alone(**changes: Any) -> JobView:
    """The same, started without ``tidegauge run``."""
    return job_view(**{"scheduler": "local", "rank_nodes": ("n-0", "n-0"), **changes})


class World:
    """The adapter, a job's target, and what its keeper is asked and says."""

    def __init__(self, job: JobView, *answers: Reply) -> None:
        self.answers = list(answers)
        time = FakeTime()
        self.ranks = [TrainingRank(rank, time) for rank in range(2)]
        self.commands = FakeCommands(time, self.ranks, keeper=lambda _request: self.answers.pop(0))
        self.local = LocalScheduler(self.commands)
        facts = self.local.describe([job])[job.key]
        self.target: JobTarget = job_facts(job, surroundings([job], {}), facts).target

    def last(self) -> tuple[str, Mapping[str, Any]]:
        return self.commands.log[-1]


def test_a_kept_job_is_described_by_its_keeper() -> None:
    job = kept()
    facts = World(job).local.describe([job])[job.key]
    assert facts.incarnation == "900-4000#2"
    assert (facts.running, facts.requeueable, facts.exempt, facts.restarts) == (True, True, False, 2)
    assert (facts.gpu_share, facts.started_unix_s) == (0.25, 1.7e9)
    assert facts.can == frozenset(ActionKind)
    assert facts.handle == {
        "pid": 900, "start_ticks": 4000, "restarts": 2, "node": "n-0", "torch_version": "2.13.0"
    }  # fmt: skip


def test_local_adapter_facts_include_the_owners_options() -> None:
    job = kept(requeueable=False, exempt=True, state=LaunchState.STOPPING)
    facts = World(job).local.describe([job])[job.key]
    assert (facts.running, facts.requeueable, facts.exempt) == (False, False, True)
    assert ActionKind.REQUEUE not in facts.can


def test_a_job_that_nobody_keeps_can_be_capped_and_asked_to_save() -> None:
    job = alone()
    facts = World(job).local.describe([job])[job.key]
    assert (facts.running, facts.requeueable) == (True, False)
    assert facts.can == {ActionKind.CAP, ActionKind.CHECKPOINT}


def test_jobs_of_other_schedulers_are_left_out() -> None:
    local = World(alone()).local
    assert local.describe([alone(scheduler="slurm"), alone(scheduler="ray")]) == {}


def test_ranks_of_two_versions_name_none() -> None:
    other = rank_summary(1, identity=identity(1, torch_version="2.9.1"))
    job = replace(kept(), ranks=(rank_summary(0), other))
    assert World(job).target.handle["torch_version"] is None


@pytest.mark.parametrize(
    ("said", "presence"),
    [
        (Reply(DESCRIBED), Presence.RUNNING),
        (Reply({**DESCRIBED, "state": "stopping"}), Presence.STOPPING),
        (Reply({**DESCRIBED, "state": "held"}), Presence.HELD),
        (Reply({**DESCRIBED, "state": "ended"}), Presence.GONE),
        (Reply({**DESCRIBED, "restarts": 3}), Presence.REPLACED),
        (Reply({**DESCRIBED, "restarts": 3, "state": "stopping"}), Presence.REPLACED),
        (Reply(error="it has ended", kind=GONE), Presence.GONE),
    ],
)
def test_local_adapter_presence_comes_from_the_keeper(said: Reply, presence: Presence) -> None:
    world = World(kept(), said)
    assert world.local.presence(world.target) is presence
    assert world.last() == ("keeper n-0 900", {"command": "describe"})


@pytest.mark.parametrize(
    "said", [Reply(error="no answer"), Reply({}), Reply({**DESCRIBED, "state": "odd"}), Reply({"restarts": None})]
)
def test_a_keeper_that_does_not_say_is_asked_again(said: Reply) -> None:
    world = World(kept(), said)
    with pytest.raises(TemporaryError):
        world.local.presence(world.target)


@pytest.mark.parametrize(
    ("gone", "presence"), [((), Presence.RUNNING), ((0,), Presence.RUNNING), ((0, 1), Presence.GONE)]
)
def test_a_job_without_a_keeper_is_where_its_ranks_are(gone: tuple[int, ...], presence: Presence) -> None:
    world = World(alone())
    for rank in gone:
        world.ranks[rank].gone = True
    assert world.local.presence(world.target) is presence


def test_ranks_that_do_not_answer_may_still_run() -> None:
    world = World(alone())
    world.ranks[0].gone = True
    world.ranks[1].misses = {"ping"}
    with pytest.raises(TemporaryError):
        world.local.presence(world.target)


Act = Callable[[LocalScheduler, JobTarget], object]

ACTS: dict[str, Act] = {
    "requeue": lambda local, target: local.requeue(
        target, RequeueChanges({"expandable_segments": "True"}, {"A": "b"}), "it leaks", decision_id="d-1"
    ),
    "hold": lambda local, target: local.hold(target, "it leaks", decision_id="d-1"),
    "cancel": lambda local, target: local.cancel(target, "it leaks", decision_id="d-1"),
    "notify": lambda local, target: local.notify(target, "it leaks", decision_id="d-1"),
    "annotate": lambda local, target: local.annotate(target, "it leaks", decision_id="d-1"),
}
ANY_ACT = pytest.mark.parametrize("command", ACTS)


@ANY_ACT
def test_an_action_names_its_decision_and_the_attempt_that_it_is_about(command: str) -> None:
    world = World(kept(), Reply({"ok": True}))
    ACTS[command](world.local, world.target)
    where, request = world.last()
    assert where == "keeper n-0 900"
    assert (request["command"], request["id"], request["restarts"]) == (command, "d-1", 2)
    assert "it leaks" in (request.get("reason"), request.get("text"))


def test_a_requeue_carries_its_changes_and_the_jobs_torch() -> None:
    world = World(kept(), Reply({"ok": True}))
    ACTS["requeue"](world.local, world.target)
    _, request = world.last()
    assert request["alloc_conf"] == {"expandable_segments": "True"}
    assert (request["environ"], request["torch_version"]) == ({"A": "b"}, "2.13.0")


@ANY_ACT
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("changed", ChangedError),
        (GONE, ChangedError),
        ("refused", PermanentError),
        ("busy", TemporaryError),
        (None, TemporaryError),
        ("a word from a later version", TemporaryError),
    ],
)
def test_a_keepers_no_becomes_the_error_that_it_means(
    command: str, kind: str | None, error: type[SchedulerError]
) -> None:
    world = World(kept(), Reply(error="not now", kind=kind))
    with pytest.raises(error, match="4711: not now"):
        ACTS[command](world.local, world.target)


def test_a_keeper_that_is_busy_is_left_alone_for_a_while() -> None:
    world = World(kept(), Reply(error="its owner asked it to end", kind="busy"))
    with pytest.raises(TemporaryError) as raised:
        ACTS["requeue"](world.local, world.target)
    assert raised.value.retry_after_s == BUSY_RETRY_S


@ANY_ACT
def test_a_job_that_nobody_keeps_cannot_be_ended_or_told(command: str) -> None:
    world = World(alone())
    with pytest.raises(PermanentError, match="not started by tidegauge run"):
        ACTS[command](world.local, world.target)
    assert world.commands.log == []


def test_a_cap_is_set_on_every_rank_and_kept_for_later_attempts() -> None:
    world = World(kept(), Reply({"ok": True}), Reply(DESCRIBED))
    said = world.local.cap(world.target, 0.5, decision_id="d-1")
    assert said == "memory fraction 0.5 on 2 of 2 ranks, and on later attempts"
    assert [request["value"] for request in world.commands.sent("fraction")] == [0.5, 0.5]
    assert world.commands.sent("cap")[0]["fraction"] == 0.5


def test_a_job_without_a_keeper_is_capped_as_it_runs() -> None:
    world = World(alone())
    assert world.local.cap(world.target, 0.5, decision_id="d-1") == "memory fraction 0.5 on 2 of 2 ranks"


def test_a_rank_that_was_not_reached_is_capped_later() -> None:
    world = World(alone())
    world.ranks[1].misses = {"fraction"}
    with pytest.raises(TemporaryError, match="1 of 2 ranks not capped: rank 1"):
        world.local.cap(world.target, 0.5, decision_id="d-1")


def test_ranks_of_a_run_that_is_over_are_not_touched() -> None:
    replaced = Reply({**DESCRIBED, "restarts": 3})
    world = World(kept(), Reply({"ok": True, "already": True}), replaced, replaced)
    with pytest.raises(ChangedError):
        world.local.cap(world.target, 0.5, decision_id="d-1")
    with pytest.raises(ChangedError):
        world.local.checkpoint(world.target, decision_id="d-2", deadline_unix_s=2e9)
    assert world.commands.sent("fraction") == world.commands.sent("checkpoint") == []
