"""Input of ``tidegauge oom``, recognised by content instead of file name, read and explained."""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Optional, cast

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.oom.answer import OomAnswer, explain_elsewhere, explain_snapshot, explain_text, in_the_light_of
from tidegauge.analysis.oom.log import MAX_LINE_CHARS, OomLog, read_log
from tidegauge.analysis.oom.snapshot import OomSnapshot, look_into
from tidegauge.analysis.snapshots.reading import is_own_form, read, read_stream
from tidegauge.cli.errors import ENVIRONMENT, FINE, MAX_QUOTE_CHARS, CommandError, UsageError
from tidegauge.cli.oom.page import OomPage, TriedSettings, as_json, print_page
from tidegauge.cli.output import print_json, progress
from tidegauge.core.text import one_line

LOOKED_FOR = (
    "searched for 'CUDA out of memory' (also HIP and XPU) of PyTorch 1.12 and later, cudaMallocAsync errors, and OOM "
    "messages of NCCL, CUDA libraries, the driver, host memory and OOM killers"
)
_PICKLES = (b"\x80", b"(dp")
"""The first bytes of a pickled dict, protocols 2 to 5, and 0; no text begins with them."""
_GZIP = b"\x1f\x8b"
_PEEK = 8
_LONG_TEXT = 60


def explain(args: argparse.Namespace) -> int:
    """Print the answer and return the exit code. Raises ``CommandError``."""
    if args.what is None and args.snapshot is None:
        raise UsageError("no input: give a file, the error message, or - for standard input")
    log, snapshot = _read(args)
    page = _page(log, snapshot, args)
    if page is None:
        raise UsageError(f"{_named(args.what)}: no out-of-memory error found; {LOOKED_FOR}")
    if args.json:
        print_json(as_json(page))
    else:
        print_page(page)
    return FINE


def _page(log: OomLog, snapshot: Optional[OomSnapshot], args: argparse.Namespace) -> Optional[OomPage]:
    version: Optional[str] = args.torch_version
    answers = [explain_text(found, torch_version=version) for found in log.found]
    if log.found:
        first = explain_text(log.found[0], snapshot, torch_version=version)
    elif snapshot is not None:
        first = explain_snapshot(snapshot, torch_version=version)
    elif log.elsewhere:
        first = explain_elsewhere(log.elsewhere[0])
    elif log.refused_mallocs:
        first = _got_over(log)
    else:
        return None
    tried = None if snapshot is None or not len(snapshot.trace) else _try_settings(snapshot, args.cap, version)
    if tried is not None and tried.result is not None:
        first = in_the_light_of(first, tried.result)
    return OomPage(first, tuple(answers[1:]), log, snapshot, tried)


def _try_settings(snapshot: OomSnapshot, cap_bytes: Optional[int], torch_version: Optional[str]) -> TriedSettings:
    """Try other allocator settings on the history of ``snapshot``; if that is impossible, the finding says why."""
    # The modules that replay are loaded here, because other answers do not need them.
    from tidegauge.analysis.oom.history import history_of
    from tidegauge.analysis.whatif.search import whatif
    from tidegauge.analysis.whatif.words import export_line, findings
    from tidegauge.cli.offline.whatif_answer import as_json as trial_json

    try:
        trace = history_of(snapshot, torch_version=torch_version, cap_bytes=cap_bytes)
        with progress("oom") as say:
            result = whatif(trace, on_progress=say)
    except ValueError as error:
        return TriedSettings(None, (f"This history cannot be replayed: {error}",), None, ())
    return TriedSettings(
        result,
        tuple(findings(result)),
        export_line(result),
        tuple(trial_json(trial, result) for trial in result.trials),
    )


def _got_over(log: OomLog) -> OomAnswer:
    return OomAnswer(
        "none",
        None,
        f"{log.refused_mallocs:,} device allocations failed without an out-of-memory error: the allocator released its "
        "cache and retried. Each retry costs time.",
        ("Lower the peak, or cap PyTorch slightly below the GPU's memory, so that it releases its cache earlier.",),
    )


def _read(args: argparse.Namespace) -> tuple[OomLog, Optional[OomSnapshot]]:
    try:
        snapshot = None
        if args.snapshot is not None:
            snapshot = look_into(read(args.snapshot), device=args.device, cap_bytes=args.cap)
        if args.what is None:
            return OomLog(), snapshot
        if args.what == "-":
            if sys.stdin.isatty():
                print("tidegauge oom: paste the message, then press Ctrl-D", file=sys.stderr)
            return _of_stream(cast("io.BufferedReader", sys.stdin.buffer), snapshot, args)
        if _is_file(args.what):
            with open(args.what, "rb") as stream:
                return _of_stream(stream, snapshot, args)
    except BadTraceError as error:
        raise UsageError(one_line(str(error), MAX_QUOTE_CHARS)) from error
    except (OSError, EOFError, zlib.error) as error:  # the latter two from damaged gzip
        raise CommandError(f"cannot read {_named(args.what)}: {error}", exit_code=ENVIRONMENT) from error
    if not args.what.strip():
        raise UsageError("empty input: give a file, the error message, or -")
    log = read_log(io.StringIO(args.what))
    if not (log.found or log.elsewhere or log.refused_mallocs):
        raise UsageError(f"{_named(args.what)}: neither a file nor an out-of-memory message")
    return log, snapshot


def _of_stream(
    stream: io.BufferedReader, snapshot: Optional[OomSnapshot], args: argparse.Namespace
) -> tuple[OomLog, Optional[OomSnapshot]]:
    if stream.peek(_PEEK).startswith(_GZIP):
        with gzip.GzipFile(fileobj=stream) as unzipped, io.BufferedReader(unzipped) as plain:
            return _of_plain(plain, snapshot, args)
    return _of_plain(stream, snapshot, args)


def _of_plain(
    stream: io.BufferedReader[Any], snapshot: Optional[OomSnapshot], args: argparse.Namespace
) -> tuple[OomLog, Optional[OomSnapshot]]:
    begin = stream.peek(_PEEK)[:_PEEK]
    if not begin.startswith(_PICKLES) and not is_own_form(begin):
        return read_log(_lines(stream)), snapshot
    if snapshot is not None:
        raise UsageError("two snapshots given: give the error message, and its snapshot with --snapshot")
    try:
        return OomLog(), look_into(read_stream(stream), device=args.device, cap_bytes=args.cap)
    except BadTraceError as error:
        raise type(error)(f"{_named(args.what)}: {error}") from error


def _lines(stream: io.BufferedReader[Any]) -> Iterator[str]:
    """Lines of bounded length."""
    return (line.decode(errors="replace") for line in iter(lambda: stream.readline(MAX_LINE_CHARS), b""))


def _is_file(what: str) -> bool:
    return "\n" not in what and len(what) < os.pathconf("/", "PC_PATH_MAX") and os.path.exists(what)


def _named(what: Optional[str]) -> str:
    """A file's name, or the beginning of a text, for a message."""
    text = "standard input" if what in (None, "-") else str(what)
    shown = one_line(text, len(text))
    return shown if _is_file(text) or len(text) <= _LONG_TEXT else repr(f"{shown[:_LONG_TEXT]}...")
