"""Runs targets in processes of their own and says what came of it. libFuzzer's figures are read from what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.target import CORPUS, FOUND, kept

ROOT = Path(__file__).resolve().parents[2]
SLOWEST_S = 60
"""After which libFuzzer ends an input that neither Python nor the processor's clock can end."""
STARTING_S = 240
"""Importing, stretched inputs and the seeds, on a busy machine."""
_COVERED = re.compile(r"^#\d+\s+(\w+)\s+cov: (\d+)", re.MULTILINE)
_FIGURE = re.compile(r"^stat::(\w+):\s+(\d+)", re.MULTILINE)
_UNIT = re.compile(r"Test unit written to (\S+)|a stretched input is a finding: (\S+)")
_WORDS = re.compile(r"=== Uncaught Python exception: ===\s*\n(.+)|(?:Error|Finding): (.+)")


@dataclass(frozen=True)
class Outcome:
    """What came of one target."""

    name: str
    inputs: int
    inputs_per_s: int
    corpus: int
    """Kept inputs and seeds that it began with."""
    covered: int | None
    """Places in the product's code (libFuzzer's edges) that inputs reach."""
    new_coverage: int
    """Of these, reached by none that it began with."""
    peak_rss_mb: int
    findings: tuple[str, ...] = ()
    """In words, each with the command that repeats it."""
    log: str = field(default="", repr=False)


def fuzz(name: str, seconds: float, *, seed: int, path: Sequence[str] = (), keep: bool = False) -> Outcome:
    """One target for so long. ``path`` comes first in ``PYTHONPATH``: an overlay with a planted bug.

    With ``keep`` the corpus takes what reached something new, as few and as small inputs as do.
    """
    with _folders(name) as (grown, seeds, artifacts):
        options = [
            f"-max_total_time={max(round(seconds), 1)}", "-print_final_stats=1", f"-timeout={SLOWEST_S}",
            f"-seed={seed}",
            f"-artifact_prefix={artifacts}/", str(grown), str(CORPUS / name), str(seeds),
        ]  # fmt: skip
        log = _child(name, options, path, limit_s=seconds + STARTING_S)
        outcome = _outcome(name, log, artifacts, began_with=len(kept(name)) + len(list(seeds.iterdir())))
        if keep and not outcome.findings:
            _take_in(name, grown, path)
    return outcome


@contextmanager
def _folders(name: str) -> Iterator[tuple[Path, Path, Path]]:
    """New inputs, seeds, failures: gone afterwards."""
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="tidegauge-fuzz-"))
    try:
        folders = scratch / "grown", scratch / "seeds", scratch / "found"
        for folder in folders:
            folder.mkdir()
        _run([name, "--seeds", str(folders[1])], (), limit_s=STARTING_S)
        yield folders
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _child(name: str, options: Sequence[str], path: Sequence[str], *, limit_s: float) -> str:
    return _run([name, *options], path, limit_s=limit_s)


def _run(arguments: Sequence[str], path: Sequence[str], *, limit_s: float) -> str:
    """What a child says; how it ended is in there."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT / "tests")]), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "fuzz.child", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        return f"{(expired.stdout or b'').decode(errors='replace')}\nError: no end after {limit_s:.0f} s\n"
    said = done.stdout.decode(errors="replace")
    return said if done.returncode == 0 else f"{said}\nended with status {done.returncode}\n"


def _outcome(name: str, log: str, artifacts: Path, *, began_with: int) -> Outcome:
    covered = {word: int(count) for word, count in _COVERED.findall(log)}
    figures = {word: int(count) for word, count in _FIGURE.findall(log)}
    last = covered.get("DONE", max(covered.values(), default=None))
    inputs = figures.get("number_of_executed_units", 0) + figures.get("stretched_inputs", 0)
    ended_well = "DONE" in covered and "ended with status" not in log
    return Outcome(
        name, inputs, figures.get("average_exec_per_sec", 0), began_with, last,
        0 if last is None else last - covered.get("INITED", last), figures.get("peak_rss_mb", 0),
        () if ended_well else _kept_findings(name, log, artifacts), log,
    )  # fmt: skip


def _kept_findings(name: str, log: str, artifacts: Path) -> tuple[str, ...]:
    words = [first or second for first, second in _WORDS.findall(log)]
    said = words[0].strip()[:300] if words else f"it ended early: {log.strip()[-300:]}"
    files = sorted(artifacts.iterdir())
    if not files:
        return (said,)
    (FOUND / name).mkdir(parents=True, exist_ok=True)
    moved = [Path(shutil.move(file, FOUND / name / file.name)) for file in files]
    again = f"PYTHONPATH=tests {Path(sys.executable)} -m fuzz --replay {name} {moved[0].relative_to(ROOT)}"
    return (f"{said}\n    repeat it with: {again}",)


def _take_in(name: str, grown: Path, path: Sequence[str]) -> None:
    """Those of ``grown`` without which something would not be reached; libFuzzer merges the smallest first."""
    _child(name, ["-merge=1", str(CORPUS / name), str(grown)], path, limit_s=STARTING_S)


def fuzz_all(names: Sequence[str], seconds: float, *, seed: int, jobs: int, keep: bool) -> Iterator[Outcome]:
    """Each for an equal part of ``seconds``, ``jobs`` at a time; outcomes as they come."""
    each_s = seconds * jobs / max(len(names), 1)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda name: fuzz(name, each_s, seed=seed, keep=keep), names)
