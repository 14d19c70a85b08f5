"""Real training runs that end out of memory: what stands below the traceback, and what the snapshot beside the ring
says afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from tidegauge.analysis.oom.forms import figures_of, parse_message
from tidegauge.core.oom import OomKind, explain_case
from tidegauge.probe.activation.launch import activation_environ

pytestmark = pytest.mark.rig

SCRIPT = Path(__file__).parent / "rig_jobs" / "oom_cases.py"
GIB = 1 << 30


class Runs:
    """Runs the cases of ``rig_jobs/oom_cases.py`` on a GPU of 8 GiB."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self._rig = rig
        self._scratch = scratch
        self.run_dir = scratch / "run"

    def environ(self, level: str, **more: str) -> dict[str, str]:
        environ = self._rig.environ(devices=1, total_bytes=8 * GIB, state=self._scratch / "gpus")
        environ["PYTHONPATH"] = str(self._rig.inside)
        environ |= activation_environ(level, environ, pythonpath=True)
        return {**environ, "TIDEGAUGE_RUN_DIR": str(self.run_dir), **more}

    def stderr(self, *arguments: str, level: str = "stats", code: int = 1, keeper: bool = False, **more: str) -> str:
        command = [str(self._rig.python), str(SCRIPT), *arguments]
        if keeper:
            command = [sys.executable, "-m", "tidegauge", "run", "--", *command]
        done = subprocess.run(
            command, env=self.environ(level, **more), cwd=self._scratch, capture_output=True, text=True, timeout=100,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr[-3000:]
        return done.stderr

    def snapshots(self) -> list[Path]:
        return sorted(self.run_dir.glob("*/*.oom.pickle"))

    def explained(self, *arguments: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "tidegauge", "oom", *map(str, arguments), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def runs(rig: Rig, tmp_path: Path) -> Runs:
    return Runs(rig, tmp_path)


def told(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("tidegauge:")]


def test_the_explanation_stands_below_the_traceback(runs: Runs) -> None:
    stderr = runs.stderr("pieces", "--history")
    first, owner, free = told(stderr)
    assert stderr.index("torch.OutOfMemoryError: CUDA out of memory") < stderr.index(first)
    assert stderr.rstrip().endswith(free)
    assert first.startswith("tidegauge: rank 0 ran out of memory at step 0: an allocation of 2.0 GiB failed")
    assert "(largest: 31.0 MiB). Retry with" in first
    assert "in 100 blocks of 33.0 MiB: " in owner
    assert owner.endswith("in pieces")
    (snapshot,) = runs.snapshots()
    assert snapshot.stat().st_mode & 0o777 == 0o600
    answer = runs.explained(snapshot)
    assert (answer["kind"], answer["request_bytes"]) == ("fragmentation", 2 * GIB)
    assert answer["owners"][0]["bytes"] == 100 * (33 << 20)


def test_without_stacks_the_blocks_are_told_by_size(runs: Runs) -> None:
    first, largest, _free = told(runs.stderr("needed"))
    assert "an allocation of 64.0 MiB failed" in first
    assert "in 119 blocks of 64.0 MiB: no stack was recorded" in largest
    (snapshot,) = runs.snapshots()
    assert runs.explained(snapshot)["kind"] == "allocated"


def test_the_traceback_is_the_same_with_and_without_the_probe(runs: Runs) -> None:
    def without_figures(stderr: str) -> list[str]:
        return [line for line in stderr.splitlines() if not line.startswith(("[W", "tidegauge:"))]

    with_probe = without_figures(runs.stderr("too_big"))
    assert with_probe == without_figures(runs.stderr("too_big", level="off"))


def test_an_error_that_is_caught_leaves_a_snapshot_and_no_word(runs: Runs) -> None:
    assert told(runs.stderr("needed", "--caught", code=0)) == []
    assert len(runs.snapshots()) == 1


def test_under_a_keeper_it_is_told_once(runs: Runs) -> None:
    stderr = runs.stderr("pieces", "--history", keeper=True)
    assert stderr.count("ran out of memory at step") == 1
    assert stderr.count("in 100 blocks of 33.0 MiB: ") == 1
    assert "expandable_segments:True" in stderr
    assert stderr.index("torch.OutOfMemoryError") < stderr.index("ran out of memory at step")


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("keeper", [False, True])
def test_private_pools_that_grew_are_told_by_their_figure(runs: Runs, conf: str, keeper: bool) -> None:
    stderr = runs.stderr("pool_each_step", keeper=keeper, PYTORCH_CUDA_ALLOC_CONF=conf)
    (first,) = (line for line in told(stderr) if "ran out of memory" in line)
    assert "GiB were free in private pools (CUDA graphs, MemPool), out of reach" in first
    assert "reserved memory grew by " in first
    assert "unless the graphs share one pool, or the job captures fewer; expandable_segments does not help." in first


def test_oom_explanation_can_be_switched_off(runs: Runs) -> None:
    assert told(runs.stderr("needed", TIDEGAUGE_EXPLAIN_OOM="off")) == []
    assert runs.snapshots() == []


def test_dormant_leaves_the_error_alone(runs: Runs) -> None:
    assert told(runs.stderr("needed", level="dormant")) == []
    assert runs.snapshots() == []


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("needed", OomKind.ALLOCATED),
        ("cap", OomKind.CAP),
        ("pieces", OomKind.FRAGMENTATION),
        ("outside", OomKind.OUTSIDE_ALLOCATOR),
        ("pools", OomKind.PRIVATE_POOLS),
        ("too_big", OomKind.TOO_BIG),
    ],
)
def test_the_text_that_torch_writes_is_understood(runs: Runs, case: str, kind: OomKind) -> None:
    text = parse_message(runs.stderr(case, level="off"))
    assert text is not None
    figures = figures_of(text)
    assert figures is not None
    assert explain_case(figures).kind is kind
