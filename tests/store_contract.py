"""What the store must keep to, whatever database is behind it; a test of each database inherits it.

A class that inherits has a fixture ``url``: the address of an empty database.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, text, update

from evidence_values import NAMED, evidence
from person_data import ADA, BOB, fill_with_two, record_of
from rank_profiles import rank_profile
from sample_views import GIB, NOW_S, job_record
from scheduler_values import JOB, decision, died_of_oom, finding, incident
from tidegauge.cluster.store import Store, StoreError, open_store
from tidegauge.cluster.store.acts import MAX_ACTS, MAX_REFUSED
from tidegauge.cluster.store.evidence import EvidenceStore
from tidegauge.cluster.store.grades import MAX_ANSWERS
from tidegauge.cluster.store.job_records import JobRecordStore, RecordRoom
from tidegauge.cluster.store.memory import write_memory
from tidegauge.cluster.store.profiles import MAX_PROFILE_CHARS, ProfileStore
from tidegauge.cluster.store.room import Room
from tidegauge.cluster.store.store import VERSION_TABLE
from tidegauge.cluster.store.tables import incident_changes, metadata
from tidegauge.cluster.store.values import INCIDENT
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import ids_so_far
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import (
    MAX_FINDINGS,
    ChangeKind,
    Closure,
    IncidentCause,
    IncidentChange,
    IncidentKey,
    IncidentState,
)
from tidegauge.core.incidents.actions import ActionKind, DecisionStatus, Disposition, Outcome
from tidegauge.core.incidents.acts import ActKind, ActOutcome, ActWay, PersonAct, acknowledgement, exemption_in_force
from tidegauge.core.incidents.grades import Grade, GradeAnswer
from tidegauge.core.incidents.loop_figures import OpenIncident
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.job_records.search import RecordFilter, RecordSought
from tidegauge.core.jobs.kubernetes import NamespaceScope
from tidegauge.core.jobs.right_size import LeftOut, UsageBy
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band, Severity
from tidegauge_scheduler_hooks.ports import Audit

POINTS = (MemoryPoint(NOW_S, 1, 10, 20, None), MemoryPoint(NOW_S + 1.5, 3, 1 << 60, 20, 5))

SAVE_AND_HANG = """
import sys
from scheduler_values import decision, incident
from tidegauge.cluster.store import open_store
from tidegauge.cluster.store.audit import _insert
store = open_store(sys.argv[1])
store.audit.write_ahead([decision(decision_id="kept")])
with store.database.writing() as connection:
    for number in range(100):
        _insert(connection, decision(decision_id=f"lost {number}"))
    print("written, not committed", flush=True)
    sys.stdin.read()
"""

SAVE_MANY = """
import sys
from scheduler_values import decision
from tidegauge.cluster.store import open_store
from tidegauge.core.incidents.actions import Outcome
name = sys.argv[2]
sys.stdin.readline()
store = open_store(sys.argv[1])
for number in range(20):
    store.audit.write_ahead([decision(decision_id=f"{name} {number}", decided_s=float(number))])
    store.audit.finish(f"{name} {number}", Outcome.DONE, "", at_s=1.0)
"""


def opened(number: int = 1, *, job: JobKey = JOB, at_s: float = NOW_S, **changes: object) -> IncidentChange:
    whole = incident(number=number, job=job, opened_unix_s=at_s, updated_unix_s=at_s)
    return IncidentChange(ChangeKind.OPENED, at_s, replace(whole, **changes))  # type: ignore[arg-type] # SAFETY: tests name real fields


def act(request_id: str, **changes: Any) -> PersonAct:
    asked = PersonAct(request_id, 1, ActKind.ACKNOWLEDGE, "ada", False, NOW_S, outcome=ActOutcome.DONE)
    return asked._replace(**changes)


def closed(before: IncidentChange, at_s: float) -> IncidentChange:
    over = replace(before.incident, state=IncidentState.CLOSED, closed_unix_s=at_s, closure=Closure.RECOVERED)
    return IncidentChange(ChangeKind.CLOSED, at_s, over)


def told(kind: ChangeKind, before: IncidentChange, after_s: float, **changes: object) -> IncidentChange:
    at_s = before.at_unix_s + after_s
    whole = replace(before.incident, updated_unix_s=at_s, **changes)  # type: ignore[arg-type] # SAFETY: as above
    return IncidentChange(kind, at_s, whole)


def all_texts(store: Store) -> str:
    """Every row of every table, with compressed values unpacked."""
    with store.database.reading() as connection:
        rows = [tuple(row) for table in metadata.sorted_tables for row in connection.execute(select(table))]
    return repr([
        [zlib.decompress(part) if isinstance(part, bytes) else part for part in row] for row in rows
    ])  # fmt: skip


def wide() -> IncidentChange:
    """An incident of 64 ranks."""
    return opened(findings=tuple(finding(rank) for rank in range(64)))


@contextmanager
def child(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """Another process with the tests' modules, its input and its output; ended with the block."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environ,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()


class StoreContract:
    """Inherit, and add a fixture ``url``."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = open_store(url)
        yield store
        store.close()

    # incidents

    def test_an_empty_database_has_no_incident_and_begins_with_number_one(self, store: Store) -> None:
        assert store.incidents.open_incidents() == []
        assert store.incidents.incident(1) is None
        assert store.incidents.next_number() == 1
        assert store.newest_s() is None
        assert set(store.incidents.totals().values()) == {0}

    def test_an_incident_comes_back_as_it_was_saved(self, store: Store) -> None:
        change = opened(seconds_to_oom=Band(1.0, 1e300, float("inf")), explanation="größer \u2013 'quoted' \"\n")
        store.incidents.save([change])
        assert store.incidents.open_incidents() == [change.incident]
        assert store.incidents.incident(1) == change.incident
        assert list(store.incidents.lines(1)) == [change]

    def test_store_opened_later_has_what_was_saved(self, store: Store, url: str) -> None:
        store.incidents.save([opened()])
        store.audit.write_ahead([decision()])
        again = open_store(url)
        assert again.incidents.open_incidents() == [opened().incident]
        assert [record.decision for record in again.audit.unfinished()] == [decision()]
        again.close()

    def test_an_incident_shows_its_last_change_and_its_history_all_of_them(self, store: Store) -> None:
        first = opened(severity=Severity.WARNING)
        second = told(ChangeKind.ESCALATED, first, 10.0, severity=Severity.CRITICAL)
        third = closed(second, NOW_S + 20.0)
        store.incidents.save([first])
        store.incidents.save([second, third])
        assert store.incidents.incident(1) == third.incident
        assert store.incidents.open_incidents() == []
        assert list(store.incidents.lines(1)) == [first, second, third]

    def test_saving_again_changes_nothing_and_turns_nothing_back(self, store: Store) -> None:
        first = opened()
        second = told(ChangeKind.SPREAD, first, 10.0, findings=(finding(0), finding(1)))
        store.incidents.save([first, second])
        store.incidents.save([first])
        store.incidents.save([first, second])
        assert store.incidents.incident(1) == second.incident
        assert list(store.incidents.lines(1)) == [first, second]
        assert store.incidents.totals()[IncidentCause.LEAK] == 1

    def test_changes_at_the_same_moment_are_all_kept(self, store: Store) -> None:
        first = opened()
        same_time = [told(ChangeKind.REOPENED, first, 0.0, flaps=flaps) for flaps in (1, 2)]
        store.incidents.save([first, *same_time])
        assert list(store.incidents.lines(1)) == [first, *same_time]

    def test_two_incidents_of_one_job_and_cause_are_never_open_at_once(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        with pytest.raises(StoreError, match="another coordinator"):
            store.incidents.save([opened(2)])
        store.incidents.save([closed(opened(1), NOW_S + 1.0), opened(2)])
        assert [one.number for one in store.incidents.open_incidents()] == [2]

    def test_changes_are_saved_together_or_not_at_all(self, store: Store) -> None:
        with pytest.raises(StoreError):
            store.incidents.save([opened(1), opened(2)])
        assert store.incidents.incidents() == []
        assert store.incidents.changes(since_s=0.0) == []
        assert store.incidents.next_number() == 1
        assert store.incidents.totals()[IncidentCause.LEAK] == 0

    def test_incidents_are_listed_newest_first_and_can_be_narrowed(self, store: Store) -> None:
        jobs = [JobKey(str(number), 0, 1001) for number in range(4)]
        changes = [opened(number, job=jobs[number], at_s=NOW_S + number) for number in (1, 2, 3)]
        store.incidents.save([*changes, closed(changes[0], NOW_S + 50.0)])

        def numbers(found: object) -> list[int]:
            assert isinstance(found, list)
            return [one.number for one in found]

        assert numbers(store.incidents.incidents()) == [3, 2, 1]
        assert numbers(store.incidents.incidents(open_only=True)) == [3, 2]
        assert numbers(store.incidents.incidents(since_s=NOW_S + 50.0)) == [3, 2, 1]
        assert numbers(store.incidents.incidents(since_s=NOW_S + 51.0)) == [3, 2]
        assert numbers(store.incidents.incidents(limit=1)) == [3]
        assert numbers(store.incidents.open_incidents()) == [2, 3]

    def test_mark_changes_with_everything_that_happens_and_with_nothing_else(self, store: Store) -> None:
        first, made = opened(), decision()

        def mark() -> str:
            marks = store.incidents.marks(since_s=NOW_S, limit=10)
            assert marks == store.incidents.marks(since_s=NOW_S, limit=10)
            return marks[1]

        seen = []
        store.incidents.save([first])
        seen.append(mark())
        store.audit.write_ahead([made])
        seen.append(mark())
        store.audit.begin(made.decision_id, at_s=NOW_S)
        seen.append(mark())
        store.audit.begin(made.decision_id, at_s=NOW_S)
        seen.append(mark())
        store.audit.finish(made.decision_id, Outcome.DONE, "", at_s=NOW_S)
        seen.append(mark())
        store.acts.begin(act("a", outcome=ActOutcome.BEGUN))
        store.acts.finish("a", ActOutcome.DONE, None)
        seen.append(mark())
        store.acts.begin(act("b"))
        seen.append(mark())
        store.incidents.save([closed(first, NOW_S + 1.0)])
        seen.append(mark())
        assert len(set(seen)) == len(seen)

    def test_marks_are_of_what_is_open_or_was_closed_lately(self, store: Store) -> None:
        for number, end_s in ((1, 10.0), (2, 20.0), (3, None)):
            first = opened(number)
            store.incidents.save([first] if end_s is None else [first, closed(first, NOW_S + end_s)])
        assert list(store.incidents.marks(since_s=NOW_S + 15.0, limit=10)) == [3, 2]
        assert list(store.incidents.marks(since_s=0.0, limit=1)) == [3]

    def test_open_incidents_come_first_among_marks_however_many_were_closed_since(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        for number in (2, 3):
            first = opened(number, job=JobKey(str(number), 0, 7))
            store.incidents.save([first, closed(first, NOW_S + 10.0)])
        assert list(store.incidents.marks(since_s=0.0, limit=2)) == [1, 3]

    def test_figures_of_what_is_open_name_the_jobs_that_are_asked_for(self, store: Store) -> None:
        odd = JobKey("x" * 1023 + "\0\udc80", 1, 7)
        store.incidents.save([opened(1, job=odd), opened(2), opened(3, job=JobKey("x" * 1024, 1, 7))])
        store.incidents.save([closed(opened(3, job=JobKey("x" * 1024, 1, 7)), NOW_S + 10.0)])
        figures = store.incidents.open_figures([odd, JobKey("x" * 1024, 1, 7)])
        assert [(job, one.number) for job, one in figures] == [(odd, 1), (None, 2)]
        first = opened(1, job=odd).incident
        assert figures[0][1] == OpenIncident(1, first.key.cause, first.severity, first.opened_unix_s)

    def test_two_groups_of_a_job_have_an_open_incident_of_one_cause_each(self, store: Store) -> None:
        first, second = JOB, JOB._replace(group="step 1")
        store.incidents.save([opened(1), opened(2, job=second)])
        assert [one.key.job for one in store.incidents.open_incidents()] == [first, second]
        figures = store.incidents.open_figures([first, second])
        assert [(job, one.number) for job, one in figures] == [(first, 1), (second, 2)]
        for number in (1, 2):
            store.audit.write_ahead([decision(decision_id=str(number), incident=incident(number=number))])
            store.audit.finish(str(number), Outcome.DONE, "", at_s=NOW_S + number)
        assert store.audit.last_finished([second], since_s=NOW_S) == {(second, "notify", "done"): NOW_S + 2.0}

    def test_a_line_of_the_history_holds_the_worst_ranks_and_the_incident_all(self, store: Store) -> None:
        first = wide()
        after = [told(kind, first, float(at), flaps=at) for at, kind in enumerate(ChangeKind, start=1)]
        store.incidents.save([first, *after])
        assert store.incidents.incident(1) == after[-1].incident
        shortened = [change._replace(incident=change.incident.shortened(MAX_FINDINGS)) for change in (first, *after)]
        assert list(store.incidents.lines(1)) == shortened
        assert {change.incident.ranks_left_out for change in shortened} == {64 - MAX_FINDINGS}
        with store.database.reading() as connection:
            stored = [INCIDENT.read(text) for text in connection.scalars(select(incident_changes.c.value))]
        assert {len(incident.findings) for incident in stored} == {MAX_FINDINGS}
        store.incidents.save([first, *after])
        assert list(store.incidents.lines(1)) == shortened

    def test_whole_lines_of_an_older_version_are_shortened_when_they_are_read(self, store: Store) -> None:
        first = wide()
        store.incidents.save([first])
        with store.database.writing() as connection:
            connection.execute(update(incident_changes).values(value=INCIDENT.write(first.incident)))
        for read in (list(store.incidents.lines(1)), store.incidents.changes(since_s=0.0)):
            (line,) = read
            assert line == first._replace(incident=first.incident.shortened(MAX_FINDINGS))

    def test_of_a_long_history_the_newest_lines_are_read_and_few_that_only_tell_new_figures(self, store: Store) -> None:
        first = opened()
        kinds = [ChangeKind.UPDATED, ChangeKind.RECOVERING, ChangeKind.UPDATED, ChangeKind.REOPENED] * 5
        lines = [first, *(told(kind, first, float(at)) for at, kind in enumerate(kinds, start=1))]
        store.incidents.save([*lines, opened(2, job=JobKey("2", 0, 1))])
        assert list(store.incidents.lines(1)) == lines
        others = [one for one in lines[:-4] if one.kind is not ChangeKind.UPDATED]
        for most, most_figures, chosen in (
            (99, 99, lines),
            (99, 2, [*others, *lines[-4:]]),
            (3, 1, [lines[-5], *lines[-3:]]),
            (0, 0, []),
        ):
            assert list(store.incidents.lines(1, most=most, most_figures=most_figures)) == chosen
            left_out = store.incidents.count_left_out(1, most=most, most_figures=most_figures)
            assert left_out == len(lines) - len(chosen)
        assert list(store.incidents.lines(9)) == []
        assert store.incidents.count_left_out(9, most=9, most_figures=9) == 0

    @pytest.mark.slow
    def test_changes_share_out_the_ranks_whose_figures_are_told(self, store: Store) -> None:
        many = [told(ChangeKind.UPDATED, wide(), float(at)) for at in range(250)]
        store.incidents.save(many)
        for most, each in ((None, MAX_FINDINGS), (64 * 250, MAX_FINDINGS), (7 * 250 + 249, 7), (1, 1)):
            changes = store.incidents.changes(since_s=0.0, most_findings=most)
            assert [change.at_unix_s for change in changes] == [change.at_unix_s for change in many]
            assert {len(change.incident.findings) for change in changes} == {each}
        (newest,) = store.incidents.changes(since_s=0.0, limit=1, most_findings=9)
        assert (newest.at_unix_s, len(newest.incident.findings)) == (many[-1].at_unix_s, 9)

    def test_changes_can_be_asked_for_from_a_moment_on(self, store: Store) -> None:
        first = opened()
        later = told(ChangeKind.UPDATED, first, 100.0)
        store.incidents.save([first, later])
        assert store.incidents.changes(since_s=NOW_S) == [first, later]
        assert store.incidents.changes(since_s=NOW_S + 1.0) == [later]
        assert store.incidents.changes(since_s=NOW_S, limit=1) == [later]

    def test_whatever_a_job_calls_itself_it_is_stored_and_is_not_mistaken_for_another(self, store: Store) -> None:
        names = [
            "a\0b", "a\\0b", "a\N{REPLACEMENT CHARACTER}b", "a\udc80b", "a\\udc80b", "; DROP TABLE incidents --", "",
            "x" * 1024, "x" * 1023 + "y",
            *("".join(chr(0x1F300 + index * step % 500) for index in range(1024)) for step in (7, 11)),
        ]  # fmt: skip
        changes = [opened(number, job=JobKey(name, 0, 1001)) for number, name in enumerate(names, start=1)]
        store.incidents.save(changes)
        assert store.incidents.open_incidents() == [change.incident for change in changes]

    def test_large_figures_fit(self, store: Store) -> None:
        change = opened(job=JobKey("4711", 2**31, 2**32 - 1), grown_bytes=2**60)
        store.incidents.save([change])
        assert store.incidents.incident(1) == change.incident

    # audit

    def test_store_audit_implements_the_hooks_port(self, store: Store) -> None:
        audit: Audit = store.audit
        assert list(audit.each(since_s=0.0)) == []

    def test_a_decision_is_written_down_once(self, store: Store) -> None:
        first, second = decision(decision_id="1"), decision(decision_id="2")
        assert store.audit.write_ahead([first]) == [first]
        assert store.audit.write_ahead([first, second]) == [second]
        assert store.audit.write_ahead([replace(first, reason="another")]) == []
        assert [record.decision for record in store.audit.each(since_s=0.0)] == [first, second]

    def test_a_decision_comes_back_with_all_its_evidence(self, store: Store) -> None:
        made = decision(ActionKind.REQUEUE, parameters={"alloc_conf": {"expandable_segments": "True"}, "n": [1, None]})
        store.audit.write_ahead([made])
        (record,) = store.audit.unfinished()
        assert record.decision == made
        assert (record.status, record.outcome, record.starts) == (DecisionStatus.DECIDED, None, 0)

    def test_audit_records_start_and_finish_of_a_decision(self, store: Store) -> None:
        store.audit.write_ahead([decision(decision_id="1")])
        store.audit.begin("1", at_s=NOW_S + 1.0)
        store.audit.begin("1", at_s=NOW_S + 2.0)
        (record,) = store.audit.unfinished()
        assert (record.status, record.starts, record.started_s) == (DecisionStatus.STARTED, 2, NOW_S + 2.0)
        store.audit.finish("1", Outcome.FAILED, "said \\no\0", at_s=NOW_S + 3.0)
        assert store.audit.unfinished() == []
        (record,) = store.audit.records_of(1)
        assert (record.status, record.outcome, record.finished_s) == (
            DecisionStatus.FINISHED, Outcome.FAILED, NOW_S + 3.0,
        )  # fmt: skip
        assert record.detail == "said \\no\N{REPLACEMENT CHARACTER}"

    def test_the_first_outcome_stays(self, store: Store) -> None:
        store.audit.write_ahead([decision(decision_id="1")])
        store.audit.finish("1", Outcome.DONE, "first", at_s=1.0)
        store.audit.finish("1", Outcome.FAILED, "second", at_s=2.0)
        store.audit.begin("1", at_s=3.0)
        (record,) = store.audit.each(since_s=0.0)
        assert (record.outcome, record.detail, record.status) == (Outcome.DONE, "first", DecisionStatus.FINISHED)
        assert store.audit.action_totals() == {("notify", "done"): 1}

    def test_audit_counts_decisions_not_carried_out_and_never_lists_them_unfinished(self, store: Store) -> None:
        would = decision(ActionKind.CANCEL, decision_id="1", disposition=Disposition.WOULD)
        withheld = decision(ActionKind.CANCEL, decision_id="2", disposition=Disposition.WITHHELD)
        store.audit.write_ahead([would, withheld])
        store.audit.write_ahead([would])
        assert store.audit.unfinished() == []
        assert store.audit.action_totals() == {("cancel", "would"): 1, ("cancel", "withheld"): 1}
        assert {record.status for record in store.audit.each(since_s=0.0)} == {DecisionStatus.FINISHED}

    def test_decisions_come_oldest_first_and_from_a_moment_on(self, store: Store) -> None:
        for name, decided_s in (("late", NOW_S + 5.0), ("early", NOW_S), ("same", NOW_S)):
            store.audit.write_ahead([decision(decision_id=name, decided_s=decided_s)])
        assert [one.decision.decision_id for one in store.audit.unfinished()] == ["early", "same", "late"]
        assert [one.decision.decision_id for one in store.audit.each(since_s=NOW_S + 1.0)] == ["late"]
        newest = list(store.audit.each(since_s=NOW_S, limit=2))
        assert [one.decision.decision_id for one in newest] == ["same", "late"]
        assert (store.audit.count(since_s=NOW_S), store.audit.count(since_s=NOW_S + 1.0)) == (3, 1)

    def test_a_policy_begins_with_what_is_new_and_with_what_still_counts_of_the_old(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        old: dict[str, Any] = {"decided_s": NOW_S - 9.0, "incident": incident(number=7)}
        would, withheld = ({**old, "disposition": one} for one in (Disposition.WOULD, Disposition.WITHHELD))
        store.audit.write_ahead(
            [
                decision(decision_id="new", incident=incident(number=7), disposition=Disposition.WOULD),
                decision(decision_id="of one that is open", decided_s=NOW_S - 9.0),
                decision(decision_id="not finished", **old),
                decision(decision_id="over", **would),
                decision(decision_id="1:would:0:1:withheld:breaker:never-reset", **withheld),
                decision(decision_id="1:leak:0:1:withheld:user_breaker:7.0", **withheld),
                decision(decision_id="1:leak:0:1:would:withheld:user_breaker:7.0", **withheld),
                decision(decision_id="1:leak:0:1:withheld:user-breaker:7.0", **withheld),
            ]
        )
        assert {one.decision.decision_id for one in store.audit.memory(since_s=NOW_S)} == {
            "new", "of one that is open", "not finished", "1:would:0:1:withheld:breaker:never-reset",
            "1:leak:0:1:withheld:user_breaker:7.0",
        }  # fmt: skip

    def test_decisions_can_be_asked_for_by_incident(self, store: Store) -> None:
        store.audit.write_ahead(
            [decision(decision_id=str(number), incident=incident(number=number)) for number in (1, 2)]
        )
        assert [one.decision.decision_id for one in store.audit.records_of(2)] == ["2"]

    def test_when_a_job_was_last_acted_upon_is_told_by_action_and_outcome(self, store: Store) -> None:
        odd = JobKey("a\0\\" + "x" * 300, 1, 1002)
        other = JobKey(JOB.job_id, JOB.attempt, 7)
        store.incidents.save([opened(1), opened(2, job=odd), opened(3, job=other)])
        for name, number, outcome, over_s in (
            ("first", 1, Outcome.DONE, 1.0),
            ("again", 1, Outcome.DONE, 3.0),
            ("late", 1, Outcome.FAILED, 2.0),
            ("odd", 2, Outcome.DONE, 4.0),
            ("somebody else's", 3, Outcome.DONE, 5.0),
            ("of no incident that is known", 9, Outcome.DONE, 6.0),
        ):
            store.audit.write_ahead([decision(decision_id=name, incident=incident(number=number))])
            store.audit.finish(name, outcome, "", at_s=NOW_S + over_s)
        would = decision(ActionKind.CANCEL, decision_id="would", disposition=Disposition.WOULD)
        store.audit.write_ahead([would, decision(ActionKind.CAP, decision_id="not over")])
        assert store.audit.last_finished([JOB, odd], since_s=NOW_S) == {
            (JOB, "notify", "done"): NOW_S + 3.0,
            (JOB, "notify", "failed"): NOW_S + 2.0,
            (odd, "notify", "done"): NOW_S + 4.0,
        }
        assert store.audit.last_finished([JOB], since_s=NOW_S + 0.5) == {}

    def test_a_decision_that_was_never_written_down_cannot_be_carried_out(self, store: Store) -> None:
        with pytest.raises(StoreError, match="decision 77 is not in the database"):
            store.audit.begin("77", at_s=1.0)
        with pytest.raises(StoreError, match="decision 77 is not in the database"):
            store.audit.finish("77", Outcome.DONE, "", at_s=1.0)

    def test_the_newest_time_is_that_of_any_row(self, store: Store) -> None:
        store.incidents.save([opened()])
        assert store.newest_s() == NOW_S
        store.audit.write_ahead([decision(decision_id="1", decided_s=NOW_S + 1.0)])
        assert store.newest_s() == NOW_S + 1.0
        store.audit.begin("1", at_s=NOW_S + 2.0)
        assert store.newest_s() == NOW_S + 2.0
        store.audit.finish("1", Outcome.DONE, "", at_s=NOW_S + 3.0)
        assert store.newest_s() == NOW_S + 3.0

    # evidence

    def test_evidence_comes_back_as_it_was_kept_and_once(self, store: Store) -> None:
        odd = evidence(2, evidence_id="it's \0 odd", cause=NAMED._replace(advice="größer \u2013\ud800"))
        assert list(store.evidence.keep([evidence(), odd], at_s=NOW_S)) == [evidence(), odd]
        assert list(store.evidence.keep([evidence(hostname="another")], at_s=NOW_S + 1.0)) == []
        assert store.evidence.of_job(JOB, limit=9) == [odd, evidence()]
        assert store.evidence.of_job(JOB, limit=1) == [odd]
        assert [one.kept_s for one in store.evidence.recent(since_s=NOW_S, limit=9)] == [NOW_S, NOW_S]
        assert list(store.evidence.recent(since_s=NOW_S + 0.5, limit=9)) == []

    def test_of_evidence_the_newest_is_read_the_oldest_first_and_one_at_a_time(self, store: Store) -> None:
        pieces = [evidence(evidence_id=f"{number}") for number in range(30)]
        store.incidents.save([opened(1)])
        for at_s, piece in enumerate(pieces):
            store.evidence.keep([piece], at_s=NOW_S + at_s)
        for read in (store.evidence.recent(since_s=0.0, limit=20), store.evidence.of_open_incidents(limit=20)):
            assert iter(read) is read, "not all at once"
            assert [one.evidence for one in read] == pieces[10:]

    def test_whole_evidence_takes_the_place_of_what_was_known_before(self, store: Store) -> None:
        first, second = (evidence(evidence_id=one, searching=True) for one in ids_so_far(evidence().evidence_id))
        another = evidence(job=JobKey(JOB.job_id, JOB.attempt, 7), evidence_id=first.evidence_id, searching=True)
        assert list(store.evidence.keep([first, another], at_s=NOW_S)) == [first, another]
        assert list(store.evidence.keep([second, evidence()], at_s=NOW_S + 1.0)) == [second, evidence()]
        assert store.evidence.of_job(JOB, limit=9) == [evidence()]
        assert store.evidence.of_job(another.job, limit=9) == [another]

    def test_jobs_may_call_their_evidence_alike_and_anything(self, store: Store) -> None:
        other = JobKey(JOB.job_id, JOB.attempt, 7)
        long = evidence(evidence_id="x" * 10_000, job=JobKey("a\0\\" + "x" * 300, 1, 7))
        store.evidence.keep([evidence(), evidence(job=other), long], at_s=NOW_S)
        assert store.evidence.of_job(other, limit=9) == [evidence(job=other)]
        assert store.evidence.of_job(long.job, limit=9) == [long]

    def test_evidence_that_no_database_takes_costs_the_rest_nothing(self, store: Store) -> None:
        stack = tuple(CodeLine("f" * 100, number, "g" * 100) for number in range(40))
        fat = tuple(StackGrowth(1, 1, stack, None) for _ in range(60))
        heavy = evidence(2, evidence_id="heavy", live=fat, growth=fat[:20])
        beyond = evidence(3, evidence_id="beyond", live=(), growth=fat)
        strange = evidence(1 << 70, evidence_id="strange")
        kept = store.evidence.keep([heavy, beyond, strange, evidence()], at_s=NOW_S)
        assert {piece.evidence_id for piece in kept} == {"heavy", "auto-1"}
        (first,) = [one for one in store.evidence.of_job(JOB, limit=9) if one.rank == 2]
        assert (first.live, first.growth) == ((), heavy.growth)

    def test_evidence_store_bounds_pieces_per_job_tenant_and_in_all(self, store: Store) -> None:
        small = EvidenceStore(store.database, Room(of_job=3, of_tenant=5, in_all=7))

        def keep(uid: int, job_id: str, count: int) -> JobKey:
            job = JobKey(job_id, 0, uid)
            for number in range(count):
                small.keep([evidence(evidence_id=f"{number}", job=job)], at_s=NOW_S)
            return job

        one = keep(1, "one", 4)
        assert [piece.evidence_id for piece in store.evidence.of_job(one, limit=9)] == ["3", "2", "1"]
        two = keep(1, "two", 3)
        assert [len(store.evidence.of_job(job, limit=9)) for job in (one, two)] == [2, 3]
        three = keep(2, "three", 3)
        assert [len(store.evidence.of_job(job, limit=9)) for job in (one, two, three)] == [1, 3, 3]
        assert len(list(store.evidence.recent(since_s=0.0, limit=99))) == 7

    def test_evidence_of_one_namespace_never_pushes_out_anothers(self, store: Store) -> None:
        """On Kubernetes, where containers of different people run as uid 0."""
        small = EvidenceStore(store.database, Room(of_job=3, of_tenant=5, in_all=9))
        theirs = JobKey("team-a/llm", 0, 0)
        small.keep([evidence(job=theirs)], at_s=NOW_S)
        for number in range(20):
            jobs = [JobKey(f"team-evil/job-{number}", 0, 0), JobKey(f"local-job-{number}", 0, 0)]
            small.keep([evidence(job=job) for job in jobs], at_s=NOW_S)
        assert store.evidence.of_job(theirs, limit=9) == [evidence(job=theirs)]
        left = [one.evidence.job.job_id for one in store.evidence.recent(since_s=0.0, limit=99)]
        assert len(left) == 9
        assert {name.split("-")[0] for name in left} == {"team", "local"}

    def test_evidence_goes_with_time_but_not_before_the_incidents_of_its_job(self, store: Store) -> None:
        other = JobKey("2", 0, 1)
        store.incidents.save([opened(1), opened(2, job=other), closed(opened(2, job=other), NOW_S + 1.0)])
        store.evidence.keep([evidence(), evidence(job=other)], at_s=NOW_S)
        assert store.evidence.open_among([JOB, other]) == {JOB}
        assert [one.evidence for one in store.evidence.of_open_incidents(limit=9)] == [evidence()]
        store.prune(before_s=NOW_S)
        assert store.evidence.of_job(other, limit=9)
        store.prune(before_s=NOW_S + 0.5)
        assert store.evidence.of_job(other, limit=9), "its incident closed later, and its report shows the evidence"
        store.prune(before_s=NOW_S + 1.5)
        assert (len(store.evidence.of_job(JOB, limit=9)), len(store.evidence.of_job(other, limit=9))) == (1, 0)

    def test_of_each_rank_the_latest_profile_is_kept(self, store: Store) -> None:
        group = JOB._replace(group="eval")
        store.profiles.keep([rank_profile(1), rank_profile(0), rank_profile(1, job=group)], at_s=NOW_S)
        later = rank_profile(1, profile_id="profile-9", at_unix_s=NOW_S + 60.0)
        store.profiles.keep([later], at_s=NOW_S + 60.0)
        store.profiles.keep([rank_profile(1)], at_s=NOW_S + 61.0)
        assert store.profiles.of_job(JOB, limit=9) == [rank_profile(0), later]
        assert store.profiles.of_job(JOB, limit=1) == [rank_profile(0)]
        assert store.profiles.of_job(group, limit=9) == [rank_profile(1, job=group)]
        assert [list(store.profiles.ranks_of(job, limit=most)) for job, most in ((JOB, 9), (JOB, 1), (group, 9))] == [
            [0, 1], [0], [1],
        ]  # fmt: skip
        assert store.profiles.of_rank(JOB, 1) == later
        assert store.profiles.of_rank(JOB, 7) is None
        assert store.profiles.of_rank(JOB._replace(uid=7), 1) is None

    def test_the_jobs_with_profiles_come_newest_first(self, store: Store) -> None:
        other = JobKey("other", 1, 7)
        for job in (JOB, other):
            store.profiles.keep([rank_profile(rank, job=job) for rank in range(3)], at_s=NOW_S)
        store.profiles.keep([rank_profile(1, at_unix_s=NOW_S + 1.0)], at_s=NOW_S)
        assert store.profiles.newest(limit=9) == [(JOB, NOW_S), (other, NOW_S)]
        assert store.profiles.newest(limit=1) == [(JOB, NOW_S)]

    def test_the_jobs_with_profiles_are_told_without_reading_these(self, store: Store) -> None:
        """They are up to 450,000 characters each; but a name that a column escapes or cuts is in the profile alone."""
        odd = [JOB._replace(job_id=name) for name in ("back\\slash", "nul\0", "half \udc80", "long" * 100)]
        odd.append(JOB._replace(group="eval\\"))
        store.profiles.keep([rank_profile(0, job=job) for job in odd], at_s=NOW_S)
        assert [job for job, _ in store.profiles.newest(limit=9)] == odd[::-1]
        store.profiles.keep([rank_profile(0)], at_s=NOW_S)
        with store.database.writing() as connection:
            connection.execute(text("UPDATE profiles SET value = '{}' WHERE job_id = :job"), {"job": JOB.job_id})
        assert store.profiles.newest(limit=1) == [(JOB, NOW_S)]

    def test_profile_store_bounds_profiles_per_job_tenant_and_in_all(self, store: Store) -> None:
        small = ProfileStore(store.database, Room(of_job=3, of_tenant=5, in_all=7))

        def keep(uid: int, job_id: str, count: int) -> JobKey:
            job = JobKey(job_id, 0, uid)
            for rank in range(count):
                small.keep([rank_profile(rank, job=job)], at_s=NOW_S)
            return job

        one, two = keep(1, "one", 4), keep(1, "two", 3)
        assert [one.rank for one in small.of_job(two, limit=9)] == [0, 1, 2]
        assert [profile.rank for profile in small.of_job(one, limit=9)] == [2, 3]
        three = keep(2, "three", 3)
        assert [len(small.of_job(job, limit=9)) for job in (one, two, three)] == [1, 3, 3]

    def test_a_profile_that_no_database_takes_is_left_out(self, store: Store) -> None:
        strange, heavy = rank_profile(1 << 70), rank_profile(2, packed="x" * MAX_PROFILE_CHARS)
        store.profiles.keep([strange, heavy, rank_profile(1)], at_s=NOW_S)
        assert store.profiles.of_job(JOB, limit=9) == [rank_profile(1)]

    def test_profiles_go_with_time(self, store: Store) -> None:
        store.profiles.keep([rank_profile(0)], at_s=NOW_S)
        store.profiles.keep([rank_profile(1)], at_s=NOW_S + 1.0)
        store.profiles.prune(before_s=NOW_S + 0.5)
        assert [one.rank for one in store.profiles.of_job(JOB, limit=9)] == [1]

    def test_a_profile_stays_as_long_as_the_record_of_its_job(self, store: Store) -> None:
        store.jobs.save([job_record(ended_unix_s=NOW_S + 9.0)])
        store.profiles.keep([rank_profile(0)], at_s=NOW_S)
        for before_s, ranks in ((NOW_S + 8.0, [0]), (NOW_S + 10.0, [])):
            store.jobs.prune(before_s=before_s)
            store.profiles.prune(before_s=before_s)
            assert [one.rank for one in store.profiles.of_job(JOB, limit=9)] == ranks

    def test_a_mark_changes_when_evidence_is_told_of_an_incident(self, store: Store) -> None:
        first = opened(1)
        store.incidents.save([first])
        before = store.incidents.marks(since_s=0.0, limit=9)
        # Nothing else of the incident has moved, not even the time of its figures.
        store.incidents.save([IncidentChange(ChangeKind.EVIDENCE, NOW_S + 5.0, first.incident)])
        assert store.incidents.marks(since_s=0.0, limit=9) != before

    # of one owner

    def test_reads_can_be_of_one_owners_jobs_alone(self, store: Store) -> None:
        names = {1: "ada", 2: "bob\0", 3: "ada"}
        for number, name in names.items():
            told = incident(number=number, job=JobKey(str(number), 0, 1), user_name=name)
            store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, told)])
            store.audit.write_ahead([decision(decision_id=f"of {number}", incident=told)])
        for name, numbers in (("ada", [3, 1]), ("bob\0", [2]), ("bob", []), ("", []), ("x" * 5000, [])):
            assert [one.number for one in store.incidents.incidents(user_name=name)] == numbers
            changes = store.incidents.changes(since_s=0.0, user_name=name)
            assert [change.incident.number for change in changes] == numbers[::-1]
            assert list(store.incidents.marks(since_s=0.0, limit=9, user_name=name)) == numbers
            records = list(store.audit.each(since_s=0.0, user_name=name))
            assert [record.decision.incident.number for record in records] == numbers[::-1]
            assert store.audit.count(since_s=0.0, user_name=name) == len(numbers)

    def test_a_limit_counts_what_is_told_and_not_what_is_left_out(self, store: Store) -> None:
        for number in range(1, 9):
            told = incident(number=number, job=JobKey(str(number), 0, 1), user_name="ada" if number < 3 else "bob")
            store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, told)])
        assert [one.number for one in store.incidents.incidents(limit=2, user_name="ada")] == [2, 1]
        assert list(store.incidents.marks(since_s=0.0, limit=2, user_name="ada")) == [2, 1]
        assert len(store.incidents.changes(since_s=0.0, limit=2, user_name="ada")) == 2

    def test_a_decision_without_an_incident_is_nobodys(self, store: Store) -> None:
        store.audit.write_ahead([decision(decision_id="1", incident=incident(number=9))])
        assert list(store.audit.each(since_s=0.0, user_name="ada")) == []
        assert len(list(store.audit.each(since_s=0.0))) == 1

    def test_a_job_is_somebodys_if_all_its_incidents_say_so(self, store: Store) -> None:
        first = incident(number=1, user_name="ada")
        store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, first)])
        assert [store.incidents.has_owner(JOB, name) for name in ("ada", "bob", "")] == [True, False, False]
        assert not store.incidents.has_owner(JobKey("other", 0, 1), "ada")
        other = incident(IncidentCause.FRAGMENTATION, number=2, user_name="bob")
        store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, other)])
        assert [store.incidents.has_owner(JOB, name) for name in ("ada", "bob")] == [False, False]

    def test_a_scope_is_what_an_owner_has_by_name_and_some_namespaces_whole(self, store: Store) -> None:
        owners = {"team-a/x": "team-a", "team-b/x": "ada", "team-b/y": "team-b", "team-ab/x": "team-ab", "4711": "ada"}
        jobs = {job_id: JobKey(job_id, 0, 1) for job_id in owners}
        for number, (job_id, owner) in enumerate(owners.items(), 1):
            opened = incident(job=jobs[job_id], number=number, user_name=owner)
            store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, opened)])
            store.jobs.save([job_record(job=jobs[job_id], user_name=owner)])
        for scope in (
            NamespaceScope("ada", frozenset({"team-a"})), NamespaceScope("ada", frozenset()),
            NamespaceScope("team-b", frozenset({"team-ab", "team"})), NamespaceScope("", frozenset({"team-b"})),
        ):  # fmt: skip
            seen = {job_id for job_id, owner in owners.items() if scope.covers(owner, job_id)}
            assert {one.key.job.job_id for one in store.incidents.incidents(user_name=scope)} == seen
            assert {key for key, job in jobs.items() if store.incidents.has_owner(job, scope)} == seen
            within = RecordFilter(since_s=0.0, within=scope)
            assert {one.job.job_id for one in store.jobs.ended(within, limit=9)} == seen
            assert store.jobs.count_ended(within) == len(seen)
            sought = (RecordSought(job_id, user_name=scope) for job_id in owners)
            assert {one.job.job_id for each in sought for one in store.jobs.starts(each, limit=9)} == seen
        assert store.incidents.namespaces() == store.jobs.namespaces() == {"team-a", "team-b", "team-ab"}

    # acts

    def test_an_act_is_written_down_once_however_often_it_is_asked_for(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        asked = act("a", outcome=ActOutcome.BEGUN, way=ActWay.SLACK, sender="T0/U1", until_unix_s=NOW_S + 60.0)
        assert store.acts.begin(asked) is None
        assert store.acts.begin(asked._replace(kind=ActKind.LEAK, by="bob", at_unix_s=NOW_S + 9.0)) == asked
        done = store.acts.finish("a", ActOutcome.DONE, "größer")
        assert done == asked._replace(outcome=ActOutcome.DONE, detail="größer")
        assert store.acts.begin(asked) == done
        assert store.acts.of_incident(1) == [done]
        assert store.newest_s() == NOW_S

    def test_an_act_that_was_never_begun_is_not_finished(self, store: Store) -> None:
        with pytest.raises(StoreError, match="not in the database"):
            store.acts.finish("a", ActOutcome.DONE, None)

    def test_act_store_bounds_acts_of_a_person_and_keeps_those_of_others(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        other = act("other", by="root")
        store.acts.begin(other)
        mine = [act(str(at)) for at in range(MAX_ACTS + 3)]
        for one in mine:
            store.acts.begin(one)
        assert store.acts.of_incident(1) == [other, *mine[3:]]

    def test_many_acts_of_a_person_end_no_exemption_and_bring_none_back(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        week = act("week", kind=ActKind.EXEMPT, by="ada", until_unix_s=NOW_S + 7 * 86400.0)
        store.acts.begin(week)
        for at in range(MAX_ACTS + 3):
            store.acts.begin(act(f"leak {at}", kind=ActKind.LEAK, by="ada"))
        assert list(store.acts.exemptions(now_s=NOW_S).values()) == [week], "it lasts as long as it was said"
        ended = act("ended", kind=ActKind.EXEMPT, by="root", until_unix_s=NOW_S)
        looks = act("looks", by="ada")
        not_any_more = act("not any more", kind=ActKind.UNACKNOWLEDGE, by="root")
        for one in (ended, looks, not_any_more):
            store.acts.begin(one)
        for at in range(MAX_ACTS + 3):
            store.acts.begin(act(f"root's {at}", kind=ActKind.LEAK, by="root"))
        assert store.acts.exemptions(now_s=NOW_S) == {}, "the one that was ended stays ended"
        assert acknowledgement(store.acts.of_incident(1)) is None

    def test_refused_acts_on_made_up_incidents_are_bounded_and_pruned(self, store: Store) -> None:
        stranger = act("", by=None, sender="T0/U9", outcome=ActOutcome.REFUSED)
        for at in range(MAX_REFUSED + 3):
            store.acts.begin(stranger._replace(request_id=str(at), number=1000 + at))
        store.acts.begin(stranger._replace(request_id="another", sender="T0/U8", number=1000))
        found = store.acts.latest(since_s=0.0, limit=1000)
        assert len(found) == MAX_REFUSED + 1
        assert found[-1].request_id == "another"
        store.prune(before_s=NOW_S + 1.0)
        assert store.acts.latest(since_s=0.0, limit=1000) == []

    def test_the_latest_exemption_of_an_attempt_counts_until_its_time(self, store: Store) -> None:
        other, again = JobKey("2", 0, 1), JOB._replace(attempt=JOB.attempt + 1)
        jobs = {1: JOB._replace(group="a"), 2: other, 3: again}
        store.incidents.save([opened(number, job=job) for number, job in jobs.items()])
        assert store.acts.exemptions(now_s=NOW_S) == {}
        first = act("a", kind=ActKind.EXEMPT, until_unix_s=NOW_S + 60.0)
        store.acts.begin(first)
        assert store.acts.exemptions(now_s=NOW_S) == {JOB.whole: first}
        assert store.acts.exemptions(now_s=NOW_S + 60.0) == {}
        longer = act("b", kind=ActKind.EXEMPT, by="root", until_unix_s=NOW_S + 90.0)
        refused = act("c", number=2, kind=ActKind.EXEMPT, outcome=ActOutcome.REFUSED, until_unix_s=NOW_S + 90.0)
        for one in (longer, refused):
            store.acts.begin(one)
        assert store.acts.exemptions(now_s=NOW_S + 60.0) == {JOB.whole: longer}
        store.acts.begin(act("d", kind=ActKind.EXEMPT, until_unix_s=NOW_S))
        assert store.acts.exemptions(now_s=NOW_S) == {}, "ended before its time"

    def test_an_exemption_is_told_by_every_incident_of_its_attempt(self, store: Store) -> None:
        again = JOB._replace(attempt=JOB.attempt + 1)
        jobs = {1: JOB._replace(group="a"), 2: JOB._replace(group="b"), 3: again}
        store.incidents.save([opened(number, job=job) for number, job in jobs.items()])
        before = store.incidents.marks(since_s=0.0, limit=9)
        given = act("a", kind=ActKind.EXEMPT, until_unix_s=NOW_S + 60.0)
        ended = act("b", number=2, kind=ActKind.EXEMPT, by="root", until_unix_s=NOW_S)
        for one in (given, act("c"), act("d", kind=ActKind.EXEMPT, outcome=ActOutcome.REFUSED)):
            store.acts.begin(one)
        assert store.acts.of_incident(2) == [given], "it holds there, too, and nothing else of the other incident"
        after = store.incidents.marks(since_s=0.0, limit=9)
        assert {number for number in jobs if after[number] != before[number]} == {1, 2}, "followers read both again"
        store.acts.begin(ended)
        assert exemption_in_force(store.acts.of_incident(1), now_unix_s=NOW_S) is None, "ended by way of the other"
        assert store.acts.of_incident(3) == []

    def test_acts_can_be_of_one_owners_jobs_alone_and_go_with_their_incident(self, store: Store) -> None:
        store.incidents.save([opened(1), (bobs := opened(2, job=JobKey("2", 0, 1), user_name="bob"))])
        for number in (1, 2):
            store.acts.begin(act(str(number), number=number))
        assert [one.number for one in store.acts.latest(since_s=NOW_S, limit=9, user_name="bob")] == [2]
        assert [one.number for one in store.acts.latest(since_s=NOW_S, limit=1)] == [2]
        store.incidents.save([closed(bobs, NOW_S + 1.0)])
        store.prune(before_s=NOW_S + 2.0)
        assert [one.number for one in store.acts.latest(since_s=0.0, limit=9)] == [1]

    # grades

    def test_answers_come_back_oldest_first_and_earlier_ones_stay_as_the_record(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        given = [
            GradeAnswer(Grade.LEAK, "ada", False, NOW_S),
            GradeAnswer(Grade.NOT_A_LEAK, "root", True, NOW_S + 1.0, "größer – 'quoted'"),
            GradeAnswer(Grade.NOT_A_LEAK, "ada", False, NOW_S + 2.0),
        ]
        assert [store.grades.add(1, answer) for answer in given] == [True] * 3
        assert store.grades.answers(1) == tuple(given)
        assert store.newest_s() == NOW_S + 2.0

    def test_the_same_answer_once_more_changes_nothing(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        answer = GradeAnswer(Grade.LEAK, "ada", False, NOW_S)
        for at_s in (NOW_S, NOW_S + 1.0):
            assert store.grades.add(1, answer._replace(at_unix_s=at_s))
        assert store.grades.answers(1) == (answer,)

    def test_grade_store_bounds_answers_of_a_user_and_keeps_those_of_others(self, store: Store) -> None:
        store.incidents.save([opened(1)])
        other = GradeAnswer(Grade.LEAK, "root", True, NOW_S)
        store.grades.add(1, other)
        given = [GradeAnswer(Grade.LEAK, "ada", False, NOW_S + at, str(at)) for at in range(MAX_ANSWERS + 5)]
        for answer in given:
            store.grades.add(1, answer)
        assert store.grades.answers(1) == (other, *given[5:])

    def test_the_last_answer_of_a_person_is_found_by_the_name_that_they_came_with(self, store: Store) -> None:
        store.incidents.save([opened(1), opened(2, job=JobKey("2", 0, 1))])
        name = "LAB\\ada"
        for at, (number, by) in enumerate([(1, name), (1, name), (1, "root"), (2, name)]):
            store.grades.add(number, GradeAnswer(Grade.LEAK, by, by == "root", NOW_S + at, str(at)))
        last = store.grades.last_of(1, name)
        assert last is not None
        assert (last.comment, last) == ("1", store.grades.answers(1)[1])
        assert store.grades.last_of(1, "grace") is None

    def test_an_answer_to_no_incident_is_not_kept(self, store: Store) -> None:
        assert not store.grades.add(7, GradeAnswer(Grade.LEAK, "ada", False, NOW_S))
        assert store.grades.answers(7) == ()

    def test_grade_store_lists_incidents_whose_owner_was_or_would_be_notified(self, store: Store) -> None:
        causes = {5: IncidentCause.OUT_OF_MEMORY}
        changes = {
            number: opened(
                number, job=JobKey(str(number), 0, 1), key=IncidentKey(JobKey(str(number), 0, 1), cause),
                at_s=NOW_S + number, worst_severity=Severity.CRITICAL, severity=Severity.WARNING,
            )
            for number in range(1, 8) for cause in [causes.get(number, IncidentCause.LEAK)]
        }  # fmt: skip
        store.incidents.save(list(changes.values()))

        def decide(number: int, outcome: Outcome | None, **how: Any) -> None:
            made = decision(decision_id=f"{number}", incident=changes[number].incident, **how)
            store.audit.write_ahead([made])
            if outcome is not None:
                store.audit.finish(made.decision_id, outcome, "", at_s=NOW_S)

        decide(1, Outcome.DONE)
        decide(2, None, disposition=Disposition.WOULD)
        decide(3, Outcome.FAILED)
        decide(4, None, disposition=Disposition.WITHHELD, brake="paused")
        decide(5, Outcome.DONE)
        decide(6, Outcome.DONE)
        made = decision(ActionKind.CAP, decision_id="7", incident=changes[7].incident)
        store.audit.write_ahead([made])
        store.audit.finish("7", Outcome.DONE, "", at_s=NOW_S)
        answer = GradeAnswer(Grade.NOT_A_LEAK, "ada", False, NOW_S + 9.0)
        store.grades.add(2, answer)
        found = store.grades.notified(since_s=0.0, limit=10)
        assert [(one.number, one.told, one.answers) for one in found] == [
            (6, True, ()), (2, False, (answer,)), (1, True, ()),
        ]  # fmt: skip
        assert {(one.severity, one.cause, one.user_name) for one in found} == {
            (Severity.CRITICAL, IncidentCause.LEAK, "ada")
        }
        assert [one.number for one in store.grades.notified(since_s=NOW_S + 2.0, limit=1)] == [6]
        assert store.grades.count_notified(since_s=NOW_S + 2.0) == 2
        assert store.grades.notified(since_s=0.0, limit=10, user_name="grace") == []
        assert store.grades.count_notified(since_s=0.0, user_name="ada") == 3

    def test_an_incident_is_graded_by_the_cause_that_it_had_last(self, store: Store) -> None:
        """Whatever was told of it before, and whatever its messages called it."""
        first = opened(1, key=IncidentKey(JOB, IncidentCause.FRAGMENTATION))
        evidence = told(ChangeKind.EVIDENCE, first, 1.0, key=IncidentKey(JOB, IncidentCause.CUDA_GRAPHS))
        store.incidents.save([first])
        store.audit.write_ahead([decision(decision_id="1", incident=first.incident)])
        store.audit.finish("1", Outcome.DONE, "", at_s=NOW_S)
        store.incidents.save([evidence, closed(evidence, NOW_S + 2.0)])
        store.incidents.save([first])
        (found,) = store.grades.notified(since_s=0.0, limit=10)
        assert (found.number, found.cause, found.told) == (1, IncidentCause.CUDA_GRAPHS, True)

    def test_answers_go_with_their_incident(self, store: Store) -> None:
        store.incidents.save([opened(1), closed(opened(1), NOW_S + 1.0)])
        store.grades.add(1, GradeAnswer(Grade.LEAK, "ada", False, NOW_S))
        store.prune(before_s=NOW_S + 2.0)
        assert store.grades.answers(1) == ()

    # retention

    def test_store_prune_deletes_old_closed_incidents_with_history_and_decisions(self, store: Store) -> None:
        old, recent = opened(1), opened(2, job=JobKey("2", 0, 1))
        store.incidents.save([old, closed(old, NOW_S + 10.0), recent, closed(recent, NOW_S + 30.0)])
        for number in (1, 2):
            store.audit.write_ahead([decision(decision_id=str(number), incident=incident(number=number))])
            store.audit.finish(str(number), Outcome.DONE, "", at_s=NOW_S)
        assert store.prune(before_s=NOW_S + 20.0) == 1
        assert [one.number for one in store.incidents.incidents()] == [2]
        assert {change.incident.number for change in store.incidents.changes(since_s=0.0)} == {2}
        assert [one.decision.decision_id for one in store.audit.each(since_s=0.0)] == ["2"]

    def test_growth_and_the_error_that_it_ended_in_go_together(self, store: Store) -> None:
        growth = IncidentChange(ChangeKind.CLOSED, NOW_S + 2.0, died_of_oom())
        error = opened(2, grew_in=1)
        store.incidents.save([growth, error])
        assert store.prune(before_s=NOW_S + 9.0) == 0, "the error is open"
        store.incidents.save([closed(error, NOW_S + 10.0)])
        assert store.prune(before_s=NOW_S + 9.0) == 0
        assert store.prune(before_s=NOW_S + 11.0) == 2

    def test_half_of_a_story_goes_where_the_other_half_is_not_there(self, store: Store) -> None:
        store.incidents.save([IncidentChange(ChangeKind.CLOSED, NOW_S + 2.0, died_of_oom())])
        assert store.prune(before_s=NOW_S + 9.0) == 1

    def test_totals_and_numbers_outlive_what_is_pruned(self, store: Store) -> None:
        other = opened(2, job=JobKey("2", 0, 1))
        store.incidents.save([opened(5), closed(opened(5), NOW_S + 1.0), other, closed(other, NOW_S + 1.0)])
        store.audit.write_ahead([decision(decision_id="1", incident=incident(number=5))])
        store.audit.finish("1", Outcome.DONE, "", at_s=NOW_S)
        assert store.prune(before_s=NOW_S + 2.0) == 2
        assert store.incidents.incidents() == []
        assert store.incidents.next_number() == 6
        assert store.incidents.totals()[IncidentCause.LEAK] == 2
        assert store.audit.action_totals() == {("notify", "done"): 1}

    def test_store_prune_keeps_open_incidents_and_unfinished_decisions(self, store: Store) -> None:
        unfinished = opened(2, job=JobKey("2", 0, 1))
        store.incidents.save([opened(1), unfinished, closed(unfinished, NOW_S + 1.0)])
        store.audit.write_ahead(
            [decision(decision_id=f"of {number}", incident=incident(number=number)) for number in (2, 9)]
        )
        assert store.prune(before_s=1e12) == 0
        assert [one.number for one in store.incidents.incidents()] == [2, 1]
        assert len(store.audit.unfinished()) == 2

    def test_old_decisions_without_an_incident_are_pruned_too(self, store: Store) -> None:
        would = decision(decision_id="1", disposition=Disposition.WOULD, incident=incident(number=9))
        store.audit.write_ahead([would])
        store.prune(before_s=NOW_S)
        assert len(list(store.audit.each(since_s=0.0))) == 1
        store.prune(before_s=NOW_S + 1.0)
        assert list(store.audit.each(since_s=0.0)) == []

    # several at once

    def test_threads_may_use_one_store_at_once(self, store: Store) -> None:
        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for number in range(5):
                    one = f"{name} {number}"
                    store.audit.write_ahead([decision(decision_id=one)])
                    store.audit.begin(one, at_s=NOW_S)
                    store.audit.finish(one, Outcome.DONE, "", at_s=NOW_S)
                    store.incidents.open_incidents()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(str(number),)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.audit.action_totals() == {("notify", "done"): 30}

    def test_two_processes_may_set_up_and_use_one_database_at_once(self, url: str) -> None:
        with child(SAVE_MANY, url, "a") as (first, first_in, _), child(SAVE_MANY, url, "b") as (second, second_in, _):
            for stdin in (first_in, second_in):
                stdin.write("go\n")
                stdin.flush()
            assert (first.wait(60), second.wait(60)) == (0, 0)
        store = open_store(url)
        assert store.audit.action_totals() == {("notify", "done"): 40}
        store.close()

    def test_a_writer_that_is_killed_leaves_all_of_a_transaction_or_nothing(self, url: str) -> None:
        with child(SAVE_AND_HANG, url) as (process, _, stdout):
            assert stdout.readline() == "written, not committed\n"
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        store = open_store(url)
        assert [record.decision.decision_id for record in store.audit.each(since_s=0.0)] == ["kept"]
        store.audit.write_ahead([decision(decision_id="next")])
        store.close()

    # the tables

    def test_the_migrations_make_the_tables_that_the_code_uses(self, store: Store) -> None:
        with store.database.reading() as connection:
            context = MigrationContext.configure(
                connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
            )
            assert compare_metadata(context, metadata) == []

    def test_tables_of_a_newer_version_are_refused(self, store: Store, url: str) -> None:
        with store.database.writing() as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        with pytest.raises(StoreError, match=r"newer version of Tidegauge \(schema 9999, .* up to \d+"):
            open_store(url)

    def test_a_row_that_cannot_be_read_is_named(self, store: Store) -> None:
        store.incidents.save([opened(7)])
        with store.database.writing() as connection:
            connection.execute(text("UPDATE incidents SET value = '{}'"))
        with pytest.raises(StoreError, match="incident 7 in the database cannot be read"):
            store.incidents.open_incidents()

    # records of jobs

    def test_the_record_of_an_ended_job_comes_back_and_replaces_that_of_the_running_one(self, store: Store) -> None:
        running = job_record(ended_unix_s=None, end=None, job_name="größer \0 \udcff")
        store.jobs.save([running])
        assert (list(store.jobs.running()), store.jobs.latest([JOB])) == ([running], {JOB: running})
        over = job_record(steps=300)
        store.jobs.save([over])
        assert (list(store.jobs.running()), list(store.jobs.ended(limit=9))) == ([], [over])

    def test_the_latest_start_of_a_job_id_counts(self, store: Store) -> None:
        again = job_record(started_unix_s=NOW_S + 100.0, ended_unix_s=NOW_S + 200.0)
        store.jobs.save([again, job_record()])
        assert store.jobs.latest([JOB, JOB._replace(uid=7)]) == {JOB: again}
        assert list(store.jobs.ended(limit=1)) == [again]
        assert store.jobs.count_ended() == 2

    def test_ended_jobs_are_those_that_the_filter_matches(self, store: Store) -> None:
        ada = job_record(job=JOB._replace(job_id="late"), ended_unix_s=NOW_S + 50.0, job_name="tra_in", array="123_4")
        bob = job_record(
            job=JOB._replace(job_id="bobs"), user_name="bob", ended_unix_s=NOW_S + 60.0, job_name="tra%n", account="ml",
            end=JobEnd.OOM,
        )  # fmt: skip
        old = job_record(job_name="Train[1]?")
        running = job_record(job=JOB._replace(job_id="runs"), ended_unix_s=None, end=None, array="123_4")
        store.jobs.save([old, ada, bob, running])
        for which, found in (
            (RecordFilter(), [bob, ada, old]),
            (RecordFilter(since_s=NOW_S + 50.0), [bob, ada]),
            (RecordFilter(since_s=NOW_S + 50.0, user_name="ada"), [ada]),
            (RecordFilter(until_s=NOW_S + 60.0, user_name="ada"), [ada, old]),
            (RecordFilter(user_name="ad"), []),
            (RecordFilter(how=JobEnd.OOM), [bob]),
            (RecordFilter(account="ml", how=JobEnd.ENDED), []),
            (RecordFilter(job_name="tra"), []),
            (RecordFilter(job_name="tra_in"), [ada]),
            (RecordFilter(job_name="tra*"), [bob, ada]),
            (RecordFilter(job_name="tra_*"), [ada]),
            (RecordFilter(job_name="*a%n"), [bob]),
            (RecordFilter(job_name="T*[1]?"), [old]),
            (RecordFilter(job_name="T*?*"), [old]),
            (RecordFilter(job_id="late"), [ada]),
            (RecordFilter(job_id="123_4"), [ada]),
        ):
            assert list(store.jobs.ended(which, limit=9)) == found, which
            assert store.jobs.count_ended(which) == len(found), which

    def test_all_attempts_of_a_job_are_found_by_id_by_name_and_as_a_task_of_an_array(self, store: Store) -> None:
        first = job_record(array="123_4")
        again = job_record(job=JOB._replace(attempt=1), started_unix_s=NOW_S, ended_unix_s=None, end=None)
        theirs = job_record(job=JOB._replace(uid=7), user_name="bob", started_unix_s=NOW_S + 1.0)
        other = job_record(job=JOB._replace(job_id="other"), started_unix_s=0.0)
        store.jobs.save([first, again, theirs, other])
        for sought, found in (
            (RecordSought(job_id="4711"), [theirs, again, first]),
            (RecordSought(job_id="4711", user_name="ada"), [again, first]),
            (RecordSought(job_id="4711", attempt=0, uid=JOB.uid), [first]),
            (RecordSought(job_id="123_4"), [first]),
            (RecordSought(job_name="llm-pretrain", user_name="ada"), [again, first, other]),
            (RecordSought(job_name="llm*"), []),
            (RecordSought(job_id="4711", uid=1 << 70), []),
        ):
            assert list(store.jobs.starts(sought, limit=9)) == found, sought
        assert list(store.jobs.starts(RecordSought(job_id="4711"), limit=1)) == [theirs]

    def test_incidents_of_a_job_are_those_of_all_its_groups(self, store: Store) -> None:
        store.incidents.save(
            [opened(7), opened(8, job=JOB._replace(group="other")), opened(9, job=JOB._replace(uid=7))]
        )
        assert [one.number for one in store.incidents.of_job(JOB, limit=9)] == [8, 7]
        assert [one.number for one in store.incidents.of_job(JOB, limit=1)] == [8]

    def test_records_of_jobs_go_by_their_own_age(self, store: Store) -> None:
        running = job_record(job=JOB._replace(job_id="runs"), ended_unix_s=None, end=None)
        store.jobs.save([job_record(ended_unix_s=NOW_S), running])
        store.prune(before_s=NOW_S + 1.0)
        assert store.jobs.count_ended() == 1
        store.jobs.prune(before_s=NOW_S + 1.0)
        assert (store.jobs.count_ended(), list(store.jobs.running())) == (0, [running])

    def test_nobody_pushes_out_anothers_records(self, store: Store) -> None:
        small = JobRecordStore(store.database, RecordRoom(of_tenant=5, in_all=7))
        small.save([job_record(job=JobKey("theirs", 0, 2), user_name="bob", updated_unix_s=0.0)])
        for number in range(20):
            mine = JobKey(f"{number:02}", 0, 1)
            small.save([job_record(job=mine, updated_unix_s=NOW_S + number)])
        kept = sorted(one.job.job_id for one in small.ended(limit=99))
        assert kept == [*(f"{number:02}" for number in range(15, 20)), "theirs"]
        small.save([job_record(job=JobKey(f"c{number}", 0, 3), updated_unix_s=NOW_S + number) for number in range(5)])
        jobs = [one.job for one in small.ended(limit=99)]
        assert sorted(job.uid for job in jobs) == [1, 1, 1, 2, 3, 3, 3], "those with most have given"

    def test_numbers_that_no_column_holds_are_left_out(self, store: Store) -> None:
        odd = JOB._replace(attempt=1 << 70)
        store.jobs.save([job_record(job=odd), job_record()])
        assert store.jobs.latest([odd, JOB]).keys() == {JOB}

    # the memory of ranks

    def test_the_memory_of_a_jobs_ranks_comes_back_and_goes_with_its_record(self, store: Store) -> None:
        record = job_record()
        peaks = (record.fullest._replace(host_bytes=7, step_s=0.25, steps=9), RankPeak(1, "node1", 2, 3, None))
        memory = JobMemory(peaks, (RankMemory(3, (*POINTS,)), RankMemory(0, ())))
        store.jobs.save([record])
        assert store.jobs.memory(record) is None
        for value in (JobMemory(), memory):
            store.jobs.save_memory({record: value, job_record(job=JOB._replace(job_id="unknown")): value})
            assert store.jobs.memory(record) == value
        store.jobs.save([record._replace(steps=record.steps + 1)])
        assert store.jobs.memory(record) == memory
        store.jobs.prune(before_s=NOW_S + 1e6)
        assert store.jobs.memory(record) is None

    def test_memory_has_so_many_bytes_and_nobody_pushes_out_anothers(self, store: Store) -> None:
        memory = JobMemory(tuple(RankPeak(rank, "node", rank * 7919, rank * 104729, None) for rank in range(100)))
        each = len(write_memory(memory))
        small = JobRecordStore(store.database, RecordRoom(memory_bytes=10 * each))

        def ended(uid: int, number: int) -> JobRecord:
            one = job_record(job=JobKey(f"{number:02}", 0, uid), updated_unix_s=NOW_S + number)
            small.save([one])
            small.save_memory({one: memory})
            return one

        theirs = [ended(2, number) for number in range(3)]
        mine = [ended(1, number) for number in range(30)]
        kept = [small.memory(one) is not None for one in mine]
        assert kept == sorted(kept), "the oldest go first"
        assert 0 < sum(kept) <= 7
        assert all(small.memory(one) == memory for one in theirs)
        assert small.count_ended() == 33, "records stay"
        with store.database.reading() as connection:
            held = connection.scalar(text("SELECT sum(length(value)) FROM job_memory"))
        assert held <= 10 * each

    def test_memory_that_is_written_again_and_again_takes_no_more_room(self, store: Store) -> None:
        memory = JobMemory((job_record().fullest,))
        small = JobRecordStore(store.database, RecordRoom(memory_bytes=3 * len(write_memory(memory))))
        records = [job_record(job=JobKey(f"{number}", 0, 1)) for number in range(2)]
        small.save(records)
        for _ in range(9):
            small.save_memory(dict.fromkeys(records, memory))
        assert [small.memory(one) for one in records] == [memory, memory]

    def test_the_memory_of_a_job_whose_number_no_column_holds_is_passed_over(self, store: Store) -> None:
        odd = job_record(job=JOB._replace(attempt=1 << 70))
        record = job_record(job=JOB)
        store.jobs.save([odd, record])
        store.jobs.save_memory({odd: JobMemory(), record: JobMemory()})
        assert (store.jobs.memory(odd), store.jobs.memory(record)) == (None, JobMemory())

    def test_the_memory_of_an_incidents_ranks_comes_back_and_goes_with_it(self, store: Store) -> None:
        store.incidents.save([opened(7)])
        store.incidents.save_memory({7: [RankMemory(0, POINTS)], 8: []})
        assert (list(store.incidents.memory(7)), list(store.incidents.memory(8))) == ([RankMemory(0, POINTS)], [])
        store.incidents.save_memory({7: [RankMemory(0, POINTS[:1])]})
        assert list(store.incidents.memory(7)) == [RankMemory(0, POINTS[:1])]
        with store.database.writing() as connection:
            connection.execute(text("DELETE FROM incidents"))
        assert list(store.incidents.memory(7)) == []

    def test_memory_that_cannot_be_read_is_named(self, store: Store) -> None:
        store.incidents.save([opened(7)])
        store.incidents.save_memory({7: []})
        with store.database.writing() as connection:
            connection.execute(text("UPDATE incident_memory SET value = :value"), {"value": b"no zlib"})
        with pytest.raises(StoreError, match="memory of incident 7 in the database cannot be read"):
            store.incidents.memory(7)

    # persons

    def test_all_rows_about_a_person_are_found_and_none_about_another(self, store: Store) -> None:
        fill_with_two(store)
        rows = store.persons.rows(store.persons.find(ADA.name))
        assert {kind: len(found) for kind, found in rows.items()} == {
            "job_records": 1, "job_memory": 1, "evidence": 1, "profiles": 1, "incidents": 1, "incident_changes": 2,
            "incident_memory": 1, "decisions": 1, "grades": 3, "acts": 3,
        }  # fmt: skip
        assert {*rows, "counters"} == {table.name for table in metadata.sorted_tables}, "no table may be left out"
        said = json.dumps(rows)
        assert all(word in said for word in ADA.words)
        of_incident = {kind: found for kind, found in rows.items() if kind not in ("grades", "acts")}
        assert not any(word in json.dumps(of_incident) for word in BOB.words)
        assert rows["job_memory"][0]["value"]["peaks"][0]["hostname"] == f"host-of-{ADA.name}"

    def test_a_person_is_forgotten_in_all_rows_and_others_stay_as_they_are(self, store: Store) -> None:
        fill_with_two(store)
        persons = store.persons
        before = json.dumps(persons.rows(persons.find(BOB.name))["job_records"])
        done = persons.forget(persons.find(ADA.name), "forgotten-1a2b", at_s=NOW_S + 100.0)
        assert done == {
            "job_records": 1, "job_memory": 1, "evidence": 1, "profiles": 1, "incidents": 1, "incident_changes": 2,
            "incident_memory": 1, "decisions": 1, "grades": 3, "acts": 3,
        }  # fmt: skip
        assert not any(word in all_texts(store) for word in ADA.words)
        assert persons.mentions([ADA.name]) == 0
        assert json.dumps(persons.rows(persons.find(BOB.name))["job_records"]) == before
        assert all(word in all_texts(store) for word in BOB.words)
        persons.clear_traces()

    def test_the_audit_of_a_forgotten_person_still_says_what_was_done(self, store: Store) -> None:
        fill_with_two(store)
        store.persons.forget(store.persons.find(ADA.name), "forgotten-1a2b", at_s=NOW_S + 100.0)
        (record,) = store.audit.records_of(ADA.number)
        assert (record.decision.action, record.outcome) == (ActionKind.REQUEUE, Outcome.DONE)
        assert record.decision.facts.user_name == "forgotten-1a2b"
        kept = store.incidents.incident(ADA.number)
        assert kept is not None
        assert (kept.key.job.job_id, kept.severity) == ("forgotten-1a2b-1", Severity.CRITICAL)
        assert [line.kind for line in store.incidents.lines(ADA.number)] == [ChangeKind.OPENED, ChangeKind.CLOSED]
        assert [answer.by for answer in store.grades.answers(ADA.number)] == ["forgotten-1a2b", BOB.name]

    def test_forgetting_twice_changes_nothing(self, store: Store) -> None:
        fill_with_two(store)
        store.persons.forget(store.persons.find(ADA.name), "forgotten-1a2b", at_s=NOW_S)
        before = all_texts(store)
        done = store.persons.forget(store.persons.find(ADA.name), "forgotten-3c4d", at_s=NOW_S)
        assert not any(done.values())
        assert all_texts(store) == before

    def test_an_open_incident_and_an_unfinished_action_of_a_forgotten_person_are_over(self, store: Store) -> None:
        running = record_of(ADA, ended_unix_s=None, end=None)
        store.jobs.save([running])
        store.incidents.save([opened(job=ADA.job, user_name=ADA.name)])
        store.audit.write_ahead([decision()])
        found = store.persons.find(ADA.name)
        assert found.running == (ADA.job_id,)
        store.persons.forget(found, "forgotten-1a2b", at_s=NOW_S)
        assert store.incidents.open_incidents() == []
        assert store.audit.unfinished() == []
        assert store.audit.action_totals()["notify", "superseded"] == 1

    def test_nothing_is_forgotten_if_what_must_happen_before_the_commit_fails(self, store: Store) -> None:
        fill_with_two(store)
        before = all_texts(store)

        def fail() -> None:
            raise OSError("no")

        with pytest.raises(StoreError):
            store.persons.forget(store.persons.find(ADA.name), "forgotten-1a2b", at_s=NOW_S, before_commit=fail)
        assert all_texts(store) == before

    def test_evidence_of_a_job_that_has_no_record_is_found_by_the_uid(self, store: Store) -> None:
        store.evidence.keep([evidence(job=JobKey("5", 0, ADA.uid))], at_s=NOW_S)
        assert store.persons.rows(store.persons.find(ADA.name))["evidence"] == []
        assert len(store.persons.rows(store.persons.find(ADA.name, [ADA.uid]))["evidence"]) == 1

    def test_what_others_with_the_uid_of_root_left_is_not_found(self, store: Store) -> None:
        store.jobs.save([record_of(ADA, job=JobKey("1", 0, 0), user_name="root")])
        store.evidence.keep([evidence(job=JobKey("5", 0, 0))], at_s=NOW_S)
        rows = store.persons.rows(store.persons.find("root", [0]))
        assert (len(rows["job_records"]), len(rows["evidence"])) == (1, 0)

    # what jobs had and needed

    def test_runs_are_summed_up_by_what_is_asked(self, store: Store) -> None:
        full = RankPeak(0, "node1", 1, 60 * GIB, 80 * GIB, nontorch_bytes=10 * GIB)
        runs = [
            run_of("small", "ada", hours=1.0, account="physics", end=JobEnd.COMPLETED),
            run_of(
                "small",
                "ada",
                hours=3.0,
                account="physics",
                end=JobEnd.FAILED,
                fullest=SMALL._replace(reserved_bytes=8 * GIB),
            ),
            run_of("small", "bob", hours=1.0, end=JobEnd.OOM, account="chemistry"),
            run_of("full", "ada", hours=10.0, fullest=full, account="physics"),
            run_of("short", "ada", hours=0.1),
            run_of("unknown", "ada", hours=9.0, fullest=SMALL._replace(limit_bytes=None)),
            run_of("runs", "ada", hours=9.0, ended_unix_s=None, end=None),
        ]
        store.jobs.save(runs)
        found = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert [(one.name, one.user_name, one.runs, one.ooms) for one in found] == [
            ("small", "ada", 2, 0), ("full", "ada", 1, 0), ("small", "bob", 1, 1),
        ]  # fmt: skip
        ada = found[0]
        assert (ada.gpus, ada.highest_bytes, ada.mean_bytes) == (4, 8 * GIB, 6 * GIB)
        assert (ada.gpu_seconds, ada.had_byte_seconds) == (16 * 3600.0, 16 * 3600.0 * 80 * GIB)
        assert ada.needed_byte_seconds == 4 * 3600.0 * (4 + 3 * 8) * GIB
        assert found[1].highest_bytes == 70 * GIB
        assert [one.completed for one in found] == [1, 0, 0]
        by_account = store.usage.usage(UsageBy.ACCOUNT, since_s=0.0, limit=1)
        assert [(one.name, one.user_name, one.runs) for one in by_account] == [("physics", "", 3)]
        only = store.usage.usage(UsageBy.USER, since_s=0.0, limit=9, user_name="bob", job_name="small")
        assert [(one.name, one.user_name, one.runs) for one in only] == [("bob", "bob", 1)]
        some = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9, job_name="sm*l")
        assert [(one.name, one.user_name) for one in some] == [("small", "ada"), ("small", "bob")]
        assert store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9, job_name="SMALL") == []
        assert store.usage.usage(UsageBy.JOB, since_s=NOW_S + 1e6, limit=9) == []
        assert store.usage.gpu_sizes(since_s=0.0) == [80 * GIB]

    def test_a_run_that_survived_an_out_of_memory_error_counts_as_one_that_ran_out(self, store: Store) -> None:
        run = run_of("train", "ada", hours=1.0, end=JobEnd.COMPLETED)
        store.jobs.save([run, run_of("train", "ada", hours=2.0, end=JobEnd.COMPLETED)])
        for number, cause in ((1, IncidentCause.LEAK), (2, IncidentCause.OUT_OF_MEMORY)):
            store.incidents.save([opened()._replace(incident=incident(cause, job=run.job, number=number))])
            (found,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
            assert (found.runs, found.completed, found.ooms) == (2, 2, number - 1)

    @pytest.mark.parametrize(
        "changes",
        [{"hours": 0.1}, {"hours": 3.0, "fullest": RankPeak(0, "node1", 1, 4 << 30, None, gpu_bytes=80 << 30)}],
    )
    def test_an_out_of_memory_error_counts_in_a_run_that_is_in_no_sum(
        self, store: Store, changes: dict[str, Any]
    ) -> None:
        runs = [run_of("train", "ada", hours=float(hours), end=JobEnd.COMPLETED) for hours in (1, 2, 4)]
        store.jobs.save(runs)
        (before,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert before.shared_bytes is not None
        oom = run_of("train", "ada", end=JobEnd.OOM, **changes)
        store.jobs.save([oom, run_of("only-short", "ada", hours=0.1, end=JobEnd.OOM)])
        (found,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert (found.ooms, found.shared_bytes) == (1, None)
        known = before.highest_bytes if oom.fullest.limit_bytes else found.highest_of_all_bytes
        assert found == before._replace(ooms=1, highest_of_all_bytes=known)

    def test_the_need_of_a_short_run_counts_for_the_limit_on_shared_gpus_only(self, store: Store) -> None:
        runs = [run_of("train", "ada", hours=float(hours), end=JobEnd.COMPLETED) for hours in (1, 2, 4)]
        tall = SMALL._replace(reserved_bytes=10 * GIB)
        store.jobs.save([*runs, run_of("train", "ada", hours=0.1, end=JobEnd.COMPLETED, fullest=tall)])
        (found,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert (found.runs, found.completed, found.highest_bytes, found.mean_bytes) == (3, 3, 4 * GIB, 4 * GIB)
        assert found.highest_of_all_bytes == 10 * GIB
        assert found.shared_bytes == 16 * GIB, "as far above the highest as that is above the mean"

    def test_a_cap_is_no_gpu_of_the_cluster_and_what_is_not_known_is_assumed(self, store: Store) -> None:
        capped = SMALL._replace(limit_bytes=20 * GIB)
        unknown = capped._replace(nontorch_bytes=None)
        store.jobs.save([run_of("train", "ada", hours=1.0, fullest=capped)])
        (found,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert (found.limit_bytes, found.gpu_bytes, found.highest_bytes, found.assumed_bytes) == (
            20 * GIB, 80 * GIB, 4 * GIB, 0,
        )  # fmt: skip
        assert store.usage.gpu_sizes(since_s=0.0) == [80 * GIB]
        store.jobs.save([run_of("train", "ada", hours=2.0, fullest=unknown)])
        (found,) = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9)
        assert (found.highest_bytes, found.assumed_bytes) == (6 * GIB, 2 * GIB)

    def test_runs_that_are_left_out_are_in_no_sum(self, store: Store) -> None:
        store.jobs.save(
            [
                run_of("train", "ada", hours=1.0, account="physics", partition="long"),
                run_of("train", "ada", hours=2.0, account="chemistry", partition="debug"),
                run_of("jupyter-1", "ada", hours=1.0, account="physics", partition="long"),
                run_of("Jupyter", "bob", hours=1.0, namespace="team"),
            ]
        )

        def names(**some: tuple[str, ...]) -> list[tuple[str, str, int]]:
            found = store.usage.usage(UsageBy.JOB, since_s=0.0, limit=9, left_out=LeftOut(**some))
            return sorted((one.user_name, one.name, one.runs) for one in found)

        ada, jupyter, bob = ("ada", "train", 2), ("ada", "jupyter-1", 1), ("bob", "Jupyter", 1)
        assert names() == [jupyter, ada, bob]
        assert names(users=("ada", "nobody")) == [bob]
        assert names(accounts=("chemistry",)) == [jupyter, ("ada", "train", 1), bob]
        assert names(partitions=("long", "debug")) == [bob]
        assert names(namespaces=("team",)) == [jupyter, ada]
        assert names(names=("jupyter*",)) == [ada, bob]
        assert names(names=("*",)) == []


SMALL = RankPeak(0, "node1", 1, 4 * GIB, 80 * GIB, nontorch_bytes=0, gpu_bytes=80 * GIB)


def run_of(name: str, user_name: str, *, hours: float, **changes: Any) -> JobRecord:
    """A run of four GPUs."""
    job = JobKey(f"{name}-{user_name}-{hours}", 0, 1001)
    whole = {"fullest": SMALL, "ended_unix_s": NOW_S, "gpus": 4, **changes}
    return job_record(job=job, job_name=name, user_name=user_name, started_unix_s=NOW_S - hours * 3600.0, **whole)
