"""A training run on the rig that leaks until PyTorch raises the error, under the whole service: one story in red."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import Service, eventually

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

GIB = 1 << 30
JOB = """
import time, torch
kept = []
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def remember():
    kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))
while True:
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    remember()
    time.sleep(0.04)
"""


@pytest.fixture
def service(rig: Rig, tmp_path: Path) -> Iterator[Service]:
    service = Service(rig.environ(devices=1, total_bytes=3 * GIB, state=tmp_path / "gpus"))
    try:
        service.up("--set", "incident_severity=warning")
        yield service
    finally:
        service.close()


def test_a_leak_that_ran_out_of_memory_is_one_story_with_its_error(rig: Rig, service: Service, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    environ = {**service.environ, "TIDEGAUGE_JOB_ID": "leaky", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tidegauge", "run", "--", str(rig.python), str(script)]
    job = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "torch.OutOfMemoryError" in job.stderr
    leak, error = eventually(lambda: _closed(service), "both incidents to be closed", within_s=60)
    assert (leak["closure"], error["key"]["cause"]) == ("ran_out_of_memory", "out_of_memory")
    assert (leak["ran_out"]["number"], error["grew_in"]) == (error["number"], leak["number"])
    oom, first = leak["ran_out"]["oom"], leak["foreseen"]
    assert oom["wanted_bytes"] > oom["free_bytes"] > 0
    assert first["at_unix_s"] < oom["at_unix_s"]
    page = service.get_text(f"/report?incident={leak['number']}")
    assert '<section class="lead tone-critical">' in page
    assert "ran out of GPU memory at" in page
    shown = service.call("incidents", "show", str(leak["number"])).out
    assert "What ended it" in shown
    assert "before the error" in shown


def _closed(service: Service) -> list[dict[str, Any]] | None:
    found = service.answer("/api/v1/incidents?all=1")["incidents"]
    over = sorted((one for one in found if one["state"] == "closed"), key=lambda one: int(one["number"]))
    return over if len(over) == 2 else None
