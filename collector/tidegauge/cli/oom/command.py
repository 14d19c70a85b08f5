"""``tidegauge oom``: an out-of-memory message, a log with some, or a snapshot taken at one, explained."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegauge.cli.offline.torch_releases import torch_release
from tidegauge.cli.sizes import parse_cap

HELP = "explain an out-of-memory error, from its text, a log, or a memory snapshot"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="FILE|-|TEXT", nargs="?",
        help="a log, a snapshot (told apart by content), - for standard input, or the message itself",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", type=Path, metavar="S",
        help="a snapshot of the process that the text is from: adds who held the memory, and the largest free block",
    )  # fmt: skip
    parser.add_argument("--device", type=int, metavar="N", help="which device, where a snapshot has several")
    parser.add_argument(
        "--cap", type=parse_cap, metavar="SIZE",
        help="what PyTorch was allowed to reserve, where a snapshot does not say (a text does)",
    )  # fmt: skip
    parser.add_argument(
        "--torch-version",
        type=torch_release,
        metavar="V",
        help="the job's torch, such as 2.11.0: which settings it knows, and their names",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    # What reads and replays is loaded here: the other commands start without it.
    from tidegauge.cli.oom.run import explain

    return explain(args)
