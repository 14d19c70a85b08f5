"""What the rigs' allocators recorded: made once a session and release of torch, then read as any user's snapshot."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fakegpu import build
from fakegpu.rig import Rig
from integration.allocator import workloads
from integration.allocator.workloads import Workload
from integration.needs import missing
from matrix import FIRST_TORCH as FIRST_RIG
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak, parse_settings
from tidegauge.core.allocator.trace import Trace

RELEASES = ("2.9.1", "2.11.0", "2.12.0", FIRST_RIG, "2.15.0")
"""At least one with each tie-break (``TieBreak``), the last for CUDA 12, and the newest. All but the first rig's are
cells of the matrix."""

PROGRAM = Path(__file__).with_name("record.py")
TESTS = Path(__file__).parents[2]


class Recording(NamedTuple):
    """One workload on one real allocator."""

    trace: Trace
    settings: AllocatorSettings
    statistics: Mapping[str, int]
    """``torch.cuda.memory_stats()`` at the end."""
    room_bytes: int
    """What cudaMalloc could give at the beginning, in all."""


@dataclass
class Recorder:
    """Runs all workloads of a release when the first of them is asked for."""

    folder: Path
    done: dict[str, Path] = field(default_factory=dict)

    def recording(self, torch_release: str, workload: Workload, *, told: str | None = None) -> Recording:
        """Of that workload; ``told``: what is said of the torch version, if it is not the truth."""
        if torch_release not in self.done:
            self.done[torch_release] = self.record(torch_release)
        file = self.done[torch_release] / f"{workload.name}.pickle"
        facts = json.loads(file.with_suffix(".json").read_text())
        trace = open_trace(file, torch_version=told or facts["torch_version"], cap_bytes=facts["cap_bytes"])
        settings = parse_settings(facts["conf"], facts["torch_version"])
        return Recording(trace, settings, facts["statistics"], facts["room_bytes"])

    def record(self, torch_release: str) -> Path:
        rig = rig_of(torch_release)
        folder = self.folder / torch_release
        folder.mkdir()
        environ = rig.environ(
            devices=1,
            total_bytes=workloads.DEVICE_BYTES,
            context_bytes=workloads.CONTEXT_BYTES,
            base={**os.environ, "PYTHONPATH": f"{TESTS}:{rig.inside}", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        done = subprocess.run(
            [rig.python, PROGRAM, folder], env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return folder


def rig_of(torch_release: str) -> Rig:
    """Ends the test where that rig is not made."""
    rig = Rig() if torch_release == FIRST_RIG else Rig.of(torch_release)
    if not rig.python.exists():
        missing(f"no rig of torch {torch_release} in {build.DEFAULT_VENV.parent.name}/: say make rigs")
    reason = rig.available()
    if reason is not None:
        missing(reason)
    return rig


def addresses_decide(settings: AllocatorSettings) -> bool:
    """Whether it matters where cudaMalloc puts segments, which only their own recording knows.

    Up to torch 2.11 the lowest of equally large free blocks is taken. Expandable segments of a stream and pool lie in
    one range, where the order is known.
    """
    return settings.tie_break is TieBreak.ADDRESS and not settings.expandable_segments


def version(torch_release: str) -> workloads.Version:
    major, minor = torch_release.split(".")[:2]
    return int(major), int(minor)


def cases(*, rings: bool) -> list[tuple[str, Workload]]:
    """Every release with every workload that it can run; those whose ring overflows, or the others."""
    return [
        (release, workload)
        for release in RELEASES
        for workload in workloads.workloads(version(release))
        if workload.name.startswith("ring") == rings
    ]


def case_name(value: str | Workload) -> str:
    return value if isinstance(value, str) else value.name
