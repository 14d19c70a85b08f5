"""``tidegauge estimate MODULE:FUNCTION``: what a training job will need on a GPU, before it queues."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT, FINE, USAGE, CommandError
from tidegauge.cli.offline.estimate_page import print_estimate
from tidegauge.cli.offline.torch_releases import torch_release
from tidegauge.estimator.gpus import GPU_TYPES, find_gpu
from tidegauge.estimator.results import STRATEGIES, Estimate, FitVerdict
from tidegauge.estimator.wire import read_estimate

HELP = "what a training job will need on a GPU, before it queues; needs no GPU"
WORKER = Path(__file__).parents[2] / "estimator" / "__main__.py"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION",
        help="train:build or path/train.py:build; returns (model, optimizer, step), where step() is one training step",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--gpu", type=_gpu, metavar="NAME",
        help=f"answer for one type, and search its largest batch: {', '.join(gpu.name for gpu in GPU_TYPES)}",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=_positive, metavar="N", help="for FUNCTION's batch argument")
    parser.add_argument(
        "--batch-argument", default="batch_size", metavar="NAME",
        help="the argument of FUNCTION that is the batch size (default: batch_size)",
    )  # fmt: skip
    parser.add_argument("--world-size", type=_positive, default=1, metavar="N", help="ranks of the job, one a GPU")
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="none",
        help="what is done to the model on several ranks; none: nothing, or FUNCTION does it itself",
    )  # fmt: skip
    parser.add_argument(
        "--alloc-conf", metavar="CONF", help="as in PYTORCH_ALLOC_CONF (default: what this environment says)"
    )
    parser.add_argument(
        "--torch-version",
        type=torch_release,
        metavar="V",
        help="the job's, such as 2.11.0, where it is not that of --python",
    )
    parser.add_argument("--steps", type=_positive, default=4, metavar="N", help="training steps to run (default: 4)")
    parser.add_argument("--quick", action="store_true", help="leave out what would save memory, and the largest batch")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH",
        help="the interpreter that has the job's torch (default: this one); Tidegauge need not be installed there",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.strategy != "none" and args.world_size < 2:
        raise CommandError(f"--strategy {args.strategy} needs --world-size N, the number of ranks", exit_code=USAGE)
    options = {
        "function": args.function, "batch_size": args.batch_size, "batch_argument": args.batch_argument,
        "gpu": args.gpu, "world_size": args.world_size, "strategy": args.strategy, "alloc_conf": args.alloc_conf,
        "torch_version": args.torch_version,
        "steps": args.steps, "quick": args.quick,
    }  # fmt: skip
    data = ask(args.python, options)
    estimate = read_estimate(data)
    if args.json:
        print(json.dumps(data))
    else:
        print_estimate(args.function, estimate)
    return exit_code(estimate, args.gpu)


def exit_code(estimate: Estimate, gpu: str | None) -> int:
    """Bad news is anything but "fits" on the GPU that was asked for; without one there is none."""
    if gpu is None or all(fit.verdict is FitVerdict.FITS for fit in estimate.fits):
        return FINE
    return BAD_NEWS


def ask(python: str, options: dict[str, Any]) -> dict[str, Any]:
    """The estimate, made by ``python``. Raises ``CommandError`` with what went wrong there, and what to do."""
    # The job's code runs in a process of its own: whatever it does to torch or to itself, this one can still speak.
    try:
        done = subprocess.run([python, str(WORKER), json.dumps(options)], stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise CommandError(f"--python {python}: it cannot be run: {error.strerror}", exit_code=USAGE) from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise CommandError(
            f"the run of {options['function']} by {python} ended with {ending} and no answer; what it said is above. "
            "Code that leaves PyTorch (CUDA extensions, Triton kernels, os._exit) cannot be run without a GPU",
            exit_code=ENVIRONMENT,
        ) from error
    if "problem" in answer:
        raise _as_error(answer, options["function"], python)
    found = answer["estimate"]
    assert isinstance(found, dict)
    return found


def _as_error(answer: dict[str, Any], function: str, python: str) -> CommandError:
    problem, message = answer["problem"], answer["message"]
    if problem == "environment":
        return CommandError(
            f"{message}\nThe estimate runs the job's own code and needs the job's own torch (a CPU build will do). "
            "Say where it is:\n    tidegauge estimate --python PATH/TO/ENVIRONMENT/bin/python …"
        )
    if problem == "function":
        return CommandError(
            f"{function} failed without a GPU, in {python}:\n{message}\n"
            "If it needs values that only a real run has (files, a trained model, what a tensor contains), give it a "
            "FUNCTION that makes tensors of the same shapes and dtypes instead",
            exit_code=USAGE,
        )
    return CommandError(message, exit_code=USAGE)


def _gpu(text: str) -> str:
    try:
        return find_gpu(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value
