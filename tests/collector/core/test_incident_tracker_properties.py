"""What holds for incidents of any jobs: one per key, histories that are words of the table, numbers that grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from sample_views import LEAK, NOW_S, identity, job_view, rank_summary
from tidegauge.core.detector.peers import judge_job
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentKey, IncidentState
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import JobView, RankSummary

RULES = IncidentRules(recover_after_s=20.0, recover_at_most_s=60.0, ease_after_s=15.0, absent_grace_s=40.0)
FOLLOWERS: dict[ChangeKind | None, set[ChangeKind]] = {
    None: {ChangeKind.OPENED},
    ChangeKind.RECOVERING: {ChangeKind.REOPENED, ChangeKind.CLOSED},
    ChangeKind.CLOSED: set(),
}
WHILE_OPEN = {
    ChangeKind.ESCALATED,
    ChangeKind.EASED,
    ChangeKind.SPREAD,
    ChangeKind.UPDATED,
    ChangeKind.RECOVERING,
    ChangeKind.CLOSED,
}

verdicts = st.just(OK) | st.builds(
    lambda state, severity, signal: LEAK._replace(state=state, severity=severity, signal=signal),
    st.sampled_from([LeakState.SUSPECTED, LeakState.LEAK]),
    st.sampled_from(Severity),
    st.sampled_from([Signal.ALLOCATED, Signal.RESERVED]),
)
ooms = st.none() | st.builds(OomRecord, st.sampled_from([1.0, 2.0]), *[st.just(1)] * 6)


class Seen(NamedTuple):
    """One rank at one look; no verdict: it is not shown."""

    verdict: Verdict | None
    alive: bool = True
    stale: bool = False
    oom: OomRecord | None = None


class Look(NamedTuple):
    """Two ranks of two attempts, and how long it stays like this."""

    ranks: tuple[Seen, Seen, Seen, Seen]
    looks: int
    step_s: float


mostly = st.sampled_from([True, True, True, False])
seen = st.builds(Seen, st.none() | verdicts, alive=mostly, stale=mostly.map(lambda fresh: not fresh), oom=ooms)
looks = st.builds(
    Look, st.tuples(seen, seen, seen, seen), st.integers(1, 15), st.sampled_from([0.0, 1.0, 5.0, 5.0, 3600.0, -3600.0])
)
heard = st.builds(Seen, verdicts, alive=st.just(True), stale=st.just(False), oom=ooms)
watched = st.builds(Look, st.tuples(heard, heard, heard, heard), st.integers(1, 15), st.sampled_from([1.0, 5.0]))


def job_of(attempt: int, ranks: Sequence[Seen]) -> JobView | None:
    summaries: list[RankSummary] = []
    for number, one in enumerate(ranks):
        if one.verdict is not None:
            who = identity(number, attempt=attempt)
            summaries.append(
                rank_summary(number, identity=who, verdict=one.verdict, alive=one.alive, last_oom=one.oom, uuid=None)
            )
    if not summaries:
        return None
    judged = judge_job({int(rank.identity.rank): rank.verdict for rank in summaries})
    return job_view(
        attempt=attempt,
        ranks=tuple(summaries),
        state=judged.state,
        suspects=tuple(suspect.rank for suspect in judged.suspects),
        common=judged.common,
        stale=tuple(number for number, one in enumerate(ranks) if one.verdict is not None and one.stale),
    )


def jobs_of(look: Look) -> list[JobView]:
    attempts = (job_of(0, look.ranks[:2]), job_of(1, look.ranks[2:]))
    return [job for job in attempts if job is not None]


class Run:
    """A tracker that is shown one look after the other."""

    def __init__(self) -> None:
        self.tracker = IncidentTracker((), next_number=1, rules=RULES)
        self.now_s = NOW_S
        self.changes: list[IncidentChange] = []
        self.over: list[Incident] = []

    def show(self, look: Look) -> None:
        for _ in range(look.looks):
            self.now_s += look.step_s
            told = self.tracker.update(jobs_of(look), now_s=self.now_s)
            self.changes += told
            self.over += [change.incident for change in told if change.kind is ChangeKind.CLOSED]

    def restart(self) -> None:
        before = self.tracker
        self.tracker = IncidentTracker(before.incidents, next_number=before.next_number, rules=RULES, closed=self.over)


@given(st.lists(looks, max_size=8))
def test_every_history_is_a_word_of_the_table(script: list[Look]) -> None:
    run = Run()
    for look in script:
        run.show(look)
    histories: dict[int, list[IncidentChange]] = defaultdict(list)
    for change in run.changes:
        histories[change.incident.number].append(change)
    for history in histories.values():
        before: ChangeKind | None = None
        for change in history:
            assert change.kind in FOLLOWERS.get(before, WHILE_OPEN)
            before = change.kind
        assert [change.at_unix_s for change in history] == sorted(change.at_unix_s for change in history)
    assert list(histories) == sorted(histories), "numbers grow in the order of opening"
    assert list(histories) == list(range(1, run.tracker.next_number))


@given(st.lists(looks, max_size=8))
def test_at_most_one_incident_is_open_per_job_and_cause(script: list[Look]) -> None:
    run = Run()
    for look in script:
        run.show(look)
        keys = [incident.key for incident in run.tracker.incidents]
        assert len(keys) == len(set(keys))
        is_open: dict[IncidentKey, int] = {}
        for change in run.changes:
            if change.kind is ChangeKind.CLOSED:
                del is_open[change.incident.key]
            else:
                assert is_open.setdefault(change.incident.key, change.incident.number) == change.incident.number
        assert sorted(is_open.values()) == [incident.number for incident in run.tracker.incidents]


@given(st.lists(looks, max_size=8))
def test_every_incident_is_consistent_at_every_moment(script: list[Look]) -> None:
    run = Run()
    for look in script:
        run.show(look)
        for incident in (*run.tracker.incidents, *(change.incident for change in run.changes)):
            assert incident.worst_severity is not None
            assert incident.worst_severity.level >= incident.severity.level
            assert incident.findings
            assert len(set(incident.ranks)) == len(incident.ranks)
            assert (incident.state is IncidentState.CLOSED) == (incident.closure is not None)
            assert (incident.state is IncidentState.CLOSED) == (incident.closed_unix_s is not None)
            for time_s in (incident.updated_unix_s, incident.recovering_since_unix_s, incident.closed_unix_s):
                assert time_s is None or time_s >= incident.opened_unix_s
            if incident.state is IncidentState.RECOVERING:
                assert incident.recovering_since_unix_s is not None


def outcome(run: Run) -> list[tuple[object, ...]]:
    """All that there is to say of each incident at the end, but for when its figures were told."""
    return [
        (one.number, one.key, one.state, one.closure, one.severity, one.worst_severity, one.flaps, one.ranks)
        for one in sorted([*run.over, *run.tracker.incidents], key=lambda incident: incident.number)
    ]


@given(st.lists(watched, min_size=1, max_size=8), st.data())
def test_a_restart_in_the_middle_changes_nothing_about_the_end(script: list[Look], data: st.DataObject) -> None:
    """As long as all ranks are heard: the wait for one that is missing begins anew, on purpose."""
    whole, restarted = Run(), Run()
    at = data.draw(st.integers(0, len(script) - 1))
    for index, look in enumerate(script):
        whole.show(look)
        if index == at:
            first = data.draw(st.integers(0, look.looks))
            restarted.show(look._replace(looks=first))
            restarted.restart()
            look = look._replace(looks=look.looks - first)
        restarted.show(look)
    assert outcome(restarted) == outcome(whole)


def test_a_tracker_that_is_shown_the_same_again_says_nothing_new() -> None:
    run = Run()
    look = Look((Seen(LEAK), Seen(OK), Seen(OK), Seen(OK)), looks=1000, step_s=1.0)
    run.show(look)
    assert [change.kind for change in run.changes] == [ChangeKind.OPENED]
    assert replace(run.tracker.incidents[0], updated_unix_s=0.0) == replace(run.changes[0].incident, updated_unix_s=0.0)
