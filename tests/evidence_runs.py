"""One window of evidence on a leak of the zoo (``leak_zoo``), from the command on the rank's socket to the cause.

The same on a real GPU (tests/gpu) and on the rig (tests/integration): only interpreter and environment differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tidegauge.agent.evidence.piece import Whose, evidence_of
from tidegauge.analysis.growth.diff import Comparison, compare
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.core.evidence import CauseFound
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.run_dirs import EVIDENCE_SUFFIX, SOCKET_SUFFIX
from tidegauge.core.wire import from_wire
from tidegauge.probe.activation.launch import activation_environ

TESTS = Path(__file__).parent
WITHIN_S = 150.0
STEPS = 20_000
"""More than a run has time for: the job is ended once its evidence is there."""
JOB = """
import json, sys, time
import leak_zoo
name, steps, pace_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
truth = leak_zoo.ZOO[name]
print(json.dumps({"line": truth.line, "holder": truth.holder}), flush=True)
truth.run(leak_zoo.Run(steps, lambda step: time.sleep(pace_s)))
"""
PACE_S = 0.02
"""A pause after each step, so that a leak does not fill the device before its window is over."""


class Truth(NamedTuple):
    """What the zoo says of the leak."""

    line: Optional[int]
    """In leak_zoo.py; ``None``: all of the model's forward pass."""
    holder: tuple[str, ...]
    """Words that the path to the holder must contain."""


class EvidenceRun(NamedTuple):
    """All that one window gave."""

    evidence: RankEvidence
    comparison: Comparison
    cause: CauseFound

    def lines(self, filename: str) -> Sequence[int]:
        """Lines of this file that grew most; of those that grew alike, all."""
        most = self.comparison.lines[0].grown_bytes if self.comparison.lines else 0
        alike = [one.line for one in self.comparison.lines if one.line is not None and one.grown_bytes == most]
        return [line.line for line in alike if Path(line.filename).name == filename]

    @property
    def path(self) -> str:
        """To the holder of most."""
        search = self.evidence.search
        return search.holders[0].path if search is not None and search.holders else ""


class LeakRun(NamedTuple):
    """A leak of the zoo, and what a window on it gave."""

    truth: Truth
    run: EvidenceRun


def run_leak(name: str, *, python: str, environ: Mapping[str, str], run_dir: Path) -> LeakRun:
    """Train with this leak under the probe at level ``auto``, and ask it for a window of evidence."""
    paths = os.pathsep.join(filter(None, [str(TESTS), environ.get("PYTHONPATH")]))
    command = [python, "-c", JOB, name, str(STEPS), str(PACE_S)]
    with _running(command, {**environ, "PYTHONPATH": paths}, run_dir) as job:
        truth = _truth(job)
        return LeakRun(truth, _evidence_of(job, run_dir))


def run_script(command: Sequence[str], *, environ: Mapping[str, str], run_dir: Path) -> EvidenceRun:
    """Any training script that goes on for long enough, likewise."""
    with _running(command, environ, run_dir) as job:
        return _evidence_of(job, run_dir)


@contextlib.contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str], run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A job with the probe in it, which is ended on the way out."""
    switched_on = {**activation_environ("auto", environ, pythonpath=True), "TIDEGAUGE_RUN_DIR": str(run_dir)}
    job = subprocess.Popen(
        command, env={**environ, **switched_on}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield job
    finally:
        job.kill()
        job.communicate(timeout=30)


def _evidence_of(job: subprocess.Popen[str], run_dir: Path) -> EvidenceRun:
    folder = run_dir / str(os.getuid())
    ask = {"command": "evidence", "id": "asked", "reason": "asked"}
    _asked(job, folder, ask)
    _asked(job, folder, {"command": "evidence_status", "id": ask["id"]}, until="done")
    return _read(folder, job.pid)


def _truth(job: subprocess.Popen[str]) -> Truth:
    assert job.stdout is not None
    assert job.stderr is not None
    line = job.stdout.readline()
    assert line, f"the job said nothing: {job.stderr.read()[-3000:]}"
    said = json.loads(line)
    return Truth(said["line"], tuple(said["holder"]))


def _asked(
    job: subprocess.Popen[str], folder: Path, request: Mapping[str, Any], *, until: Optional[str] = None
) -> None:
    """Ask the job's probe until it says ``ok``, and is in the state ``until``; fail with its last word."""
    end_s, said = time.monotonic() + WITHIN_S, "no answer"
    while time.monotonic() < end_s:
        assert job.poll() is None, f"the job ended with {job.returncode}: {job.communicate()[1][-3000:]}"
        for path in folder.glob(f"{job.pid}-*{SOCKET_SUFFIX}"):
            with contextlib.suppress(OSError):
                answer = _answer(path, request)
                if answer.get("ok") and until in (None, answer.get("state")):
                    return
                said = json.dumps(answer)
        time.sleep(0.1)
    raise AssertionError(f"{request['command']} not within {WITHIN_S:g} s: {said}")


def _answer(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WITHIN_S)
        client.connect(str(path))
        client.sendall(json.dumps(request).encode() + b"\n")
        with client.makefile() as answers:
            answer: dict[str, Any] = json.loads(answers.readline() or "{}")
            return answer


def _read(folder: Path, pid: int) -> EvidenceRun:
    """Compared and judged as the agent does it, without a detector's verdict."""
    (file,) = folder.glob(f"{pid}-*{EVIDENCE_SUFFIX}")
    evidence = from_wire(RankEvidence, json.loads(file.read_text(encoding="utf-8")))
    assert evidence.early_file is not None, evidence.problem
    assert evidence.late_file is not None, evidence.problem
    assert evidence.early_step is not None
    assert evidence.late_step is not None
    early, late = (
        read_snapshot(folder / name).traces[evidence.device] for name in (evidence.early_file, evidence.late_file)
    )
    comparison = compare(early, late)
    piece = evidence_of(
        Whose(JobKey("job", 0, os.getuid()), 0, "here", ProcessId(pid, 0)), evidence, comparison,
        early_step=evidence.early_step, late_step=evidence.late_step, at_unix_s=evidence.ended_unix_s,
    )  # fmt: skip
    return EvidenceRun(evidence, comparison, piece.cause)
