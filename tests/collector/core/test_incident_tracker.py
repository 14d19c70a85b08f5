"""`IncidentTracker`: jobs as they are, second after second, become incidents that open, change and close once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from incident_watch import OOM, RULES, Watch, ended, job, two_ranks
from sample_views import GIB, LEAK, identity, rank_summary, uuid_of
from tidegauge.core.ids import DeviceUuid, JobId, JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, Closure, IncidentCause, IncidentState
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.incidents.wording import change_sentence
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import JobView

WARNING_LEAK = LEAK._replace(severity=Severity.WARNING)
NOTE_LEAK = LEAK._replace(severity=Severity.NOTE)
SUSPECTED = LEAK._replace(state=LeakState.SUSPECTED)
FRAGMENTED = LEAK._replace(signal=Signal.RESERVED)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def warned() -> Watch:
    """Of a site that wants all growth (`incident_severity: warning`)."""
    return Watch(IncidentRules(min_severity=Severity.WARNING))


def test_an_alarm_of_one_rank_opens_an_incident_that_names_it(watch: Watch) -> None:
    assert watch.see(two_ranks(OK, LEAK)) == ["opened"]
    opened = watch.last
    assert (opened.number, opened.key.job, opened.key.cause) == (1, JobKey("4711", 0, 1001), IncidentCause.LEAK)
    assert (opened.ranks, opened.common, opened.state) == ((1,), False, IncidentState.OPEN)
    assert (opened.severity, opened.worst_severity) == (Severity.CRITICAL, Severity.CRITICAL)
    assert (opened.onset_step, opened.bytes_per_step, opened.seconds_to_oom, opened.grown_bytes) == (
        LEAK.onset_step, LEAK.bytes_per_step, LEAK.seconds_to_oom, LEAK.grown_bytes,
    )  # fmt: skip
    assert opened.opened_unix_s == opened.updated_unix_s == watch.now_s
    finding = opened.findings[0]
    assert (finding.hostname, finding.node_id, finding.verdict) == ("node0", "engine-0", LEAK)


def test_many_ranks_that_leak_alike_are_one_incident(watch: Watch) -> None:
    assert watch.see(job(*(rank_summary(rank, verdict=LEAK) for rank in range(64)))) == ["opened"]
    assert (len(watch.incident.findings), watch.incident.common) == (64, True)


def test_ranks_that_leak_at_very_different_rates_are_not_alike(watch: Watch) -> None:
    slow = LEAK._replace(bytes_per_step=Band(1.0, 2.0, 3.0))
    watch.see(two_ranks(LEAK, slow))
    assert (watch.incident.ranks, watch.incident.common) == ((0, 1), False)


def test_figures_are_those_of_the_earliest_the_fastest_and_the_soonest_rank(watch: Watch) -> None:
    soon, fast = Band(50.0, 60.0, 70.0), Band(4e9, 5e9, 6e9)
    early = LEAK._replace(onset_step=7, seconds_to_oom=soon, grown_bytes=1)
    watch.see(two_ranks(early, LEAK._replace(bytes_per_step=fast, grown_bytes=2**40)))
    opened = watch.incident
    assert (opened.onset_step, opened.bytes_per_step, opened.seconds_to_oom, opened.grown_bytes) == (
        7, fast, soon, 2**40,
    )  # fmt: skip


def test_every_cause_of_a_job_is_an_incident_of_its_own(watch: Watch) -> None:
    assert watch.see(two_ranks(LEAK, FRAGMENTED)) == ["opened", "opened"]
    assert {(one.key.cause, one.ranks) for one in watch.tracker.incidents} == {
        (IncidentCause.LEAK, (0,)),
        (IncidentCause.FRAGMENTATION, (1,)),
    }


@pytest.mark.parametrize("verdict", [OK, NOTE_LEAK, LEAK._replace(severity=None)])
def test_incident_tracker_opens_nothing_for_a_harmless_verdict(watch: Watch, verdict: Verdict) -> None:
    assert watch.see(two_ranks(verdict, verdict), for_s=3) == []


def test_suspicion_opens_nothing_while_a_peer_is_suspected_too(watch: Watch) -> None:
    assert watch.see(two_ranks(SUSPECTED, SUSPECTED), for_s=3) == []


def test_a_suspect_among_quiet_peers_is_a_suspect(watch: Watch) -> None:
    assert watch.see(two_ranks(OK, SUSPECTED), for_s=5) == []


def test_growth_that_is_not_dangerous_opens_nothing(watch: Watch) -> None:
    assert watch.see(two_ranks(WARNING_LEAK, WARNING_LEAK), for_s=1000) == []


def test_growth_that_is_not_dangerous_opens_one_where_a_site_wants_all_growth(warned: Watch) -> None:
    assert warned.see(two_ranks(WARNING_LEAK)) == ["opened"]
    assert warned.see(two_ranks(LEAK)) == ["escalated"]


def test_higher_severity_is_told_at_once_and_lower_only_when_it_lasts(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(two_ranks(WARNING_LEAK), for_s=RULES.ease_after_s) == []
    assert watch.incident.severity is Severity.CRITICAL
    assert watch.see(two_ranks(WARNING_LEAK)) == ["eased"]
    assert (watch.incident.severity, watch.incident.worst_severity) == (Severity.WARNING, Severity.CRITICAL)
    assert watch.see(two_ranks(LEAK)) == ["escalated"]


def test_a_moment_at_full_severity_begins_the_wait_to_ease_anew(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(WARNING_LEAK), for_s=RULES.ease_after_s)
    watch.see(two_ranks(LEAK))
    assert watch.see(two_ranks(WARNING_LEAK), for_s=RULES.ease_after_s) == []


def test_growth_that_shrinks_to_a_note_eases_but_stays_open(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(two_ranks(NOTE_LEAK), for_s=1000) == ["eased"]
    assert (watch.incident.state, watch.incident.severity) == (IncidentState.OPEN, Severity.NOTE)


def test_a_rank_that_joins_is_told_at_once(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(two_ranks(LEAK, LEAK)) == ["spread"]
    assert (watch.incident.ranks, watch.incident.common) == ((0, 1), True)


def test_sixty_four_ranks_that_join_one_by_one_are_told_at_every_doubling(watch: Watch) -> None:
    kinds: list[str] = []
    for count in range(1, 65):
        ranks = (rank_summary(rank, verdict=LEAK if rank < count else OK) for rank in range(64))
        kinds += watch.see(job(*ranks))
    assert kinds == ["opened"] + ["spread"] * 6
    assert len(watch.incident.findings) == 64


def test_a_rank_that_comes_and_goes_spreads_once_a_period_at_most(watch: Watch) -> None:
    kinds = watch.see(two_ranks(LEAK, LEAK))
    for _ in range(30):
        kinds += watch.see(two_ranks(LEAK, OK)) + watch.see(two_ranks(LEAK, LEAK))
    assert kinds.count("spread") <= 1


def growing(seconds_left: float, grown_bytes: int) -> JobView:
    left = Band(seconds_left * 0.8, seconds_left, seconds_left * 1.2)
    return two_ranks(LEAK._replace(seconds_to_oom=left, grown_bytes=grown_bytes))


def test_figures_are_told_once_a_period_at_most(watch: Watch) -> None:
    kinds: list[str] = []
    for second in range(600):
        kinds += watch.see(growing(40_000.0 - 30 * second, 10**9 + second * 10**9))
    assert kinds[0] == "opened"
    assert set(kinds[1:]) == {"updated"}
    times = [change.at_unix_s for change in watch.told]
    assert min(after - before for before, after in zip(times, times[1:])) >= RULES.update_every_s


def test_figures_that_hardly_move_are_not_told_but_can_be_looked_up(watch: Watch) -> None:
    watch.see(growing(40_000.0, 10**9))
    assert watch.see(growing(39_000.0, 10**9), for_s=600) == []
    assert watch.incident.seconds_to_oom == Band(39_000.0 * 0.8, 39_000.0, 39_000.0 * 1.2)
    assert watch.incident.updated_unix_s == watch.now_s


def test_a_time_to_oom_that_halves_is_told_at_once(watch: Watch) -> None:
    watch.see(growing(4000.0, 10**9))
    assert watch.see(growing(2100.0, 10**9)) == []
    assert watch.see(growing(1900.0, 10**9)) == ["updated"]
    assert watch.see(growing(1900.0, 10**9)) == []


def test_growth_that_ends_recovers_and_then_closes(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    alarm = watch.incident
    assert watch.see(two_ranks(OK)) == ["recovering"]
    assert (watch.incident.findings, watch.incident.recovering_since_unix_s) == (alarm.findings, watch.now_s)
    assert watch.see(two_ranks(OK), for_s=RULES.recover_after_s - 1) == []
    assert watch.see(two_ranks(OK)) == ["closed"]
    assert (watch.last.closure, watch.last.closed_unix_s) == (Closure.RECOVERED, watch.now_s)
    assert watch.tracker.incidents == ()


def test_incident_tracker_reopens_the_same_incident_during_recovery(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK), for_s=60)
    assert watch.see(two_ranks(WARNING_LEAK)) == [], "it grows, and is not dangerous"
    assert watch.see(two_ranks(LEAK)) == ["reopened"]
    back = watch.incident
    assert (back.number, back.flaps, back.state, back.recovering_since_unix_s) == (1, 1, IncidentState.OPEN, None)


def test_incident_tracker_reopens_with_the_current_severity(warned: Watch) -> None:
    warned.see(two_ranks(LEAK))
    warned.see(two_ranks(OK), for_s=60)
    assert warned.see(two_ranks(WARNING_LEAK)) == ["reopened"]
    assert (warned.incident.severity, warned.incident.worst_severity) == (Severity.WARNING, Severity.CRITICAL)


@pytest.mark.parametrize(("flaps", "wanted_s"), [(1, 240), (2, 360), (30, 1200)])
def test_a_flapping_incident_is_believed_later(watch: Watch, flaps: int, wanted_s: int) -> None:
    for _ in range(flaps):
        watch.see(two_ranks(LEAK))
        watch.see(two_ranks(OK))
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK))
    assert watch.see(two_ranks(OK), for_s=wanted_s - 1) == []
    assert watch.see(two_ranks(OK)) == ["closed"]


@pytest.mark.parametrize("verdict", [SUSPECTED, FRAGMENTED, NOTE_LEAK])
def test_a_rank_that_is_not_quiet_has_not_recovered(watch: Watch, verdict: Verdict) -> None:
    watch.see(two_ranks(LEAK, OK))
    watch.see(two_ranks(OK))
    watch.see(two_ranks(verdict, SUSPECTED), for_s=1000)
    (leak,) = (one for one in watch.tracker.incidents if one.key.cause is IncidentCause.LEAK)
    assert leak.state is IncidentState.RECOVERING
    watch.see(two_ranks(OK), for_s=RULES.recover_after_s + 1)
    assert watch.tracker.incidents == ()
    assert watch.last.closure is Closure.RECOVERED


def test_a_later_alarm_is_another_incident_with_the_next_number(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK), for_s=200)
    assert watch.see(two_ranks(LEAK)) == ["opened"]
    assert (watch.incident.number, watch.tracker.next_number) == (2, 3)


def test_stale_ranks_open_nothing(watch: Watch) -> None:
    assert watch.see(two_ranks(LEAK, stale=(0,)), for_s=5) == []


def test_stale_ranks_freeze_their_incident(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    before = watch.incident
    for verdict in (WARNING_LEAK, OK, NOTE_LEAK):
        watch.see(two_ranks(verdict, stale=(0,)), for_s=1000)
        assert watch.incident == replace(before, stale=True)
    watch.see(two_ranks(LEAK))
    assert not watch.incident.stale


def test_stale_ranks_raise_no_severity(warned: Watch) -> None:
    warned.see(two_ranks(WARNING_LEAK))
    before = warned.incident
    warned.see(two_ranks(LEAK, stale=(0,)), for_s=1000)
    assert warned.incident == replace(before, stale=True)


def test_incident_tracker_reports_stale_figures_once_per_period(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(two_ranks(LEAK, stale=(0,)), for_s=RULES.update_every_s - 1) == []
    assert watch.see(two_ranks(LEAK, stale=(0,)), for_s=1000) == ["updated"]
    assert watch.last.stale
    assert watch.see(two_ranks(LEAK), for_s=900) == ["updated"]
    assert not watch.last.stale
    for _ in range(30):
        watch.see(two_ranks(LEAK, stale=(0,)))
        assert watch.see(two_ranks(LEAK)) == []


def test_recovery_does_not_go_on_while_a_rank_is_stale(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK), for_s=100)
    assert watch.see(two_ranks(OK, stale=(0,)), for_s=1000) == []
    assert watch.see(two_ranks(OK), for_s=RULES.recover_after_s - 1) == []
    assert watch.see(two_ranks(OK), for_s=2) == ["closed"]


def test_a_stale_rank_keeps_its_finding_beside_one_that_is_heard(watch: Watch) -> None:
    watch.see(two_ranks(LEAK, LEAK))
    assert watch.see(two_ranks(OK, WARNING_LEAK, stale=(0,)), for_s=1000) == ["updated"]
    assert (watch.incident.severity, set(watch.incident.ranks)) == (Severity.CRITICAL, {0, 1})


def test_an_incident_ends_with_its_job(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(ended(two_ranks(LEAK))) == ["closed"]
    assert watch.last.closure is Closure.JOB_ENDED
    assert watch.see(ended(two_ranks(LEAK)), for_s=120) == [], "an ended job opens nothing while it is still shown"


HALF = job(rank_summary(0, verdict=LEAK, alive=False), rank_summary(1))
"""The rank that leaked has ended, its peer goes on."""


def test_an_incident_whose_ranks_have_all_ended_closes_by_that_while_the_others_run(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(HALF, for_s=RULES.culprits_ended_after_s) == []
    assert watch.see(HALF) == ["closed"]
    assert watch.last.closure is Closure.CULPRITS_ENDED
    assert watch.see(HALF, for_s=120) == [], "it is over"


def test_incident_tracker_closes_a_recovering_incident_when_its_rank_ends(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK), for_s=2)
    ended_quietly = job(rank_summary(0, verdict=LEAK, alive=False), rank_summary(1))
    watch.see(ended_quietly, for_s=RULES.culprits_ended_after_s + 1)
    assert watch.last.closure is Closure.CULPRITS_ENDED


def test_incident_tracker_keeps_an_incident_open_while_one_culprit_lives(watch: Watch) -> None:
    watch.see(two_ranks(LEAK, LEAK))
    half = job(rank_summary(0, verdict=LEAK, alive=False), rank_summary(1, verdict=LEAK))
    watch.see(half, for_s=300)
    assert watch.incident.state is IncidentState.OPEN


def test_a_rank_of_a_node_that_is_silent_may_live(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(replace(HALF, stale=(0,)), for_s=300)
    assert watch.incident.is_open


def test_a_culprit_that_is_started_again_in_time_and_leaks_again_goes_on(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(HALF, for_s=RULES.culprits_ended_after_s - 5)
    again = job(rank_summary(0, verdict=LEAK, process=ProcessId(7777, 9)), rank_summary(1))
    watch.see(again, for_s=10)
    watch.see(HALF, for_s=RULES.culprits_ended_after_s - 5)
    assert watch.incident.is_open, "the wait begins anew"


def test_a_job_that_ends_soon_after_its_culprit_has_ended_as_a_job(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(HALF, for_s=10)
    watch.see(ended(HALF), for_s=2)
    assert watch.last.closure is Closure.JOB_ENDED


def test_an_out_of_memory_error_outlives_its_rank(watch: Watch) -> None:
    watch.see(job(rank_summary(0, last_oom=OOM, alive=False), rank_summary(1)))
    watch.see(job(rank_summary(0, last_oom=OOM, alive=False), rank_summary(1)), for_s=40)
    assert watch.last.closure is not Closure.CULPRITS_ENDED


def test_a_job_that_nobody_has_heard_of_is_waited_for(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(for_s=RULES.absent_grace_s)
    assert watch.incident.stale
    assert watch.see() == ["closed"]
    assert watch.last.closure is Closure.JOB_ENDED


def test_a_job_that_is_heard_of_again_in_time_goes_on(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(for_s=RULES.absent_grace_s)
    watch.see(two_ranks(LEAK))
    assert not watch.incident.stale
    watch.see(for_s=RULES.absent_grace_s)
    assert watch.incident.is_open, "the wait begins anew"


def test_a_job_whose_nodes_are_gone_is_waited_for_too(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    gone = replace(ended(two_ranks(LEAK)), stale=(0, 1))
    assert watch.see(gone, for_s=RULES.absent_grace_s) == ["updated"]
    assert watch.see(gone) == ["closed"]


def test_an_incident_outlasts_ten_minutes_in_which_its_node_cannot_be_reached(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    number = watch.incident.number
    gone = replace(ended(two_ranks(LEAK)), stale=(0, 1))
    watch.see(gone, for_s=60)
    watch.see(for_s=540)
    watch.see(two_ranks(LEAK))
    assert (watch.incident.number, watch.incident.is_open, watch.incident.stale) == (number, True, False)


def next_attempt(verdict: Verdict = OK) -> JobView:
    return job(rank_summary(0, identity=identity(0, attempt=1), verdict=verdict))


@pytest.mark.parametrize("before", [[], [two_ranks(LEAK, stale=(0, 1))]], ids=["absent", "stale"])
def test_a_later_attempt_that_runs_ends_the_incidents_of_the_one_before(watch: Watch, before: list[JobView]) -> None:
    watch.see(two_ranks(LEAK))
    assert watch.see(*before, next_attempt()) == ["closed"]
    assert watch.last.closure is Closure.JOB_ENDED


def test_a_later_attempt_of_somebody_else_ends_nothing(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    stranger = next_attempt()
    assert watch.see(replace(stranger, ranks=(replace(stranger.ranks[0], uid=6666),)), for_s=10) == []


def test_two_attempts_that_run_at_once_keep_an_incident_each(watch: Watch) -> None:
    watch.see(two_ranks(LEAK), next_attempt(LEAK), for_s=10)
    assert [one.key.job.attempt for one in watch.tracker.incidents] == [0, 1]


def test_after_a_restart_ranks_that_have_not_reported_yet_have_not_recovered(watch: Watch) -> None:
    watch.see(two_ranks(OK, LEAK))
    watch.now_s += 600
    watch.restart()
    assert watch.see(job(rank_summary(0)), for_s=20) == []
    assert watch.incident.stale
    assert watch.see(two_ranks(OK, LEAK)) == []
    assert (watch.incident.stale, watch.incident.flaps) == (False, 0)


def test_a_tracker_made_of_what_was_told_last_goes_on_with_the_same_incident(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(WARNING_LEAK), for_s=50)
    watch.tracker = IncidentTracker([watch.last], next_number=2)
    assert watch.see(two_ranks(WARNING_LEAK), for_s=RULES.ease_after_s + 1) == ["eased"]
    assert watch.incident.number == 1


def test_a_rank_that_never_reports_again_is_given_up(watch: Watch) -> None:
    watch.see(two_ranks(OK, LEAK))
    assert watch.see(job(rank_summary(0)), for_s=RULES.absent_grace_s) == ["updated"]
    assert watch.see(job(rank_summary(0)), for_s=RULES.recover_after_s + 2) == ["recovering", "closed"]


def test_a_clock_that_is_set_back_closes_nothing_and_gives_no_negative_time(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(OK))
    watch.now_s -= 86400
    assert watch.see(two_ranks(OK), for_s=300) == []
    assert watch.see(two_ranks(LEAK)) == ["reopened"]
    assert watch.told[-1].at_unix_s >= watch.told[-2].at_unix_s


def test_a_clock_that_was_wrong_before_a_restart_does_not_turn_time_around(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.restart()
    watch.now_s -= 86400
    watch.see(ended(two_ranks(LEAK)))
    assert watch.last.closed_unix_s == watch.last.opened_unix_s


@pytest.mark.parametrize("jobs", [[two_ranks(OK)], []], ids=["quiet", "absent"])
def test_a_clock_that_jumps_ahead_closes_nothing(watch: Watch, jobs: list[JobView]) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(*jobs, for_s=10)
    watch.now_s += 7 * 86400
    watch.see(*jobs)
    assert watch.incident.is_open


def test_a_clock_that_jumps_ahead_eases_nothing(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(WARNING_LEAK))
    watch.now_s += 7 * 86400
    watch.see(two_ranks(WARNING_LEAK))
    assert watch.incident.severity is Severity.CRITICAL


def with_oom(oom: OomRecord | None, *, alive: bool = True, rank: int = 0) -> JobView:
    first = rank_summary(rank, last_oom=oom, alive=alive)
    return job(first, rank_summary(rank + 1))


def test_an_out_of_memory_error_opens_a_critical_incident_with_an_explanation() -> None:
    watch = Watch(explain_oom=lambda rank, view: f"rank {rank.identity.rank} of {view.job_id}")
    assert watch.see(with_oom(OOM)) == ["opened"]
    opened = watch.incident
    assert (opened.key.cause, opened.severity) == (IncidentCause.OUT_OF_MEMORY, Severity.CRITICAL)
    assert (opened.onset_step, opened.findings[0].oom, opened.explanation) == (412, OOM, "rank 0 of 4711")
    assert (opened.bytes_per_step, opened.seconds_to_oom, opened.grown_bytes) == (None, None, None)


def test_what_no_earlier_run_did_stays_with_the_incident(watch: Watch) -> None:
    watch.see(replace(two_ranks(LEAK), change="its peak is beyond"))
    watch.see(two_ranks(LEAK))
    assert change_sentence(watch.incident) == "Its peak is beyond."


def test_the_error_of_a_leaking_rank_has_figures_of_its_own(watch: Watch) -> None:
    watch.see(job(rank_summary(0, verdict=LEAK, last_oom=OOM)))
    leak, oom = watch.tracker.incidents
    assert (leak.onset_step, oom.onset_step) == (LEAK.onset_step, OOM.step)
    assert (oom.bytes_per_step, oom.seconds_to_oom, oom.grown_bytes) == (None, None, None)


def test_an_out_of_memory_error_is_told_once_and_recovers_when_it_stays_the_only_one(watch: Watch) -> None:
    watch.see(with_oom(OOM))
    assert watch.see(with_oom(OOM), for_s=RULES.ease_after_s) == []
    assert watch.see(with_oom(OOM)) == ["recovering"]
    assert watch.see(with_oom(OOM), for_s=RULES.recover_after_s) == ["closed"]
    assert watch.see(with_oom(OOM), for_s=1000) == []


def test_errors_of_every_second_do_not_flood_the_history(watch: Watch) -> None:
    kinds: list[str] = []
    for second in range(600):
        kinds += watch.see(with_oom(OOM._replace(at_unix_s=OOM.at_unix_s + second, step=412 + second)))
    assert kinds[0] == "opened"
    assert set(kinds[1:]) == {"updated"}
    assert len(kinds) <= 1 + 600 / RULES.update_every_s


def test_the_error_that_ended_the_rank_or_the_whole_job_is_told_before_its_end(watch: Watch) -> None:
    dead = ended(with_oom(OOM))
    assert watch.see(dead) == ["opened"]
    assert watch.see(dead) == ["closed"]
    assert watch.last.closure is Closure.JOB_ENDED
    assert watch.see(dead, for_s=120) == []


def test_errors_of_more_ranks_spread_and_keep_the_first_in_front(watch: Watch) -> None:
    watch.see(with_oom(OOM))
    later = OOM._replace(at_unix_s=OOM.at_unix_s + 1, step=413)
    both = job(rank_summary(0, last_oom=OOM), rank_summary(1, last_oom=later))
    assert watch.see(both) == ["spread"]
    assert ([one.oom for one in watch.incident.findings], watch.incident.onset_step) == ([OOM, later], 412)


def test_a_known_error_stays_known_over_a_restart(watch: Watch) -> None:
    watch.see(with_oom(OOM))
    watch.restart()
    assert watch.see(with_oom(OOM), for_s=5) == []
    watch.see(ended(with_oom(OOM)))
    watch.restart(closed=[watch.last])
    assert watch.see(ended(with_oom(OOM)), for_s=5) == []


@pytest.mark.parametrize(("away_s", "kinds"), [(40, []), (60, ["opened"])])
def test_errors_of_a_job_that_is_away_are_remembered_for_a_while(away_s: float, kinds: list[str]) -> None:
    watch = Watch(IncidentRules(remember_ooms_s=50.0))
    watch.see(ended(with_oom(OOM)), for_s=2)
    watch.see(for_s=away_s)
    assert watch.see(ended(with_oom(OOM))) == kinds


def test_an_error_of_a_stale_rank_waits_until_the_rank_is_heard(watch: Watch) -> None:
    assert watch.see(replace(with_oom(OOM), stale=(0,)), for_s=5) == []
    assert watch.see(with_oom(OOM)) == ["opened"]


TOTALS = {uuid_of(0): 80 * GIB}


OTHER = identity(0, job_id=JobId("99"))


def sharing(used_bytes: int, *, share: float | None = 0.5, **changes: Any) -> list[JobView]:
    """Two jobs on one GPU; the first holds ``used_bytes`` of it."""
    values: dict[str, Any] = {"nontorch_bytes": GIB, "limit_bytes": 40 * GIB, "cap_fraction": 0.5}
    who = identity(0, gpu_share=share)
    greedy = rank_summary(0, identity=who, reserved_bytes=used_bytes - GIB, **(values | changes))
    return [job(greedy), job(rank_summary(0, identity=OTHER))]


def test_a_job_that_takes_more_of_a_shared_gpu_than_it_asked_for_is_told(watch: Watch) -> None:
    assert watch.see(*sharing(39 * GIB), totals=TOTALS) == []
    assert watch.see(*sharing(50 * GIB), totals=TOTALS) == ["opened"]
    opened = watch.incident
    assert (opened.key.job.job_id, opened.key.cause) == ("4711", IncidentCause.SHARE_EXCEEDED)
    assert opened.severity is Severity.WARNING
    assert opened.explanation is not None
    assert "50.0 GiB" in opened.explanation
    assert "50% (40.0 GiB)" in opened.explanation


def test_a_little_more_than_the_share_is_tolerated_but_ends_no_incident(watch: Watch) -> None:
    assert watch.see(*sharing(41 * GIB), totals=TOTALS) == []
    watch.see(*sharing(50 * GIB), totals=TOTALS)
    assert watch.see(*sharing(41 * GIB), totals=TOTALS, for_s=RULES.ease_after_s * 2) == ["updated"]
    assert watch.see(*sharing(39 * GIB), totals=TOTALS, for_s=RULES.ease_after_s + 1) == ["recovering"]


def test_ranks_of_one_job_on_one_gpu_have_one_share_together(watch: Watch) -> None:
    ranks = (
        rank_summary(n, identity=identity(n, gpu_share=0.5), uuid=uuid_of(0), reserved_bytes=30 * GIB) for n in (0, 1)
    )
    watch.see(job(*ranks), sharing(1)[1], totals=TOTALS)
    assert watch.incident.ranks == (0, 1)


@pytest.mark.parametrize(
    ("jobs", "totals"),
    [
        (sharing(50 * GIB)[:1], TOTALS),
        (sharing(50 * GIB, share=None), TOTALS),
        (sharing(50 * GIB), {}),
        (sharing(50 * GIB, uuid=None), TOTALS),
        ([sharing(50 * GIB)[0], next_attempt()], TOTALS),
        ([sharing(50 * GIB)[0], job(rank_summary(0, uid=1002, nontorch_bytes=None))], TOTALS),
        ([sharing(50 * GIB)[0], job(rank_summary(0, identity=OTHER, pod=PodPlace("1"), nontorch_bytes=None))], TOTALS),
    ],
    ids=[
        "alone",
        "no share",
        "size not known",
        "gpu not known",
        "only its own next attempt is there",
        "another user only says to be there",
        "another pod only says to be there, under the same uid",
    ],
)
def test_no_share_is_exceeded(watch: Watch, jobs: Iterable[JobView], totals: Mapping[DeviceUuid, int]) -> None:
    assert watch.see(*jobs, totals=totals, for_s=3) == []


def test_another_user_whom_the_driver_sees_there_is_a_neighbour(watch: Watch) -> None:
    assert watch.see(sharing(50 * GIB)[0], job(rank_summary(0, uid=1002)), totals=TOTALS) == ["opened"]


def test_without_its_total_the_limit_of_an_uncapped_rank_is_the_gpus(watch: Watch) -> None:
    assert watch.see(*sharing(50 * GIB, cap_fraction=None, limit_bytes=80 * GIB)) == ["opened"]


def job_number(number: int, **changes: Any) -> JobView:
    return job(rank_summary(0, identity=identity(0, job_id=JobId(f"job-{number}")), **changes))


@pytest.mark.parametrize("sign", [{"verdict": LEAK}, {"last_oom": OOM}], ids=["growth", "out of memory"])
def test_a_user_who_floods_incidents_opens_a_bounded_number_an_hour(sign: dict[str, Any]) -> None:
    watch = Watch(IncidentRules(most_per_tenant=5))
    for number in range(50):
        watch.see(job_number(number, **sign))
    assert [change.kind for change in watch.told].count(ChangeKind.OPENED) == 5
    assert watch.tracker.crowded == {Tenant(1001)}
    neighbours = job_number(0, uid=1002, **sign)
    assert "opened" in watch.see(neighbours), "other users have places of their own"
    watch.restart(closed=[change.incident for change in watch.told if change.kind is ChangeKind.CLOSED])
    assert watch.see(job_number(51, **sign), neighbours) == [], "a restart is no new hour"
    watch.see(neighbours, for_s=3600)
    assert "opened" in watch.see(job_number(52, **sign), neighbours)
    assert watch.tracker.crowded == set()


def test_namespaces_have_places_of_their_own_though_they_share_uids() -> None:
    watch = Watch(IncidentRules(most_per_tenant=1))

    for name in ("a/1", "a/2", "b/1"):
        watch.see(job(rank_summary(0, identity=identity(0, job_id=JobId(name)), verdict=LEAK)))
    opened = {one.incident.key.job.job_id for one in watch.told if one.kind is ChangeKind.OPENED}
    assert opened == {"a/1", "b/1"}
    assert watch.tracker.crowded == {Tenant(None, "a"), Tenant(None, "b")}


def test_incidents_that_stay_open_take_places_for_as_long_as_they_do() -> None:
    watch = Watch(IncidentRules(most_per_tenant=2))
    watch.see(job_number(0, verdict=LEAK), job_number(1, verdict=LEAK), for_s=4000)
    assert "opened" not in watch.see(*(job_number(number, verdict=LEAK) for number in range(3)))


def test_an_error_that_found_no_place_is_told_when_there_is_one() -> None:
    watch = Watch(IncidentRules(most_per_tenant=1))
    late = job_number(1, last_oom=OOM)
    watch.see(job_number(0, verdict=LEAK), late)
    assert watch.see(late, for_s=3700).count("opened") == 1


def test_jobs_without_ranks_are_passed_over(watch: Watch) -> None:
    assert watch.see(replace(two_ranks(LEAK), ranks=())) == []


def test_kinds_tell_what_happened_in_order(watch: Watch) -> None:
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(WARNING_LEAK), for_s=RULES.ease_after_s + 2)
    watch.see(two_ranks(LEAK))
    watch.see(two_ranks(LEAK, LEAK))
    watch.see(two_ranks(OK))
    watch.see(two_ranks(LEAK))
    watch.see(ended(two_ranks(LEAK)))
    assert [change.kind for change in watch.told] == [
        ChangeKind.OPENED, ChangeKind.EASED, ChangeKind.ESCALATED, ChangeKind.SPREAD, ChangeKind.RECOVERING,
        ChangeKind.REOPENED, ChangeKind.CLOSED,
    ]  # fmt: skip
