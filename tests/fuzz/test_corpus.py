"""The kept corpus and the seeds of every fuzz target, given to it again: what was mended stays so. Without atheris."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.planted import BUGS, Planted, overlay
from fuzz.target import CORPUS, NAMES

ROOT = Path(__file__).resolve().parents[2]


def replayed(name: str, *files: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT / "tests"))))}
    command = [sys.executable, "-m", "fuzz.child", name, "--replay", *files]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_fuzz_corpus_finding_does_not_fail_again(name: str) -> None:
    done = replayed(name)
    assert done.returncode == 0, done.stderr


def test_the_corpus_has_no_folder_of_a_target_that_is_gone() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(NAMES)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.target)
def test_every_control_still_has_its_line_in_the_product(bug: Planted) -> None:
    with overlay(bug) as folder:
        assert Path(folder).is_dir()


def test_a_pickle_that_would_run_code_is_a_finding_where_it_is_believed(tmp_path: Path) -> None:
    """The oracle itself: the same input, and a reader that uses Python's own unpickler."""
    (tmp_path / "believer.py").write_text(
        "import pickle\n"
        "from fuzz.oracles import Guard, Finding\n"
        "from fuzz.target import Target\n"
        "from fuzz.targets.snapshots import canary\n"
        "target = Target(lambda data: pickle.loads(data), lambda: [])\n"
        "try:\n    Guard(target)(canary())\nexcept Finding as found:\n    print(found)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "believer.py")], env=environ, capture_output=True, text=True, check=False
    )
    assert "pickle.find_class" in done.stdout, done.stderr
