"""How far `tidegauge estimate` is from what real jobs took on an H200: every job is run on tensors without memory.

Runs in the environment of `make estimate-venv` (PyTorch without CUDA, transformers, torchvision), all in one process:

    .estimate/venv/bin/python bench/estimate.py [--lines FILE] [--only I ...] [--json]

FILE has the lines of `recordings/peaks.jsonl` or of `bench/gpu_peaks.py` (default: tests/data/estimate/peaks.jsonl).
Prints the relative error of peak allocated and peak reserved for each job, beside the formula of 16 bytes a parameter
(12 for SGD with momentum), then median and worst; with --json a line of JSON for each job instead.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "collector"), str(Path(__file__).parent)]
LINES = ROOT / "tests" / "data" / "estimate" / "peaks.jsonl"
TORCH_VERSION = "2.11.0"
"""Of the recordings: it decides about attention and about ties between equal blocks."""
FORMULA_BYTES = {"sgd": 12}
"""Parameter, gradient and optimizer state in 32 bits, by optimizer; all others are taken for Adam's kind."""
ADAM_BYTES = 16


class Outcome(NamedTuple):
    """An estimated job. Errors are relative to what was recorded; negative: estimated too low."""

    job: str
    allocated_error: float
    reserved_error: float
    formula_error: float
    """Of the formula, against peak reserved."""
    seconds: float


def outcome(line: dict[str, Any]) -> Outcome:
    """Estimate the job of a line."""
    from gpu_peaks_models import of_recorded

    from tidegauge.core.allocator.replay import replay
    from tidegauge.core.allocator.settings import parse_settings
    from tidegauge.estimator.gpus import H200
    from tidegauge.estimator.training import record_training

    job = line if "inputs" in line else of_recorded(line)
    began_s = time.monotonic()
    recording = record_training(builder(job), target=replace(H200, torch_version=TORCH_VERSION))
    replayed = replay(recording.trace, parse_settings("", TORCH_VERSION), cap_bytes=None)
    formula = line["params"] * FORMULA_BYTES.get(line["opt"], ADAM_BYTES)
    return Outcome(
        job=name_of(line),
        allocated_error=replayed.peak_allocated_bytes / line["peak_alloc"] - 1,
        reserved_error=replayed.peak_reserved_bytes / line["peak_reserved"] - 1,
        formula_error=formula / line["peak_reserved"] - 1,
        seconds=time.monotonic() - began_s,
    )


def builder(job: dict[str, Any]) -> Callable[[], tuple[Any, Any, Callable[[], object]]]:
    """The job as a user's function would make it; the same code that ran on the GPU."""

    def build() -> tuple[Any, Any, Callable[[], object]]:
        from gpu_peaks_training import training_of

        training = training_of(job)
        return training.model, training.optimizer, lambda: training.step(lambda _: None)

    return build


def name_of(line: dict[str, Any]) -> str:
    habits = [word for word in ("amp", "ckpt", "scaler", "clip", "channels_last") if line.get(word)]
    return " ".join([str(line["i"]), line.get("name") or line["fam"], f"b{line['b']}", line["opt"], *habits])


def chosen(path: Path, only: Sequence[int]) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        line = json.loads(text)
        if not line.get("error") and (not only or line["i"] in only):
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--only", type=int, nargs="*", default=[], metavar="I")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    outcomes = []
    for line in chosen(arguments.lines, arguments.only):
        found = outcome(line)
        outcomes.append(found)
        print(json.dumps(found._asdict()) if arguments.json else row(found), flush=True)
    if not arguments.json and outcomes:
        print("\n".join(summary(outcomes)))


def row(found: Outcome) -> str:
    return (
        f"{found.job:44s} allocated {found.allocated_error:+7.2%}  reserved {found.reserved_error:+7.2%}  "
        f"formula {found.formula_error:+7.1%}  {found.seconds:5.1f} s"
    )


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    import torch

    lines = []
    for label, errors in (
        ("peak reserved", [abs(found.reserved_error) for found in outcomes]),
        ("peak allocated", [abs(found.allocated_error) for found in outcomes]),
        ("formula", [abs(found.formula_error) for found in outcomes]),
    ):
        lines.append(f"{label:15s} median {statistics.median(errors):6.2%}  worst {max(errors):6.2%}")
    return [
        *lines,
        f"{len(outcomes)} jobs, torch {torch.__version__}, {platform.machine()}, {time.strftime('%Y-%m-%d')}",
    ]


if __name__ == "__main__":
    main()
