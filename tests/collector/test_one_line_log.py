"""Lines of a log that names of tenants' objects cannot forge."""

from __future__ import annotations

import logging
import sys

from tidegauge.rate_limited_log import MAX_LOG_LINE_CHARS, OneLineFormatter

FORMAT = "%(levelname)s %(name)s: %(message)s"


def line(message: str, *values: object, failed: bool = False) -> str:
    try:
        raise ValueError("as it was")
    except ValueError:
        what = sys.exc_info() if failed else None
    return OneLineFormatter(FORMAT).format(logging.LogRecord("webhook", 20, "f.py", 1, message, values, what))


def test_a_name_with_line_ends_and_escapes_stays_within_its_line() -> None:
    told = line("jobs.batch %r: %s", "train", "x\n2026-12-01 ERROR lease: lost\x1b[31m\u202e\u2028end")
    assert told == "INFO webhook: jobs.batch 'train': x?2026-12-01 ERROR lease: lost?[31m??end"


def test_a_long_name_makes_no_long_line() -> None:
    assert len(line("%s", "x" * 200_000)) < MAX_LOG_LINE_CHARS + 100


def test_a_traceback_follows_its_line() -> None:
    first, *rest = line("it failed", failed=True).splitlines()
    assert first == "INFO webhook: it failed"
    assert rest[-1] == "ValueError: as it was"
