"""Unknown names, the display of options, sizes and PyTorch versions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.cli.arguments import (
    OUTPUT,
    STANDARD_OUTPUT,
    CommandParser,
    add_examples,
    as_description,
    file_or_folder_to_write,
    file_to_write,
    group,
    output_to_write,
    parse_cap,
    parse_size,
    torch_version,
)
from tidegauge.cli.main import build_parser, main


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["incidnets"], "tidegauge: unknown command 'incidnets'; did you mean 'incidents'?"),
        (["policy", "puase"], "tidegauge policy: unknown command 'puase'; did you mean 'pause'?"),
        (["grafana", "aply"], "tidegauge grafana: unknown command 'aply'; did you mean 'apply'?"),
        (["jobs", "--fail-on-laek"], "tidegauge jobs: unknown option '--fail-on-laek'; did you mean '--fail-on-leak'?"),
        (["policy", "log", "--limt", "5"], "tidegauge policy log: unknown option '--limt'; did you mean '--limit'?"),
        (["incidents", "--limt=5"], "tidegauge incidents: unknown option '--limt'; did you mean '--limit'?"),
        (
            ["top", "--sort", "memroy"],
            "tidegauge top: argument --sort: invalid choice 'memroy'; did you mean 'memory'? "
            "(choose from time, memory, growth, name, state, user, host, ranks, step, bytes)",
        ),
        (["config", "shwo"], "tidegauge config: invalid choice 'shwo'; did you mean 'show'? (choose from show, token)"),
        (
            ["incidents", "5"],
            "tidegauge incidents: unexpected argument '5'; did you mean `tidegauge incidents show 5`?",
        ),
        (["status", "now"], "tidegauge status: unexpected argument 'now'"),
    ],
)
def test_the_nearest_name_is_suggested(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(typed)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err.splitlines()


OUTPUTS = (
    ("profile nothing.pickle", "--html"),
    ("profile 4711", "--html"),
    ("profile diff nothing.pickle 4711:3", "--html"),
    ("report nothing.pickle", "-o"),
    ("export nothing.pickle --to json", "-o"),
    ("whatif nothing.pickle", "--plot"),
    ("snapshot 1", "-o"),
    ("run", "--report"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file and a folder are write-protected, also for root."""
    for name, mode in (("folder", 0o700), ("locked", 0o500)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "locked.svg").touch(0o400)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & 0o200))


@pytest.mark.parametrize(("command", "option"), OUTPUTS)
@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("none/x.svg", "cannot write none/x.svg: the folder none does not exist"),
        ("locked.svg", "cannot write locked.svg: it is write-protected"),
        ("locked/x.svg", "cannot write locked/x.svg: the folder locked is write-protected"),
        ("locked.svg/x.svg", "cannot write locked.svg/x.svg: the folder locked.svg does not exist"),
    ],
)
@pytest.mark.usefixtures("home")
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    command: str, option: str, output: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), option, output])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["folder", "folder/", "none/"])
@pytest.mark.usefixtures("home")
def test_a_folder_is_no_file_to_write(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"cannot write {name}: it is a folder"):
        file_to_write(name)


@pytest.mark.usefixtures("home")
def test_a_folder_takes_files_where_it_is_there_and_open() -> None:
    assert file_or_folder_to_write("folder") == file_or_folder_to_write("folder/") == Path("folder")
    for name, words in (("locked", "the folder locked is write-protected"), ("none/", "the folder none/ does not")):
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            file_or_folder_to_write(name)


@pytest.mark.usefixtures("home")
def test_what_can_be_written_is_taken() -> None:
    assert file_to_write("x.svg") == Path("x.svg")
    assert file_to_write("folder/x.svg") == file_or_folder_to_write("folder/x.svg") == Path("folder/x.svg")
    assert file_to_write("/dev/null") == Path("/dev/null")
    assert output_to_write("-") == STANDARD_OUTPUT
    assert output_to_write("folder/-") == Path("folder/-")


def test_a_folder_that_is_made_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["grafana", "export", ""])
    assert ended.value.code == 2
    assert "the name of the folder is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [(["zzz"], "commands: demo, up, down"), (["down", "--zzz"], "options: --config, --help, --set")],
)
def test_arguments_error_lists_all_choices_if_none_is_similar(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(typed)
    message = capsys.readouterr().err
    assert said in message
    assert "did you mean" not in message


def test_a_group_is_made_once_and_examples_keep_their_lines() -> None:
    parser = CommandParser(prog="tidegauge x", description=as_description("show x"))
    assert group(parser, OUTPUT) is group(parser, OUTPUT)
    group(parser, OUTPUT).add_argument("--json", action="store_true", help="print JSON")
    add_examples(parser, "tidegauge x          the first", "tidegauge x --json   the second")
    text = parser.format_help()
    assert "Show x.\n" in text
    assert text.endswith("examples:\n  tidegauge x          the first\n  tidegauge x --json   the second\n")


def test_any_parser_takes_groups_and_examples() -> None:
    parser = argparse.ArgumentParser()
    add_examples(parser, "tidegauge x")
    group(parser, OUTPUT)
    assert "tidegauge x" in parser.format_help()


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("85899345920", 85899345920),
        ("80GiB", 80 << 30),
        ("80 gib", 80 << 30),
        ("80G", 80 << 30),
        ("1.5MiB", 3 << 19),
        ("80GB", 80 * 10**9),
        ("512B", 512),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "0", "-1GiB", "80 gigs", "GiB", "1e9", "٨", "0.1", "9" * 40, "9" * 5000, "nan", "8 EiB"]
)
def test_parse_size_refuses_an_invalid_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size above 0"):
        parse_size(text)


@given(st.integers(1, (1 << 63) - 1))
def test_whole_bytes_stay_what_they_are(count: int) -> None:
    assert parse_size(str(count)) == count


def test_a_cap_without_its_unit_is_refused_and_not_taken_for_bytes() -> None:
    """``--cap 76`` would be answered, and the answer that nothing fits would be about 76 bytes."""
    with pytest.raises(argparse.ArgumentTypeError, match="less than the smallest segment"):
        parse_cap("76")
    assert parse_cap("2MiB") == 2 << 20


@pytest.mark.parametrize("text", ["2.11", "2.11.0", "2.11.0+cu130", "2.13.0a0+git1234567", "2.12.0rc1"])
def test_a_release_is_taken_as_it_is_written(text: str) -> None:
    assert torch_version(text) == text


@pytest.mark.parametrize("text", ["banana", "", "2", "v2.11.0", "2.x", "2.11 ", "2.11;x", "٢.١١", "2." + "1" * 60])
def test_torch_release_option_refuses_an_invalid_version(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 2\.11\.0"):
        torch_version(text)


def test_examples_in_all_help_fit_into_100_characters() -> None:
    def lines(parser: argparse.ArgumentParser) -> list[str]:
        own = (parser.epilog or "").splitlines()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                own += [line for inner in action.choices.values() for line in lines(inner)]
        return own

    assert [line for line in lines(build_parser()) if len(line) > 100] == []


def test_help_of_tidegauge_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "exit codes: 0 success, 1 " in capsys.readouterr().out
