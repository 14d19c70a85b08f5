"""The Slurm adapter acts: requeues that happen once, words that reach people, and a Slurm that does not answer."""

from __future__ import annotations

import pytest

from scheduler_hooks.port_contract import act, stop
from scheduler_hooks.slurm.fake_slurm import (
    AWAY,
    AWAY_FOR_SCONTROL,
    DENIED,
    PENDING_ALREADY,
    UID,
    says,
)
from scheduler_hooks.slurm.slurm_world import UNCHANGED, SlurmWorld
from tidegauge.core.incidents.actions import ActionKind, AuditError
from tidegauge.core.jobs.settings import JobSettings
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    CheckpointStage,
    PermanentError,
    Presence,
    RequeueChanges,
    TemporaryError,
)
from tidegauge_scheduler_hooks.slurm.commands import Finished, OverrunError

CHANGES = RequeueChanges(alloc_conf={"expandable_segments": "True"}, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.8"})


@pytest.fixture
def world() -> SlurmWorld:
    return SlurmWorld()


# Requeueing


def test_settings_lie_on_the_nodes_before_the_job_is_requeued(world: SlurmWorld) -> None:
    job = world.start_job()
    lain_down: list[JobSettings] = []
    world.slurm.before = lambda call: lain_down.extend(world.settings.puts) if "requeue" in call else None
    world.port.requeue(world.target(job), CHANGES, "leaks", decision_id="d")
    assert lain_down == [
        JobSettings("40", UID, 1, {"TIDEGAUGE_MEMORY_FRACTION": "0.8"}, {"expandable_segments": "True"}, "2.11.0")
    ]


def test_without_changes_nothing_is_laid_down(world: SlurmWorld) -> None:
    job = world.start_job()
    world.settings.without = ["n7"]
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.settings.puts == []
    assert world.job(job).restarts == 1


def test_a_cap_of_before_and_changes_go_together(world: SlurmWorld) -> None:
    job = world.start_job()
    world.port.cap(world.target(job), 0.5, decision_id="d-1")
    changes = RequeueChanges(alloc_conf={"expandable_segments": "True"})
    world.another_port().requeue(world.target(job), changes, "leaks", decision_id="d-2")
    world.until(lambda: world.alive(job))
    assert world.environ(job) == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True",
        "TIDEGAUGE_MEMORY_FRACTION": "0.5",
    }


def test_a_node_without_the_settings_holds_the_requeue_up(world: SlurmWorld) -> None:
    job = world.start_job()
    world.settings.without = ["n9", "n7"]
    with pytest.raises(TemporaryError, match=r"job 40 is not requeued: its settings are not on n7, n9"):
        world.port.requeue(world.target(job), CHANGES, "leaks", decision_id="d")
    assert world.slurm.acts() == []


@pytest.mark.parametrize(
    "changes",
    [
        RequeueChanges(environ={"LD_PRELOAD": "/tmp/x.so"}),
        RequeueChanges(environ={"TIDEGAUGE_X": "a\0b"}),
        RequeueChanges(alloc_conf={"x": "y" * 20_000}),
        RequeueChanges(environ={"TIDEGAUGE_X": 1}),  # type: ignore[dict-item]  # a policy file may say so
    ],
)
def test_slurm_requeue_refuses_forbidden_settings_before_any_change(world: SlurmWorld, changes: RequeueChanges) -> None:
    target = world.target(world.start_job())
    with pytest.raises(PermanentError, match="job 40: these settings cannot be applied"):
        world.port.requeue(target, changes, "leaks", decision_id="d")
    assert world.settings.puts == []
    assert world.slurm.acts() == []


def test_settings_that_cannot_be_kept_stop_the_requeue(world: SlurmWorld) -> None:
    target = world.target(world.start_job())
    world.settings.error = AuditError("disk full")
    with pytest.raises(AuditError):
        world.port.requeue(target, CHANGES, "leaks", decision_id="d")
    assert world.slurm.acts() == []


def test_a_refused_requeue_leaves_the_settings_as_they_were(world: SlurmWorld) -> None:
    job = world.start_job()
    world.port.cap(world.target(job), 0.5, decision_id="d-1")
    before = world.settings.get("40", UID)
    world.slurm.operator = False
    with pytest.raises(PermanentError, match=r"Access/permission denied.*AdminLevel=Operator"):
        world.port.requeue(world.target(job), CHANGES, "leaks", decision_id="d-2")
    assert world.settings.get("40", UID) == before


@pytest.mark.parametrize("action", [ActionKind.REQUEUE, ActionKind.HOLD])
def test_a_job_that_ends_by_itself_just_then_is_not_started_again(world: SlurmWorld, action: ActionKind) -> None:
    job = world.start_job()
    target = world.target(job)

    def ends(call: tuple[str, ...]) -> None:
        if call[0] == "scontrol":
            world.end_by_itself(job)

    world.slurm.before = ends
    with pytest.raises(ChangedError, match="ended before it could be requeued"):
        stop(world.port, action, target, "d")
    assert world.starts(job) == 1
    assert world.port.presence(target) is Presence.GONE


@pytest.mark.parametrize("answer", [AWAY_FOR_SCONTROL, ""], ids=["no controller", "killed"])
def test_an_answer_that_was_lost_is_looked_for(world: SlurmWorld, answer: str) -> None:
    job = world.start_job()
    world.slurm.after = lambda call: says(answer, "40", returncode=-9) if call[0] == "scontrol" else None
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.job(job).restarts == 1


def test_a_controller_that_goes_away_in_between_has_the_job_requeued_once(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    away = False

    def before(call: tuple[str, ...]) -> Finished | None:
        return says(AWAY) if away else None

    def after(call: tuple[str, ...]) -> Finished | None:
        nonlocal away
        away = away or call[0] == "scontrol"
        return says(AWAY_FOR_SCONTROL, "40") if call[0] == "scontrol" else None

    world.slurm.before, world.slurm.after = before, after
    with pytest.raises(TemporaryError, match="Unexpected message received"):
        world.port.requeue(target, CHANGES, "leaks", decision_id="d")
    for _ in range(3):
        with pytest.raises(TemporaryError):
            world.port.requeue(target, CHANGES, "leaks", decision_id="d")
        with pytest.raises(TemporaryError):
            world.port.presence(target)
    away = False
    world.slurm.after = lambda _: None
    assert world.port.presence(target) is Presence.REPLACED
    world.until(lambda: world.alive(job))
    with pytest.raises(ChangedError):
        world.another_port().requeue(target, CHANGES, "leaks", decision_id="d")
    assert world.starts(job) == 2
    assert len(world.slurm.acts()) == 1


def test_a_job_that_somebody_else_requeued_meanwhile_is_not_requeued_again(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)

    def missing_on(*, timeout_s: float) -> list[str]:
        world.job(job).restarts += 1
        return []

    world.settings.missing_on = missing_on  # type: ignore[method-assign]  # the nodes take their time
    with pytest.raises(ChangedError):
        world.port.requeue(target, CHANGES, "leaks", decision_id="d")
    assert world.slurm.acts() == []
    assert world.settings.get("40", UID) == JobSettings("40", UID), "and their attempt starts as they meant it to"


def test_a_refusal_that_comes_with_a_good_code_is_one(world: SlurmWorld) -> None:
    target = world.target(world.start_job())
    world.slurm.before = lambda call: says(DENIED, "40", returncode=0) if call[0] == "scontrol" else None
    with pytest.raises(PermanentError, match="coordinator of its account or Operator"):
        world.port.hold(target, "leaks", decision_id="d")


def test_a_job_that_waits_already_is_another_run(world: SlurmWorld) -> None:
    target = world.target(world.start_job())
    world.slurm.before = lambda call: says(PENDING_ALREADY, "40") if call[0] == "scontrol" else None
    with pytest.raises(ChangedError):
        world.port.hold(target, "leaks", decision_id="d")


# Telling people


@pytest.mark.parametrize(
    ("said", "error"),
    [("no such command: tell", PermanentError), ("pid 7 did not answer within 10 s", TemporaryError)],
)
def test_slurm_notify_fails_permanently_only_if_the_probe_is_too_old(
    world: SlurmWorld, said: str, error: type[PermanentError | TemporaryError]
) -> None:
    target = world.target(world.start_job())
    world.ranks.error = said
    with pytest.raises(error, match=f"rank 0 did not print the message: {said}"):
        world.port.notify(target, "rank 3 leaks", decision_id="d")


def test_a_remark_stands_behind_the_owners_words_and_replaces_the_last_one(world: SlurmWorld) -> None:
    job = world.start_job(comment="run 7; tidegauge:requeue")
    for text in ("leaks 12 MiB a step", "capped at 0.5"):
        world.port.annotate(world.target(job), text, decision_id=f"d-{text}")
    assert world.job(job).comment == "run 7; tidegauge:requeue [tidegauge says: capped at 0.5]"


def test_a_comment_without_room_stays_as_it_is(world: SlurmWorld) -> None:
    job = world.start_job(comment="x" * 1020)
    with pytest.raises(PermanentError, match="no room for a note"):
        world.port.annotate(world.target(job), "leaks", decision_id="d")
    assert world.slurm.acts() == []


# When Slurm does not answer


@pytest.mark.parametrize("asked", ["describe", "presence", *ActionKind])
@pytest.mark.parametrize("fault", ["no controller", "no time left", "no program", "nonsense"])
def test_every_call_says_that_slurm_does_not_answer(world: SlurmWorld, asked: str | ActionKind, fault: str) -> None:
    job = world.start_job()
    target = world.target(job)

    def before(_: tuple[str, ...]) -> Finished:
        if fault == "no time left":
            raise OverrunError("no answer within 30 s")
        if fault == "no program":
            raise FileNotFoundError(2, "No such file or directory")
        return says(AWAY) if fault == "no controller" else Finished(0, b"Hello\n", b"")

    def ask() -> None:
        if isinstance(asked, ActionKind):
            act(world.port, asked, target, "d")
        elif asked == "describe":
            world.port.describe([job])
        else:
            world.port.presence(target)

    world.slurm.before = before
    with pytest.raises(PermanentError if fault == "no program" else TemporaryError, match="Slurm"):
        ask()


def test_the_proof_of_a_checkpoint_does_not_wait_for_a_controller_that_is_away(world: SlurmWorld) -> None:
    job = world.start_job(saves=True)
    target = world.target(job)
    world.port.checkpoint(target, decision_id="d-1", deadline_unix_s=2e9)
    world.slurm.before = lambda _: says(AWAY)
    progress = world.port.checkpoint(target, decision_id="d-1", deadline_unix_s=2e9)
    assert progress.stage is CheckpointStage.PROVEN
    with pytest.raises(TemporaryError):
        world.port.checkpoint(target, decision_id="d-2", deadline_unix_s=2e9)
    assert world.saves(job) == 1
