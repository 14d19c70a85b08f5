"""The circuit breakers: one user's jobs hold back that user's jobs, many users' jobs hold back all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy_runs import Run, policy
from sample_views import NOW_S
from scheduler_hooks.fake_scheduler import MemoryAudit
from scheduler_values import decision, facts, record, target
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import BREAKER, USER_BREAKER, ActionKind, Decision, Disposition, JobFacts, Outcome
from tidegauge_scheduler_hooks.policy.state import PolicyState

CAP = "[{action: cap}]"
DO, USERS, ALL = "do cap", "withheld cap: user_breaker", "withheld cap: breaker"


class Cluster:
    """Jobs that all are to be capped, decided in one state; a job is ``USER/NAME``."""

    def __init__(self, *, min_jobs: int, mode: str = "act") -> None:
        breaker = {"share": 0.01, "min_jobs": min_jobs}
        self.policy = policy(CAP, mode=mode, actions_per_hour=999, actions_per_user_per_hour=999, breaker=breaker)
        self.state = PolicyState()
        self.decisions: list[Decision] = []

    def act(self, *names: str, at: float = 0.0) -> list[str]:
        """What is decided on these jobs, one after the other."""
        return [self._act(name, at) for name in names]

    def _act(self, name: str, at: float) -> str:
        of_job = self._facts(name)
        number = 1 + len(self.decisions)
        run = Run(self.policy, of_job=of_job, job=of_job.target.job, number=number, user_name=of_job.user_name)
        run.state = self.state
        (told,) = run.at(at)
        self.state = run.state
        self.decisions += run.decisions
        return told

    def _facts(self, name: str) -> JobFacts:
        user = name.split("/")[0]
        job = JobKey(name.replace("/", "."), 0, 1000 + sum(user.encode()))  # NAMESPACE/NAME is Kubernetes' alone
        return facts(job, user_name=user, cap_fraction=0.5, jobs_running=40)

    def restart(self) -> None:
        """From the audit alone, by what that remembers after a long time; which is what the running one does too."""
        reset_s, long_after_s = self.state.breaker_reset_s, NOW_S + 10**7
        audit = MemoryAudit()
        audit.kept = {decision.decision_id: record(decision, Outcome.DONE) for decision in self.decisions}
        running = self.state.with_records(audit.kept.values()).forget(long_after_s, open_incidents=[])
        state = replace(PolicyState().with_records(audit.memory(since_s=long_after_s)), breaker_reset_s=reset_s)
        self.state = state.forget(long_after_s, open_incidents=[])
        assert self.state.marks.keys() == running.marks.keys()

    def reset(self, at: float) -> None:
        self.state = replace(self.state, breaker_reset_s=NOW_S + at)


class KubernetesCluster(Cluster):
    """A job is ``NAMESPACE/NAME``, its user whatever NAME says; all run as one uid."""

    def _facts(self, name: str) -> JobFacts:
        job = JobKey(name, 0, 1000)
        return facts(
            job, target=target(job, scheduler="kubernetes"), user_name=name.split("/")[1], cap_fraction=0.5,
            jobs_running=40,
        )  # fmt: skip


def jobs(user: str, count: int) -> list[str]:
    return [f"{user}/{number}" for number in range(count)]


def test_user_breaker_holds_back_only_that_users_jobs() -> None:
    cluster = Cluster(min_jobs=6)
    assert cluster.act(*jobs("eve", 30)) == [DO] * 6 + [USERS] * 24
    assert cluster.act("ada/1", "grace/1") == [DO, DO]
    assert cluster.act("eve/30", "eve/29") == [USERS, USERS]
    assert cluster.state.breaker is None
    (why,) = cluster.state.user_breakers
    assert why == (
        "the circuit breaker of eve opened: 7 of their jobs would have been acted on within 60 min, the limit is 6 "
        "of 40 running, at 2027-01-15 08:00 UTC"
    )


def test_jobs_of_several_users_hold_back_all() -> None:
    cluster = Cluster(min_jobs=4)
    assert cluster.act(*jobs("ada", 4), *jobs("bob", 1)) == [DO] * 5, "each counts for three at most"
    assert cluster.act("eve/1", "ada/5", "bob/3") == [ALL, USERS, ALL]
    assert cluster.state.breaker == (
        "the circuit breaker opened: 6 jobs would have been acted on within 60 min, the limit is 4 of 40 "
        "running (one user counts for at most 3), at 2027-01-15 08:00 UTC"
    )


@pytest.mark.parametrize("allowed", [1, 2, 3, 4, 5, 8])
def test_breaker_opens_for_several_users_and_bounds_a_faulty_detector(allowed: int) -> None:
    alone = Cluster(min_jobs=allowed)
    assert alone.act(*jobs("eve", 40)) == [DO] * allowed + [USERS] * (40 - allowed)
    many = Cluster(min_jobs=allowed)
    done = many.act(*(name for user in "abcdefghij" for name in jobs(user, 10))).count(DO)
    assert many.state.breaker is not None
    assert allowed <= done <= 1.5 * allowed
    two = Cluster(min_jobs=allowed)
    two.act(*jobs("ada", 10), *jobs("bob", 10))
    assert two.state.breaker is not None
    one_each = Cluster(min_jobs=allowed)
    assert one_each.act(*(f"{user}/1" for user in "abcdefghij")) == [DO] * allowed + [ALL] * (10 - allowed)


def test_a_service_account_that_owns_all_jobs_is_held_back_after_as_many_as_ever() -> None:
    cluster = Cluster(min_jobs=4)
    assert cluster.act(*jobs("svc", 40)) == [DO] * 4 + [USERS] * 36
    assert cluster.act("svc/99", at=90_000) == [USERS]


def test_user_breaker_survives_a_restart_and_closes_at_a_reset() -> None:
    cluster = Cluster(min_jobs=2)
    cluster.act(*jobs("eve", 5))
    told = cluster.state.user_breakers
    cluster.restart()
    assert cluster.state.user_breakers == told
    assert cluster.act("eve/9", "ada/1", at=90_000) == [USERS, DO]
    cluster.reset(90_001)
    assert cluster.state.user_breakers == ()
    cluster.restart()
    assert cluster.act("eve/5", "eve/6", "eve/7", at=90_002) == [DO, DO, USERS]


def test_breaker_opened_in_an_old_audit_stays_open() -> None:
    opened = decision(
        ActionKind.CAP, disposition=Disposition.WITHHELD, brake=BREAKER, parameters={"breaker_reset_s": None}
    )
    state = PolicyState().with_records([record(opened)])
    assert state.breaker is not None
    assert state.user_breakers == ()


def test_on_kubernetes_one_namespace_answers_for_its_jobs_whatever_names_they_give() -> None:
    cluster = KubernetesCluster(min_jobs=3)
    assert cluster.act(*jobs("team-a", 30)) == [DO] * 3 + [USERS] * 27
    assert cluster.act("team-b/1") == [DO]
    (why,) = cluster.state.user_breakers
    assert why.startswith("the circuit breaker of namespace team-a opened: 4 of their jobs")


def test_of_what_a_breaker_held_back_only_its_opening_is_remembered_for_ever() -> None:
    cluster = Cluster(min_jobs=4)
    cluster.act(*jobs("ada", 50), "eve/0", *jobs("bob", 99))
    assert len(cluster.state.marks) == 150
    cluster.restart()
    openings = [mark.brake for mark in cluster.state.marks.values()]
    assert openings == [USER_BREAKER, BREAKER]
    assert cluster.state.breaker is not None


def test_breaker_marks_of_observe_mode_are_forgotten_at_a_restart() -> None:
    cluster = Cluster(min_jobs=4, mode="observe")
    cluster.act(*jobs("ada", 50), "eve/0", *jobs("bob", 99))
    assert cluster.state.breaker_opening(real=False) is not None
    assert (cluster.state.breaker, cluster.state.user_breakers) == (None, ())
    cluster.restart()
    assert not cluster.state.marks
