"""Makes a node's evidence collector from the settings, which say where and for how long snapshots are kept."""

from __future__ import annotations

import logging
from pathlib import Path

from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.collector import EvidenceCollector
from tidegauge.agent.evidence.growth_bounds import GrowthBounds
from tidegauge.agent.evidence.patient_store import PatientStore
from tidegauge.agent.evidence.remote_store import RemoteStore
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import FolderStore, SnapshotStore, SnapshotStoreError
from tidegauge.agent.evidence.waiting import WaitingEvidence
from tidegauge.agent.ports import Clock
from tidegauge.settings import Settings
from tidegauge.steady_clock import SteadyClock

_log = logging.getLogger(__name__)

EVIDENCE_FOLDER = "evidence"
SNAPSHOT_FOLDER = "snapshots"
CLOCK_FILE = "clock.json"
_DAY_S = 86_400.0
_GIB = 1 << 30


def open_store(settings: Settings, *, hostname: str) -> SnapshotStore:
    """This node's snapshot store. Nothing is made or reached before the first snapshot.

    Raises ``SnapshotStoreError`` where the driver for its URL is not installed.
    """
    where = settings.snapshot_store
    if where is None or "://" not in where:
        folder = settings.state_dir / SNAPSHOT_FOLDER if where is None else Path(where).expanduser().absolute()
        return FolderStore(folder, hostname=hostname)
    store = RemoteStore(where, settings.state_dir / EVIDENCE_FOLDER)
    store.check_driver()
    return PatientStore(store)


def open_evidence_collector(settings: Settings, *, hostname: str, clock: Clock) -> EvidenceCollector:
    """Open the collector. An unusable store costs the stored snapshots, not the evidence, and is logged once, here."""
    store, problem = None, ""
    try:
        store = open_store(settings, hostname=hostname)
    except SnapshotStoreError as error:
        problem = str(error)
        _log.error("snapshots are not kept (setting snapshot_store): %s", problem)
    budget = EvidenceBudget()
    keeping = Keeping(settings.keep_snapshots_days * _DAY_S, int(settings.keep_snapshots_gib * _GIB))
    folder = settings.state_dir / EVIDENCE_FOLDER
    steady = SteadyClock(folder / CLOCK_FILE)
    shelf = SnapshotArchive(
        store, keeping, budget, cluster=settings.cluster, problem=problem, steady_unix_s=steady.unix_s
    )  # fmt: skip
    return EvidenceCollector(
        shelf,
        WaitingEvidence(folder),
        EvidenceAttempts(folder),
        budget,
        GrowthBounds(folder),
        hostname=hostname,
        clock=clock,
    )
