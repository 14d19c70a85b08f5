"""``tidegauge detect`` checks recorded step series for memory leaks."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidegauge.cli.arguments import add_examples, add_json, parse_cap
from tidegauge.cli.errors import BAD_NEWS, FINE, USAGE
from tidegauge.cli.offline.step_series import BadSeriesError, StepRow, read_step_series
from tidegauge.cli.output import print_table
from tidegauge.core.detector import RankDetector
from tidegauge.core.detector.watch import CAUSES
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import Band, LeakState, Signal, Verdict

SAY_EVERY_S = 2.0
HELP = "check recorded step series (CSV, CSV.gz) for memory leaks"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE",
        help="one row per training step; columns step, allocated, reserved, and optionally t (seconds), "
        "peak_allocated, inactive_split, nvml_process, host_rss (bytes)",
    )  # fmt: skip
    parser.add_argument(
        "--capacity-bytes", type=parse_cap, metavar="N",
        help="device memory available to the process, such as 80GiB: for severity, predicted OOM and earlier detection",
    )  # fmt: skip
    add_json(parser, "print JSON, one object per file and line")
    add_examples(
        parser,
        "tidegauge detect rank0.csv rank1.csv.gz",
        "tidegauge detect --capacity-bytes 80GiB rank0.csv",
    )


def run(args: argparse.Namespace) -> int:
    judged: list[Judgement] = []
    failed = False
    for name in args.files:
        try:
            judgement = judge_series(
                name, with_progress(name, read_step_series(Path(name))), capacity_bytes=args.capacity_bytes
            )
        except BadSeriesError as error:
            failed = True
            print(f"tidegauge detect: {error}", file=sys.stderr)
            continue
        judged.append(judgement)
        if args.json:
            print(json.dumps(as_json(judgement)))
    if not args.json and judged:
        _print_for_people(judged)
    if failed:
        return USAGE
    return BAD_NEWS if any(judgement.verdict.state is LeakState.LEAK for judgement in judged) else FINE


def with_progress(name: str, rows: Iterator[StepRow]) -> Iterator[StepRow]:
    """The rows, with their count on stderr every ``SAY_EVERY_S``."""
    said_s = time.monotonic()
    for count, row in enumerate(rows):
        if count % 4096 == 0 and time.monotonic() - said_s > SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"tidegauge detect: {name}: {count:,} rows so far …", file=sys.stderr)
        yield row


class Judgement(NamedTuple):
    """The detector's verdict on one file."""

    name: str
    verdict: Verdict
    """The verdict after the last row."""
    withdrawn_alarm_steps: tuple[int, ...]
    """Steps of alarms that were withdrawn later, because the growth ended."""


def judge_series(name: str, rows: Iterator[StepRow], *, capacity_bytes: int | None = None) -> Judgement:
    """Run the online detector on the rows."""
    detector = RankDetector()
    alarm_steps: dict[int, None] = {}
    for row in rows:
        verdict = detector.update(
            step=row.step,
            time_s=row.time_s,
            allocated_bytes=row.allocated_bytes,
            reserved_bytes=row.reserved_bytes,
            nontorch_bytes=row.nontorch_bytes,
            host_bytes=row.host_bytes,
            allocated_peak_bytes=row.allocated_peak_bytes,
            inactive_split_bytes=row.inactive_split_bytes,
            limit_bytes=capacity_bytes,
        )
        if verdict.alarm_step is not None:
            alarm_steps[verdict.alarm_step] = None
    final = detector.look_now()
    return Judgement(name, final, tuple(step for step in alarm_steps if step != final.alarm_step))


def as_json(judgement: Judgement) -> dict[str, object]:
    """The judgement as JSON; an infinite bound of a range is null."""
    name, verdict, withdrawn = judgement
    leak = verdict.state is LeakState.LEAK
    return {
        "file": name,
        "verdict": "leak" if leak else "ok",
        "state": verdict.state.value,
        "severity": verdict.severity.value if leak and verdict.severity else None,
        "signal": verdict.signal.value if leak and verdict.signal else None,
        "cause": verdict.cause if leak else None,
        "onset_step": verdict.onset_step,
        "suspect_step": verdict.suspect_step,
        "alarm_step": verdict.alarm_step,
        "withdrawn_alarm_steps": list(withdrawn),
        "grown_bytes": verdict.grown_bytes,
        **_band("bytes_per_step", verdict.bytes_per_step),
        **_band("bytes_per_second", verdict.bytes_per_second),
        **_band("steps_to_oom", verdict.steps_to_oom),
        **_band("seconds_to_oom", verdict.seconds_to_oom),
        "headroom_eaten": verdict.headroom_eaten,
    }


def _band(key: str, band: Band | None) -> dict[str, float | None]:
    low, likely, high = band or (None, None, None)
    return {key: _finite(likely), f"{key}_low": _finite(low), f"{key}_high": _finite(high)}


def _finite(value: float | None) -> float | None:
    """The rounded value; ``None`` for infinity, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _print_for_people(judged: list[Judgement]) -> None:
    header = ("file", "verdict", "severity", "signal", "cause", "since step", "alarm at", "per step", "steps to OOM")
    print_table(header, [_cells(name, verdict) for name, verdict, _ in judged])
    for name, verdict, withdrawn in judged:
        if withdrawn:
            print(f"\n{name}: alarm at step {', '.join(map(str, withdrawn))} withdrawn: the growth ended.")
        if verdict.state is LeakState.LEAK and verdict.cause is not None:
            print(f"\n{name}: {CAUSES[verdict.cause]}")
            print(f"  {_explain(verdict)}")


def _cells(name: str, verdict: Verdict) -> tuple[str, ...]:
    if verdict.state is LeakState.OK:
        return (name, "ok", *("-",) * 7)
    return (
        name,
        verdict.state.value,
        verdict.severity.value if verdict.severity else "-",
        verdict.signal.value if verdict.signal else "-",
        verdict.cause or "-",
        _number(verdict.onset_step),
        _number(verdict.alarm_step),
        format_bytes(verdict.bytes_per_step.likely) if verdict.bytes_per_step else "-",
        _number(verdict.steps_to_oom.likely) if verdict.steps_to_oom else "-",
    )


def _explain(verdict: Verdict) -> str:
    grown = format_bytes(verdict.grown_bytes or 0)
    text = f"{verdict.signal.value if verdict.signal else '?'} grew by {grown} since step {verdict.onset_step}"
    rate = verdict.bytes_per_step
    if rate is not None:
        text += f", {format_bytes(rate.likely)} a step ({format_bytes(rate.low)} to {format_bytes(rate.high)})"
    left = verdict.steps_to_oom
    if left is None and verdict.signal is Signal.HOST:
        return text + "; no OOM prediction for host memory: the columns do not tell how much is free."
    if left is None:
        return text + "; an OOM prediction needs --capacity-bytes."
    latest = _number(left.high) if math.isfinite(left.high) else "no end"
    return text + f"; out of memory in {_number(left.low)} to {latest} steps, most likely {_number(left.likely)}."


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.0f}"
