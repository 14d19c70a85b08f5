from __future__ import annotations

import os
import shutil
from pathlib import Path

from tidegauge.agent.node_agent import open_node_agent
from tidegauge.agent.run_dirs.presence import LOOK_EVERY_S, RunDirMarks, is_watched
from tidegauge.settings import Settings


def test_a_run_directory_is_watched_from_the_agents_first_poll_to_its_end(tmp_path: Path) -> None:
    assert not is_watched([tmp_path])
    marks = RunDirMarks([tmp_path])
    marks.hold(0.0)
    assert is_watched([tmp_path / "none", tmp_path])
    marks.close()
    assert not is_watched([tmp_path])


def test_two_agents_mark_the_same_folder(tmp_path: Path) -> None:
    first, second = RunDirMarks([tmp_path]), RunDirMarks([tmp_path])
    first.hold(0.0)
    second.hold(0.0)
    first.close()
    assert is_watched([tmp_path])
    second.close()
    assert not is_watched([tmp_path])


def test_a_folder_that_appears_later_or_is_made_anew_is_marked(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    marks = RunDirMarks([run_dir])
    marks.hold(0.0)
    assert not is_watched([run_dir])
    run_dir.mkdir()
    marks.hold(LOOK_EVERY_S)
    assert is_watched([run_dir])
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    marks.hold(2 * LOOK_EVERY_S)
    assert is_watched([run_dir])
    marks.close()


def test_asking_leaves_no_descriptor_and_no_lock_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert not is_watched([tmp_path])
    marks = RunDirMarks([tmp_path])
    marks.hold(0.0)
    assert is_watched([tmp_path])
    marks.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_services_agent_marks_the_run_directory_that_it_polls(tmp_path: Path) -> None:
    agent = open_node_agent(Settings(slurm="off", kubernetes="off", run_dir=tmp_path, state_dir=tmp_path / "state"), {})
    agent.poll()
    assert is_watched([tmp_path])
    agent.close()
    assert not is_watched([tmp_path])
