"""The probe on the node, in a folder that containers mount read-only."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

PARTS = ("__init__.py", "core", "probe", "integrations")
"""Of the package ``tidegauge``, as deploy/containers/probe.Dockerfile has them."""


def keep_probe(package: Path, store: Path) -> Path:
    """The folder below ``store`` with a copy of ``package``, which is made if it is not there. Named by its content: a
    new release gets another one, and what containers have mounted is never touched. Raises ``OSError``."""
    digest = _digest(package)
    kept = store / digest
    if kept.is_dir() and _digest(kept / "tidegauge") == digest:
        return kept
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    new, old = store / f"{digest}.new", store / f"{digest}.old"
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    for path in _files(package):
        copy = new / "tidegauge" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(0o644)
    for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    if kept.exists():  # files that a lost node left empty: nobody has mounted them since
        kept.rename(old)
    new.rename(kept)
    return kept


def _files(package: Path) -> Iterator[Path]:
    for part in PARTS:
        found = sorted((package / part).rglob("*.py")) if (package / part).is_dir() else [package / part]
        yield from (path for path in found if path.is_file())


def _digest(package: Path) -> str:
    found = hashlib.sha256()
    for path in _files(package):
        content = path.read_bytes()
        found.update(os.fsencode(f"{path.relative_to(package)} {len(content)}\n") + content)
    return found.hexdigest()[:16]
