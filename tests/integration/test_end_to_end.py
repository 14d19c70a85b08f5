"""The whole road, all real but the GPU: a torchrun job on the rig, the service on Ray, a Prometheus that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import EARLY
from integration.needs import missing
from integration.prometheus_server import prometheus_binary, running_prometheus
from integration.server_process import free_port
from integration.service import Service, eventually, told
from tidegauge.cli.demo.jobs import SCRIPT, Torch, last_lines, training_job
from tidegauge.cluster.service_record import read_address

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]

JOB = "e2e"
EVIDENCE_JOB = "evidence"
WITHIN_S = 450.0
"""A rank that did not answer in time is asked again five minutes later; its job trains for ten."""


@pytest.fixture
def rig_environ(rig: Rig, tmp_path: Path) -> dict[str, str]:
    return rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")


@pytest.fixture
def service(rig_environ: dict[str, str]) -> Iterator[Service]:
    service = Service(rig_environ)
    service.environ |= EARLY
    service.environ["TIDEGAUGE_API_PORT"] = str(free_port())  # Prometheus is told of it once, whatever is started again
    try:
        service.up()
        yield service
    finally:
        service.close()


def test_prometheus_names_the_rank_that_leaks(
    service: Service, rig: Rig, rig_environ: dict[str, str], tmp_path: Path
) -> None:
    if prometheus_binary() is None:
        missing("prometheus is not installed")
    torch = Torch(str(rig.python), "2.13.0", 2, "Fake GPU")
    log_file = tmp_path / "job.log"
    environ = {**rig_environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir)}
    api_url = eventually(lambda: read_address(service.files.api), "an API")
    config = (
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: tidegauge\n"
        "    http_sd_configs:\n"
        f"      - {{url: {api_url}/sd, refresh_interval: 1s}}\n"
    )
    with (
        training_job(torch, job_id=JOB, leak_rank=1, environ=environ, log_file=log_file, backend="gloo"),
        running_prometheus(tmp_path, config) as prometheus,
    ):
        try:
            leaking = prometheus.wait_for(
                f'max by (rank) (tidegauge_rank_leak_state{{job_id="{JOB}"}}) == 2', within_s=300
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last_lines(log_file)}\n{service.logs()}") from error
        assert [series["metric"]["rank"] for series in leaking] == ["1"]

        owner = prometheus.wait_for(
            f'tidegauge_rank_leak_state{{job_id="{JOB}", rank="1"}} '
            "* on (cluster, job_id, attempt) group_left (job_name) tidegauge_job_info"
        )
        assert owner[0]["metric"]["job_name"] == "job"
        assert owner[0]["metric"]["UUID"].startswith("GPU-fa6e")

        # Prometheus asks the agent; to the coordinator the same comes with a report.
        (job,) = eventually(lambda: _jobs_that_leak(service), "the leak at the coordinator")
        assert (job["state"], job["suspects"], job["signal"]) == ("leak", [1], "allocated")
        by_rank = {rank["identity"]["rank"]: rank for rank in job["ranks"]}
        # The planted leak is one tensor of logits a step: 8 x (32 to 128, by 8) x 2048 floats.
        assert by_rank[1]["verdict"]["bytes_per_step"]["likely"] == pytest.approx(8 * 80 * 2048 * 4, rel=0.3)
        assert by_rank[0]["verdict"]["state"] == "ok"
        assert by_rank[0]["nontorch_bytes"] >= 400 << 20, "the rig's CUDA context"

    # The job is over: its series end, and the service says so.
    eventually(lambda: not _jobs(service)[0]["running"], "the end of the job")


def _jobs(service: Service) -> list[dict[str, Any]]:
    return [job for job in service.call("jobs", "--json").json["jobs"] if job["job_id"] == JOB]


def _jobs_that_leak(service: Service) -> list[dict[str, Any]]:
    return [job for job in _jobs(service) if job["state"] == "leak"]


def test_a_suspected_rank_is_looked_into_and_the_incident_names_line_and_holder(
    service: Service, rig: Rig, rig_environ: dict[str, str], tmp_path: Path
) -> None:
    torch = Torch(str(rig.python), "2.13.0", 2, "Fake GPU")
    log_file = tmp_path / "job.log"
    environ = {**rig_environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir)}
    with training_job(torch, job_id=EVIDENCE_JOB, leak_rank=1, environ=environ, log_file=log_file, backend="gloo"):
        try:
            incident = eventually(lambda: _with_evidence(service), "evidence on an incident", within_s=WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last_lines(log_file)}\n{service.logs()}") from error
        (brief,) = incident["evidence"]
        line = brief["line"]
        assert (Path(line["filename"]).name, line["function"]) == ("demo_job.py", "forward")
        assert (
            SCRIPT.read_text().splitlines()[line["line"] - 1].strip()
            == "return self.head(self.layers(self.embed(tokens)))"
        )
        assert "outputs (list" in brief["holder"]
        assert brief["cause"] == "python_container"
        assert "outputs" in brief["advice"]

        (whole,) = service.get(f"/api/v1/evidence?incident={incident['number']}")["evidence"]
        assert whole["rank"] == 1
        assert whole["growth"][0]["grown_bytes"] > 0.9 * whole["grown_bytes"]
        # The other rank may have left the snapshot of its first memory profile by now.
        stored = sorted((service.files.root / "snapshots").rglob("rank-1/*.snap.zst"))
        assert sorted(ref["key"].rpartition("/")[2] for ref in whole["snapshots"]) == [path.name for path in stored]

        shown = told(lambda: service.call("incidents", "show", str(incident["number"])))
        assert "demo_job.py" in shown.out
        assert "outputs (list" in shown.out
        compared = service.call("diff", *map(str, sorted(stored, key=_step)), "--json")
        assert compared.json[0]["stack"], compared
        page = tmp_path / "report.html"
        made = told(lambda: service.call("report", EVIDENCE_JOB, "-o", str(page)))
        assert made.code == 0, made.err
        assert "outputs (list" in page.read_text()

    # One rank of the job was looked into, once.
    assert len(stored) == 2


def _with_evidence(service: Service) -> dict[str, Any] | None:
    found = service.get("/api/v1/incidents?all=1")["incidents"]
    of_job = (one for one in found if one["key"]["job"]["job_id"] == EVIDENCE_JOB and one["evidence"])
    return next((one for one in of_job if not one["evidence"][0]["searching"]), None)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])
