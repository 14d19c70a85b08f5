"""``tidegauge oom`` explains an out-of-memory error from its message, a log or a memory snapshot."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegauge.cli.arguments import add_examples, add_json, parse_cap, torch_version

HELP = "explain an out-of-memory error from its message, a log or a memory snapshot"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="FILE|-|TEXT", nargs="?",
        help="log or snapshot file, - for standard input, or the error message itself",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", type=Path, metavar="S",
        help="snapshot of the failed process: shows what held the memory, and the largest free block",
    )  # fmt: skip
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    parser.add_argument(
        "--cap", type=parse_cap, metavar="SIZE",
        help="limit of reserved memory, if a snapshot does not contain it (an error message does)",
    )  # fmt: skip
    parser.add_argument(
        "--torch-version", type=torch_version, metavar="V",
        help="PyTorch version of the job, such as 2.11.0: decides which settings exist",
    )  # fmt: skip
    add_json(parser, "print one JSON object")
    add_examples(
        parser,
        "tidegauge oom slurm-4711.out",
        "tidegauge oom slurm-4711.out --snapshot oom.pickle",
        "kubectl logs train-0 | tidegauge oom -",
    )


def run(args: argparse.Namespace) -> int:
    # The modules that read and replay are loaded here, because other commands do not need them.
    from tidegauge.cli.oom.answer import explain

    return explain(args)
