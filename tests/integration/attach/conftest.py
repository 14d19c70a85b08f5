"""The rigs of other Pythons: `scripts/make_rig.sh`, `make rigs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.attach.attached_jobs import AttachedJob

OWN = "the rig's own"


def rig_of(python: str) -> Rig:
    """The rig for this Python; the test is skipped where there is none, for not every machine has every Python."""
    rig = Rig() if python == OWN else Rig.of(python)
    reason = rig.available()
    if reason is not None:
        how = "scripts/debian_python.sh gets one from Debian, then " if python == "3.14" else ""
        pytest.skip(
            f"no rig for Python {python}: {how}scripts/make_rig.sh makes it (make rigs); {reason.splitlines()[0]}"
        )
    return rig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., AttachedJob]]:
    """Starts a job on fake GPUs of its own; ended with the test."""
    jobs: list[AttachedJob] = []

    def begin(rig: Rig, *, scratch: Path = tmp_path, **options: Any) -> AttachedJob:
        environ = rig.environ(devices=2, total_bytes=8 << 30, state=scratch / "gpus")
        environ.pop("PYTHONPATH", None)
        jobs.append(AttachedJob(rig.python, environ, scratch, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()
