"""Finding the user's FUNCTION, and showing them their own lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegauge.estimator.functions import BadFunctionError, dropped_output, find_function, own_frames


@pytest.fixture(autouse=True)
def imports_stay_as_they_were() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    return tmp_path


def test_a_function_of_a_module_in_the_current_directory(folder: Path) -> None:
    (folder / "my_training.py").write_text("def build(): return 1\n")
    assert find_function("my_training:build")() == 1


def test_a_function_of_a_file_sees_the_modules_beside_it(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "my_sizes.py").write_text("WIDTH = 7\n")
    (folder / "jobs" / "my_job.py").write_text("import my_sizes\ndef build(): return my_sizes.WIDTH\n")
    assert find_function("jobs/my_job.py:build")() == 7


@pytest.mark.parametrize("name", ["train", "train:", ":build", ""])
def test_a_name_of_another_form_is_answered_with_the_form(name: str) -> None:
    with pytest.raises(BadFunctionError, match="is not MODULE:FUNCTION"):
        find_function(name)


def test_a_missing_module_is_named_with_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(BadFunctionError, match=f"no module 'my_nothing' in {folder}"):
        find_function("my_nothing:build")


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(BadFunctionError, match=r"no such file: .*my_nothing\.py"):
        find_function("my_nothing.py:build")


def test_a_missing_function_is_answered_with_those_that_the_module_has(folder: Path) -> None:
    (folder / "my_other.py").write_text("from os.path import join\ndef make(): ...\ndef _hidden(): ...\n")
    with pytest.raises(BadFunctionError, match=r"has no function 'build'; functions: make$"):
        find_function("my_other:build")


def test_find_function_lets_the_modules_own_import_error_through(folder: Path) -> None:
    (folder / "my_needy.py").write_text("import my_absent_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="my_absent_dependency"):
        find_function("my_needy:build")


def test_own_frames_are_those_of_the_users_files_alone(folder: Path) -> None:
    (folder / "my_broken.py").write_text("import json\ndef build():\n    return json.loads('{')\n")
    with pytest.raises(ValueError, match="Expecting") as caught:
        find_function("my_broken:build")()
    frames = own_frames(caught.value)
    assert "my_broken.py" in frames
    assert "return json.loads('{')" in frames
    assert "json/decoder.py" not in frames


def test_dropped_output_drops_stdout_only_while_active(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print("first")
    with dropped_output():
        print("again")
        print("a warning", file=sys.stderr)
    print("last")
    assert capsys.readouterr() == ("first\nlast\n", "a warning\n")
