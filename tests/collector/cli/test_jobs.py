"""``tidegauge jobs``, and how it names a job."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from sample_views import GIB, LEAK, job_record, job_view, rank_summary
from tidegauge.cli.jobs.jobs import nothing_watched
from tidegauge.cli.main import main
from tidegauge.cluster.api.http_api import HttpApi, Request, UnavailableError, json_route
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound, bounded_verdict
from tidegauge.core.ids import JobId, JobKey, job_name, known_as, short_job_name
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.verdicts import Band, LeakState, Severity
from tidegauge.core.views import JobView

TASK = SlurmPlace(JobId("4711"), "0", array_job_id=4700, array_task_id=3)


@pytest.mark.parametrize(
    ("attempt", "array", "name", "short"),
    [
        (0, None, "4711", "4711"),
        (2, None, "4711 (attempt 2)", "4711 (2)"),
        (0, "4700_3", "4711 (4700_3)", "4711 (4700_3)"),
        (2, "4700_3", "4711 (4700_3, attempt 2)", "4711 (4700_3, 2)"),
    ],
)
def test_a_job_has_its_id_first_then_its_name_in_an_array_and_its_attempt(
    attempt: int, array: str | None, name: str, short: str
) -> None:
    assert job_name("4711", attempt, array) == name
    assert short_job_name("4711", attempt, array) == short


def test_a_job_goes_by_the_name_that_was_given_where_its_id_was_made_up() -> None:
    assert known_as("local-vm-20261126-120000-1479", "train") == "train"
    assert known_as("local-vm-20261126-120000-1479", None) == "local-vm-20261126-120000-1479"
    assert known_as("4711", "train") == "4711"


@pytest.mark.parametrize("slurm", [True, False])
def test_jobs_without_any_watched_explains_how_to_start_one(slurm: bool, tmp_path: Path) -> None:
    if slurm:
        (tmp_path / "srun").touch(mode=0o755)
    told = nothing_watched({"PATH": str(tmp_path)})
    assert told.startswith("no jobs watched; start one with `tidegauge run -- CMD`")
    assert ("`srun --memory-profile CMD`" in told) is slurm


def test_in_a_pod_it_names_the_label() -> None:
    told = nothing_watched({"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert "tidegauge.dev/memory-profile=auto" in told
    assert "tidegauge run" not in told


@pytest.fixture
def url() -> Iterator[str]:
    jobs = (job_view(ranks=(rank_summary(0), rank_summary(1, slurm=TASK))), job_view(job_id="4712"))
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": jobs})}, host="127.0.0.1", port=0)
    api.start()
    yield api.url
    api.stop()


def test_a_job_that_ended_is_shown_as_that_and_its_last_verdict_as_past(capsys: pytest.CaptureFixture[str]) -> None:
    """A peer dies, the job with it, and this rank's growth has no successor."""
    rank = rank_summary(1, verdict=LEAK, alive=False)
    leaked = job_view(ranks=(rank,), state=LEAK.state, severity=LEAK.severity, suspects=(1,), running=False)
    ended = rank_summary(0, alive=False)
    healthy = job_view(job_id="4712", ranks=(ended,), state=LeakState.OK, severity=None, suspects=(), running=False)
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": (leaked, healthy)})}, host="127.0.0.1", port=0)
    api.start()
    try:
        assert main(["jobs", "--api", api.url]) == 0
    finally:
        api.stop()
    rows = capsys.readouterr().out.splitlines()
    row = next(one for one in rows if one.startswith("4711"))
    assert "  ended (was leak (critical))  " in row
    assert re.split(r"  +", row)[-1] == "-", "no forecast of what has ended"
    assert "  ended  " in next(row for row in rows if row.startswith("4712"))


def test_growth_that_ends_is_shown_with_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    fills = GrowthBound("`window` (deque)", "deque", 4, 9, 200, 2 * GIB, Band(GIB, GIB, GIB), BoundState.HOLDS)
    rank = rank_summary(1, verdict=bounded_verdict(LEAK, fills), bound=fills)
    job = job_view(ranks=(rank,), severity=rank.verdict.severity, suspects=(1,))
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": (job,)})}, host="127.0.0.1", port=0)
    api.start()
    try:
        assert main(["jobs", "--api", api.url]) == 0
    finally:
        api.stop()
    assert "growing (warning), ends at about 3.0 GiB" in capsys.readouterr().out


def test_a_task_of_an_array_is_shown_as_squeue_names_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--api", url]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.startswith("4711 (4700_3)  llm-pretrain  ada ")
    assert second.startswith("4712           llm-pretrain  ada ")


def test_json_has_the_place_in_slurm_of_each_rank(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["jobs", "--json", "--api", url])
    ranks = json.loads(capsys.readouterr().out)["jobs"][0]["ranks"]
    assert [rank["slurm"] for rank in ranks] == [None, TASK._asdict()]


def serve_ended(*records: JobRecord, jobs: Sequence[JobView] = (), left_out: int = 0) -> HttpApi:
    asked.clear()

    def page(request: Request) -> object:
        asked.update(request.query)
        return {"jobs": records, "left_out": left_out, "seen_as": None}

    routes = {"/api/v1/jobs": json_route(lambda _: {"jobs": jobs}), "/api/v1/ended-jobs": json_route(page)}
    api = HttpApi(routes, host="127.0.0.1", port=0)
    api.start()
    return api


asked: dict[str, str] = {}


def test_json_has_the_web_page_of_each_job(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["jobs", "--json", "--api", url, "--set", "public_url=https://head.example/"])
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert jobs
    for job in jobs:
        key = {"job_id": job["job_id"], "attempt": job["attempt"], "uid": job["ranks"][0]["uid"]}
        assert job["url"] == f"https://head.example/job?{urlencode(key)}"


def test_jobs_that_ended_lately_are_listed_below_with_peak_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    oom = job_record(
        job=JobKey("4700", 1, 1001), job_name=None, end=JobEnd.OOM, state=LeakState.LEAK, severity=Severity.CRITICAL
    )
    api = serve_ended(oom, job_record(job=JobKey("4690", 0, 1001)), jobs=(job_view(),), left_out=3)
    try:
        assert main(["jobs", "--api", api.url]) == 0
    finally:
        api.stop()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["", "Ended in the last 24 h:"]
    header, first, second, more = lines[4:]
    assert header.split("  ")[0] == "job"
    cells = re.split(r"  +", first)
    assert cells[:6] == ["4700 (attempt 1)", "-", "ada", "2", "200", "2 h"]
    assert cells[7:] == ["OOM", "20.0 GiB", "22.0 GiB", "80.0 GiB", "28%", "leak (critical)"]
    assert re.split(r"  +", second)[7] == "by itself"
    assert more == "3 more ended before these; `tidegauge history` lists and filters them"
    assert asked["limit"] == "10"
    assert int(asked["since"]) == pytest.approx(time.time() - 86_400, abs=60)


def test_a_job_that_is_still_in_the_first_table_is_not_in_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    api = serve_ended(job_record(), jobs=(job_view(running=False),))
    try:
        main(["jobs", "--api", api.url])
    finally:
        api.stop()
    assert capsys.readouterr().out.count("4711") == 1


def test_where_nothing_runs_it_says_what_ended_and_where_older_ones_are(capsys: pytest.CaptureFixture[str]) -> None:
    for records, told in (((job_record(),), "Ended in the last 24 h:"), ((), "no job ended in the last 24 h; ")):
        api = serve_ended(*records)
        try:
            assert main(["jobs", "--api", api.url]) == 0
        finally:
            api.stop()
        out = capsys.readouterr().out
        assert out.startswith("no jobs watched; start one with")
        assert told in out
    assert "`tidegauge history` looks further back" in out


def test_ended_since_looks_further_back_and_lists_more(capsys: pytest.CaptureFixture[str]) -> None:
    api = serve_ended(job_record())
    try:
        assert main(["jobs", "--ended", "7d", "--api", api.url]) == 0
    finally:
        api.stop()
    assert asked["limit"] == "1000"
    assert int(asked["since"]) == pytest.approx(time.time() - 7 * 86_400, abs=60)
    assert "Ended since 20" in capsys.readouterr().out


def test_json_has_the_ended_jobs_beside_the_watched_ones(capsys: pytest.CaptureFixture[str]) -> None:
    api = serve_ended(job_record())
    try:
        main(["jobs", "--json", "--api", api.url])
    finally:
        api.stop()
    answer = json.loads(capsys.readouterr().out)
    assert (answer["jobs"], answer["ended_left_out"]) == ([], 0)
    assert (answer["ended"][0]["fullest"]["reserved_bytes"], answer["ended"][0]["end"]) == (22 * GIB, "ended")
    assert "/job?job_id=" in answer["ended"][0]["url"]
    assert answer["url"].endswith("/jobs")


def test_a_service_from_before_the_records_shows_its_jobs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--api", url]) == 0
    assert capsys.readouterr().err == ""
    assert main(["jobs", "--ended", "7d", "--api", url]) == 3


def test_without_its_database_jobs_shows_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def away(_: Request) -> object:
        raise UnavailableError("the database of incidents and actions is unavailable: away")

    routes = {"/api/v1/jobs": json_route(lambda _: {"jobs": (job_view(),)}), "/api/v1/ended-jobs": json_route(away)}
    api = HttpApi(routes, host="127.0.0.1", port=0)
    api.start()
    try:
        assert main(["jobs", "--api", api.url]) == 0
    finally:
        api.stop()
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].startswith("4711")
    assert shown.err.startswith("tidegauge jobs: ended jobs are not available: the database of incidents")


POD = PodPlace("8a1c4f3e", "team-a", "llm-0", "train", job_known=True)


def serve(*jobs: JobView) -> HttpApi:
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": jobs})}, host="127.0.0.1", port=0)
    api.start()
    return api


@pytest.mark.parametrize(
    ("suspects", "pods", "shown"),
    [
        ((1,), ("llm-0", "llm-1"), "llm-1"),
        ((), ("llm-0", "llm-0"), "llm-0"),
        ((), ("llm-0", "llm-1"), "2 pods"),
        ((), (None, "llm-1"), "llm-1"),
        ((0,), (None, "llm-1"), "-"),
    ],
)
def test_the_pod_of_the_rank_to_look_at_is_shown(
    suspects: tuple[int, ...], pods: tuple[str | None, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = tuple(rank_summary(rank, pod=POD._replace(pod=pod)) for rank, pod in enumerate(pods))
    workload = job_view(job_id="team-a/llm", scheduler="kubernetes", suspects=suspects, ranks=ranks)
    api = serve(workload, job_view(ranks=(rank_summary(0, pod=POD),), suspects=()))
    assert main(["jobs", "--api", api.url]) == 0
    api.stop()
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.endswith("  pod")
    assert first.startswith("team-a/llm  llm-pretrain  ada ")
    assert first.endswith(f"  {shown}")
    assert second.endswith("  llm-0")


def test_a_replica_of_a_server_needs_no_steps_and_one_that_grows_says_how_many_others_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    replicas = Replicas("Deployment", 8, 3)
    server: dict[str, Any] = {"job_id": "team-a/vllm", "scheduler": "kubernetes", "replicas": replicas}
    leaks = rank_summary(0, step=0, verdict=LEAK)
    grows = job_view(**server, ranks=(leaks,), suspects=(0,), group="a", group_name="pod vllm-6d-a")
    healthy = rank_summary(0, step=0)
    fine: dict[str, Any] = {"state": LeakState.OK, "severity": None, "signal": None, "suspects": ()}
    api = serve(grows, job_view(**server, **fine, ranks=(healthy,), group="b", group_name="pod vllm-6d-b"))
    assert main(["jobs", "--api", api.url]) == 0
    api.stop()
    first, second = capsys.readouterr().out.splitlines()[1:3]
    assert first.startswith("team-a/vllm (pod vllm-6d-a)  ")
    assert "  leak (critical), 3 of 8 replicas grow  " in first
    assert second.startswith("team-a/vllm (pod vllm-6d-b)  ")
    assert "  ok  " in second


def test_jobs_table_has_no_pod_column_without_pods(capsys: pytest.CaptureFixture[str]) -> None:
    api = serve(job_view())
    main(["jobs", "--api", api.url])
    api.stop()
    assert capsys.readouterr().out.splitlines()[0].endswith("OOM in")


def test_json_has_the_pod_of_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    api = serve(job_view(ranks=(rank_summary(0, pod=POD), rank_summary(1))))
    main(["jobs", "--json", "--api", api.url])
    api.stop()
    ranks = json.loads(capsys.readouterr().out)["jobs"][0]["ranks"]
    assert [rank["pod"] for rank in ranks] == [POD._asdict(), None]
