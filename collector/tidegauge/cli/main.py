"""The entry point of ``tidegauge``: it finds the command, runs it, and prints its error."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TextIO, cast

from tidegauge import __version__
from tidegauge.cli.arguments import CommandParser, add_examples, as_description, show_commands
from tidegauge.cli.errors import ENVIRONMENT, CommandError, cannot_write

DESCRIPTION = (
    "Profiles the GPU memory of training jobs: which rank leaks, since when, and when it will run out of memory."
)
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""Errors of a write to stdout that the reader has to mend."""
_NEVER_READING = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors with a file's name that only a write has."""
EXIT_CODES = "exit codes: 0 success, 1 bad news (a leak), 2 wrong arguments or file, 3 problem of the environment"
GROUPS = {
    "service": {
        "demo": "tidegauge.cli.demo.command",
        "up": "tidegauge.cli.service.up",
        "down": "tidegauge.cli.service.down",
        "status": "tidegauge.cli.service.status",
        "config": "tidegauge.cli.config",
        "forget": "tidegauge.cli.persons.forget",
        "whois": "tidegauge.cli.persons.whois",
    },
    "jobs": {
        "run": "tidegauge.cli.service.run",
        "attach": "tidegauge.cli.attach.command",
        "jobs": "tidegauge.cli.jobs.jobs",
        "history": "tidegauge.cli.jobs.history",
        "job": "tidegauge.cli.jobs.job",
        "top": "tidegauge.cli.top.command",
        "efficiency": "tidegauge.cli.jobs.efficiency",
        "incidents": "tidegauge.cli.jobs.incidents",
        "snapshot": "tidegauge.cli.snapshot.command",
        "profile": "tidegauge.cli.profile.command",
        "report": "tidegauge.cli.report.command",
    },
    "before and after a job, without a service": {
        "estimate": "tidegauge.cli.offline.estimate",
        "oom": "tidegauge.cli.oom.command",
        "diff": "tidegauge.cli.offline.diff",
        "export": "tidegauge.cli.offline.export",
        "whatif": "tidegauge.cli.offline.whatif",
        "replay": "tidegauge.cli.offline.replay",
        "detect": "tidegauge.cli.offline.detect",
    },
    "actions and messages": {
        "policy": "tidegauge.cli.policy.command",
        "grafana": "tidegauge.cli.grafana",
        "notify": "tidegauge.cli.service.notify",
    },
}
"""Commands and their modules, by title and in the order of ``--help``."""
COMMANDS = {name: module for modules in GROUPS.values() for name, module in modules.items()}


class CommandModule(Protocol):
    """The interface of a command module."""

    HELP: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit code. Raises ``CommandError``."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of the command ``only``: to import them all takes longer than most of them run."""
    parser = CommandParser(prog="tidegauge", usage="%(prog)s [-h] [--version] COMMAND ...", description=DESCRIPTION)
    add_examples(
        parser,
        "tidegauge run -- torchrun train.py   profile a job",
        "tidegauge top                        watch all jobs live",
        "tidegauge incidents                  list memory incidents",
        "tidegauge COMMAND --help             options and examples of one command",
    )
    parser.epilog = f"{parser.epilog}\n\n{EXIT_CODES}"
    parser.add_argument("--version", action="version", version=f"tidegauge {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog=parser.prog, help=argparse.SUPPRESS
    )
    for name, module in COMMANDS.items() if only is None else ((only, COMMANDS[only]),):
        command = cast(CommandModule, importlib.import_module(module))
        subparser = subparsers.add_parser(name, help=command.HELP, description=as_description(command.HELP))
        command.prepare_parser(subparser)
        subparser.set_defaults(run=command.run, parser=subparser)
    if only is None:
        show_commands(parser, subparsers, GROUPS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names that the locale's encoding does not have
    words = sys.argv[1:] if argv is None else argv
    args = build_parser(words[0] if words and words[0] in COMMANDS else None).parse_args(words)
    try:
        exit_code = int(args.run(args))
        sys.stdout.flush()
        return exit_code
    except CommandError as error:
        print(f"{args.parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has ended: that is no error, but Python would print one at exit.
        _print_no_more()
        return ENVIRONMENT
    except OSError as error:
        if error.errno not in (_FULL if error.filename is None else _NEVER_READING):
            raise
        print(f"{args.parser.prog}: {cannot_write(error.filename or _output_name(), error)}", file=sys.stderr)
        if error.filename is None:
            _print_no_more()
        return ENVIRONMENT


def _nowhere() -> TextIO:
    """In place of a stream that was closed before the command began: Python has ``None`` there."""
    return open(os.devnull, "w", encoding="utf-8")


def _output_name() -> str:
    """What stdout is, for people: the file behind it, if there is one."""
    with suppress(OSError):
        name = os.readlink("/proc/self/fd/1")
        if name.startswith("/"):
            return f"the output to {name}"
    return "the output"


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
