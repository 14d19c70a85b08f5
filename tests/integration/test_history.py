"""What stays of jobs, as people ask for it: a real service that is started again, real jobs on the rig, and the
commands of a machine that knows nothing but the API's address."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.service import Service, eventually
from tidegauge.cluster.service_record import read_address
from tidegauge.core.units import format_bytes

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("rig_jobs") / "recorded.py"
STEPS = 40


@pytest.fixture
def service(rig: Rig, tmp_path: Path) -> Iterator[Service]:
    service = Service(rig.environ(devices=1, total_bytes=8 << 30, state=tmp_path / "gpus"))
    service.environ |= {"TIDEGAUGE_REPORT_PERIOD_S": "0.25", "TIDEGAUGE_LINGER_S": "5"}
    try:
        yield service
    finally:
        service.close()


def run_job(rig: Rig, service: Service, folder: Path, how: str) -> None:
    command = [str(rig.python), str(SCRIPT), how, str(folder / how)]
    with (folder / f"{how}.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "tidegauge", "run", "--job-name", f"it-{how}", "--", *command],
            env={**service.environ, "OMP_NUM_THREADS": "1"}, cwd=folder, stdout=log, stderr=log, timeout=300,
            check=False,
        )  # fmt: skip


def from_elsewhere(service: Service, *arguments: str) -> str:
    """The output of a command where no service is known, as on a login node."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    url = read_address(service.files.api)
    assert url is not None
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge", *arguments, "--api", url],
        env={**environ, "TIDEGAUGE_STATE_DIR": str(service.root / "nothing")}, cwd="/", capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jobs_are_asked_for_by_name_and_end_after_the_service_was_started_again(
    rig: Rig, service: Service, tmp_path: Path
) -> None:
    service.up()
    for how in ("clean", "oom"):
        run_job(rig, service, tmp_path, how)
    eventually(lambda: len(service.get("/api/v1/ended-jobs?name=it-*")["jobs"]) == 2 or None, "the records of two jobs")
    assert service.call("down").code == 0
    service.up()
    eventually(lambda: service.get("/api/v1/ended-jobs"), "the API of the service that was started again")
    listed = from_elsewhere(service, "history", "--name", "it-*").splitlines()
    assert [line.split()[1] for line in listed[1:3]] == ["it-oom", "it-clean"]
    assert listed[-1].startswith("2 jobs, 1 ended by OOM; the fullest rank of a job reserved ")
    only = json.loads(from_elsewhere(service, "history", "--ended", "oom", "--json"))
    assert [one["job_name"] for one in only["jobs"]] == ["it-oom"]
    own = json.loads((tmp_path / "clean").read_text())
    told = from_elsewhere(service, "job", "it-clean")
    assert re.search(rf"^steps +{STEPS}$", told, re.MULTILINE)
    allocated, reserved = (re.escape(format_bytes(own[name])) for name in ("allocated", "reserved"))
    fullest = rf"^fullest +rank 0 on \S+: {reserved} of \S+ GiB reserved \(\d+%\), {allocated} allocated"
    assert re.search(fullest, told, re.MULTILINE)
    assert from_elsewhere(service, "job", "it-oom").splitlines()[0].endswith("(OOM)")
