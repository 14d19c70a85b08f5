"""Nobody waits for the compiler, unless the trace is so long that compiling is the shorter wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge.analysis import compiling
from tidegauge.core.allocator import readiness

SNAPSHOT = Path(__file__).parents[2] / "data" / "allocator" / "snapshots" / "stacks.pickle.gz"
FIRST_USE = """
import subprocess, sys
from pathlib import Path
from tidegauge.core.allocator import readiness
readiness._parent = lambda: Path(sys.argv[1])
started = []
subprocess.Popen = lambda command, **_: started.append(command)
from tidegauge.cli.main import main
code = main([sys.argv[2], sys.argv[3]])
assert code == 0, code
assert "numba" not in sys.modules
assert started == [[sys.executable, "-m", "tidegauge.analysis.compiling"]], started
"""
BACKGROUND = """
import sys
from pathlib import Path
from tidegauge.core.allocator import readiness
readiness._parent = lambda: Path(sys.argv[1])
from tidegauge.analysis import compiling
compiling.compile_model = readiness.mark_ready
readiness.folder().mkdir(parents=True)
assert not readiness.is_ready()
compiling._main()
assert readiness.is_ready()
"""

needs_numba = pytest.mark.skipif(not readiness.is_installed(), reason="numba is not installed: nothing is compiled")


def ran(program: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_numba
@pytest.mark.parametrize("command", ["whatif", "replay"])
def test_the_first_answer_about_a_small_trace_compiles_nothing(command: str, tmp_path: Path) -> None:
    ran(FIRST_USE, str(tmp_path), command, str(SNAPSHOT))


@needs_numba
def test_the_background_process_leaves_a_model_that_is_ready(tmp_path: Path) -> None:
    ran(BACKGROUND, str(tmp_path))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in a process that has neither compiled nor imported the model."""
    happened: list[str] = []
    monkeypatch.setattr(readiness, "is_ready", lambda: False)
    monkeypatch.setattr(compiling, "_compile_in_background", lambda: happened.append("background"))
    monkeypatch.setattr(compiling, "compile_model", lambda: happened.append("compiled"))
    monkeypatch.delitem(sys.modules, "tidegauge.core.allocator.compiled", raising=False)
    return happened


def test_a_long_trace_is_compiled_for_first_and_that_is_said(done: list[str]) -> None:
    compiling.prepare_model(compiling.EVENTS_WORTH_COMPILING, done.append)
    assert done == ["compiling the allocator model, once for this installation: half a minute", "compiled"]


def test_a_short_one_is_not(done: list[str]) -> None:
    compiling.prepare_model(compiling.EVENTS_WORTH_COMPILING - 1, done.append)
    assert done == ["background"]


def test_where_the_code_is_there_nothing_is_compiled(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "is_ready", lambda: True)
    compiling.prepare_model(compiling.EVENTS_WORTH_COMPILING, done.append)
    assert done == []


def test_a_folder_that_cannot_be_written_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(readiness, "_parent", lambda: tmp_path / "file")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    compiling._compile_in_background()
