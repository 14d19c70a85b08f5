"""Commands that ask the service, where only the base is installed: they say what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = ("collector", "exporter", "scheduler_hooks")


@pytest.mark.parametrize("command", ["jobs", "status", "top", "incidents", "history"])
def test_a_command_for_the_service_names_the_missing_package(command: str, tmp_path: Path) -> None:
    checkout = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tidegauge", command],  # -S: without site-packages
        env={
            "PATH": os.defpath, "HOME": str(tmp_path), "TIDEGAUGE_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": ":".join(str(checkout / part) for part in PARTS),
        },
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (2, 3)
    assert "needs the package" in done.stderr
