from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client.samples import Sample

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text
from sample_views import LOOP, NOW_S, job_view, rank_summary
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents.loop_figures import LoopFigures, SlurmLabels
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import JobView
from tidegauge_exporter.metrics.jobs import job_metrics

DATA = Path(__file__).parent / "data"


def scrape(*jobs: JobView) -> list[Sample]:
    body = job_metrics(jobs, cluster="lab", now_unix_s=NOW_S).body.decode()
    return [sample for family in parse_text(body) for sample in family.samples]


def scrape_loop(loop: LoopFigures, *jobs: JobView) -> list[Sample]:
    body = job_metrics(jobs, cluster="lab", now_unix_s=NOW_S, loop=loop).body.decode()
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


def test_pseudonyms_stand_for_users_in_labels() -> None:
    known = Pseudonyms(b"1" * 32)
    job = job_view()
    used = GpuUsage("train", job.user_name, 1, 0, 1, 600.0, 600.0, 60.0, 100, 10, 10.0)
    usage = {UsageBy.JOB: (used,), UsageBy.USER: (used._replace(name=job.user_name),)}
    body = job_metrics(
        [job], cluster="lab", now_unix_s=NOW_S, loop=replace(LOOP, usage=usage), shown_user=known.of
    ).body.decode()
    assert f'user_name="{known.of(job.user_name)}"' in body
    names = {
        (one.labels["by"], one.labels["name"])
        for family in parse_text(body)
        for one in family.samples
        if one.name == "tidegauge_ended_runs"
    }
    assert names == {("job", "train"), ("user", known.of(job.user_name))}
    assert f'"{job.user_name}"' not in body


def test_figures_of_ended_jobs_have_the_values_of_their_rows_and_no_series_twice() -> None:
    used = GpuUsage("n" * 200, "ada", 3, 0, 8, 3600.0, 4000.0, 1000.0, 80, 9, 8.0)
    usage = {
        UsageBy.JOB: (used, used._replace(name="n" * 201, runs=9)),
        UsageBy.ACCOUNT: (used._replace(user_name=""),),
    }
    found = [one for one in scrape_loop(replace(LOOP, usage=usage)) if one.name.startswith("tidegauge_ended_")]
    assert len(found) == 14
    of_job = {one.name: one.value for one in found if one.labels["by"] == "job"}
    assert of_job == {
        "tidegauge_ended_runs": 3, "tidegauge_ended_gpu_seconds": 3600, "tidegauge_ended_had_byte_seconds": 4000,
        "tidegauge_ended_needed_byte_seconds": 1000, "tidegauge_ended_limit_bytes": 80,
        "tidegauge_ended_highest_bytes": 9, "tidegauge_ended_safe_bytes": 10,
    }  # fmt: skip


def test_no_job_is_an_empty_page() -> None:
    assert job_metrics([], cluster="lab", now_unix_s=NOW_S).body == b""


def test_job_collector_counts_only_living_ranks() -> None:
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


def test_the_text_of_incidents_and_actions_is_exactly_this() -> None:
    body = job_metrics([job_view()], cluster="lab", now_unix_s=NOW_S, loop=LOOP).body.decode()
    assert body == (DATA / "loop.prom").read_text(encoding="utf-8")


def test_every_known_value_of_a_counter_is_there_before_the_first_event() -> None:
    calm = LoopFigures(store_works=True, acting=False, paused=False, breaker_open=False)
    samples = scrape_loop(calm)
    assert {s.value for s in samples if s.name != "tidegauge_collect_success"} == {0}
    counters = [(s.name, *s.labels.values()) for s in samples if s.name.endswith("_total")]
    assert len(set(counters)) == len(counters) == 7 + 8 * 8


def test_a_job_is_told_of_with_its_owners_incidents_and_no_series_twice() -> None:
    of_ada, of_another = job_view(), job_view(user_name="eve", ranks=(rank_summary(0, uid=7),))
    for jobs, number in (((of_ada, of_another), 12), ((of_another, of_ada), 14)):
        samples = scrape_loop(LOOP, *jobs)
        series = [(s.name, *sorted(s.labels.items())) for s in samples]
        assert len(set(series)) == len(series)
        numbers = {s.labels["cause"]: s.value for s in samples if s.name == "tidegauge_job_incident_number"}
        assert numbers["leak"] == number


def test_another_attempt_has_no_part_in_an_incident() -> None:
    names = {s.name for s in scrape_loop(LOOP, job_view(attempt=1), job_view(job_id="4712"))}
    assert "tidegauge_job_info" in names
    assert not any(name.startswith(("tidegauge_job_incident", "tidegauge_job_last")) for name in names)


def test_job_collector_keeps_last_actions_while_an_ended_job_lingers() -> None:
    ended = rank_summary(0, last_sample_unix_s=NOW_S - 119, alive=False)
    samples = scrape_loop(LOOP, job_view(running=False, ranks=(ended,)))
    done = {(s.labels["action"], s.labels["outcome"]): s.value for s in samples if "last_action" in s.name}
    assert done == {("notify", "done"): NOW_S - 599.0, ("checkpoint", "no_proof"): NOW_S - 30.0}


def test_job_collector_omits_values_of_a_broken_database() -> None:
    samples = scrape_loop(replace(LOOP, store_works=False, of_jobs={}, nodes={}))
    assert {s.name: s.value for s in samples} == {
        "tidegauge_policy_acting": 1,
        "tidegauge_policy_paused": 0,
        "tidegauge_policy_breaker_open": 1,
        "tidegauge_policy_user_breakers_open": 0,
        "tidegauge_collect_success": 0,
    }


def test_openmetrics_knows_the_counters_of_the_loop() -> None:
    exposition = job_metrics([], cluster="lab", now_unix_s=NOW_S, accept=OPENMETRICS, loop=LOOP)
    families = {family.name: family.type for family in parse_openmetrics(exposition.body.decode())}
    assert families["tidegauge_incidents"] == families["tidegauge_actions"] == "counter"


def info_of(job: JobView, slurm: dict[JobKey, SlurmLabels]) -> dict[str, str]:
    (info,) = [one for one in scrape_loop(replace(LOOP, slurm=slurm), job) if one.name == "tidegauge_job_info"]
    return {name: value for name, value in info.labels.items() if name.startswith("slurm") and value}


def test_partition_and_account_are_what_slurm_said_of_this_users_job() -> None:
    told = {job_view().key: SlurmLabels("gpu", "physics")}
    assert info_of(job_view(), told) == {"slurm_partition": "gpu", "slurm_account": "physics"}
    of_another = {job_view().key._replace(uid=4): SlurmLabels("gpu", "physics")}
    assert info_of(job_view(), of_another) == {}


def test_a_task_goes_by_its_arrays_name_whoever_says_it() -> None:
    told = {job_view().key: SlurmLabels("gpu", None, "123_4")}
    assert info_of(job_view(), told) == {"slurm_partition": "gpu", "slurm_array": "123_4"}


def test_job_collector_omits_labels_unknown_to_slurm() -> None:
    assert info_of(job_view(), {job_view().key: SlurmLabels("gpu", None)}) == {"slurm_partition": "gpu"}
    assert info_of(job_view(ranks=()), {}) == {}


def test_a_task_of_an_array_has_the_name_that_squeue_shows() -> None:
    place = SlurmPlace(JobId("4711"), "0", array_job_id=4700, array_task_id=3)
    assert info_of(job_view(ranks=(rank_summary(0), rank_summary(1, slurm=place))), {}) == {"slurm_array": "4700_3"}


def test_groups_of_one_job_are_series_of_their_own_with_their_names() -> None:
    first = job_view(group_name="step 0")
    second = job_view(group="step 1", group_name="step 1", ranks=(rank_summary(0),))
    samples = scrape(first, second)
    assert {s.labels["group"]: s.value for s in samples if s.name == "tidegauge_job_ranks"} == {
        "step 0": 2,
        "step 1": 1,
    }
    assert {s.labels["group"] for s in samples if s.name == "tidegauge_job_info"} == {"step 0", "step 1"}
    assert not any("group" in sample.labels for sample in scrape(job_view()))


def test_job_collector_exports_incidents_of_each_group_of_ranks() -> None:
    second = job_view(group="step 1", group_name="step 1")
    of_jobs = {second.key: next(iter(LOOP.of_jobs.values()))}
    told = {s.name for s in scrape_loop(replace(LOOP, of_jobs=of_jobs), job_view(), second) if s.labels.get("group")}
    assert any(name.startswith("tidegauge_job_incident") for name in told)
