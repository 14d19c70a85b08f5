"""Arguments of all commands: the parser, groups of options, examples, subcommands, sizes, PyTorch versions."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional

from tidegauge.cli.errors import USAGE
from tidegauge.core.allocator_sizes import SMALL_SEGMENT_BYTES
from tidegauge.core.units import IEC_UNITS

SELECTION, OUTPUT, CONNECTION = "selection", "output", "connection and settings"
"""Titles of the groups that several commands have."""
STANDARD_OUTPUT = Path("-")
LIST_GOES_ON = "list_goes_on"
"""``set_defaults(list_goes_on=NAME)``: positional arguments behind options belong to the list ``NAME`` as well."""
_EXAMPLES = "examples:\n"
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)", re.ASCII)
_UNITS = {unit.lower(): 1024**power for power, unit in enumerate(IEC_UNITS)}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", start=1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgtpe", start=1)}
_UNITS[""] = 1
_TORCH_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}[0-9A-Za-z.+]{0,40}", re.ASCII)


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests the nearest command, choice or option for an unknown one, on every Python version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        parsed, unknown = self.parse_known_args(args, namespace)
        # argparse ends a list of positional arguments at the first option: the rest of it comes back as unknown.
        more = getattr(parsed, LIST_GOES_ON, None)
        if more is not None and not any(one.startswith("-") for one in unknown):
            getattr(parsed, more).extend(unknown)
        elif unknown:
            parser = getattr(parsed, "parser", self)
            parser.error(parser.about_unknown(unknown))
        return parsed

    def about_unknown(self, arguments: Sequence[str]) -> str:
        """The message about arguments that this parser does not take."""
        wrong = [one.partition("=")[0] for one in arguments if one.startswith("-")]
        if not wrong:  # what follows an unknown option may be its value
            return f"unexpected argument {', '.join(map(repr, arguments))}"
        options = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        said = ", ".join(f"unknown option {name!r}{nearest(name, options)}" for name in wrong)
        return f"{said}\noptions: {', '.join(sorted(options))}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Override argparse's check of a choice or a subcommand."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        near = nearest(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            message = f"unknown command {value!r}{near}\ncommands: {', '.join(choices)}"
        elif action.nargs == "?" and str(value).isdecimal():  # a verb may stand before a number: the first one reads
            message = f"unexpected argument {value!r}; did you mean `{self.prog} {choices[0]} {value}`?"
        else:
            message = f"invalid choice {value!r}{near} (choose from {', '.join(choices)})"
        raise argparse.ArgumentError(action if action.option_strings else None, message)


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that wraps descriptions and leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of arguments with that title; create it if there is none yet."""
    found = (one for one in parser._action_groups if one.title == title)
    return next(found, None) or parser.add_argument_group(title)


def add_json(parser: argparse.ArgumentParser, help: str = "print JSON") -> None:  # noqa: A002 - argparse's word
    group(parser, OUTPUT).add_argument("--json", action="store_true", help=help)


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Show command lines below the options."""
    parser.epilog = _EXAMPLES + "\n".join(f"  {line}" for line in lines)


def show_commands(
    parser: argparse.ArgumentParser,
    subparsers: argparse._SubParsersAction[Any],
    groups: Mapping[str, Iterable[str]],
) -> None:
    """List the subcommands in the help by title, above the options."""
    lines = {action.dest: action for action in subparsers._choices_actions}
    options = parser._action_groups.pop()
    for title, names in groups.items():
        parser.add_argument_group(title)._group_actions.extend(lines[name] for name in names)
    parser._action_groups.append(options)


def as_description(help_line: str) -> str:
    """A command's line of help as the sentence at the top of its own help."""
    return f"{help_line[0].upper()}{help_line[1:]}{'' if help_line[-1] in '.?' else '.'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The suggestion "; did you mean 'incidents'?", or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Subcommand(NamedTuple):
    """A command below another, such as ``tidegauge policy pause``; its functions are those of a command module."""

    help: str
    prepare_parser: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """Declare the subcommands; the one that is called is in ``args.what``."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, subcommand in subcommands.items():
        subparser = subparsers.add_parser(name, help=subcommand.help, description=as_description(subcommand.help))
        subcommand.prepare_parser(subparser)
        subparser.set_defaults(parser=subparser)


def positive_count(text: str) -> int:
    """A whole number above 0. Raises ``ArgumentTypeError``."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def some_text(text: str) -> str:
    """Raises ``ArgumentTypeError`` for an empty text, which a script passes by mistake."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def file_to_write(text: str) -> Path:
    """A file that can be written, by what is there now: else a command would work for minutes, and then fail.

    Raises ``ArgumentTypeError``.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return _writable(text, _obstacle_to_file(text))


def output_to_write(text: str) -> Path:
    """As ``file_to_write``, or ``STANDARD_OUTPUT``."""
    return STANDARD_OUTPUT if text == "-" else file_to_write(text)


def file_or_folder_to_write(text: str) -> Path:
    """As ``file_to_write``, or a folder that is there and takes files."""
    is_folder = text.endswith(os.sep) or os.path.isdir(text)
    return _writable(text, _obstacle_to_new_file(text)) if is_folder else file_to_write(text)


def folder_to_make(text: str) -> Path:
    """A folder, which need not be there. Raises ``ArgumentTypeError``."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name of the folder is empty")
    return Path(text)


def _writable(text: str, obstacle: Optional[str]) -> Path:
    if obstacle is not None:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {obstacle}")
    return Path(text)


def _obstacle_to_file(text: str) -> Optional[str]:
    if text.endswith(os.sep) or os.path.isdir(text):
        return "it is a folder"
    if os.path.exists(text) and not os.access(text, os.W_OK):
        return "it is write-protected"
    is_special = os.path.exists(text) and not os.path.isfile(text)  # written to, where a file is replaced
    return None if is_special else _obstacle_to_new_file(os.path.dirname(text) or os.curdir)


def _obstacle_to_new_file(folder: str) -> Optional[str]:
    if not os.path.isdir(folder):
        return f"the folder {folder} does not exist"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} is write-protected"
    return None


def parse_size(text: str) -> int:
    """The bytes, above 0, that a size such as ``80GiB`` means.

    ``KiB``, ``MiB``, ``GiB`` are powers of 1024, and so is a bare ``G``, as in Slurm's ``--mem``; ``GB`` is a power of
    1000, as on a GPU's box. Case does not matter. Raises ``argparse.ArgumentTypeError``.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    size = 0 if match is None or factor is None else int(Fraction(match[1]) * factor)
    if not 0 < size < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0, such as 80GiB, 512MiB or 85899345920")
    return size


def parse_cap(text: str) -> int:
    """A size that can hold a segment of PyTorch: a bare "76" is 76 bytes, probably instead of gibibytes.

    Raises ``argparse.ArgumentTypeError``.
    """
    size = parse_size(text)
    if size < SMALL_SEGMENT_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is {size:,} bytes, less than the smallest segment of the PyTorch allocator (2 MiB): add a "
            f"unit, such as 76GiB"
        )
    return size


def torch_version(text: str) -> str:
    """``text``, such as ``2.11``, ``2.11.0`` or ``2.11.0+cu130``, if it is a PyTorch version.

    An unreadable version would silently select another allocator model. Raises ``argparse.ArgumentTypeError``.
    """
    if not _TORCH_VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a PyTorch version such as 2.11.0")
    return text
