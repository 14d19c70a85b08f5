from __future__ import annotations

from pathlib import Path

from prometheus_client.samples import Sample

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text
from sample_views import NOW_S, job_view, rank_summary
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import JobView
from tidegauge_exporter.jobs import job_metrics

DATA = Path(__file__).parent / "data"


def scrape(*jobs: JobView) -> list[Sample]:
    body = job_metrics(jobs, cluster="lab", now_unix_s=NOW_S).body.decode()
    return [sample for family in parse_text(body) for sample in family.samples]


def test_the_text_of_one_job_is_exactly_this() -> None:
    exposition = job_metrics([job_view()], cluster="lab", now_unix_s=NOW_S)
    assert exposition.body.decode() == (DATA / "jobs.prom").read_text(encoding="utf-8")
    assert exposition.content_type.startswith("text/plain; version=0.0.4")


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    exposition = job_metrics([job_view()], cluster="lab", now_unix_s=NOW_S, accept=OPENMETRICS)
    assert exposition.content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family.type for family in parse_openmetrics(exposition.body.decode())}
    assert families["tidegauge_job"] == "info"


def test_no_job_is_an_empty_page() -> None:
    assert job_metrics([], cluster="lab", now_unix_s=NOW_S).body == b""


def test_only_living_ranks_are_counted() -> None:
    job = job_view(ranks=(rank_summary(0), rank_summary(1, alive=False)))
    assert [s.value for s in scrape(job) if s.name == "tidegauge_job_ranks"] == [1]


def test_ranks_of_a_node_that_does_not_report_are_not_counted() -> None:
    assert [s.value for s in scrape(job_view(stale=(1,))) if s.name == "tidegauge_job_ranks"] == [1]


def test_an_ended_job_lingers_and_then_is_gone() -> None:
    fresh = rank_summary(0, last_sample_unix_s=NOW_S - 119, alive=False)
    stale = rank_summary(0, last_sample_unix_s=NOW_S - 121, alive=False)
    assert scrape(job_view(running=False, ranks=(stale, fresh))) != []
    assert scrape(job_view(running=False, ranks=(stale,))) == []
    assert scrape(job_view(running=False, ranks=())) == []


def test_a_running_job_is_shown_however_long_it_is_silent() -> None:
    assert scrape(job_view(ranks=(rank_summary(0, last_sample_unix_s=NOW_S - 10_000),))) != []


def test_two_attempts_are_two_series_and_a_repeated_one_is_shown_once() -> None:
    samples = scrape(job_view(), job_view(state=LeakState.OK), job_view(attempt=1, state=LeakState.OK))
    states = {s.labels["attempt"]: s.value for s in samples if s.name == "tidegauge_job_leak_state"}
    assert states == {"0": 2, "1": 0}
    assert len([s for s in samples if s.name == "tidegauge_job_info"]) == 2


def test_an_unknown_scheduler_is_an_empty_label() -> None:
    info = next(s for s in scrape(job_view(scheduler=None, job_name=None)) if s.name == "tidegauge_job_info")
    assert (info.labels["scheduler"], info.labels["job_name"]) == ("", "")
