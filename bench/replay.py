"""How fast recorded traces are replayed, in what memory, and how well another setting's peaks are foretold.

    python bench/replay.py

Replays the recordings in tests/data/allocator (real training on an H200): events a second of processor time, best of
three, compiled and as plain Python; what compiling takes, once; a trace of 10 million events; the peaks under each
setting from the default recording against the recording under that setting. Each part has a process of its own. Exit
code 1: less than 1,000,000 events a second where it is compiled, 2 GiB or more, or a peak missed by over 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegauge.core.allocator.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "tests" / "data" / "allocator"
MIB, GIB = 1 << 20, 1 << 30
MIN_EVENTS_PER_S = 1_000_000
MAX_PROCESS_BYTES = 2 * GIB
MAX_PEAK_ERROR = 0.01
LONG_EVENTS = 10_000_000
REPEATED = "variable_length_s1_c0"
"""Whose requests the long trace repeats."""

Answer = dict[str, Any]


def trace_of(path: Path) -> Trace:
    from tidegauge.analysis.traces.reading import open_trace

    return open_trace(path)


def speeds() -> Answer:
    """Events a second on each recording."""
    from tidegauge.core.allocator.replay import replay

    rates = {}
    for path in sorted(RECORDINGS.glob("*.npz")):
        trace = trace_of(path)
        replay(trace)  # what is compiled is compiled by now
        rates[path.stem] = [len(trace), len(trace) / min(processor_s(lambda: replay(trace)) for _ in range(3))]  # noqa: B023
    return rates


def processor_s(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def first_call() -> Answer:
    """Seconds of processor time from the start of the process to the first answer."""
    from tidegauge.core.allocator.replay import replay

    replay(trace_of(RECORDINGS / f"{REPEATED}.npz"))
    return {"seconds": time.process_time()}


def long_trace() -> Answer:
    """Millions of events: their rate, and the most memory that the process ever had."""
    from tidegauge.core.allocator.replay import replay
    from tidegauge.core.allocator.settings import parse_settings

    trace = repeated(trace_of(RECORDINGS / f"{REPEATED}.npz"), LONG_EVENTS)
    before = highest_bytes()
    seconds = processor_s(lambda: replay(trace, parse_settings("", trace.torch_version), cap_bytes=None))
    return {
        "events": len(trace),
        "events_per_s": len(trace) / seconds,
        "trace_bytes": before,
        "bytes": highest_bytes(),
    }


def highest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def repeated(trace: Trace, events: int) -> Trace:
    """The requests of a trace, then frees of all that it leaves, as often as it takes."""
    from tidegauge.core.allocator.trace import Action

    live: dict[int, int] = {}
    kept = [event for event, action in enumerate(trace.action) if action <= Action.FREE_COMPLETED]
    for event in kept:
        if trace.action[event] == Action.ALLOC:
            live[trace.address[event]] = event
        elif trace.action[event] == Action.FREE_COMPLETED:
            del live[trace.address[event]]
    left = [(action, event) for event in live.values() for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
    order = [*kept, *(event for _, event in left)]
    times = -(-events // len(order))
    return replace(
        trace,
        action=array("B", [*(trace.action[event] for event in kept), *(action for action, _ in left)]) * times,
        address=array("Q", map(trace.address.__getitem__, order)) * times,
        size_bytes=array("Q", map(trace.size_bytes.__getitem__, order)) * times,
        stream=array("H", map(trace.stream.__getitem__, order)) * times,
        time_us=array("q"),
        end=None,
        marks={},
    )


def peaks() -> Answer:
    """Of each recording under a setting: what was measured, and what the default recording foretells (bytes)."""
    from tidegauge.core.allocator.replay import replay
    from tidegauge.core.allocator.settings import parse_settings

    found = {}
    for path in sorted(RECORDINGS.glob("*_c[1-9].npz")):
        own = trace_of(path)
        default = trace_of(path.with_name(f"{path.stem[:-1]}0.npz"))
        measured = replay(own)
        foretold = replay(default, parse_settings(own.alloc_conf, default.torch_version), cap_bytes=None)
        found[path.stem] = {
            "conf": own.alloc_conf,
            "is_exact": measured.address_mismatches == 0,
            "reserved": [measured.peak_reserved_bytes, foretold.peak_reserved_bytes],
            "allocated": [measured.peak_allocated_bytes, foretold.peak_allocated_bytes],
        }
    return found


PARTS: Mapping[str, Callable[[], Answer]] = {
    "speeds": speeds,
    "first_call": first_call,
    "long_trace": long_trace,
    "peaks": peaks,
}


def answer(part: str, *, compiled: bool = True, sources: Path | None = None) -> Answer:
    """One part, in a process of its own; ``sources`` is another place to find the package."""
    environ = {**os.environ, "PYTHONPATH": str(sources)} if sources is not None else None
    command = [sys.executable, __file__, "--part", part, *([] if compiled else ["--uncompiled"])]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def compile_times() -> tuple[float, float]:
    """Processor seconds until the first answer where nothing has been compiled yet, and the next time."""
    with tempfile.TemporaryDirectory() as folder:
        package = ROOT / "collector" / "tidegauge"
        shutil.copytree(package, Path(folder) / "tidegauge", ignore=shutil.ignore_patterns("__pycache__"))
        first, second = (answer("first_call", sources=Path(folder))["seconds"] for _ in range(2))
    return first, second


def report() -> Iterator[str]:
    """The tables; lines that begin with ``missed`` are targets that were not met."""
    quick, plain = answer("speeds"), answer("speeds", compiled=False)
    yield "| recording | events | events/s, compiled | events/s, plain Python |"
    yield "|---|---|---|---|"
    for name, (events, rate) in quick.items():
        yield f"| {name} | {events:,} | {rate:,.0f} | {plain[name][1]:,.0f} |"
    slowest = min(rate for _, rate in quick.values())
    if slowest < MIN_EVENTS_PER_S:
        yield f"missed: {slowest:,.0f} events/s are less than {MIN_EVENTS_PER_S:,}"
    yield ""
    first, second = compile_times()
    yield f"The first answer of a process: {first:.1f} s of processor time when it compiles, {second:.1f} s after that."
    long = answer("long_trace")
    yield (
        f"{long['events']:,} events: {long['events_per_s']:,.0f} events/s; at most {long['bytes'] / GIB:.2f} GiB of"
        f" memory, {long['trace_bytes'] / GIB:.2f} of them before the replay."
    )
    if long["bytes"] >= MAX_PROCESS_BYTES:
        yield f"missed: {long['bytes'] / GIB:.2f} GiB are more than {MAX_PROCESS_BYTES / GIB:.0f}"
    yield ""
    yield from peak_table()
    yield ""
    yield f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {date.today()}"


def peak_table() -> Iterator[str]:
    yield "| setting | workload | peak reserved, MiB | foretold | peak allocated, MiB | foretold |"
    yield "|---|---|---|---|---|---|"
    for name, found in peaks_in_order():
        (reserved, foretold), (allocated, foretold_allocated) = found["reserved"], found["allocated"]
        yield (
            f"| {found['conf']} | {name.rsplit('_', 2)[0]} | {reserved / MIB:,.1f} | {foretold / reserved - 1:+.2%} |"
            f" {allocated / MIB:,.1f} | {foretold_allocated / allocated - 1:+.2%} |"
        )
        if not found["is_exact"]:
            yield f"missed: the recording {name} does not give its own addresses back"
        if abs(foretold / reserved - 1) > MAX_PEAK_ERROR:
            yield f"missed: the peak of {name} by more than {MAX_PEAK_ERROR:.0%}"


def peaks_in_order() -> list[tuple[str, Answer]]:
    return sorted(answer("peaks").items(), key=lambda item: (item[1]["conf"], item[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="one part only, as JSON")
    parser.add_argument("--uncompiled", action="store_true", help="with --part: as if numba were not installed")
    arguments = parser.parse_args()
    if arguments.part:
        if arguments.uncompiled:
            sys.modules["numba"] = None  # type: ignore[assignment]  # any import of it fails
        else:
            from tidegauge.core.allocator.readiness import wait_for_compiling

            wait_for_compiling()
        print(json.dumps(PARTS[arguments.part]()))
        return 0
    missed = False
    for line in report():
        print(line, flush=True)
        missed = missed or line.startswith("missed")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
