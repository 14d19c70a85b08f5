"""Files that end the agent: tried once more, then left alone, and their user with them for a while."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rank_windows import leave_window, window
from tidegauge.agent.evidence.attempts import HOLD_S, MAX_TRIES, MAX_UNFINISHED, EvidenceAttempts
from tidegauge.agent.evidence.files import EvidenceFinder, FoundFiles, RankFolder
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant

NOW_S = 1.7e9
SOMEBODY = Tenant(1001)
TESTS = Path(__file__).parents[2]

DEADLY = """
import logging, os, signal, sys
from pathlib import Path
from rank_windows import leave_window
from sample_views import rank_view
from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.files import EvidenceFinder, RankFolder
from tidegauge.agent.evidence.making import NodeFacts
from tidegauge.agent.evidence.waiting import WaitingEvidence
from tidegauge.agent.evidence.work import EvidenceWork
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.agent.source_health import SkipCounts
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import FolderStore
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant

class Deadly(FolderStore):
    def put(self, key, content, *, at_unix_s):
        os.kill(os.getpid(), signal.SIGKILL)

run_dir, state = Path(sys.argv[1]), Path(sys.argv[2])
store = {"deadly": Deadly, "sound": FolderStore}[sys.argv[3]]
process = ProcessId(int(sys.argv[4]), 777)
folder = UserFolder(HostRunDir(run_dir), os.getuid())
ranks = {process: RankFolder(folder, process, Tenant(os.getuid()), ended=False)}
[found] = EvidenceFinder(SkipCounts(logging.getLogger())).new_files(ranks, 0.0)
budget = EvidenceBudget()
shelf = SnapshotArchive(store(state / "snapshots", hostname="n"), Keeping(1e9, 1 << 30), budget, cluster="lab")
work = EvidenceWork(shelf, WaitingEvidence(state / "evidence"), EvidenceAttempts(state / "evidence"))
try:
    done = work.do(found, NodeFacts(rank_view(process=process), "n", (), 1.7e9), now_s=0.0, protected=())
except UnsafeFileError as refused:
    print("refused", refused.reason)
else:
    print("done", len(done.piece.snapshots))
"""
"""One agent's life: it takes what lies beside a ring, with a store in whose hands it dies, or with a sound one."""


def live(scratch: Path, store: str, pid: int = 4242) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DEADLY, scratch / "run", scratch / "state", store, str(pid)],
        env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / str(os.getuid())
    folder.mkdir(parents=True)
    return folder


def test_evidence_attempts_refuse_a_file_that_killed_the_agent_twice(tmp_path: Path, folder: Path) -> None:
    leave_window(folder, ProcessId(4242, 777))
    for _ in range(MAX_TRIES):
        assert live(tmp_path, "deadly").returncode == -signal.SIGKILL
    after = live(tmp_path, "deadly")
    assert (after.returncode, after.stdout) == (0, "refused deadly\n"), after.stderr
    leave_window(folder, ProcessId(5000, 777), replace(window(ProcessId(5000, 777)), evidence_id="auto-8"))
    assert live(tmp_path, "sound", 5000).stdout == "done 2\n"


def test_an_agent_that_was_ended_for_other_reasons_takes_it_up_again(tmp_path: Path, folder: Path) -> None:
    leave_window(folder, ProcessId(4242, 777))
    assert live(tmp_path, "deadly").returncode == -signal.SIGKILL
    assert live(tmp_path, "sound").stdout == "done 2\n"


def found(folder: Path, pid: int, tenant: Tenant = SOMEBODY) -> FoundFiles:
    """Nothing of it is read: its descriptors may be closed."""
    process = ProcessId(pid, 777)
    leave_window(folder, process)
    at = RankFolder(UserFolder(HostRunDir(folder.parent), os.getuid()), process, tenant, ended=False)
    [files] = EvidenceFinder(SkipCounts(logging.getLogger("test"))).new_files({process: at}, 0.0)
    files.close()
    return files


def dies_over(state: Path, files: FoundFiles, now_unix_s: float = NOW_S) -> str | None:
    """An agent that begins and never ends; why it does not begin."""
    return EvidenceAttempts(state).begin(files, now_unix_s=now_unix_s)


def test_evidence_attempts_do_not_count_finished_ones(tmp_path: Path, folder: Path) -> None:
    files = found(folder, 1)
    for _ in range(2 * MAX_TRIES):
        attempts = EvidenceAttempts(tmp_path)
        assert attempts.begin(files, now_unix_s=NOW_S) is None
        attempts.end(files)


def test_a_user_cannot_go_on_under_other_names(tmp_path: Path, folder: Path) -> None:
    for pid in range(MAX_UNFINISHED):
        assert dies_over(tmp_path, found(folder, pid + 1)) is None
    why = dies_over(tmp_path, found(folder, 99))
    assert why is not None
    assert "files of uid 1001 within the hour" in why
    assert dies_over(tmp_path, found(folder, 99, Tenant(None, pod_uid="pod-1"))) is None
    assert dies_over(tmp_path, found(folder, 100), NOW_S + HOLD_S) is None


def test_a_file_that_was_written_again_is_another_one(tmp_path: Path, folder: Path) -> None:
    first = found(folder, 1)
    for _ in range(MAX_TRIES):
        assert dies_over(tmp_path, first) is None
    assert dies_over(tmp_path, first) is not None
    assert dies_over(tmp_path, found(folder, 1)) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b'{"a": [1]}', b"\xff", b"[" * 100_000])
def test_a_damaged_ledger_costs_what_it_remembered(content: bytes, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "begun.json").write_bytes(content)
    assert dies_over(tmp_path, found(folder, 1)) is None


def test_a_disk_that_cannot_be_written_to_stops_no_work(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    assert dies_over(tmp_path / "in the way" / "evidence", found(folder, 1)) is None
