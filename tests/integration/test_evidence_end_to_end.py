"""From a suspicion to the line and the holder, all real but the GPU: a torchrun job at level ``auto``, the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import Service, eventually
from tidegauge.cli.demo_jobs import SCRIPT, Torch, last_lines, training_job

pytestmark = [pytest.mark.rig, pytest.mark.timeout(300)]

JOB = "evidence"


@pytest.fixture
def rig_environ(rig: Rig, tmp_path: Path) -> dict[str, str]:
    return rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")


@pytest.fixture
def service(rig_environ: dict[str, str]) -> Iterator[Service]:
    service = Service(rig_environ)
    try:
        service.up()
        yield service
    finally:
        service.close()


def test_a_suspected_rank_is_looked_into_and_the_incident_names_line_and_holder(
    service: Service, rig: Rig, rig_environ: dict[str, str], tmp_path: Path
) -> None:
    torch = Torch(str(rig.python), "2.13.0", 2, "Fake GPU")
    log_file = tmp_path / "job.log"
    environ = {**rig_environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir)}
    with training_job(torch, job_id=JOB, leak_rank=1, environ=environ, log_file=log_file, backend="gloo"):
        try:
            incident = eventually(lambda: _with_evidence(service), "evidence on an incident", within_s=200)
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
        stored = sorted((service.files.root / "snapshots").rglob("*.snap.zst"))
        assert sorted(ref["key"].rpartition("/")[2] for ref in whole["snapshots"]) == [path.name for path in stored]

        shown = service.call("incidents", "show", str(incident["number"]))
        assert "demo_job.py" in shown.out
        assert "outputs (list" in shown.out
        compared = service.call("diff", *map(str, sorted(stored, key=_step)), "--json")
        assert compared.json[0]["stack"], compared
        page = tmp_path / "report.html"
        made = service.call("report", JOB, "-o", str(page))
        assert made.code == 0, made.err
        assert "outputs (list" in page.read_text()

    # One rank of the job was looked into, once, and the other left alone.
    assert len(stored) == 2


def _with_evidence(service: Service) -> dict[str, Any] | None:
    found = service.get("/api/v1/incidents?all=1")["incidents"]
    return next((one for one in found if one["key"]["job"]["job_id"] == JOB and one["evidence"]), None)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])
