"""The processes on the head that hold what they know of a person in memory, and would write it down again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegauge.cluster.service_record import StateFiles, announced_by
from tidegauge.core.ids import ProcessId
from tidegauge.files import chown_for_root
from tidegauge.osproc.processes import is_alive, send_signal
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal, DeliveryJournalError, writer_of

END_WITHIN_S = 10.0
POLL_S = 0.01
TRIES = 5
"""To have the journal after its writer has ended: Ray starts another one in a second."""


class WriterError(Exception):
    """A process cannot be ended. The text is for people, with the next step."""


class Writers:
    """Of one state directory. What is ended here Ray starts anew where the service runs: it reads its files again, and
    agents repeat all else in a second."""

    def __init__(self, files: StateFiles, *, wall_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._wall_s = wall_s

    def end_coordinator(self) -> bool:
        """Whether there was one. Raises ``WriterError``."""
        process = announced_by(self._files.api)
        if process is None:
            return False
        _end(process, "coordinator")
        return True

    @contextmanager
    def journal(self) -> Iterator[DeliveryJournal | None]:
        """The journal of messages, whose notifier is ended, for as long as the block takes; ``None``: there is none.

        Raises ``WriterError``.
        """
        if not self._files.journal.exists():
            yield None
            return
        journal = self._taken()
        try:
            yield journal
        finally:
            journal.close()
            chown_for_root(self._files.journal)

    def _taken(self) -> DeliveryJournal:
        for _ in range(TRIES):
            process = writer_of(self._files.journal)
            if process is not None:
                _end(process, "notifier")
            try:
                return DeliveryJournal(self._files.journal, wall_s=self._wall_s)
            except DeliveryJournalError:
                time.sleep(POLL_S)
        raise WriterError(
            f"the notifier cannot be ended, and {self._files.journal} is as it was: run `tidegauge down`, then this "
            "command again, then `tidegauge up`"
        )


def _end(process: ProcessId, what: str) -> None:
    """SIGKILL: it must not write what it has in memory. All that it owes anybody is on disk at any time."""
    send_signal(process, signal.SIGKILL)
    give_up_s = time.monotonic() + END_WITHIN_S
    while is_alive(process):
        if time.monotonic() > give_up_s:
            raise WriterError(
                f"the {what} (pid {process.pid}) cannot be ended, and nothing was deleted from what it writes: run "
                "this as root or as the user who runs the service"
            )
        time.sleep(POLL_S)
