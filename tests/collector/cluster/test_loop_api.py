"""The pages on incidents, decisions and the policy: what they answer, and how much of it at most."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from loop_store import FakeAudit, FakeIncidents, FakeStore, real_store, serving, told_store
from sample_views import NOW_S, job_view, rank_summary
from scheduler_values import decision, facts, finding, incident, record
from tidegauge.cluster.api import client
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request, UnavailableError
from tidegauge.cluster.api.loop_api import (
    FEW,
    FINDINGS_IN_ALL,
    LAST_ACTIONS_S,
    MANY,
    MAX_CHANGES,
    MAX_CHANGES_READ,
    incident_story,
    loop_figures,
    loop_routes,
    status_for,
)
from tidegauge.cluster.api.usage_figures import UsageFigures, lately_used
from tidegauge.cluster.store import Store
from tidegauge.cluster.views import NodeHealth, NodeStatus
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import MAX_FINDINGS, ChangeKind, Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import AuditError, DecisionRecord, JobFacts, LoopStatus
from tidegauge.core.incidents.loop_figures import JobFigures, LoopFigures, OpenIncident
from tidegauge.core.incidents.wording import change_in_words
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.verdicts import Severity
from tidegauge.core.views import JobView
from tidegauge.core.wire import from_wire
from tidegauge.http.access import EVERYBODY, Viewer

STATUS = LoopStatus("act", "/etc/tidegauge/policy.yaml", incidents_open=1)
PAGES = ("/api/v1/incidents", "/api/v1/incident", "/api/v1/incident-changes", "/api/v1/decisions")


@pytest.fixture
def store() -> FakeStore:
    return told_store()


def get(store: FakeStore | Store, path: str, **query: int) -> Any:
    route = loop_routes(store if isinstance(store, FakeStore) else lambda: store, lambda: STATUS)[path]
    return json.loads(route(Request({name: str(value) for name, value in query.items()}, None)).body)


def figures_of(store: FakeStore, status: LoopStatus, *jobs: JobView, now_unix_s: float = NOW_S) -> LoopFigures:
    return loop_figures(store, status, slurm={}, jobs=jobs, nodes=(), now_unix_s=now_unix_s)


def wide(number: int, ranks: int = 500) -> IncidentChange:
    """An incident of very many ranks."""
    about = incident(number=number, findings=tuple(finding(rank) for rank in range(ranks)), world_size=ranks)
    return IncidentChange(ChangeKind.OPENED, NOW_S + number, about)


def test_open_incidents_are_listed_with_what_was_last_decided(store: FakeStore) -> None:
    (only,) = get(store, "/api/v1/incidents")["incidents"]
    assert (only["number"], only["ranks"], only["key"]["cause"]) == (1, [1], "leak")
    assert from_wire(Incident, only) == store.incidents.incident(1)
    assert from_wire(DecisionRecord, only["last_decision"]) == store.audit.made[-1]


def test_closed_ones_are_listed_for_who_asks_for_all(store: FakeStore) -> None:
    assert [one["number"] for one in get(store, "/api/v1/incidents", all=1)["incidents"]] == [2, 1]
    since_s = int(NOW_S) - 100
    assert [one["number"] for one in get(store, "/api/v1/incidents", all=1, since=since_s)["incidents"]] == [1]
    assert [one["number"] for one in get(store, "/api/v1/incidents", all=1, limit=1)["incidents"]] == [2]


def test_an_incident_about_which_nothing_was_decided_has_no_last_decision() -> None:
    fresh = FakeStore(FakeIncidents([IncidentChange(ChangeKind.OPENED, NOW_S, incident())]))
    assert get(fresh, "/api/v1/incidents")["incidents"][0]["last_decision"] is None


def test_a_list_names_all_ranks_but_not_all_their_figures() -> None:
    (only,) = get(FakeStore(FakeIncidents([wide(1)])), "/api/v1/incidents")["incidents"]
    assert only["ranks"] == list(range(500))
    assert len(only["findings"]) == MAX_FINDINGS


def test_loop_api_incident_includes_history_in_words_and_decisions(store: FakeStore) -> None:
    answer = get(store, "/api/v1/incident", number=1)
    assert from_wire(Incident, answer["incident"]) == store.incidents.incident(1)
    assert [change["kind"] for change in answer["history"]] == ["opened", "updated", "escalated", "updated"]
    assert answer["history"][2]["text"].startswith("severity rose to critical: rank 1, 12.0 MiB per step")
    assert [from_wire(DecisionRecord, raw) for raw in answer["decisions"]] == store.audit.made[1:]


def test_the_history_of_a_wide_incident_is_cut_but_its_words_are_not() -> None:
    change = wide(1)._replace(incident=replace(wide(1).incident, common=True))
    audit = FakeAudit([record(decision(incident=change.incident))])
    answer = get(FakeStore(FakeIncidents([change]), audit), "/api/v1/incident", number=1)
    assert len(answer["incident"]["findings"]) == 500
    assert len(answer["history"][0]["incident"]["findings"]) == MAX_FINDINGS
    assert "all alike (500)" in answer["history"][0]["text"]
    assert len(answer["decisions"][0]["decision"]["incident"]["findings"]) == MAX_FINDINGS


def test_of_a_long_history_new_figures_are_left_out_first(tmp_path: Path) -> None:
    updates = [IncidentChange(ChangeKind.UPDATED, float(n), incident()) for n in range(MANY)]
    story = [IncidentChange(ChangeKind.OPENED, 0.0, incident()), *updates]
    told = FakeStore(FakeIncidents(story))
    real = real_store(told, tmp_path)
    answer = get(told, "/api/v1/incident", number=1)
    assert [line["at_unix_s"] for line in answer["history"]] == [0.0, *(float(n) for n in range(MANY - FEW, MANY))]
    assert answer["history"][0]["kind"] == "opened"
    assert answer["left_out"] == MANY - FEW
    assert get(real, "/api/v1/incident", number=1) == answer
    assert len(incident_story(lambda: real, 1).history) == FEW + 1
    real.close()


def test_a_history_that_swings_for_days_is_bounded_too() -> None:
    swings = [IncidentChange(ChangeKind.REOPENED, float(n), incident()) for n in range(2 * MANY)]
    answer = get(FakeStore(FakeIncidents(swings)), "/api/v1/incident", number=1)
    assert len(answer["history"]) + answer["left_out"] == 2 * MANY
    assert len(answer["history"]) <= MANY
    assert answer["history"][-1]["at_unix_s"] == 2 * MANY - 1.0


def test_a_history_is_read_while_the_answer_is_written() -> None:
    class OneAtATime(FakeIncidents):
        read: int = 0

        def lines(self, *_: object, **__: object) -> Iterator[IncidentChange]:
            for change in self.story:
                self.read += 1
                yield change

    incidents = OneAtATime([IncidentChange(ChangeKind.REOPENED, float(n), incident()) for n in range(9)])
    read_then: list[int] = []

    class Watching(FakeAudit):
        def records_of(self, number: int) -> Sequence[DecisionRecord]:
            read_then.append(incidents.read)
            return []

    assert len(get(FakeStore(incidents, Watching()), "/api/v1/incident", number=1)["history"]) == 9
    assert read_then == [0], "not all of it before"


def test_an_incident_that_does_not_exist_is_not_found(store: FakeStore) -> None:
    with pytest.raises(NotFoundError, match="no incident 9"):
        get(store, "/api/v1/incident", number=9)


def test_the_newest_decisions_come_oldest_first_and_say_how_many_are_left_out(store: FakeStore) -> None:
    answer = get(store, "/api/v1/decisions", limit=2)
    assert [raw["decision"]["action"] for raw in answer["decisions"]] == ["checkpoint", "requeue"]
    assert answer["left_out"] == 3
    assert get(store, "/api/v1/decisions", since=int(NOW_S) - 40)["left_out"] == 0
    assert get(store, "/api/v1/decisions", limit=0) == {"decisions": [], "left_out": 5, "acts": []}


def test_changes_come_with_the_first_facts_that_a_scheduler_had_a_part_in(store: FakeStore) -> None:
    unknown = record(decision(decision_id="0", facts=facts(scheduler_facts=None)))
    store.audit.made.insert(0, unknown)
    answer = get(store, "/api/v1/incident-changes")
    assert len(answer["changes"]) == 7
    assert sorted(answer["facts"]) == ["1", "2"]
    assert from_wire(JobFacts, answer["facts"]["1"]) == facts()
    store.audit.made[1:] = []
    assert from_wire(JobFacts, get(store, "/api/v1/incident-changes")["facts"]["1"]).scheduler_facts is None


def test_changes_come_since_a_time_and_facts_only_of_their_incidents(store: FakeStore) -> None:
    answer = get(store, "/api/v1/incident-changes", since=int(NOW_S) - 300)
    assert [raw["kind"] for raw in answer["changes"]] == ["updated", "escalated", "updated"][-len(answer["changes"]) :]
    assert list(answer["facts"]) == ["1"]


def test_of_too_many_changes_new_figures_are_left_out_first() -> None:
    opened = IncidentChange(ChangeKind.OPENED, 0.0, incident())
    updates = [IncidentChange(ChangeKind.UPDATED, float(n), incident()) for n in range(1, 2 * MAX_CHANGES)]
    closed = IncidentChange(ChangeKind.CLOSED, 1e6, incident())
    answer = get(FakeStore(FakeIncidents([opened, *updates, closed])), "/api/v1/incident-changes")
    kinds = [raw["kind"] for raw in answer["changes"]]
    assert len(kinds) <= MAX_CHANGES
    assert (kinds[0], kinds[-1]) == ("opened", "closed")
    assert answer["left_out"] == 2 * MAX_CHANGES + 1 - len(kinds)
    gaps = {b["at_unix_s"] - a["at_unix_s"] for a, b in zip(answer["changes"][1:-2], answer["changes"][2:-1])}
    assert len(gaps) == 1, "what is left out is spread evenly"


def test_changes_that_matter_are_bounded_too_and_the_newest_stay() -> None:
    many = [IncidentChange(ChangeKind.REOPENED, float(n), incident()) for n in range(MAX_CHANGES + 5)]
    answer = get(FakeStore(FakeIncidents(many)), "/api/v1/incident-changes")
    assert (len(answer["changes"]), answer["left_out"]) == (MAX_CHANGES, 5)
    assert answer["changes"][-1]["at_unix_s"] == MAX_CHANGES + 4


@pytest.mark.slow
def test_changes_of_wide_incidents_share_a_bound() -> None:
    few, many = wide(1, ranks=64), MAX_CHANGES - 1
    answer = get(FakeStore(FakeIncidents([few] * many)), "/api/v1/incident-changes")
    assert {len(raw["incident"]["findings"]) for raw in answer["changes"]} == {FINDINGS_IN_ALL // many}
    assert "rank 0, 1, 2, 3 and 60 more" in change_in_words(from_wire(IncidentChange, answer["changes"][0]))


@pytest.mark.parametrize("path", PAGES)
def test_a_database_that_is_away_is_said_so(path: str, store: FakeStore) -> None:
    store.problem = "disk full"
    with pytest.raises(UnavailableError, match="the database of incidents and actions is unavailable: disk full"):
        get(store, path)


@pytest.mark.parametrize("path", ["/api/v1/incidents", "/api/v1/incident", "/api/v1/incident-changes"])
def test_a_database_that_goes_away_in_the_middle_is_said_so(path: str) -> None:
    class GoesAway(FakeAudit):
        def records_of(self, number: int) -> Sequence[DecisionRecord]:
            raise AuditError("disk full")

    store = FakeStore(FakeIncidents([IncidentChange(ChangeKind.OPENED, NOW_S, incident())]), GoesAway())
    with pytest.raises(UnavailableError, match="is unavailable: disk full"):
        get(store, path, **({"number": 1} if path.endswith("incident") else {}))


@pytest.mark.parametrize(("path", "most"), [("/api/v1/incidents", MANY), ("/api/v1/decisions", MANY)])
def test_a_limit_is_limited(path: str, most: int, store: FakeStore) -> None:
    with pytest.raises(BadRequestError, match=f"limit may be at most {most}"):
        get(store, path, limit=most + 1)


def test_the_policy_page_is_the_loops_status_and_needs_no_database(store: FakeStore) -> None:
    store.problem = "disk full"
    assert from_wire(LoopStatus, get(store, "/api/v1/policy")) == STATUS


@pytest.fixture
def url(store: FakeStore) -> Iterator[str]:
    with serving(store, STATUS) as url:
        yield url


def test_pages_and_refusals_travel_over_http(url: str, store: FakeStore) -> None:
    answer = client.get(url, f"/api/v1/incidents?{urlencode({'all': 1, 'limit': 5})}")
    assert len(answer["incidents"]) == 2
    store.problem = "locked"
    with pytest.raises(client.ApiError) as caught:
        client.get(url, "/api/v1/decisions")
    assert (caught.value.status, caught.value.refusal) == (
        503, "the database of incidents and actions is unavailable: locked"
    )  # fmt: skip


def test_the_real_store_is_read_like_the_one_of_these_tests(store: FakeStore, tmp_path: Path) -> None:
    real = real_store(store, tmp_path)
    routes = (loop_routes(store, lambda: STATUS), loop_routes(lambda: real, lambda: STATUS))
    for path, query in (
        ("/api/v1/incidents", {}),
        ("/api/v1/incidents", {"all": "1", "since": str(int(NOW_S) - 100), "limit": "1"}),
        ("/api/v1/incident", {"number": "1"}),
        ("/api/v1/incident-changes", {}),
        ("/api/v1/decisions", {"since": str(int(NOW_S) - 150)}),
    ):
        answers = [json.loads(table[path](Request(query, None)).body) for table in routes]
        assert answers[1] == answers[0], path
    jobs = [job_view()]
    assert loop_figures(lambda: real, STATUS, slurm={}, jobs=jobs, nodes=(), now_unix_s=NOW_S) == replace(
        figures_of(store, STATUS, *jobs),
        incidents_total={cause: store.incidents.totals().get(cause, 0) for cause in IncidentCause},
    )
    real.close()


def test_figures_for_a_scrape_come_from_the_store_and_the_status(store: FakeStore) -> None:
    figures = figures_of(store, replace(STATUS, paused="by ada", breaker="too many", user_breakers=("eve", "bob")))
    assert figures.user_breakers_open == 2
    assert (figures.store_works, figures.acting, figures.paused, figures.breaker_open) == (True, True, True, True)
    assert figures.incidents_total == {IncidentCause.LEAK: 1, IncidentCause.FRAGMENTATION: 1}
    assert figures.incidents_open == {(IncidentCause.LEAK, Severity.CRITICAL): 1}
    assert figures.actions_total == {
        ("notify", "done"): 1,
        ("checkpoint", "done"): 1,
        ("checkpoint", "withheld"): 1,
        ("requeue", "would"): 1,
    }


def test_figures_of_a_job_are_those_of_its_owner_and_attempt(store: FakeStore) -> None:
    of_ada = job_view(ranks=(rank_summary(0, uid=1001),))
    of_another = job_view(ranks=(rank_summary(0, uid=7),))
    next_attempt = job_view(attempt=1, ranks=(rank_summary(0, uid=1001),))
    figures = figures_of(store, STATUS, of_another, next_attempt, of_ada, job_view(ranks=()))
    assert figures.of_jobs == {
        JobKey("4711", 0, 1001): JobFigures(
            (OpenIncident(1, IncidentCause.LEAK, Severity.CRITICAL, NOW_S - 600.0),),
            {("notify", "done"): NOW_S - 597.0, ("checkpoint", "done"): NOW_S - 60.0},
        )
    }


def test_loop_api_omits_actions_of_long_ago(store: FakeStore) -> None:
    job = job_view(ranks=(rank_summary(0, uid=1001),))
    figures = figures_of(store, STATUS, job, now_unix_s=NOW_S + LAST_ACTIONS_S - 300.0)
    assert figures.of_jobs[JobKey("4711", 0, 1001)].last_actions == {("checkpoint", "done"): NOW_S - 60.0}


def test_a_scrape_reads_the_database_four_times_whatever_there_is() -> None:
    class Counting:
        def __init__(self, reads: object) -> None:
            self.reads, self.calls = reads, 0

        def __getattr__(self, name: str) -> Any:
            self.calls += 1
            return getattr(self.reads, name)

    told = told_store()
    incidents, audit = Counting(told.incidents), Counting(told.audit)
    counted: Any = FakeStore(incidents, audit)  # type: ignore[arg-type]  # SAFETY: it passes every call on
    figures_of(counted, STATUS, *(job_view(attempt=attempt) for attempt in range(50)))
    assert (incidents.calls, audit.calls) == (2, 2)


def test_nodes_are_counted_by_health_and_no_word_is_missing(store: FakeStore) -> None:
    store.problem = "locked"
    node = NodeStatus("n", "node7", None, NodeHealth.STALE, None, None, None, None, 0, ())
    figures = loop_figures(store, STATUS, slurm={}, jobs=(), nodes=[node, node], now_unix_s=NOW_S)
    assert figures.nodes == {"ok": 0, "waiting": 0, "stale": 2, "gone": 0}


def test_what_ended_jobs_used_is_of_the_last_seven_days_and_absent_without_the_database(store: FakeStore) -> None:
    row = GpuUsage("train", "ada", 1, 0, 8, 600.0, 600.0, 60.0, 100, 10, 10.0)
    store.usage.rows.append(row)

    def used() -> UsageFigures:
        return loop_figures(
            store, STATUS, slurm={}, jobs=(), nodes=(), now_unix_s=NOW_S,
            usage=lambda: lately_used(store, now_s=NOW_S),
        ).usage  # fmt: skip

    assert used() == {by: [row] for by in UsageBy}
    assert store.usage.asked[0] == (UsageBy.JOB, NOW_S - 7 * 86_400.0, 50, None, None)
    store.problem = "locked"
    assert used() == {}


def test_figures_without_a_database_say_so(store: FakeStore) -> None:
    store.problem = "locked"
    figures = figures_of(store, replace(STATUS, mode="observe"), job_view(ranks=(rank_summary(0, uid=1001),)))
    assert (figures.store_works, figures.acting, figures.paused, figures.breaker_open) == (False, False, False, False)
    assert figures.of_jobs == {}


@pytest.mark.slow
def test_of_a_very_long_history_only_the_newest_changes_are_read() -> None:
    many = [IncidentChange(ChangeKind.ESCALATED, float(at), incident()) for at in range(MAX_CHANGES_READ + 5)]
    answer = get(FakeStore(FakeIncidents(many)), "/api/v1/incident-changes")
    assert len(answer["changes"]) + answer["left_out"] == MAX_CHANGES_READ


def test_loop_api_status_hides_problem_texts_from_ordinary_users() -> None:
    words = "CANARY: job 77 of grace on node12, /srv/grace/policy.yaml"
    status = LoopStatus(
        "act", words, policy_problem=words, paused=words, breaker=words, user_breakers=(words,), store_problem=words,
        records_problem=words,
        scheduler_problems={"slurm": words}, incidents_open=3, telling={"slack": "ok", "grafana": words},
    )  # fmt: skip
    told = status_for(Viewer("ada", sees_all=False, reads_metrics=True), status)
    assert "CANARY" not in repr(told)
    assert (told.mode, told.incidents_open) == ("act", 3)
    assert None not in (
        told.policy_file,
        told.policy_problem,
        told.paused,
        told.breaker,
        told.store_problem,
        told.records_problem,
    )
    assert list(told.scheduler_problems) == ["slurm"]
    assert told.telling["slack"] == "ok"
    assert told.telling["grafana"] != "ok"
    fine = LoopStatus("observe", None)
    assert status_for(Viewer("ada", sees_all=False, reads_metrics=False), fine) == fine
    assert status_for(EVERYBODY, status) is status
