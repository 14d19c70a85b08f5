"""``tidegauge.watch()`` over a ring that this process writes as its probe would."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidegauge
from collector.cli.test_verdict import eventually, write_ring
from fake_node import MIB
from tidegauge.cli.verdict.watch import WatchedBlock
from tidegauge.probe import entry


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this process, whose probe is left alone."""
    monkeypatch.setenv("TIDEGAUGE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(entry, "attach", lambda _: None)
    return tmp_path


def test_the_growing_process_is_judged_in_the_block_and_after_it(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ring(run_dir, os.getpid(), leak_bytes=4 * MIB, job_id="whatever")
    with tidegauge.watch() as watching:
        eventually(lambda: watching.verdict == "growing")
        assert watching.report(tmp_path / "early.html") is None
        assert "after the `with` block" in capsys.readouterr().out
    assert (watching.verdict, watching.evidence, watching.problem) == ("growing", None, None)
    assert str(watching).startswith("rank 0: growing: allocated memory grows by 4.0 MiB a step")
    assert watching.report(tmp_path / "report.html") == tmp_path / "report.html"
    assert "Rank 0 grows" in (tmp_path / "report.html").read_text()
    shown = watching._repr_html_()
    assert shown.startswith("<pre>rank 0: growing")
    assert "srcdoc=" in shown


def test_a_process_without_gpu_memory_is_not_judged(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tidegauge.watch() as watching:
        assert watching.verdict is None
    assert str(watching) == "no GPU memory of this process was seen"
    assert watching.report(run_dir / "r.html") is None
    assert capsys.readouterr().out == "no report: no GPU memory of this process was seen\n"


def test_a_service_that_watches_is_not_doubled(run_dir: Path) -> None:
    watched = os.open(run_dir, os.O_RDONLY)
    fcntl.flock(watched, fcntl.LOCK_SH)
    with tidegauge.watch() as watching:
        pass
    os.close(watched)
    assert str(watching) == "a service watches this process; see `tidegauge jobs`"


def test_a_judging_process_that_dies_costs_the_verdict_alone(run_dir: Path) -> None:
    assert run_dir.is_dir()
    watching = WatchedBlock()
    with watching:
        assert watching._process is not None
        watching._process.kill()
        watching._process.wait()
        assert watching.verdict is None
    assert str(watching).startswith("no verdict: ")


def test_an_error_in_the_block_is_the_callers(run_dir: Path) -> None:
    assert run_dir.is_dir()
    with pytest.raises(ZeroDivisionError), tidegauge.watch():
        _ = 1 / 0


class Shell:
    """As much of IPython's as the magic uses; every cell ends with ``error``."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.magic: Callable[[str, str], Any] = lambda *_: None
        self.cells: list[str] = []
        self.error = error

    def register_magic_function(self, function: Callable[[str, str], Any], **names: str) -> None:
        assert names == {"magic_kind": "cell", "magic_name": "tidegauge"}
        self.magic = function

    def run_cell(self, cell: str) -> SimpleNamespace:
        self.cells.append(cell)
        return SimpleNamespace(error_before_exec=None, error_in_exec=self.error)


def test_the_cell_magic_runs_the_cell_in_a_watch(run_dir: Path) -> None:
    assert run_dir.is_dir()
    shell = Shell()
    tidegauge.load_ipython_extension(shell)
    shown = shell.magic("stats", "train()")
    assert shell.cells == ["train()"]
    assert repr(shown) == "no GPU memory of this process was seen"


def test_the_cell_magic_prints_its_help_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell()
    tidegauge.load_ipython_extension(shell)
    assert shell.magic("--help", "train()") is None
    assert capsys.readouterr().out.startswith("%%tidegauge [LEVEL]\n")
    assert shell.cells == []


def test_a_cell_that_fails_stops_the_notebook(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_dir.is_dir()
    shell = Shell(ValueError("mine"))
    tidegauge.load_ipython_extension(shell)
    with pytest.raises(ValueError, match="mine"):
        shell.magic("", "train()")
    assert capsys.readouterr().out == "no GPU memory of this process was seen\n"


def test_a_watch_leaves_no_temporary_folder(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    write_ring(run_dir, os.getpid(), job_id="whatever")
    with tidegauge.watch() as watching:
        eventually(lambda: watching.verdict == "ok")
    assert list(temporary.iterdir()) == []
    with tidegauge.watch() as abandoned:
        eventually(lambda: abandoned.verdict == "ok")
        assert len(list(temporary.iterdir())) == 1
        assert abandoned._process is not None
        assert abandoned._process.stdin is not None
        abandoned._process.stdin.close()  # as if this process had ended
        eventually(lambda: not list(temporary.iterdir()))
