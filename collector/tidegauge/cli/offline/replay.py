"""``tidegauge replay`` replays a recorded allocator trace with its own settings or others."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import add_examples, add_json, parse_cap, torch_version
from tidegauge.cli.errors import BAD_NEWS, FINE, bad_file

if TYPE_CHECKING:
    from tidegauge.analysis.traces.replays import ReplayAnswer

HELP = "replay a recorded allocator trace: peaks, waste and OOMs, with the recorded or other settings"
SAY_EVERY_S = 2.0
USUAL_REPLAYS = 2
"""Of one trace: as recorded, and under other settings."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", type=Path, help="PyTorch memory snapshot with history, or .npz file")
    parser.add_argument(
        "--alloc-conf", metavar="CONF",
        help="allocator settings, as in PYTORCH_ALLOC_CONF; '' for PyTorch's defaults (default: the recorded ones)",
    )  # fmt: skip
    cap = parser.add_mutually_exclusive_group()
    cap.add_argument(
        "--cap-bytes", type=parse_cap, metavar="N",
        help="limit of reserved memory, as set by set_per_process_memory_fraction (default: the recorded cap)",
    )  # fmt: skip
    cap.add_argument(
        "--cap", dest="cap_bytes", type=parse_cap, metavar="SIZE", help="same as --cap-bytes, such as 80GiB"
    )
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    parser.add_argument(
        "--torch-version", type=torch_version, metavar="V",
        help="PyTorch version of the job, such as 2.12.0: decides which of several equal free blocks is used (default: "
        "detected from the file)",
    )  # fmt: skip
    add_json(parser, "print one JSON object")
    add_examples(
        parser,
        "tidegauge replay snapshot.pickle",
        "tidegauge replay --alloc-conf expandable_segments:True --cap 70GiB snapshot.pickle",
    )


def run(args: argparse.Namespace) -> int:
    # The modules that read and replay are loaded here, because other commands do not need them.
    from tidegauge.analysis.compiling import prepare_model
    from tidegauge.analysis.traces.reading import open_trace

    try:
        trace = open_trace(
            args.trace,
            device=args.device,
            torch_version=args.torch_version,
            on_read=lambda events: prepare_model(events * USUAL_REPLAYS, _say),
        )
        # Only now: how the model is imported depends on the length of the trace.
        from tidegauge.analysis.traces.replays import replay_trace

        answer = replay_trace(
            trace,
            alloc_conf=args.alloc_conf,
            cap_bytes=args.cap_bytes,
            version_is_given=args.torch_version is not None,
            on_progress=_Progress(),
        )
    except ValueError as error:
        raise bad_file(args.trace, error) from error
    from tidegauge.cli.offline.replay_answer import as_json, print_for_people

    if args.json:
        print(json.dumps({"file": str(args.trace), **as_json(answer)}))
    else:
        print_for_people(answer)
    return BAD_NEWS if is_bad_news(answer) else FINE


def is_bad_news(answer: ReplayAnswer) -> bool:
    """True if a request failed in the replay, or addresses do not match the recording."""
    return bool(answer.asked.ooms or answer.recorded.address_mismatches)


class _Progress:
    """The progress of a replay on stderr, every ``SAY_EVERY_S``."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now_s = time.monotonic()
        if done < of and now_s - self._said_s > SAY_EVERY_S:
            self._said_s = now_s
            _say(f"{done:,} of {of:,} events")


def _say(sentence: str) -> None:
    print(f"tidegauge replay: {sentence} …", file=sys.stderr, flush=True)
