"""Evidence on a real GPU: for each leak of the zoo the line that allocates, the object that holds, and the cause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evidence_checks import CAUSES, check_leak
from evidence_runs import run_leak

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CAUSES)
def test_line_holder_and_cause_are_found(name: str, gpu_python: str, run_dir: Path) -> None:
    check_leak(run_leak(name, python=gpu_python, environ=os.environ, run_dir=run_dir), name)
