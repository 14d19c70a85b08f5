"""The file of tokens, and the command that makes its lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegauge.cli.main import main
from tidegauge.http.tokens import make_token, name_of, read_tokens, token_line
from tidegauge.secrets import SecretError


def file_of(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_known_by_the_line_that_was_made_for_it(tmp_path: Path) -> None:
    ada, old, bob = make_token(), make_token(), make_token()
    lines = ["# people", token_line("ada", ada), "", token_line("ada", old), token_line("team/bob", bob)]
    tokens = read_tokens(file_of(tmp_path, "\n".join(lines)))
    assert [name_of(token, tokens) for token in (ada, old, bob)] == ["ada", "ada", "team/bob"]
    assert [name_of(token, tokens) for token in ("", ada[:-1], ada + "x", lines[1], "\ud800")] == [None] * 5
    assert ada not in "".join(lines)


def test_no_two_tokens_are_alike() -> None:
    assert len({make_token() for _ in range(100)}) == 100
    assert len(make_token()) == 46


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "#a", "x" * 129, "a\x1b[2J"])
def test_a_name_that_cannot_stand_in_the_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable characters"):
        token_line(name, make_token())


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("ada:CANARY", 0o600, "line 1: not NAME:DIGEST"),
        ("\ntg_CANARY", 0o600, "line 2: not NAME:DIGEST"),
        ("", 0o644, "chmod 600"),
        ("", 0o620, "chmod 600"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_without_its_content(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    with pytest.raises(SecretError, match=said) as caught:
        read_tokens(file_of(tmp_path, text, mode))
    assert "CANARY" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="No such file"):
        read_tokens(tmp_path / "none")
    with pytest.raises(SecretError, match="not a regular file"):
        read_tokens(tmp_path)


def test_config_token_prints_a_token_and_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "token", "ada", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert name_of(made["token"], read_tokens(file_of(tmp_path, made["line"]))) == "ada"
    assert main(["config", "token", "ada"]) == 0
    out = capsys.readouterr().out
    assert "token  tg_" in out
    assert "line   ada:" in out


@pytest.mark.parametrize("arguments", [["token"], ["show", "ada"], ["token", "a b"]])
def test_a_wrong_call_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *arguments]) == 2
    said = capsys.readouterr().err
    assert "NAME" in said or "printable" in said
