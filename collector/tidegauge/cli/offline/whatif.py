"""``tidegauge whatif`` compares allocator settings on a recorded trace."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tidegauge.cli.arguments import OUTPUT, add_examples, add_json, file_to_write, group, parse_cap, torch_version
from tidegauge.cli.errors import BAD_NEWS, EXTRAS_NEED_PYTHON, FINE, CommandError, UsageError, bad_file
from tidegauge.cli.output import progress, spare_what_is_read

HELP = "compare allocator settings on a recorded trace: which one needs the least memory?"
PLOT_FORMATS = (".svg", ".html")
USUAL_TRIALS = 20
"""Replays of one trace until the answer is known."""
PROGRESS_EVERY_S = 10.0
"""Between two lines of progress where stderr is no terminal."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", type=Path, help="PyTorch memory snapshot with history, or .npz file")
    parser.add_argument(
        "--cap", type=parse_cap, metavar="SIZE",
        help="limit of reserved memory, such as 80GiB, as set by set_per_process_memory_fraction: without CUDA context "
        "and NCCL (default: the recorded cap)",
    )  # fmt: skip
    parser.add_argument(
        "--torch-version", type=torch_version, metavar="V",
        help="PyTorch version of the job, such as 2.11.0, if the recording does not have it: decides which settings "
        "exist and which of several equal blocks is used",
    )  # fmt: skip
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    group(parser, OUTPUT).add_argument(
        "--plot", type=file_to_write, metavar="FILE",
        help="plot memory over time for the current setting and the two best, as .svg or .html",
    )  # fmt: skip
    add_json(parser, "print a JSON list of all settings tried, best first")
    add_examples(
        parser,
        "tidegauge whatif snapshot.pickle",
        "tidegauge whatif --cap 70GiB --plot memory.html snapshot.pickle",
    )


def run(args: argparse.Namespace) -> int:
    spare_what_is_read(args.plot, [args.trace])
    if args.plot is not None:
        _check_plot(args.plot)
    # The modules that read and replay are loaded here, because other commands do not need them.
    from tidegauge.analysis.compiling import prepare_model
    from tidegauge.analysis.traces.reading import open_trace

    try:
        with progress("whatif", every_s=PROGRESS_EVERY_S) as say:
            trace = open_trace(
                args.trace,
                device=args.device,
                torch_version=args.torch_version,
                on_read=lambda events: prepare_model(events * USUAL_TRIALS, say),
            )
            if not len(trace):
                raise ValueError("has no events to replay")
            # Only now: how the model is imported depends on the length of the trace.
            from tidegauge.analysis.whatif.search import whatif

            result = whatif(trace, cap_bytes=args.cap, version_is_given=args.torch_version is not None, on_progress=say)
    except ValueError as error:
        raise bad_file(args.trace, error) from error
    from tidegauge.cli.offline.whatif_answer import as_json, print_for_people, write_plot

    if args.json:
        print(json.dumps([as_json(trial, result) for trial in result.trials]))
    else:
        print_for_people(result)
    if args.plot is not None:
        write_plot(args.plot, result, trace)
        print(f"tidegauge whatif: plot written to {args.plot}", file=sys.stderr)
    return BAD_NEWS if all(trial.replay.ooms for trial in result.trials) else FINE


def _check_plot(path: Path) -> None:
    """Raise ``CommandError`` for a plot that cannot be written, before minutes are spent on the answer."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {' or '.join(PLOT_FORMATS)}")
    if sys.version_info < EXTRAS_NEED_PYTHON:
        wanted = ".".join(map(str, EXTRAS_NEED_PYTHON))
        raise CommandError(f"--plot needs Python {wanted} or later; without it the command works here")
