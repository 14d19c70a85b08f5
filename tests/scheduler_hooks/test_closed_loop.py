"""The closed loop over fakes of its ports: from a leak to the job's next attempt, with everything that can be away."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from evidence_values import news
from fake_ranks import FakeRanks
from sample_views import GIB, LEAK, MIB, identity, job_view, rank_summary, uuid_of
from scheduler_hooks.fake_scheduler import UID, FakeJob, FakeScheduler, FakeWorld, MemoryAudit
from scheduler_hooks.test_telling import FakeMessenger
from scheduler_values import decision, incident
from tidegauge.core.evidence import CauseFound
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, JobKey, ProcessId
from tidegauge.core.incidents import Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, AuditError, Disposition, Outcome, SchedulerFacts, Switches
from tidegauge.core.incidents.evidence import EvidenceNews
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.job_records.record import JobEvent
from tidegauge.core.verdicts import OK, Signal, Verdict
from tidegauge.core.views import JobView, RankSummary
from tidegauge_scheduler_hooks.closed_loop import ClosedLoop
from tidegauge_scheduler_hooks.policy.files import PolicySource
from tidegauge_scheduler_hooks.policy.models import MEMORY_S
from tidegauge_scheduler_hooks.ports import SchedulerPort, TemporaryError

POLICY = """
version: 1
mode: {mode}
brakes: {{warnings_before_stop: 1, warning_interval: 5s, min_age: 5s}}
rules:
  - name: leak
    when: {{cause: leak, checkpoint: true, requeueable: true}}
    ladder:
      - {{action: notify}}
      - {{action: checkpoint, after: 5s, grace: 60s}}
      - {{action: requeue, environ: {{NEXT: "1"}}}}
  - name: other
    ladder: [{{action: notify}}]
"""


class MemoryIncidents:
    """``closed_loop.Incidents`` in memory."""

    def __init__(self) -> None:
        self.saved: list[IncidentChange] = []
        self.failing = False

    def save(self, changes: Sequence[IncidentChange]) -> None:
        if self.failing:
            raise AuditError("database or disk is full")
        self.saved += changes

    def open_incidents(self) -> Sequence[Incident]:
        return [incident for incident in self._latest().values() if incident.is_open]

    def next_number(self) -> int:
        return max(self._latest(), default=0) + 1

    def incidents(self, *, open_only: bool, since_s: float, limit: int) -> Sequence[Incident]:
        return [one for one in self._latest().values() if one.updated_unix_s >= since_s][:limit]

    def _latest(self) -> dict[int, Incident]:
        return {change.incident.number: change.incident for change in self.saved}


class Site:
    """A cluster of one leaking job, and the loop over it; ``restart`` makes a new loop over the same database."""

    def __init__(self, folder: Path, mode: str = "act") -> None:
        self.now_s = 1.8e9
        self.policy_file = folder / "policy.yaml"
        self.set_policy(POLICY.format(mode=mode))
        self.job = FakeJob("4711", can_save=True)
        self.world = FakeWorld(jobs={"4711": self.job})
        self.scheduler = FakeScheduler(self.world)
        self.verdict: Verdict = LEAK
        self.switches = Switches()
        self.exempt: dict[JobKey, str] | None = {}
        """``None``: it cannot be read."""
        self.others: dict[str, SchedulerPort] = {}
        self.beside: list[JobView] = []
        self.culprit_ended = False
        """The rank that leaks has ended, and the job goes on with another."""
        self.messenger: FakeMessenger | None = None
        self.found: dict[JobKey, Sequence[EvidenceNews]] = {}
        self.commands = FakeRanks()
        self.incidents = MemoryIncidents()
        self.audit = MemoryAudit()
        self.audit.open_incidents = lambda: {one.number for one in self.incidents.open_incidents()}
        self.restart()

    def restart(self) -> None:
        self.loop = ClosedLoop(
            cluster=self, incidents=self.incidents, audit=self.audit,
            schedulers={"fake": self.scheduler, **self.others},
            policy=PolicySource(self.policy_file), switches=lambda: self.switches, now_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s, wall_s=lambda: self.now_s, submit=lambda call: call(),
            messenger=self.messenger, commands=self.commands, exemptions=self.exemptions,
        )  # fmt: skip

    def exemptions(self) -> Mapping[JobKey, str]:
        if self.exempt is None:
            raise AuditError("the database is away")
        return self.exempt

    def set_policy(self, text: str) -> None:
        fresh = self.policy_file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.policy_file)

    def jobs(self) -> Sequence[JobView]:
        attempt = self.job.starts - 1
        verdict = self.verdict if attempt == 0 else OK
        who = identity(0, job_id=JobId("4711"), attempt=attempt, world_size=1, checkpoint="callback")
        alive = self.job.presence == "running"
        rank = rank_summary(0, identity=who, uid=UID, verdict=verdict, alive=alive and not self.culprit_ended)
        ranks: tuple[RankSummary, ...] = (rank,)
        if self.culprit_ended:
            healthy = who._replace(rank=GlobalRank(1))
            ranks += (rank_summary(1, identity=healthy, uid=UID, alive=alive),)
        return [
            job_view(
                attempt=attempt, scheduler="fake", world_size=1, ranks=ranks, rank_nodes=("engine-0",) * len(ranks),
                rank_hostnames=("node0",) * len(ranks), state=verdict.state, severity=verdict.severity,
                signal=verdict.signal, suspects=() if verdict is OK else (0,), running=alive,
            ),
            *self.beside,
        ]  # fmt: skip

    def launch_beside(self) -> list[JobView]:
        """Another launch in the same job, which is healthy."""
        who = identity(0, job_id=JobId("4711"), world_size=1, checkpoint="callback")
        rank = rank_summary(0, identity=who, uid=UID, process=ProcessId(77, 7))
        return [
            job_view(
                scheduler="fake", world_size=1, ranks=(rank,), rank_nodes=("engine-0",), rank_hostnames=("node0",),
                group="step 1", group_name="step 1",
            )
        ]  # fmt: skip

    def gpu_usable_bytes(self) -> Mapping[DeviceUuid, int]:
        return {uuid_of(0): 80 * GIB}

    def remember_groups(self, incidents: Iterable[Incident]) -> None:
        """Its jobs have the groups that a test gives them."""

    def evidence(self) -> Mapping[JobKey, Sequence[EvidenceNews]]:
        return self.found

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.loop.tick()
            self.now_s += 1.0

    def story(self) -> list[tuple[str, str, str | None]]:
        """What was decided, as (action, disposition, outcome)."""
        return [
            (kept.decision.action.value, kept.decision.disposition.value, kept.outcome and kept.outcome.value)
            for kept in self.audit.kept.values()
        ]

    def effects(self) -> list[str]:
        return [action for _, action in self.world.effects]


WHOLE_STORY = [("notify", "do", "done"), ("checkpoint", "do", "done"), ("requeue", "do", "done")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_leak_is_warned_saved_and_requeued(site: Site) -> None:
    site.run(40)
    assert site.story() == WHOLE_STORY
    assert site.effects() == ["notify", "checkpoint", "requeue"]
    assert site.job.environ["NEXT"] == "1"
    (incident,) = site.incidents.incidents(open_only=False, since_s=0, limit=9)
    assert (incident.key.cause, incident.state) == (IncidentCause.LEAK, IncidentState.CLOSED)


def test_healthy_job_has_no_incident(site: Site) -> None:
    site.verdict = OK
    site.run(40)
    assert (site.incidents.saved, site.story(), site.scheduler.calls) == ([], [], [])


def test_observe_writes_down_what_it_would_do(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="observe")
    site.run(40)
    assert site.story() == [(action, "would", None) for action, _, _ in WHOLE_STORY]
    assert site.scheduler.calls == []


def test_restart_at_every_second_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for _ in range(40):
        site.run(1)
        site.restart()
    assert site.story() == WHOLE_STORY
    assert site.effects() == ["notify", "checkpoint", "requeue"]


def test_pause_holds_actions_until_it_ends(site: Site) -> None:
    site.run(3)
    site.switches = Switches(paused="by ada: maintenance")
    site.run(40)
    assert site.effects() == ["notify"]
    assert site.loop.status().paused == "by ada: maintenance"
    site.switches = Switches()
    site.run(40)
    assert site.effects() == ["notify", "checkpoint", "requeue"]


def test_pause_between_decision_and_action_stops_the_action(site: Site) -> None:
    site.run(5)
    site.audit.failing = {"begin"}  # the checkpoint is decided, and waits to be begun
    site.run(5)
    assert site.story()[1] == ("checkpoint", "do", None)
    site.switches = Switches(paused="by ada")
    site.audit.failing = set()
    site.run(5)
    assert site.story()[1] == ("checkpoint", "do", "stopped")
    assert site.effects() == ["notify"]


def test_an_exemption_that_a_person_gave_holds_actions_until_it_ends(site: Site) -> None:
    site.run(3)
    site.exempt = {JobKey("4711", 0, UID): "ada exempted it until noon"}
    site.run(40)
    assert site.effects() == ["notify"]
    withheld = [one.decision for one in site.audit.kept.values() if one.decision.disposition is Disposition.WITHHELD]
    assert [(one.brake, one.reason) for one in withheld] == [("exempt", "ada exempted it until noon")]
    site.exempt = {}
    site.run(40)
    assert site.effects() == ["notify", "checkpoint", "requeue"]


def test_an_exemption_of_another_attempt_holds_nothing(site: Site) -> None:
    site.exempt = {JobKey("4711", 1, UID): "ada exempted it until noon"}
    site.run(43)
    assert site.effects() == ["notify", "checkpoint", "requeue"]


@pytest.mark.parametrize("exempt", [{JobKey("4711", 0, UID): "ada exempted it"}, None])
def test_an_exemption_between_decision_and_action_stops_the_action(
    site: Site, exempt: dict[JobKey, str] | None
) -> None:
    """None: whether there is one cannot be read."""
    site.run(5)
    site.audit.failing = {"begin"}  # the checkpoint is decided, and waits to be begun
    site.run(5)
    assert site.story()[1] == ("checkpoint", "do", None)
    site.exempt = exempt
    site.audit.failing = set()
    site.run(5)
    assert site.story()[1] == ("checkpoint", "do", "stopped")
    assert site.effects() == ["notify"]


def test_closed_loop_takes_no_action_after_the_only_leaking_rank_ended(site: Site) -> None:
    site.run(3)
    assert site.effects() == ["notify"]
    site.culprit_ended = True
    site.run(120)
    assert site.effects() == ["notify"], "the rank that goes on has done nothing"
    assert site.incidents.open_incidents() == []


def test_a_culprit_that_ends_between_decision_and_action_stops_the_requeue(site: Site) -> None:
    site.run(5)
    while site.story()[-1][0] != "requeue":
        site.audit.failing = {"begin"} if site.effects()[-1:] == ["checkpoint"] else set()
        site.run(1)
    site.culprit_ended = True
    site.audit.failing = set()
    site.run(5)
    assert site.story()[-1] == ("requeue", "do", "stopped")
    assert site.effects() == ["notify", "checkpoint"]


def test_a_launch_that_begins_between_decision_and_action_stops_the_requeue(site: Site) -> None:
    """It has not saved, and would end with the job."""
    site.run(5)
    while site.story()[-1][0] != "requeue":
        site.audit.failing = {"begin"} if site.effects()[-1:] == ["checkpoint"] else set()
        site.run(1)
    site.beside = site.launch_beside()
    site.audit.failing = set()
    site.run(5)
    assert site.story()[-1] == ("requeue", "do", "stopped")
    assert site.effects() == ["notify", "checkpoint"]


def test_closed_loop_takes_no_action_that_the_store_cannot_record(site: Site) -> None:
    site.audit.failing = {"write_ahead"}
    site.run(20)
    assert site.scheduler.calls == []
    assert site.loop.status().store_problem == "database is locked"
    site.audit.failing = set()
    site.run(40)
    assert site.story() == WHOLE_STORY
    assert site.loop.status().store_problem is None


def test_incident_is_saved_once_the_database_is_back(site: Site) -> None:
    site.incidents.failing = True
    site.run(20)
    assert (site.incidents.saved, site.story()) == ([], [])
    site.incidents.failing = False
    site.run(1)
    assert site.incidents.saved[0].kind.value == "opened"


def leak_on(site: Site, minutes: int) -> None:
    for minute in range(minutes):
        site.verdict = LEAK._replace(grown_bytes=(12 + minute) * MIB)
        site.run(60)


@pytest.mark.slow
def test_a_database_that_is_away_for_long_costs_no_memory_and_no_story(site: Site) -> None:
    """Of what is not saved yet, newer figures take the place of older ones; all else is kept."""
    site.set_policy(POLICY.format(mode="observe"))
    site.incidents.failing = True
    leak_on(site, 120)
    assert [change.kind.value for change in site.loop._unsaved] == ["opened", "updated"]
    site.verdict = OK
    site.run(7200)
    kinds = [change.kind.value for change in site.loop._unsaved]
    site.incidents.failing = False
    site.run(1)
    assert [change.kind.value for change in site.incidents.saved] == kinds == ["opened", "recovering", "closed"]
    times_s = [change.at_unix_s for change in site.incidents.saved]
    assert times_s == sorted(times_s)
    assert site.incidents.open_incidents() == []


def test_figures_are_all_told_while_the_database_works(site: Site) -> None:
    site.set_policy(POLICY.format(mode="observe"))
    leak_on(site, 30)
    assert sum(change.kind.value == "updated" for change in site.incidents.saved) > 5


def test_leak_that_was_withdrawn_is_not_acted_on(site: Site) -> None:
    site.run(5)
    site.audit.failing = {"begin"}
    site.run(3)
    site.verdict = OK
    site.run(2)
    site.audit.failing = set()
    site.run(30)
    assert site.story()[1] == ("checkpoint", "do", "stopped")
    assert site.effects() == ["notify"]


def test_broken_policy_file_leaves_the_last_good_one_in_force(site: Site) -> None:
    site.run(3)
    site.set_policy("version: 1\nmode: ackt\n")
    site.run(40)
    assert site.effects() == ["notify", "checkpoint", "requeue"]
    status = site.loop.status()
    assert status.mode == "act"
    assert status.policy_problem is not None
    assert "line 2" in status.policy_problem


def test_policy_that_is_broken_from_the_start_only_observes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.set_policy("rules: [")
    site.restart()
    site.run(40)
    assert site.scheduler.calls == []
    assert site.loop.status().mode == "observe"


def test_policy_that_is_changed_to_observe_stops_what_was_decided(site: Site) -> None:
    site.run(5)
    site.audit.failing = {"begin"}
    site.run(3)
    site.set_policy(POLICY.format(mode="observe"))
    site.audit.failing = set()
    site.run(10)
    assert site.story()[1] == ("checkpoint", "do", "stopped")
    assert site.effects() == ["notify"]


def test_job_that_no_adapter_knows_is_left_alone(site: Site) -> None:
    del site.world.jobs["4711"]
    site.run(40)
    assert site.effects() == []
    assert all(disposition != "do" or action == "notify" for action, disposition, _ in site.story())


def test_owner_of_a_job_that_no_adapter_knows_is_told_on_slack(site: Site) -> None:
    del site.world.jobs["4711"]
    site.messenger = FakeMessenger()
    site.restart()
    site.run(40)
    assert site.story()[0] == ("notify", "do", "done")
    assert all(disposition != "do" or action == "notify" for action, disposition, _ in site.story())
    assert len(site.messenger.told) == 1


def test_second_leak_of_the_same_job_is_a_new_incident(site: Site) -> None:
    site.run(40)
    who = identity(0, job_id=JobId("4711"), attempt=1, world_size=1, checkpoint="callback")
    rank = rank_summary(0, identity=who, uid=UID, verdict=LEAK._replace(grown_bytes=12 * MIB))
    leaking = replace(site.jobs()[0], ranks=(rank,), state=LEAK.state, severity=LEAK.severity, suspects=(0,))
    site.jobs = lambda: [leaking]  # type: ignore[method-assign]  # SAFETY: the loop only calls it
    site.run(10)
    assert site.incidents.next_number() == 3
    notified = [kept for kept in site.audit.kept.values() if kept.decision.incident.number == 2]
    assert notified[0].decision.disposition is Disposition.DO
    assert notified[0].outcome is Outcome.DONE


@pytest.mark.parametrize("method", ["write_ahead", "finish"])
def test_commit_whose_answer_was_lost_neither_repeats_nor_blocks(site: Site, method: str) -> None:
    site.run(3)
    site.audit.failing_after = {method}
    site.run(20)
    site.audit.failing_after = set()
    site.run(60)
    assert site.story() == WHOLE_STORY
    assert site.effects() == ["notify", "checkpoint", "requeue"]


def test_defect_in_deciding_leaves_nothing_under_way_alone(site: Site) -> None:
    site.run(5)
    site.audit.failing = {"begin"}  # the checkpoint is decided, and waits to be begun
    site.run(3)
    site.audit.failing = set()
    site.audit.error = ZeroDivisionError("a slip")
    site.audit.failing = {"write_ahead"}
    for _ in range(5):
        with contextlib.suppress(ZeroDivisionError):
            site.run(1)
    assert site.story()[1] == ("checkpoint", "do", "done")


class OddScheduler(FakeScheduler):
    """Says of its jobs what is no fact at all."""

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        return dict.fromkeys((job.key for job in jobs), cast(SchedulerFacts, "nonsense"))


def test_defect_over_one_job_leaves_the_others_their_decisions(site: Site) -> None:
    odd = replace(site.jobs()[0], job_id="0815", scheduler="odd")
    odd = replace(odd, ranks=(replace(odd.ranks[0], identity=identity(0, job_id=JobId("0815"), world_size=1)),))
    jobs = site.jobs
    site.jobs = lambda: [odd, *jobs()]  # type: ignore[method-assign]  # SAFETY: the loop only calls it
    site.others = {"odd": OddScheduler(site.world)}
    site.restart()
    site.run(40)
    assert len(site.incidents.incidents(open_only=False, since_s=0, limit=9)) == 2
    assert site.story() == WHOLE_STORY


def test_status_knows_of_a_reset_while_the_database_is_away(site: Site) -> None:
    opened = decision(
        ActionKind.CHECKPOINT, disposition=Disposition.WITHHELD, brake="breaker", mode="act", decided_s=site.now_s,
        parameters={"breaker_reset_s": None},
    )  # fmt: skip
    site.audit.write_ahead([opened])
    site.restart()
    assert site.loop.status().breaker is not None
    site.audit.failing = {"write_ahead"}
    site.incidents.failing = True
    site.switches = Switches(breaker_reset_s=site.now_s)
    assert site.loop.status().breaker is None


def test_a_restart_reads_of_the_past_only_what_still_counts(site: Site) -> None:
    for number in range(50):
        old = decision(decision_id=f"9{number}:leak:0:1", incident=incident(number=900 + number), decided_s=1.7e9)
        site.audit.write_ahead([old])
        site.audit.finish(old.decision_id, Outcome.DONE, "", at_s=1.7e9)
    opened = decision(
        ActionKind.CAP, decision_id="8:leak:0:1:withheld:breaker:never-reset", incident=incident(number=8),
        disposition=Disposition.WITHHELD, brake="breaker", decided_s=1.7e9, parameters={"breaker_reset_s": None},
    )  # fmt: skip
    under_way = decision(decision_id="7:leak:0:1", incident=incident(number=7), decided_s=1.7e9)
    site.audit.write_ahead([opened])
    site.run(3)
    site.audit.write_ahead([under_way])
    site.now_s += MEMORY_S + 100.0
    site.audit.failing = {"each"}
    site.restart()
    site.audit.failing = set()
    marks = site.loop._state.marks
    assert set(marks) == {"1:leak:0:1", opened.decision_id, under_way.decision_id}, "the ladder goes on, not anew"
    assert site.loop.status().breaker is not None


def test_a_users_open_breaker_stops_what_was_decided_on_that_users_jobs(site: Site) -> None:
    site.run(5)
    site.audit.failing = {"begin"}  # the checkpoint is decided, and waits to be begun
    site.run(5)
    (said,) = [one.decision for one in site.audit.kept.values() if one.decision.action is ActionKind.CHECKPOINT]
    opened = replace(
        said, decision_id="9:leak:0:1:withheld:user_breaker:never-reset", disposition=Disposition.WITHHELD,
        brake="user_breaker", reason="the circuit breaker of ada opened", parameters={"breaker_reset_s": None},
    )  # fmt: skip
    site.audit.write_ahead([opened])
    site.restart()
    site.audit.failing = set()
    site.run(5)
    (stopped,) = [one for one in site.audit.kept.values() if one.decision.decision_id == said.decision_id]
    assert (stopped.outcome, stopped.detail) == (
        Outcome.STOPPED, "the circuit breaker is open: the circuit breaker of ada opened",
    )  # fmt: skip
    assert (site.loop.status().breaker, len(site.loop.status().user_breakers)) == (None, 1)
    site.switches = Switches(breaker_reset_s=site.now_s)
    assert site.loop.status().user_breakers == ()


def test_policy_file_that_becomes_readable_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(mode="act"))
    source = PolicySource(path)
    text = path.read_bytes()
    path.write_bytes(b"#" * len(text))
    written = path.stat()
    assert source.current().mode == "observe"
    path.write_bytes(text)
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert source.current().mode == "act", "the time of the last write says nothing"


class OnSlurm(FakeScheduler):
    away = False

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        if self.away:
            raise TemporaryError("slurmctld does not answer")
        told = super().describe(jobs)
        return {job: replace(facts, partition="gpu", account="physics") for job, facts in told.items()}


class SlurmSite(Site):
    def jobs(self) -> Sequence[JobView]:
        return [replace(job, scheduler="slurm") for job in super().jobs()]


def test_partition_and_account_of_slurm_jobs_are_known_while_slurm_answers_and_after(tmp_path: Path) -> None:
    site = SlurmSite(tmp_path, "observe")
    slurm = OnSlurm(site.world)
    site.others = {"slurm": slurm}
    site.restart()
    assert site.loop.slurm_labels() == {}
    site.run(5.0)
    assert list(site.loop.slurm_labels().values()) == [SlurmLabels("gpu", "physics")]
    slurm.away = True
    site.run(120.0)
    assert site.loop.status().scheduler_problems == {"slurm": "slurmctld does not answer"}
    assert list(site.loop.slurm_labels().values()) == [SlurmLabels("gpu", "physics")]


def test_a_rung_collects_evidence_and_what_comes_is_told_of_the_incident(tmp_path: Path) -> None:
    site = Site(tmp_path, mode="warn")
    site.set_policy(
        """
version: 1
mode: warn
rules:
  - name: leak
    ladder: [{action: snapshot}, {action: notify}]
"""
    )
    site.verdict = LEAK
    site.run(5.0)
    assert site.commands.evidence == ["1:leak:0:1"]
    assert [(action, outcome) for action, _, outcome in site.story()] == [("snapshot", "done"), ("notify", "done")]
    job = JobKey("4711", 0, UID)
    site.found[job] = [news(0, evidence_id="1:leak:0:1", job=job)]
    site.run(5.0)
    assert [change.kind.value for change in site.incidents.saved] == ["opened", "evidence"]
    assert site.incidents.saved[-1].incident.evidence[0].evidence_id == "1:leak:0:1"


RESERVED = """
version: 1
mode: act
brakes: {warnings_before_stop: 1, warning_interval: 5s, min_age: 5s}
rules:
  - name: setting
    when: {cause: [fragmentation, cuda_graphs], checkpoint: true, requeueable: true}
    ladder:
      - {action: notify}
      - {action: checkpoint, after: 5s, grace: 60s}
      - {action: requeue, alloc_conf: {expandable_segments: True, max_split_size_mb: 64}}
"""
GRAPHS = CauseFound(EvidenceCause.CUDA_GRAPHS, Confidence.NAMED)


def test_closed_loop_stops_a_checkpoint_if_evidence_changes_the_cause(site: Site) -> None:
    site.set_policy(RESERVED)
    site.verdict = LEAK._replace(signal=Signal.RESERVED)
    site.run(5)
    site.audit.failing = {"begin"}  # the checkpoint is decided, and waits to be begun
    site.run(5)
    assert site.story()[1] == ("checkpoint", "do", None)
    site.found[JobKey("4711", 0, UID)] = (news(0, job=JobKey("4711", 0, UID), cause=GRAPHS),)
    site.audit.failing = set()
    site.run(2)
    assert site.story()[1] == ("checkpoint", "do", "stopped")
    stopped = [*site.audit.kept.values()][1]
    assert "evidence now says that incident 1 is cuda_graphs" in (stopped.detail or "")


def test_no_rule_of_a_site_requeues_private_pools_with_the_setting(site: Site) -> None:
    site.set_policy(RESERVED)
    site.verdict = LEAK._replace(signal=Signal.RESERVED)
    site.found[JobKey("4711", 0, UID)] = (news(0, job=JobKey("4711", 0, UID), cause=GRAPHS),)
    site.run(200)
    assert site.job.starts == 1
    last = [*site.audit.kept.values()][-1].decision
    assert (last.action, last.disposition, last.brake) == (ActionKind.REQUEUE, Disposition.WITHHELD, "cuda_graphs")


def test_incidents_and_actions_done_are_told_for_the_records_of_jobs(site: Site) -> None:
    site.run(40)
    job = JobKey("4711", 0, UID)
    words = [ActionKind.NOTIFY, ActionKind.CHECKPOINT, ActionKind.REQUEUE]
    assert site.loop.job_events() == (JobEvent(job, 1), *(JobEvent(job, action=word) for word in words))
    assert site.loop.job_events() == ()


def test_open_incidents_are_told_again_after_a_restart(site: Site) -> None:
    site.run(3)
    site.restart()
    assert site.loop.job_events() == (JobEvent(JobKey("4711", 0, UID), 1),)
