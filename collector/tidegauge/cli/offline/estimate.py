"""``tidegauge estimate`` estimates the GPU memory of a training job before it queues."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegauge.cli.arguments import OUTPUT, add_examples, add_json, group, positive_count, torch_version
from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT, FINE, CommandError, UsageError
from tidegauge.cli.output import bar, print_table, print_wrapped
from tidegauge.core.jobs.kubernetes import NEEDED_MEMORY
from tidegauge.core.units import format_bytes
from tidegauge.core.wire import from_wire
from tidegauge.estimator.gpus import GPU_TYPES, MIB, find_gpu
from tidegauge.estimator.results import (
    STRATEGIES,
    Breakdown,
    ClosedForm,
    Estimate,
    Fit,
    FitVerdict,
    LargestBatch,
    Saving,
)

HELP = "estimate the GPU memory of a training job before it queues; needs no GPU"
WORKER = Path(__file__).parents[2] / "estimator" / "__main__.py"
_PART_WORDS = {
    "optimizer_state": "optimizer state",
    "allocator": "allocator: rounding and fragmentation",
    "context": "CUDA context and kernels",
    "nccl": "NCCL",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION",
        help="train:build or path/train.py:build; returns (model, optimizer, step); step() runs one training step",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", type=_gpu, metavar="NAME",
        help=f"estimate for this GPU only, and search its largest batch: {', '.join(gpu.name for gpu in GPU_TYPES)}",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=positive_count, metavar="N", help="value of the batch argument of FUNCTION"
    )
    parser.add_argument(
        "--batch-argument", default="batch_size", metavar="NAME",
        help="name of the batch argument of FUNCTION (default: batch_size)",
    )  # fmt: skip
    parser.add_argument(
        "--world-size", type=positive_count, default=1, metavar="N", help="number of ranks, one per GPU (default: 1)"
    )
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="none",
        help="how the model is distributed over ranks; none: not at all, or by FUNCTION itself (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--alloc-conf", metavar="CONF",
        help="allocator settings, as in PYTORCH_ALLOC_CONF (default: those of this environment)",
    )  # fmt: skip
    parser.add_argument(
        "--torch-version", type=torch_version, metavar="V",
        help="PyTorch version of the job, such as 2.11.0 (default: that of --python)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=positive_count, default=4, metavar="N", help="training steps to run (default: 4)"
    )
    parser.add_argument("--quick", action="store_true", help="skip memory savings and the largest batch")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH",
        help="Python interpreter with the PyTorch of the job (default: this one); it does not need Tidegauge",
    )  # fmt: skip
    add_json(parser, "print one JSON object")
    group(parser, OUTPUT).add_argument(
        "--annotation", action="store_true",
        help="print the annotation that tells Kubernetes what a rank needs, and nothing else",
    )  # fmt: skip
    add_examples(
        parser,
        "tidegauge estimate train:build",
        "tidegauge estimate --gpu h100-80 --batch-size 32 train.py:build",
        "tidegauge estimate --world-size 8 --strategy fsdp2 --quick train:build",
    )


def run(args: argparse.Namespace) -> int:
    if args.strategy != "none" and args.world_size < 2:
        raise UsageError(f"--strategy {args.strategy} needs --world-size N, the number of ranks")
    options = {
        "function": args.function, "batch_size": args.batch_size, "batch_argument": args.batch_argument,
        "gpu": args.gpu, "world_size": args.world_size, "strategy": args.strategy, "alloc_conf": args.alloc_conf,
        "torch_version": args.torch_version,
        "steps": args.steps, "quick": args.quick or args.annotation,
    }  # fmt: skip
    data = ask(args.python, options)
    estimate = from_wire(Estimate, data)
    if args.json:
        print(json.dumps(data))
    elif args.annotation:
        print(f"{NEEDED_MEMORY}: {math.ceil(estimate.device_bytes / MIB)}Mi")
    else:
        print_estimate(args.function, estimate)
    return exit_code(estimate, args.gpu)


def exit_code(estimate: Estimate, gpu: str | None) -> int:
    """The exit code: ``BAD_NEWS`` if the job does not surely fit the chosen GPU."""
    if gpu is None or all(fit.verdict is FitVerdict.FITS for fit in estimate.fits):
        return FINE
    return BAD_NEWS


def ask(python: str, options: dict[str, Any]) -> dict[str, Any]:
    """The estimate that ``python`` makes. Raises ``CommandError`` with what went wrong and what to do."""
    # The job's code runs in a process of its own: whatever it does to torch or to itself, this one can report it.
    try:
        done = subprocess.run([python, str(WORKER), json.dumps(options)], stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise UsageError(f"--python {python}: cannot be run: {error.strerror}") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise CommandError(
            f"{options['function']} under {python} ended with {ending} and no result; its output is above. Code "
            "outside PyTorch (CUDA extensions, Triton kernels, os._exit) cannot run without a GPU",
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
            f"{message}\nThe estimate runs the code of the job and needs its PyTorch (a CPU build is enough). "
            "Give its environment:\n    tidegauge estimate --python PATH/TO/ENVIRONMENT/bin/python …"
        )
    if problem == "function":
        return UsageError(
            f"{function} failed without a GPU, in {python}:\n{message}\n"
            "If it needs values that only a real run has (files, a trained model, tensor contents), use a FUNCTION "
            "that creates tensors with the same shapes and dtypes instead"
        )
    return UsageError(message)


def _gpu(text: str) -> str:
    try:
        return find_gpu(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def print_estimate(function: str, estimate: Estimate) -> None:
    print("\n".join(headline(function, estimate)))
    _section("Fits?")
    print_table(
        ("GPU", "memory", "verdict", "free", "largest batch", "without reserve"),
        fit_rows(estimate.fits, estimate.largest_batches),
    )
    print_wrapped("Largest batch: ", estimate.batch_note)
    _section("Breakdown at peak allocated memory")
    print_table(("part", "bytes", "share", ""), breakdown_rows(estimate.breakdown, estimate.device_bytes))
    _section("Per step")
    print_table(
        ("step", "peak allocated", "peak reserved so far"),
        [(str(s.step), format_bytes(s.allocated_bytes), format_bytes(s.reserved_bytes)) for s in estimate.steps],
    )
    if estimate.savings:
        _section("Memory savings (each measured in its own run)")
        print_table(("change", "new total", "saves", ""), [saving_row(saving) for saving in estimate.savings])
    if estimate.closed_forms:
        _section("For comparison: textbook formulas")
        print_table(("formula", "result", "estimate", "ratio"), [form_row(form) for form in estimate.closed_forms])
    _section("Assumptions")
    for assumption in estimate.assumptions:
        print_wrapped("- ", assumption)


def headline(function: str, estimate: Estimate) -> list[str]:
    """The need of the job, and its peaks."""
    ranks = f", each of {estimate.world_size} ranks ({estimate.strategy})" if estimate.world_size > 1 else ""
    conf = estimate.alloc_conf or "default settings"
    return [
        f"{function} needs {format_bytes(estimate.device_bytes)} of device memory{ranks}.",
        f"  peak allocated {format_bytes(estimate.peak_allocated_bytes)}, "
        f"peak reserved {format_bytes(estimate.peak_reserved_bytes)} (torch {estimate.torch_version}, {conf})",
        f"  peak at: {estimate.peak_at}",
    ]


def fit_rows(fits: Sequence[Fit], batches: Sequence[LargestBatch]) -> list[tuple[str, ...]]:
    by_gpu = {batch.gpu: batch for batch in batches}
    return [
        (
            fit.gpu,
            format_bytes(fit.total_bytes),
            fit.verdict.value + (f" ({fit.note})" if fit.note else ""),
            f"{fit.margin:.0%}",
            _batch(by_gpu.get(fit.gpu)),
            _border(by_gpu.get(fit.gpu)),
        )
        for fit in fits
    ]


def _batch(batch: LargestBatch | None) -> str:
    if batch is None:
        return "-"
    if not batch.batch_size:
        return "none"
    return str(batch.batch_size) if batch.tried else f"about {batch.batch_size}"


def _border(batch: LargestBatch | None) -> str:
    if batch is None or batch.border_batch_size is None:
        return "-"
    return f"about {batch.border_batch_size}" if batch.border_batch_size else "none"


def breakdown_rows(breakdown: Breakdown, device_bytes: int) -> list[tuple[str, ...]]:
    """Rows of the parts, largest first, each with a bar; empty parts are left out."""
    parts = sorted(breakdown._asdict().items(), key=lambda part: -part[1])
    return [
        (
            _PART_WORDS.get(name, name),
            format_bytes(size_bytes),
            f"{size_bytes / device_bytes:.0%}",
            bar(size_bytes / device_bytes),
        )
        for name, size_bytes in parts
        if size_bytes
    ]


def saving_row(saving: Saving) -> tuple[str, ...]:
    if saving.device_bytes is None or saving.saved_bytes is None:
        return (saving.change, "-", "-", f"not tried: {saving.note}")
    return (saving.change, format_bytes(saving.device_bytes), format_bytes(saving.saved_bytes), saving.note)


def form_row(form: ClosedForm) -> tuple[str, ...]:
    ratio = f"{form.estimate_bytes / form.bytes:.2f}" if form.bytes else "-"
    estimate = f"{format_bytes(form.estimate_bytes)} ({form.of})"
    return (f"{form.name}: {form.formula}", format_bytes(form.bytes), estimate, ratio)


def _section(title: str) -> None:
    print(f"\n{title}")
