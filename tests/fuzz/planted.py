"""Positive controls: real readers with a bug put in. If fuzzing does not find these, its silence means nothing.

Each is a line of the product taken away or changed in a copy, which comes before the product in ``PYTHONPATH``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.fuzzing import ROOT, Outcome, fuzz
from fuzz.target import FOUND

_PACKAGES = {
    "tidegauge": "collector/tidegauge",
    "tidegauge_scheduler_hooks": "scheduler_hooks/tidegauge_scheduler_hooks",
}


@dataclass(frozen=True)
class Planted:
    """One bug. ``target`` has to find it."""

    what: str
    target: str
    module: str
    """Path below the folder of packages."""
    line: str
    instead: str


BUGS = (
    Planted(
        "an index of a stack is not checked",
        "columns",
        "tidegauge/core/snapshot_columns.py",
        '_check(_below(stack_frames, len(frames["line"])), "a stack names a frame that is not there")',
        "pass",
    ),
    Planted(
        "a number of several bytes in a protobuf message is taken for one of one byte",
        "pods",
        "tidegauge/core/protobuf.py",
        "            value, at = _decoded(message, at)\n",
        "            value, at = message[at], at + 1\n",
    ),
    Planted(
        "a record's figures are believed",
        "ring",
        "tidegauge/agent/rings/reader.py",
        "return bool(max(figures) <= MAX_SANE)",
        "return True",
    ),
    Planted(
        "aliases of a policy are counted once",
        "policy",
        "tidegauge_scheduler_hooks/policy/yaml_lines.py",
        "sizes[id(node)] = 1 + sum(map(size, inner))",
        "sizes[id(node)] = 1 + len(list(map(size, inner)))",
    ),
    Planted(
        "an evidence file is opened by the name that a job gives",
        "evidence",
        "tidegauge/agent/evidence/checks.py",
        'return found\n    search',
        'return found\n    open("/dev/null").close()\n    search',
    ),
)  # fmt: skip


@contextmanager
def overlay(bug: Planted) -> Iterator[str]:
    """A folder with the packages as they are but for the bug."""
    with tempfile.TemporaryDirectory(prefix="tidegauge-planted-") as folder:
        for name, place in _PACKAGES.items():
            shutil.copytree(ROOT / place, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        path = Path(folder, bug.module)
        text = path.read_text(encoding="utf-8")
        assert text.count(bug.line) == 1, f"{bug.module} has no such line any more: {bug.line}"
        path.write_text(text.replace(bug.line, bug.instead), encoding="utf-8")
        yield folder


def find(bug: Planted, seconds: float, *, seed: int) -> Outcome:
    """Fuzz the copy; what is found there is no finding in the product, and not kept."""
    before = set(FOUND.rglob("*"))
    with overlay(bug) as folder:
        outcome = fuzz(bug.target, seconds, seed=seed, path=[folder])
    for path in sorted(set(FOUND.rglob("*")) - before, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return replace(outcome, name=f"control: {bug.what} ({bug.target})")
