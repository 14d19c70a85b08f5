from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegauge.secrets import MAX_SECRET_BYTES, SecretError, read_secret

NAME = "TIDEGAUGE_TOKEN"
TOKEN = "xoxb-not-a-real-one"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_a_file_wins_over_the_environment_and_is_stripped(file: Path) -> None:
    assert read_secret(file, {NAME: "other"}, NAME) == TOKEN


def test_the_environment_does_without_a_file() -> None:
    assert read_secret(None, {NAME: f" {TOKEN} "}, NAME) == TOKEN


@pytest.mark.parametrize("environ", [{}, {NAME: ""}, {NAME: "  "}])
def test_read_secret_returns_none_if_nothing_is_set(environ: dict[str, str]) -> None:
    assert read_secret(None, environ, NAME) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_may_use_is_refused_with_what_to_do(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SecretError, match=f"mode {mode:04o}.*chmod 600 {file}"):
        read_secret(file, {}, NAME)


def test_a_link_to_a_private_file_will_do(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_secret(link, {}, NAME) == TOKEN


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SecretError, match="not a regular file"):
        read_secret(tmp_path / "fifo", {}, NAME)


def test_a_missing_file_is_an_error_though_the_environment_has_one(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="No such file"):
        read_secret(tmp_path / "gone", {NAME: TOKEN}, NAME)


@pytest.mark.parametrize("content", ["", " \n", "two words", "two\nlines", "\u00e4", "a" * (MAX_SECRET_BYTES + 1)])
def test_read_secret_refuses_an_invalid_token_without_quoting_it(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(SecretError) as caught:
        read_secret(file, {}, NAME)
    assert str(file) in str(caught.value)
    assert caught.value.__cause__ is None
    assert not content.strip() or content.strip() not in str(caught.value)


def test_the_environment_is_checked_alike() -> None:
    with pytest.raises(SecretError, match=f"variable {NAME} does not hold a token"):
        read_secret(None, {NAME: "two words"}, NAME)


def test_a_folder_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="not a regular file"):
        read_secret(tmp_path, {}, "X")
