"""Every ``tidegauge ...`` that a page, a dashboard or a runbook has somebody type is a command with those flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from tidegauge.cli.main import build_parser
from tidegauge_exporter.dashboards.catalogue import files
from tidegauge_exporter.runbooks.page import runbooks_html

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/README.md")),
         *sorted(ROOT.glob("examples/*/README.md")), ROOT / "deploy/observability/README.md"]  # fmt: skip

_TYPED = re.compile(r"(?<![\w./-])tidegauge(?P<words>(?: [a-z]+(?![\w.:]))+)(?P<rest>[^`|\n;]*)")
_CODE = re.compile(r"`([^`\n]+)`|^```(?:console|sh|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _code(page: str) -> Iterator[str]:
    for span, block in _CODE.findall(page):
        yield from (span,) if span else block.splitlines()


def _texts() -> Iterator[tuple[str, str]]:
    """Where it stands, and the text."""
    for path in PAGES:
        for line in _code(path.read_text(encoding="utf-8")):
            # Braces: the name of something, made from other names.
            if re.match(r"(?:[\w-]*[$#] )?tidegauge [a-z]", line) and "{" not in line:
                yield path.relative_to(ROOT).as_posix(), line
    yield from files().items()
    typed = re.findall(r"<b>(.*?)</b>|<code>([^<]*)</code>", runbooks_html())
    yield "runbooks", unescape("\n".join(command or code for command, code in typed))


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@cache
def _whole_parser() -> argparse.ArgumentParser:
    return build_parser()


def _fault(words: list[str], rest: str) -> str | None:
    parser = _whole_parser()
    for number, word in enumerate(words):
        commands = _below(parser)
        if number and word not in commands:
            break
        if word not in commands:
            return f"there is no command {word}"
        parser = commands[word]
    own, _, _ = rest.partition(" -- ")
    known = {flag for action in parser._actions for flag in action.option_strings}
    wrong = sorted(set(re.findall(r"(?<=[ \[(])--[a-z][a-z-]*", own)) - known)
    return f"{parser.prog} has no {', '.join(wrong)}" if wrong else None


def test_every_command_that_a_text_names_exists() -> None:
    named = [(where, found) for where, text in _texts() for found in _TYPED.finditer(text)]
    assert len(named) > 100, "the texts are read"

    faults = {
        f"{where}: {found[0].strip()!r}: {fault}"
        for where, found in named
        if (fault := _fault(found["words"].split(), found["rest"]))
    }

    assert not faults, "\n".join(sorted(faults))


@pytest.mark.parametrize(("words", "rest"), [(["undo"], ""), (["status"], " --nowhere"), (["policy", "log"], " --all")])
def test_a_command_that_does_not_exist_is_seen(words: list[str], rest: str) -> None:
    assert _fault(words, rest)
