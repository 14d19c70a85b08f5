"""``former_addresses``: a report of an agent that was not restarted yet is read, wherever its values live today."""

from __future__ import annotations

import subprocess
import sys

import pytest

ADDRESSES = {
    "tidegauge.core.evidence": ("CauseFound", "Evidence", "PrivatePools", "SnapshotRef", "StackGrowth"),
    "tidegauge.core.evidence_brief": ("Confidence", "EvidenceCause"),
    "tidegauge.core.growth_bound": ("BoundState", "GrowthBound"),
    "tidegauge.core.host_memory": ("HostProcess",),
    "tidegauge.core.ids": ("ProcessId", "RankIdentity"),
    "tidegauge.core.incidents": ("JobKey", "OomRecord"),
    "tidegauge.core.kubernetes": ("PodPlace",),
    "tidegauge.core.launches": ("LaunchState", "LaunchSummary"),
    "tidegauge.core.orders": ("OrderResult",),
    "tidegauge.core.owners": ("CodeLine",),
    "tidegauge.core.rank_evidence": ("ContainerBound", "Holder", "HolderKind", "HolderSearch", "RankFacts"),
    "tidegauge.core.slurm": ("SlurmPlace",),
    "tidegauge.core.verdicts": ("Band", "LeakState", "Severity", "Signal", "Verdict"),
    "tidegauge.core.views": ("GpuView", "NodeSummary", "RankSummary"),
}
"""Every class that a report of 2026-11-27 could hold, by the module that its pickle named."""


@pytest.mark.parametrize("module", ADDRESSES)
def test_former_addresses_find_the_classes_of_reports_of_earlier_releases(module: str) -> None:
    """In a process of its own, as these names stay in ``sys.modules``."""
    pickled = "".join(f"c{module}\\n{name}\\n0" for name in ADDRESSES[module])  # GLOBAL, POP
    program = f"""
import pickle
from tidegauge.cluster.ray_service.former_addresses import accept_former_addresses
accept_former_addresses()
pickle.loads(b"{pickled}N.")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
