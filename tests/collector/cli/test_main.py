from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from tidegauge.cli.main import COMMANDS, GROUPS, build_parser, main


def test_wrong_flag_lists_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["config", "show", "--jason"])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert "--jason" in message
    assert "--json" in message


def test_wrong_command_lists_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["detekt"])
    assert caught.value.code == 2
    assert all(name in capsys.readouterr().err for name in ("demo",)), "usage names the commands"


def test_every_command_has_a_line_of_help() -> None:
    text = build_parser().format_help()
    assert all(name in text for name in COMMANDS)


def test_help_lists_the_commands_by_what_they_are_for_and_ends_with_examples() -> None:
    text = build_parser().format_help()
    heads = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == [*(f"{title}:" for title in GROUPS), "options:", "examples:"]
    assert text.index("jobs:") < text.index("  run ") < text.index("before and after") < text.index("  oom ")
    assert [text.count(f"\n  {name} ") + text.count(f"\n  {name}\n") for name in COMMANDS] == [1] * len(COMMANDS)
    assert text.startswith("usage: tidegauge [-h] [--version] COMMAND ...")


@pytest.mark.parametrize("command", ["run", "jobs", "incidents", "estimate", "oom", "report"])
def test_main_commands_have_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: tidegauge {command} ")
    assert f"\n  tidegauge {command}" in text.partition("\nexamples:")[2]


def test_import_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import tidegauge, tidegauge.cli.main as m; m.build_parser();"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'tidegauge'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=90)
    assert done.stdout.strip() == "[]"


def test_parser_of_one_command_has_the_same_help_as_in_the_parser_of_all() -> None:
    def help_of(parser: argparse.ArgumentParser, name: str) -> str:
        commands = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        return str(commands.choices[name].format_help())

    everything = build_parser()
    for name in ("top", "policy"):
        assert help_of(build_parser(name), name) == help_of(everything, name)


@pytest.mark.parametrize(("closed", "code"), [((1,), 0), ((2,), 2), ((1, 2), 2)])
def test_a_command_goes_on_where_its_streams_are_closed(closed: tuple[int, ...], code: int) -> None:
    called = ["profile", "tests/data/snapshots/steady_lm.late.snap.zst" if code == 0 else "no/such/file"]
    closing = ";".join(f"os.close({stream})" for stream in closed)
    run = f"import os, sys; {closing}; os.execv(sys.executable, [sys.executable, '-m', 'tidegauge', *{called!r}])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=90)
    assert (done.returncode, done.stdout) == (code, "")
    assert 2 in closed or done.stderr == ""
