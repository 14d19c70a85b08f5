"""Compiled or not, the model is the same: a small program is replayed by an interpreter that has no numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge.core.allocator import compiled, readiness

pytestmark = pytest.mark.timeout(600)

TESTS = Path(__file__).parents[3]
PROGRAM = """
import random, sys
if sys.argv[1] == "uncompiled":
    sys.modules["numba"] = None
from tidegauge.core.allocator import readiness
readiness.wait_for_compiling()
from allocator_traces import MIB, Requests
from tidegauge.core.allocator import compiled, readiness
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak, parse_settings

assert compiled.IS_COMPILED == (sys.argv[1] == "compiled")
dice = random.Random(1)
requests, held = Requests(), []
for _ in range(1200):
    size_bytes = dice.choice([dice.randint(1, 3 * MIB), 12 * MIB, dice.randint(1, 70 * MIB)])
    held.append(requests.alloc(size_bytes, stream=dice.randrange(3), pool=dice.randrange(2)))
    while len(held) > 60 * dice.random():
        one = held.pop(dice.randrange(len(held)))
        requests.free(one)
trace = requests.trace()
for conf, torch_version in (
    ("", "2.11.0"), ("", "2.12.0"), ("max_split_size_mb:24", "2.13.0"), ("roundup_power2_divisions:4", "2.12.0"),
    ("garbage_collection_threshold:0.6", "2.11.0"), ("expandable_segments:True", "2.13.0"),
):
    for cap_bytes in (None, 400 * MIB):
        settings = parse_settings(conf, torch_version)
        print(replay(trace, settings, cap_bytes=cap_bytes, curve_points=20, with_end=True))
"""


def answers(how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], cwd=TESTS, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numba_is_used_once_the_compiled_code_is_there() -> None:
    pytest.importorskip("numba", reason="numba is not installed: the model is not compiled")
    assert readiness.is_ready() == compiled.IS_COMPILED


def test_a_change_of_the_compiler_or_the_processor_makes_the_code_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before = readiness.folder()
    for name in ("_numba_version", "_cpu"):
        with monkeypatch.context() as patched:
            patched.setattr(readiness, name, lambda: "another")
            assert readiness.folder() != before
    assert readiness.folder() == before


@pytest.mark.slow
def test_without_numba_every_answer_is_the_same() -> None:
    pytest.importorskip("numba", reason="numba is not installed: there is nothing to compare with")
    compiled_answers = answers("compiled")
    assert "ooms=0" in compiled_answers
    assert answers("uncompiled") == compiled_answers
