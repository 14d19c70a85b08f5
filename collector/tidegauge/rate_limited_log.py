"""A rate-limited log, which no user can flood, and lines of it that none can forge."""

from __future__ import annotations

import logging

from tidegauge.core.text import one_line

LINES_PER_MINUTE = 20
"""A user may start a process, or write a bad file, a million times: enough lines to see that, too few to fill a disk or
to push other lines out of rotated logs."""


class FewLines:
    """Logs at most ``LINES_PER_MINUTE`` messages that users can cause, then the number of lines left out."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._minute_starts_s = float("-inf")
        self._said = 0
        self._unsaid = 0

    def say(
        self, level: int, text: str, *values: object, now_s: float, exc_info: BaseException | None = None
    ) -> None:  # fmt: skip
        """``now_s`` is any clock in seconds."""
        if not 0 <= now_s - self._minute_starts_s < 60:
            if self._unsaid:
                self._logger.warning("%d more lines of this kind were left out in the minute before", self._unsaid)
            self._minute_starts_s, self._said, self._unsaid = now_s, 0, 0
        if self._said < LINES_PER_MINUTE:
            self._said += 1
            self._logger.log(level, text, *values, exc_info=exc_info)
        else:
            self._unsaid += 1


MAX_LOG_LINE_CHARS = 4_000


class OneLineFormatter(logging.Formatter):
    """Makes each message one printable line of ``MAX_LOG_LINE_CHARS`` at most: names of objects are in it that tenants
    gave. A traceback follows as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        record.message = one_line(record.message, MAX_LOG_LINE_CHARS)
        return super().formatMessage(record)


def one_line_handler(line_format: str) -> logging.Handler:
    """A handler that writes such lines to standard error. ``line_format`` as of ``logging.Formatter``."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter(line_format))
    return handler
