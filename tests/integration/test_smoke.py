"""The whole service once, as a newcomer starts it: Ray, agent and coordinator, two jobs of two ranks on the rig, the
verdict, the evidence, a memory profile, a scrape and the report. ``make smoke``; the only test with a server that
``make test`` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.rig import Rig

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]


def test_demo_convicts_the_leak_and_nobody_else_and_shows_a_healthy_profile(rig: Rig, tmp_path: Path) -> None:
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")
    command = ["demo", "--backend", "gloo", "--python", str(rig.python), "--folder", str(tmp_path / "demo")]
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge", *command, "--seconds", "300"],  # it ends as soon as it has found the leak
        env={**environ, "TMPDIR": "/tmp"}, capture_output=True, text=True, timeout=700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "leaky job, rank 1: growing: allocated memory grows" in done.stdout
    for rank in ("leaky job, rank 0", "healthy job, rank 0", "healthy job, rank 1"):
        assert f"{rank}: ok" in done.stdout
    assert "outputs (list" in done.stdout
    profile = done.stdout.partition("The healthy job's memory on a Fake GPU")[2]
    assert "\nEach of its ranks shares its GPU with one of the leaky job: " in profile
    assert "the fullest of 2 ranks with a profile" in profile
    for part in ("Allocated at the peak\n", "Highest in each phase\n", "activations", "demo_job.py:38 in forward"):
        assert part in profile
    page = (tmp_path / "demo" / "profile.html").read_text()
    assert [f'<div class="of-rank" data-rank="{rank}">' in page for rank in range(3)] == [True, True, False]
    assert "</html>" in page
    assert "outputs (list" in (tmp_path / "demo" / "report.html").read_text()
    assert "tidegauge_rank_leak_state{" in (tmp_path / "demo" / "metrics.prom").read_text()
