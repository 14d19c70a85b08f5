"""Evidence in incidents: before they open, while they are open, and after their job has died."""

from __future__ import annotations

from typing import Any

import pytest

from evidence_values import evidence, news
from sample_views import LEAK, NOW_S, job_view, rank_summary
from tidegauge.core.evidence import CauseFound
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.evidence import EvidenceNews, news_of
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.verdicts import OK, LeakState, Signal, Verdict
from tidegauge.core.views import JobView

RULES = IncidentRules()
JOB = JobKey("4711", 0, 1001)


def leaking(verdict: Verdict = LEAK, *, alive: bool = True) -> JobView:
    rank = rank_summary(1, verdict=verdict, alive=alive)
    return job_view(
        ranks=(rank,), state=verdict.state, severity=verdict.severity, signal=verdict.signal,
        suspects=() if verdict is OK else (1,), running=alive, rank_nodes=("engine-0",), rank_hostnames=("node0",),
        stale=(), common=False,
    )  # fmt: skip


class Watch:
    """A tracker, the evidence that there is, and everything that was told."""

    def __init__(self) -> None:
        self.tracker = IncidentTracker((), next_number=1)
        self.now_s = NOW_S
        self.found: list[EvidenceNews] = []
        self.told: list[IncidentChange] = []

    def see(self, view: JobView | None = None, *, times: int = 1) -> list[str]:
        before = len(self.told)
        for _ in range(times):
            self.now_s += 1.0
            views = [] if view is None else [view]
            self.told += self.tracker.update(views, now_s=self.now_s, evidence={JOB: self.found})
        return [change.kind.value for change in self.told[before:]]

    @property
    def last(self) -> Incident:
        return self.told[-1].incident


@pytest.fixture
def watch() -> Watch:
    return Watch()


def other(number: int, **changes: Any) -> EvidenceNews:
    """Another piece of the same rank that says something else."""
    line = evidence().growth[0].line
    assert line is not None
    growth = (evidence().growth[0]._replace(line=line._replace(line=number)),)
    return news_of(evidence(evidence_id=f"e{number}", at_unix_s=NOW_S + number, growth=growth, **changes))


def test_evidence_that_came_on_suspicion_is_in_the_incident_when_it_opens(watch: Watch) -> None:
    watch.found.append(news())
    suspect = LEAK._replace(state=LeakState.SUSPECTED, severity=None)
    assert watch.see(leaking(suspect)) == []
    assert watch.see(leaking(), times=100) == ["opened"]
    assert [brief.evidence_id for brief in watch.last.evidence] == ["auto-1"]
    assert len(watch.last.snapshots) == 2


def test_evidence_of_an_open_incident_is_told_once(watch: Watch) -> None:
    watch.see(leaking())
    watch.found.append(news())
    assert watch.see(leaking(), times=200) == ["evidence"]
    assert watch.last.evidence[0].confidence is Confidence.NAMED
    assert watch.last.state is IncidentState.OPEN


def test_newer_figures_of_the_same_are_taken_without_a_word(watch: Watch) -> None:
    watch.found.append(news())
    watch.see(leaking())
    watch.found.append(news(evidence_id="next", at_unix_s=NOW_S + 1800.0))
    assert watch.see(leaking(), times=100) == []
    assert watch.tracker.incidents[0].evidence[0].evidence_id == "next"


def test_however_much_evidence_comes_it_is_told_once_a_minute(watch: Watch) -> None:
    watch.see(leaking())
    kinds = []
    for number in range(1, 180):
        watch.found.append(other(number))
        kinds += watch.see(leaking())
    assert kinds == ["evidence"] * 3
    assert watch.see(leaking(), times=60) == ["evidence"]
    assert watch.last.evidence[0].evidence_id == "e179"


def test_evidence_of_another_cause_or_another_job_stays_out(watch: Watch) -> None:
    watch.see(leaking())
    watch.found.append(news(cause=CauseFound(EvidenceCause.FRAGMENTATION, Confidence.NAMED)))
    assert watch.see(leaking(), times=5) == []
    strange = watch.tracker.update(
        [leaking()],
        now_s=watch.now_s + 1.0,
        evidence={JobKey("4711", 1, 1001): [news()], JobKey("4711", 0, 7): [news()]},
    )
    assert strange == ()


RESERVED = LEAK._replace(signal=Signal.RESERVED)
GRAPHS = CauseFound(EvidenceCause.CUDA_GRAPHS, Confidence.NAMED)
PIECES = CauseFound(EvidenceCause.FRAGMENTATION, Confidence.NAMED)


def test_reserved_memory_that_evidence_found_in_private_pools_opens_as_cuda_graphs(watch: Watch) -> None:
    watch.found.append(news(cause=GRAPHS))
    assert watch.see(leaking(RESERVED), times=100) == ["opened"]
    assert watch.last.key.cause is IncidentCause.CUDA_GRAPHS


def test_an_open_incident_becomes_one_of_cuda_graphs_and_stays_the_same_incident(watch: Watch) -> None:
    watch.see(leaking(RESERVED))
    assert watch.last.key.cause is IncidentCause.FRAGMENTATION
    watch.found.append(news(cause=GRAPHS))
    assert watch.see(leaking(RESERVED), times=100) == ["evidence"]
    assert (watch.last.number, watch.last.key.cause) == (1, IncidentCause.CUDA_GRAPHS)
    assert watch.see(leaking(OK), times=400) == ["recovering", "closed"]
    assert (watch.last.number, watch.last.key.cause) == (1, IncidentCause.CUDA_GRAPHS)


def test_incident_cause_is_cuda_graphs_if_one_rank_grows_in_private_pools(watch: Watch) -> None:
    watch.found += [news(cause=PIECES), news(rank=2, evidence_id="e2", cause=GRAPHS)]
    watch.see(leaking(RESERVED))
    assert watch.last.key.cause is IncidentCause.CUDA_GRAPHS


def test_tensors_that_stay_and_scatter_memory_explain_fragmentation(watch: Watch) -> None:
    watch.see(leaking(RESERVED))
    watch.found.append(news(cause=CauseFound(EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)))
    assert watch.see(leaking(RESERVED), times=5) == []
    kept = CauseFound(EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED, explains_reserved=True)
    watch.found.append(news(evidence_id="e2", at_unix_s=NOW_S + 1800.0, cause=kept))
    assert watch.see(leaking(RESERVED), times=5) == ["evidence"]
    assert watch.last.key.cause is IncidentCause.FRAGMENTATION


def test_newer_evidence_of_the_same_rank_may_take_it_back(watch: Watch) -> None:
    watch.found.append(news(cause=GRAPHS))
    watch.see(leaking(RESERVED))
    watch.found.append(news(evidence_id="e2", at_unix_s=NOW_S + 1800.0, cause=PIECES))
    assert watch.see(leaking(RESERVED), times=100) == ["evidence"]
    assert watch.last.key.cause is IncidentCause.FRAGMENTATION


def test_after_a_restart_an_incident_of_cuda_graphs_is_followed_not_opened_again(watch: Watch) -> None:
    watch.found.append(news(cause=GRAPHS))
    watch.see(leaking(RESERVED))
    watch.tracker = IncidentTracker(watch.tracker.incidents, next_number=2)
    assert watch.see(leaking(RESERVED), times=100) == []
    (followed,) = watch.tracker.incidents
    assert (followed.number, followed.key.cause) == (1, IncidentCause.CUDA_GRAPHS)


def test_tensors_kept_in_private_pools_stay_a_leak(watch: Watch) -> None:
    watch.found.append(news(cause=GRAPHS))
    watch.see(leaking())
    assert (watch.last.key.cause, watch.last.evidence[0].cause) == (IncidentCause.LEAK, EvidenceCause.CUDA_GRAPHS)


def test_evidence_comes_before_the_end_of_the_job_is_told(watch: Watch) -> None:
    watch.see(leaking())
    watch.found.append(news())
    assert watch.see(leaking(alive=False), times=3) == ["evidence", "closed"]
    assert watch.last.evidence


def test_evidence_that_comes_after_a_job_died_goes_to_its_closed_incident(watch: Watch) -> None:
    watch.see(leaking())
    assert watch.see(leaking(alive=False)) == ["closed"]
    watch.found.append(news())
    assert watch.see(times=5) == ["evidence"]
    assert (watch.last.state, watch.last.evidence[0].rank) == (IncidentState.CLOSED, 1)
    assert watch.last.closed_unix_s is not None


def test_evidence_that_comes_much_later_is_not_told_of_what_is_over(watch: Watch) -> None:
    watch.see(leaking())
    watch.see(leaking(alive=False))
    watch.see(times=int(RULES.late_evidence_s) + 1)
    watch.found.append(news())
    assert watch.see(times=5) == []


def test_incident_evidence_after_closing_belongs_to_the_new_incident(watch: Watch) -> None:
    watch.see(leaking())
    assert watch.see(leaking(OK), times=400) == ["recovering", "closed"]
    assert watch.see(leaking()) == ["opened"]
    watch.found.append(news())
    assert watch.see(leaking(), times=5) == ["evidence"]
    assert watch.last.number == 2


def test_after_a_restart_known_evidence_is_not_told_again(watch: Watch) -> None:
    watch.found.append(news())
    watch.see(leaking())
    watch.tracker = IncidentTracker(watch.tracker.incidents, next_number=2)
    assert watch.see(leaking(), times=100) == []


def test_after_a_restart_a_job_that_died_before_still_gets_its_evidence(watch: Watch) -> None:
    watch.see(leaking())
    watch.see(leaking(alive=False))
    watch.tracker = IncidentTracker((), next_number=2, closed=[watch.last])
    watch.found.append(news())
    assert watch.see(times=3) == ["evidence"]
