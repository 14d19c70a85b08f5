"""What the parser says of a name that it does not know, and how it shows options."""

from __future__ import annotations

import argparse

import pytest

from tidegauge.cli.arguments import OUTPUT, CommandParser, add_examples, as_description, group
from tidegauge.cli.main import main


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
            "(choose from time, memory, growth, name)",
        ),
        (["config", "shwo"], "tidegauge config: invalid choice 'shwo'; did you mean 'show'? (choose from show, token)"),
        (["status", "now"], "tidegauge status: unexpected argument 'now'"),
    ],
)
def test_the_nearest_name_is_suggested(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(typed)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("typed", "said"),
    [(["zzz"], "commands: demo, up, down"), (["down", "--zzz"], "options: --config, --help, --set")],
)
def test_where_nothing_is_near_all_are_listed(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
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
