"""The hook that takes calls of modules for step boundaries, in a real torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tidegauge
from fakegpu.rig import Rig

pytestmark = pytest.mark.rig
JOB = Path(__file__).parents[1] / "rig_jobs" / "module_calls.py"


@pytest.fixture(scope="module")
def found(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environ = {**rig.environ(devices=1, state=tmp_path_factory.mktemp("rig") / "gpus")}
    environ["PYTHONPATH"] = str(Path(tidegauge.__file__).parents[1])
    done = subprocess.run([str(rig.python), str(JOB)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_only_the_outermost_module_is_told_and_only_in_the_forward_pass(found: dict[str, Any]) -> None:
    assert (found["plain"], found["checkpoint"], found["reentrant"]) == ([1, 1], [1, 1], [1, 1])


def test_a_whole_graph_is_compiled_beside_it_and_then_there_is_none(found: dict[str, Any]) -> None:
    assert found["compiler"] == {"graphs": 1, "calls": 0, "hook": False}


def test_it_leaves_torch_as_it_was(found: dict[str, Any]) -> None:
    assert found["hooks"] == 0
