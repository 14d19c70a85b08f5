"""Earlier states of Tidegauge, out of the repository's own history, and how their code is run.

There are no releases yet: the last commit of each stage of the work stands for one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PACKAGES = ("collector", "exporter", "scheduler_hooks")
COMMITS = {
    "1-probe": "5359ee0",
    "2-closed-loop": "ba1fbbb",
    "3-dashboards": "62df176",
    "4-slurm": "3c79f3a",
    "5-kubernetes": "264032d",
    "6-allocator": "6b95fb0",
    "7-evidence": "a22871b",
}
"""By what was new. The first had no database, those before the last no evidence (schema 0002)."""


def why_not(release: str) -> str | None:
    """Why the code of a release cannot be had here, or ``None``. A shallow clone lacks it, in CI too: then what it
    left behind stands for it (tests/data/upgrade, tests/collector/test_upgrade_*.py)."""
    asked = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMITS[release]}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return None if asked.returncode == 0 else f"the history of this checkout does not have {COMMITS[release]}"


@contextmanager
def old_code(release: str) -> Iterator[Path]:
    """A folder with the packages of a release; gone afterwards."""
    packed = subprocess.run(
        ["git", "archive", COMMITS[release], *PACKAGES], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with TemporaryDirectory(prefix="tg-old-", dir="/tmp") as folder:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def service_environ(code: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """For commands and services of that code: before what is installed here."""
    return {**environ, "PYTHONPATH": os.pathsep.join(str(code / package) for package in PACKAGES)}


def probe_environ(code: Path, environ: Mapping[str, str], *, level: str = "stats") -> dict[str, str]:
    """For a job that the probe of that code watches, as its own ``tidegauge run`` would have it."""
    folder = code / "collector" / "tidegauge" / "probe" / "activation" / "pythonpath"
    return {**environ, "TIDEGAUGE_PROFILE": level, "PYTHONPATH": str(folder)}


def say(code: Path, program: str, *arguments: str) -> str:
    """What a small Python program prints that runs on that code."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=service_environ(code, os.environ), cwd="/",
        capture_output=True, text=True, check=True, timeout=180,
    ).stdout  # fmt: skip
