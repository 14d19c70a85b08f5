"""``tidegauge snapshot`` on a rank that trains on the rig: its files, their forms, evidence, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fakegpu.rig import Rig
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.cli.snapshot.evidence import SENTENCES
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.wire import from_wire
from tidegauge.probe.activation.launch import activation_environ

pytestmark = pytest.mark.rig

SCRIPT = Path(__file__).parents[1] / "rig_jobs" / "leaking.py"
GIVE_UP_S = 120.0


class Rank(NamedTuple):
    pid: int
    run_dir: Path


@pytest.fixture(scope="module")
def rank(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    """One rank that keeps 2 MiB of each batch, watched at level ``auto``. A window of evidence lasts for several looks
    of the command, which tells what it sees."""
    folder = tmp_path_factory.mktemp("snapshot")
    environ = rig.environ(devices=1, state=folder / "gpus")
    environ = {**environ, **activation_environ("auto", environ, pythonpath=True), "TIDEGAUGE_RUN_DIR": str(folder)}
    environ |= {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "TIDEGAUGE_JOB_ID": "job-of-a-test"}
    job = subprocess.Popen(
        [str(rig.python), str(SCRIPT), "--pace", "0.05"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "training\n"
        yield Rank(job.pid, folder)
    finally:
        job.kill()
        job.communicate(timeout=30)


def snapshot(rank: Rank, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TIDEGAUGE_RUN_DIR": str(rank.run_dir)}
    return subprocess.run(
        [sys.executable, "-m", "tidegauge.cli.main", "snapshot", *arguments],
        env=environ, cwd=cwd, capture_output=True, text=True, timeout=GIVE_UP_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("by", ["pid", "job"])
def test_a_snapshot_is_written_and_can_be_read(rank: Rank, tmp_path: Path, by: str) -> None:
    done = snapshot(rank, str(rank.pid) if by == "pid" else "job-of-a-test", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (taken,) = json.loads(done.stdout)["snapshots"]
    assert (taken["rank"], taken["pid"]) == (3, rank.pid)
    assert taken["file"] == f"rank-3-step-{taken['step']}.snap.zst"
    read = read_snapshot(tmp_path / taken["file"])
    assert read.facts["step"] == taken["step"]
    blocks = [block for segment in read.traces[0].end or () for block in segment.blocks]
    assert sum(block.size_bytes == 2 << 20 for block in blocks) > 1


def test_pytorchs_own_form_opens_in_pytorchs_own_tools(rank: Rank, tmp_path: Path) -> None:
    done = snapshot(rank, str(rank.pid), "-o", "now.pickle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "now.pickle" in done.stdout
    # What is in it was written by the command a moment ago.
    opened = pickle.loads((tmp_path / "now.pickle").read_bytes())
    assert opened["segments"]


def test_evidence_names_line_holder_and_cause(rank: Rank, tmp_path: Path) -> None:
    done = snapshot(rank, str(rank.pid), "--evidence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = from_wire(Evidence, json.loads(done.stdout))
    line = found.growth[0].line
    assert line is not None
    assert "LEAK" in SCRIPT.read_text().splitlines()[line.line - 1]
    assert found.search is not None
    assert "Trainer.history" in found.search.holders[0].path
    assert found.cause.cause is EvidenceCause.PYTHON_CONTAINER
    assert any(sentence in done.stderr for sentence in SENTENCES.values())
    told = snapshot(rank, str(rank.pid), "--evidence", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for words in (f"leaking.py:{line.line} in keep", "Trainer.history (list", "cause ", "advice "):
        assert words in told.stdout


def test_a_rank_that_is_not_there_is_said_to_be_missing(rank: Rank, tmp_path: Path) -> None:
    done = snapshot(rank, str(rank.pid), "--rank", "7", cwd=tmp_path)
    assert done.returncode == 3
    assert "has no rank 7 on this host; ranks here: 3" in done.stderr
