"""``tidegauge oom``: input is recognised by its content and explained; the answer is printed for people or as JSON.

Texts from logs and snapshots are made printable here.
"""

from __future__ import annotations

import argparse
import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional, Union, cast

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.oom.answer import (
    OomAnswer,
    elsewhere_words,
    explain_elsewhere,
    explain_snapshot,
    explain_text,
    in_the_light_of,
)
from tidegauge.analysis.oom.log import MAX_LINE_CHARS, FoundOom, LogPlace, OomLog, read_log
from tidegauge.analysis.oom.snapshot import OomSnapshot, history_of, look_into
from tidegauge.analysis.snapshots.reading import is_own_form, read_snapshot, read_stream
from tidegauge.analysis.whatif.results import WhatIf
from tidegauge.cli.errors import ENVIRONMENT, FINE, MAX_QUOTE_CHARS, CommandError, UsageError
from tidegauge.cli.output import print_json, print_table, print_wrapped, progress
from tidegauge.core.evidence.held_memory import HeldMemory, free_words, owner_name
from tidegauge.core.evidence.owners import CodeLine, Owner
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

LOOKED_FOR = (
    "searched for 'CUDA out of memory' (also HIP, XPU and MPS) of PyTorch 1.0 and later, cudaMallocAsync errors, OOM "
    "messages of NCCL, CUDA libraries, the driver and host memory, and processes killed by SIGKILL or an OOM killer"
)
_PICKLES = (b"\x80", b"(dp")
"""The first bytes of a pickled dict, protocols 2 to 5, and 0; no text begins with them."""
_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PEEK = 8
_LONG_TEXT = 60
MAX_OWNERS = 15
MAX_OTHERS = 8
SAME_FRACTION = 0.1
"""Share of reserved memory by which message and snapshot may differ: a text has two decimals, and a handler may have
freed part of the cache."""
SERVED_NEXT_TIME = (
    "A large enough free block existed: PyTorch releases its cache before it fails, but does not search again "
    "(pytorch #189504). If the block belongs to the same stream, retrying the same request succeeds."
)
LATE = (
    "That is large enough, because the snapshot was taken after the error: memory freed by error handling counts as "
    "free."
)


class TriedSettings(NamedTuple):
    """The outcome of a what-if, for people and for programs."""

    result: Optional[WhatIf]
    """``None`` if the history cannot be replayed."""
    findings: tuple[str, ...]
    export_line: Optional[str]
    trials: tuple[dict[str, object], ...]


class OomPage(NamedTuple):
    """The parts of the answer."""

    first: OomAnswer
    others: tuple[OomAnswer, ...]
    """Further messages of the log, in its order."""
    log: OomLog
    snapshot: Optional[OomSnapshot]
    tried: Optional[TriedSettings]


def explain(args: argparse.Namespace) -> int:
    """Print the answer and return the exit code. Raises ``CommandError``."""
    if args.what is None and args.snapshot is None:
        raise UsageError("no input: give a file, the error message, or - for standard input")
    log, snapshot = _read(args)
    page = _page(log, snapshot, args)
    if page is None:
        raise UsageError(f"{_input_name(args.what)}: no out-of-memory error found; {LOOKED_FOR}")
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
    elif log.cause_elsewhere is not None:
        first = explain_elsewhere(log.cause_elsewhere, log)
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
    from tidegauge.analysis.whatif.search import whatif
    from tidegauge.analysis.whatif.words import export_line, findings
    from tidegauge.cli.offline.whatif_answer import as_json as trial_json

    try:
        trace = history_of(snapshot, torch_version=torch_version, cap_bytes=cap_bytes)
        with progress("oom") as say:
            result = whatif(trace, on_progress=say)
    except ValueError as error:
        return TriedSettings(None, (f"This history cannot be replayed: {error}",), None, ())
    trials = tuple(trial_json(trial, result) for trial in result.trials)
    return TriedSettings(result, tuple(findings(result)), export_line(result), trials)


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
            snapshot = look_into(read_snapshot(args.snapshot), device=args.device, cap_bytes=args.cap)
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
        raise CommandError(f"cannot read {_input_name(args.what)}: {error}", exit_code=ENVIRONMENT) from error
    if not args.what.strip():
        raise UsageError("empty input: give a file, the error message, or -")
    log = read_log(io.StringIO(args.what))
    if not (log.found or log.elsewhere or log.refused_mallocs):
        raise UsageError(f"{_input_name(args.what)}: neither a file nor an out-of-memory message")
    return log, snapshot


def _of_stream(
    stream: io.BufferedReader, snapshot: Optional[OomSnapshot], args: argparse.Namespace
) -> tuple[OomLog, Optional[OomSnapshot]]:
    begin = stream.peek(_PEEK)
    if not begin.startswith(_GZIP):
        return _of_plain(stream, begin[:_PEEK], snapshot, args)
    begin = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(begin, _PEEK)
    if _is_snapshot(begin):  # bounded by its reader, which unzips it
        return _of_plain(stream, begin, snapshot, args)
    with gzip.GzipFile(fileobj=stream) as unzipped, io.BufferedReader(unzipped) as plain:
        return _of_plain(plain, begin, snapshot, args)


def _of_plain(
    stream: io.BufferedReader[Any], begin: bytes, snapshot: Optional[OomSnapshot], args: argparse.Namespace
) -> tuple[OomLog, Optional[OomSnapshot]]:
    if not _is_snapshot(begin):
        return read_log(_lines(stream)), snapshot
    if snapshot is not None:
        raise UsageError("two snapshots given: give the error message, and its snapshot with --snapshot")
    try:
        return OomLog(), look_into(read_stream(stream), device=args.device, cap_bytes=args.cap)
    except BadTraceError as error:
        raise type(error)(f"{_input_name(args.what)}: {error}") from error


def _is_snapshot(begin: bytes) -> bool:
    return begin.startswith(_PICKLES) or is_own_form(begin)


def _lines(stream: io.BufferedReader[Any]) -> Iterator[str]:
    """Lines of bounded length. Of UTF-16, as PowerShell's redirection writes it, where a byte order mark says so."""
    if stream.peek(_PEEK).startswith(_UTF_16):
        return _lines_of_utf_16(stream)
    return (line.decode(errors="replace") for line in iter(lambda: stream.readline(MAX_LINE_CHARS), b""))


def _lines_of_utf_16(stream: io.BufferedReader[Any]) -> Iterator[str]:
    text = io.TextIOWrapper(stream, encoding="utf-16", errors="replace")
    try:
        yield from iter(lambda: text.readline(MAX_LINE_CHARS), "")
    finally:
        text.detach()  # whoever opened the stream closes it


def _is_file(what: str) -> bool:
    return "\n" not in what and len(what) < os.pathconf("/", "PC_PATH_MAX") and os.path.exists(what)


def _input_name(what: Optional[str]) -> str:
    """A file's name, or the beginning of a text, for a message."""
    text = "standard input" if what in (None, "-") else str(what)
    shown = one_line(text, len(text))
    return shown if _is_file(text) or len(text) <= _LONG_TEXT else repr(f"{shown[:_LONG_TEXT]}...")


def print_page(page: OomPage) -> None:
    answer = page.first
    print_wrapped(f"{answer.kind}: ", one_line(answer.sentence, len(answer.sentence)))
    for line in _where(answer):
        print_wrapped("  ", line)
    if answer.held is not None:
        for line in _of_another(page):
            print_wrapped("\n", line)
        _print_held(answer.held, answer, taken_late=page.snapshot is not None and not page.snapshot.at_the_refusal)
    if page.tried is not None:
        print("\nOther allocator settings (replay of the history in the snapshot):")
        for finding in page.tried.findings:
            print_wrapped("  ", one_line(finding, len(finding)))
    if answer.advice:
        print("\nWhat to do:")
    for advice in answer.advice:
        print_wrapped("  - ", one_line(advice, len(advice)))
    for line in _beside(page):
        print_wrapped("\n", line)


def as_json(page: OomPage) -> dict[str, object]:
    """The first error in full, the others in short."""
    answer, case, held = page.first, page.first.case, page.first.held
    tried = page.tried
    return {
        **_short(answer),
        "sentence": answer.sentence,
        "advice": list(answer.advice),
        "capped": None if case is None else case.capped,
        "approximate": None if case is None else case.approximate,
        "free_bytes": None if case is None else case.free_bytes,
        "limit_bytes": None if case is None else case.limit_bytes or None,
        "total_bytes": None if case is None else case.total_bytes,
        "allocated_bytes": None if case is None else case.allocated_bytes,
        "reserved_bytes": None if case is None else case.reserved_bytes,
        "nontorch_bytes": None if case is None else case.nontorch_bytes,
        "others_bytes": None if case is None else case.others_bytes,
        "private_free_bytes": None if case is None else case.private_free_bytes,
        "largest_free_bytes": None if case is None else case.largest_free_bytes,
        "place": None if answer.found is None else _fields(answer.found.place),
        "live_bytes": None if held is None else held.live_bytes,
        "pending_bytes": None if held is None else held.pending_bytes,
        "owners": None if held is None else [_owner_json(owner) for owner in held.owners],
        "whatif": None if tried is None else {
            "findings": list(tried.findings), "export_line": tried.export_line, "trials": list(tried.trials),
        },
        "others": [_short(other) for other in page.others],
        "elsewhere": [
            {"kind": seen.what.kind, "rank": seen.rank, "line_number": seen.line_number} for seen in page.log.elsewhere
        ],
        "refused_mallocs": page.log.refused_mallocs,
    }  # fmt: skip


def _short(answer: OomAnswer) -> dict[str, object]:
    found, case = answer.found, answer.case
    wanted = None if found is None or found.text.wanted is None else found.text.wanted.likely_bytes
    return {
        "kind": answer.kind,
        "retry": answer.retry,
        "rank": None if found is None else found.rank,
        "device": answer.device,
        "request_bytes": wanted if case is None else case.wanted_bytes,
        "line_number": None if found is None else found.line_number,
    }


def _owner_json(owner: Owner) -> dict[str, object]:
    return {
        "bytes": owner.held_bytes,
        "blocks": owner.blocks,
        "line": _fields(owner.line),
        "caller": _fields(owner.caller),
        "what": owner.what,
    }


def _fields(place: Union[LogPlace, CodeLine, None]) -> Optional[dict[str, object]]:
    return None if place is None else dict(place._asdict())


def _where(answer: OomAnswer) -> Iterator[str]:
    found = answer.found
    if found is None:
        return
    who = [] if found.rank is None else [f"rank {found.rank}"]
    who += [] if answer.device is None else [f"GPU {answer.device}"]
    place = found.place
    if place is not None:
        at = f"{place.filename}:{place.line}"
        who.append(f"allocation at {at} in {place.function}" if place.function else f"allocation at {at}")
    if who:
        yield one_line(", ".join(who), 1000)
    if place is not None and place.code:
        yield one_line(f"    {place.code}", 200)


def _of_another(page: OomPage) -> Iterator[str]:
    """The doubt that message and snapshot belong to different processes or times: segments stay after an error."""
    case, snapshot = page.first.case, page.snapshot
    if page.first.found is None or case is None or snapshot is None:
        return
    if abs(snapshot.reserved_bytes - case.reserved_bytes) > SAME_FRACTION * case.reserved_bytes:
        yield (
            f"The snapshot may not belong to this error: {format_bytes(snapshot.reserved_bytes)} reserved on its "
            f"device {snapshot.device}, but {format_bytes(case.reserved_bytes)} in the message. "
            "The rest is from the snapshot."
        )


def _print_held(held: HeldMemory, answer: OomAnswer, *, taken_late: bool) -> None:
    print(f"\nLive memory: {format_bytes(held.live_bytes)} in {held.live_blocks:,} blocks")
    rows = [_row(owner, held.live_bytes) for owner in held.owners[:MAX_OWNERS]]
    print_table(("bytes", "share", "blocks", "each", "allocated at"), rows)
    if len(held.owners) > MAX_OWNERS:
        rest = sum(owner.held_bytes for owner in held.owners[MAX_OWNERS:])
        print(f"and {len(held.owners) - MAX_OWNERS:,} more with {format_bytes(rest)}")
    print()
    print_wrapped("", free_words(held, None if answer.case is None else answer.case.wanted_bytes))
    if held.private_free_bytes:
        print_wrapped("", f"Another {format_bytes(held.private_free_bytes)} was free in private pools.")
    if held.pending_bytes:
        print_wrapped("", f"{format_bytes(held.pending_bytes)} was freed but still waiting for other streams.")
    if answer.case is not None and 0 < answer.case.wanted_bytes <= (answer.case.largest_free_bytes or 0):
        print_wrapped("", LATE if taken_late else SERVED_NEXT_TIME)


def _row(owner: Owner, live_bytes: int) -> tuple[str, ...]:
    share = f"{100 * owner.held_bytes / live_bytes:.1f} %" if live_bytes else "-"
    each = "-" if owner.block_bytes is None else format_bytes(owner.block_bytes)
    return format_bytes(owner.held_bytes), share, f"{owner.blocks:,}", each, one_line(owner_name(owner), 1000)


def _beside(page: OomPage) -> Iterator[str]:
    """The other errors of the log."""
    if page.others:
        told = "; ".join(_error_name(answer.found, answer.kind) for answer in page.others[:MAX_OTHERS])
        more = len(page.others) - MAX_OTHERS + page.log.not_kept
        yield (
            f"First of {len(page.others) + 1 + page.log.not_kept:,} errors in the log; the first is usually the cause. "
            f"The others: {told}{f'; {more:,} more' if more > 0 else ''}."
        )
    if page.first.found is not None or page.snapshot is not None:
        for seen in page.log.elsewhere:
            yield f"Also in the log, line {seen.line_number:,}: {one_line(elsewhere_words(seen, page.log), 1000)}."


def _error_name(found: Optional[FoundOom], kind: str) -> str:
    assert found is not None
    rank = "" if found.rank is None else f"rank {found.rank}, "
    return f"{rank}line {found.line_number:,} ({kind})"
