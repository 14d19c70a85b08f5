"""How arguments of every command are parsed and shown: groups of options, examples, the nearest name to a wrong one."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tidegauge.cli.errors import USAGE

SELECTION, OUTPUT, CONNECTION = "selection", "output", "connection and settings"
"""Titles of groups that several commands have."""
_EXAMPLES = "examples:\n"


class CommandParser(argparse.ArgumentParser):
    """Suggests the nearest command, choice or option for one that is unknown, on every Python that runs commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(parsed, "parser", self)
            parser.error(parser.about_unknown(unknown))
        return parsed

    def about_unknown(self, arguments: Sequence[str]) -> str:
        """What to say of arguments that this parser does not take."""
        wrong = [one.partition("=")[0] for one in arguments if one.startswith("-")]
        if not wrong:  # what follows an unknown option may be its value
            return f"unexpected argument {', '.join(map(repr, arguments))}"
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        said = ", ".join(f"unknown option {name!r}{nearest(name, options)}" for name in wrong)
        return f"{said}\noptions: {', '.join(sorted(options))}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Overrides argparse's check of a choice or a subcommand."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        near = nearest(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            message = f"unknown command {value!r}{near}\ncommands: {', '.join(choices)}"
        else:
            message = f"invalid choice {value!r}{near} (choose from {', '.join(choices)})"
        raise argparse.ArgumentError(action if action.option_strings else None, message)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, and leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of arguments with that title, made where there is none yet."""
    found = (one for one in parser._action_groups if one.title == title)
    return next(found, None) or parser.add_argument_group(title)


def add_json(parser: argparse.ArgumentParser, help: str = "print JSON") -> None:  # noqa: A002 - argparse's word
    """Give a command ``--json``."""
    group(parser, OUTPUT).add_argument("--json", action="store_true", help=help)


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Show command lines below the options."""
    parser.epilog = _EXAMPLES + "\n".join(f"  {line}" for line in lines)


def as_description(help_line: str) -> str:
    """A command's line of help as the sentence at the top of its own help."""
    return f"{help_line[0].upper()}{help_line[1:]}{'' if help_line[-1] in '.?' else '.'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'incidents'?", or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
