"""What an incident may grow to, and how often it is told of, whatever its job does for however long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from incident_watch import OOM, RULES, Watch, job, two_ranks
from sample_views import GIB, LEAK, rank_summary
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import RankFinding
from tidegauge.core.incidents.figures import MAX_CONCERNED, MAX_ERRORS
from tidegauge.core.incidents.known_errors import MAX_KNOWN, OomMemory
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, Band, Severity
from tidegauge.core.views import JobView, RankSummary

WEEK_S = 7 * 86_400
JOB = JobKey("4711", 0, 1001)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def error(after_s: float) -> OomRecord:
    return OOM._replace(at_unix_s=OOM.at_unix_s + after_s, step=OOM.step + int(after_s))


def failed(number: int, *, after_s: float | None = None) -> RankSummary:
    return rank_summary(number, last_oom=error(number if after_s is None else after_s), uuid=None)


def all_failed(ranks: int) -> JobView:
    return job(*(failed(number) for number in range(ranks)))


@pytest.mark.slow
def test_a_process_with_another_rank_number_at_every_look_fills_no_incident(watch: Watch) -> None:
    for number in range(2 * MAX_ERRORS):
        watch.see(job(failed(number), world_size=1 << 24))
    incident = watch.incident
    assert (len(incident.findings), incident.ranks_left_out) == (MAX_ERRORS, MAX_ERRORS)
    assert len(watch.followed.ended) <= MAX_ERRORS + 1
    first, latest = incident.ranks[: MAX_ERRORS // 2], incident.ranks[MAX_ERRORS // 2 :]
    assert first == tuple(range(MAX_ERRORS // 2))
    assert latest == tuple(range(2 * MAX_ERRORS - MAX_ERRORS // 2, 2 * MAX_ERRORS))


def test_rank_numbers_without_end_are_told_ever_less_often(watch: Watch) -> None:
    kinds = [kind for number in range(86_400 // 60) for kind in watch.look(job(failed(number)), after_s=60.0)]
    assert kinds[0] == "opened"
    assert set(kinds[1:]) == {"spread"}
    assert len(kinds) < 200
    told = sum(len(change.incident.findings) for change in watch.told)
    assert told < 200 * MAX_ERRORS, "findings in the history of a day"


@pytest.mark.slow
def test_a_job_of_ten_thousand_ranks_shows_the_first_to_fail_and_the_latest(watch: Watch) -> None:
    assert watch.see(all_failed(10_000)) == ["opened"]
    opened = watch.incident
    assert (len(opened.findings), opened.ranks_left_out, opened.common) == (MAX_ERRORS, 10_000 - MAX_ERRORS, True)
    assert (opened.ranks[0], opened.ranks[-1], opened.onset_step) == (0, 9999, OOM.step)
    assert watch.see(all_failed(10_000), for_s=RULES.ease_after_s + 5) == ["recovering"], "they are known, every one"


def test_a_job_whose_ranks_leak_by_the_thousand_shows_all_of_them(watch: Watch) -> None:
    watch.see(job(*(rank_summary(number, verdict=LEAK, uuid=None) for number in range(10_000))))
    assert (len(watch.incident.findings), watch.incident.ranks_left_out) == (10_000, 0)
    assert MAX_CONCERNED > 10_000


def test_errors_that_found_no_place_are_known_after_a_restart(watch: Watch) -> None:
    watch.see(all_failed(3000))
    watch.restart()
    assert watch.see(all_failed(3000), for_s=5) == []
    later = job(*(failed(number, after_s=4000.0 + number) for number in range(3000)))
    assert watch.look(later, after_s=60.0) == ["updated"], "an error after them is new"


def finding_of(number: int) -> RankFinding:
    watch = Watch()
    watch.see(job(failed(number)))
    return watch.incident.findings[0]


def test_the_oldest_errors_are_remembered_by_their_time_alone() -> None:
    memory, one = OomMemory((), keep_s=60.0), finding_of(0)
    for number in range(MAX_KNOWN + 10):
        memory.learn(JOB, [replace(one, rank=number, oom=error(number))])
    assert memory.of(JOB).has(0, error(0)), "forgotten, but none later than what was dropped is taken for new"
    assert memory.of(JOB).has(MAX_KNOWN + 9, error(MAX_KNOWN + 9))
    assert not memory.of(JOB).has(MAX_KNOWN + 10, error(MAX_KNOWN + 10))
    assert not memory.of(JobKey("4711", 1, 1001)).has(0, error(0))


def swinging(up: bool) -> JobView:
    """An evaluation that empties the cache: what is reserved falls by 15 % and comes back."""
    reserved_bytes = (68 if up else 58) * GIB
    return job(*(rank_summary(number, verdict=LEAK, reserved_bytes=reserved_bytes) for number in range(2)))


@pytest.mark.slow
def test_figures_that_swing_for_a_week_are_some_lines_of_history(watch: Watch) -> None:
    """Once a minute for the first 20 minutes, then each twentieth of the age: 20 + ln(10080 / 20) / ln(1.05) = 148."""
    kinds = [kind for turn in range(WEEK_S // 60) for kind in watch.look(swinging(turn % 2 == 0), after_s=60.0)]
    assert kinds[0] == "opened"
    assert set(kinds[1:]) == {"updated"}
    assert 100 < len(kinds) < 150
    times = [change.at_unix_s for change in watch.told]
    assert max(after - before for before, after in zip(times, times[1:])) <= WEEK_S * RULES.update_age_share + 180
    assert watch.incident.findings[0].reserved_bytes == swinging(False).ranks[0].reserved_bytes, "as of the last look"


def test_incident_week_old_still_reports_important_changes_at_once(watch: Watch) -> None:
    warning = LEAK._replace(severity=Severity.WARNING)
    watch.look(two_ranks(LEAK), after_s=1.0)
    for _ in range(WEEK_S // 600):
        watch.look(two_ranks(LEAK), after_s=20.0)
    watch.now_s += WEEK_S
    watch.look(two_ranks(LEAK), after_s=1.0)
    assert watch.look(two_ranks(LEAK, LEAK), after_s=1.0) == ["spread"]
    soon = LEAK._replace(seconds_to_oom=Band(100.0, 120.0, 150.0))
    assert watch.look(two_ranks(soon, LEAK), after_s=1.0) == ["updated"]
    eased = [watch.look(two_ranks(warning, warning), after_s=20.0) for _ in range(8)]
    assert ["eased"] in eased
    assert watch.look(two_ranks(LEAK, warning), after_s=1.0) == ["escalated"]
    assert watch.look(two_ranks(OK, OK), after_s=1.0) == ["recovering"]


def test_ranks_that_join_in_numbers_are_told_within_a_minute_and_single_ones_with_the_figures(watch: Watch) -> None:
    def leaking(count: int) -> JobView:
        return job(*(rank_summary(number, verdict=LEAK if number < count else OK, uuid=None) for number in range(64)))

    watch.look(leaking(20), after_s=1.0)
    assert watch.look(leaking(21), after_s=86_400.0) == ["spread"]
    assert watch.look(leaking(22), after_s=RULES.update_every_s) == []
    assert watch.look(leaking(24), after_s=1.0) == ["spread"]
    assert watch.look(leaking(40), after_s=1.0) == []
    assert watch.look(leaking(48), after_s=1.0) == ["spread"]


def test_more_ranks_that_fail_after_a_restart_are_counted_with_those_before(watch: Watch) -> None:
    watch.look(all_failed(3000), after_s=1.0)
    watch.restart()
    watch.look(all_failed(3000), after_s=1.0)
    assert watch.look(all_failed(3500), after_s=60.0) == ["spread"]
    assert len(watch.last.findings) + watch.last.ranks_left_out == 3500


def test_ranks_that_fail_again_after_a_restart_are_not_counted_twice(watch: Watch) -> None:
    watch.look(all_failed(3000), after_s=1.0)
    watch.restart()
    watch.look(job(*(failed(number, after_s=4000.0 + number) for number in range(1000, 2000))), after_s=60.0)
    assert len(watch.incident.findings) + watch.incident.ranks_left_out == 3000, "nobody knows who was left out"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_second_incident_counts_only_what_failed_in_it(watch: Watch, restarts: bool) -> None:
    watch.see(all_failed(3000), for_s=RULES.ease_after_s + RULES.recover_after_s + 5)
    first = watch.last

    def again(count: int) -> JobView:
        ranks = (failed(number, after_s=4000.0 + number if number < count else None) for number in range(3000))
        return job(*ranks)

    assert watch.look(again(1025), after_s=1.0) == ["opened"]
    if restarts:
        watch.restart(closed=[first])
        watch.look(again(1026), after_s=60.0)
    assert (watch.incident.ranks_left_out, watch.incident.common) == (1 + restarts, False)
