"""Telling owners: the terminal, a messenger, both, neither; and a messenger in the closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_hooks.carry_out_bench import Bench, wanted
from scheduler_hooks.fake_scheduler import FakeJob, FakeScheduler, FakeWorld
from tidegauge.core.incidents.actions import ActionKind, Decision, JobTarget, Outcome
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import Steps, tell_owner
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, SchedulerError, TemporaryError

NOTIFY = wanted(ActionKind.NOTIFY)


class FakeMessenger:
    """``Messenger`` that remembers, and fails as often as it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.told: list[str] = []

    def tell(self, decision: Decision) -> str:
        if self.failures:
            raise self.failures.pop(0)
        if decision.decision_id not in self.told:
            self.told.append(decision.decision_id)
        return "on Slack"


class Terminal(FakeScheduler):
    """A scheduler whose ``notify`` does as it is told."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__(FakeWorld({"4711": FakeJob("4711")}))
        self.failure = failure
        self.texts: list[str] = []

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.texts.append(text)


AWAY = TemporaryError("Slack does not answer", retry_after_s=5)
NO_PLACE = PermanentError("Ray has no place for messages")
STRANGER = PermanentError("nobody knows ada on Slack")


def test_on_kubernetes_the_owner_is_told_by_an_event() -> None:
    about = replace(NOTIFY, target=replace(NOTIFY.target, scheduler="kubernetes"))
    assert tell_owner(about, Terminal(), None) == "owner notified: Kubernetes Event"


@pytest.mark.parametrize(
    ("terminal", "messenger", "said"),
    [
        (Terminal(), None, "owner notified: job output"),
        (Terminal(), FakeMessenger(), "owner notified: job output, on Slack"),
        (None, FakeMessenger(), "owner notified: on Slack"),
        (Terminal(), FakeMessenger(AWAY), "owner notified: job output; not delivered: Slack does not answer"),
        (Terminal(), FakeMessenger(STRANGER), "owner notified: job output; not delivered: nobody knows ada on Slack"),
        (Terminal(NO_PLACE), FakeMessenger(), "owner notified: on Slack; not delivered: Ray has no place for messages"),
        (Terminal(AWAY), FakeMessenger(), "owner notified: on Slack; not delivered: Slack does not answer"),
    ],
)
def test_tell_owner_succeeds_if_one_way_works(
    terminal: Terminal | None, messenger: FakeMessenger | None, said: str
) -> None:
    assert said in tell_owner(NOTIFY, terminal, messenger)


@pytest.mark.parametrize(
    ("terminal", "messenger", "raised"),
    [
        (Terminal(NO_PLACE), None, PermanentError),
        (Terminal(NO_PLACE), FakeMessenger(STRANGER), PermanentError),
        (Terminal(NO_PLACE), FakeMessenger(AWAY), TemporaryError),
        (Terminal(AWAY), FakeMessenger(STRANGER), TemporaryError),
        (None, None, PermanentError),
    ],
)
def test_tell_owner_failure_is_temporary_only_if_a_retry_may_work(
    terminal: Terminal | None, messenger: FakeMessenger | None, raised: type[SchedulerError]
) -> None:
    with pytest.raises(raised):
        tell_owner(NOTIFY, terminal, messenger)


def test_owner_of_another_run_is_not_told_of_this_one() -> None:
    messenger = FakeMessenger()
    with pytest.raises(ChangedError):
        tell_owner(NOTIFY, Terminal(ChangedError("job 4711 was started again")), messenger)
    assert messenger.told == []


def _carry_out(bench: Bench, messenger: FakeMessenger, made: Decision) -> None:
    steps = Steps(
        bench.audit,
        {"local": bench.scheduler},
        now_s=lambda: bench.now_s,
        wall_s=lambda: bench.now_s,
        held_back=lambda _: None,
        messenger=messenger,
    )
    bench.carry_out = CarryOut(steps, submit=_at_once)
    bench.decide(made)
    bench.finish()


def _at_once(call: Callable[[], None]) -> None:
    call()


def test_job_without_an_adapter_has_an_owner_all_the_same() -> None:
    bench, messenger = Bench(), FakeMessenger(AWAY)
    made = replace(NOTIFY, target=replace(NOTIFY.target, scheduler="slurm"))
    _carry_out(bench, messenger, made)
    assert (bench.outcome(made), bench.detail(made)) == (Outcome.DONE, "owner notified: on Slack")
    assert messenger.told == [made.decision_id]


@pytest.mark.parametrize("action", sorted(set(ActionKind) - {ActionKind.NOTIFY, ActionKind.SNAPSHOT}))
def test_actions_other_than_notify_and_snapshot_fail_without_an_adapter(action: ActionKind) -> None:
    bench = Bench()
    made = wanted(action)
    made = replace(made, target=replace(made.target, scheduler="slurm"))
    _carry_out(bench, FakeMessenger(), made)
    assert bench.outcome(made) is Outcome.FAILED
    assert "no adapter" in bench.detail(made)
