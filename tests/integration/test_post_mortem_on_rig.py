"""A job that runs into its memory fraction, with no service anywhere: its terminal says what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import SCRIPT

pytestmark = pytest.mark.rig


def test_the_terminal_says_that_the_fraction_was_the_limit(rig: Rig, tmp_path: Path) -> None:
    environ = {
        **rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus"),
        "TIDEGAUGE_RUN_DIR": str(tmp_path / "run"),
    }
    command = [sys.executable, "-m", "tidegauge", "run", "--memory-fraction", "0.02", "--", str(rig.python)]
    command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    command += ["--state", str(tmp_path / "job.state"), "--steps", "2000"]
    command += ["--leak-rank", "1", "--pause-seconds", "0.01"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    notes = [line for line in done.stderr.splitlines() if line.startswith("tidegauge: rank 1 ran out of memory")]
    assert len(notes) == 1, done.stderr[-3000:]
    assert "live tensors grew" in notes[0]
    assert "The memory fraction set the limit" in notes[0]
    # Below it the verdict of `tidegauge run` itself, which does not forecast what has happened.
    (verdict,) = [line for line in done.stderr.splitlines() if line.startswith("tidegauge: rank 1: ")]
    assert "allocated memory grows by" in verdict
    assert "out of memory" not in verdict
