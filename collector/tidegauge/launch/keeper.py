"""The keeper of one job: starts its command, stays its parent, and ends or restarts it on request.

Its one thread sleeps until something happens: a signal (read from a file, never handled), a request on the socket, the
next look at a job that is being ended. If any of this fails, the command runs on as if it had been started alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Optional

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import LaunchRecord, LaunchState
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE
from tidegauge.core.proc_stat import ProcStat
from tidegauge.core.text import one_line
from tidegauge.launch.launch_files import TOUCH_EVERY_S, LaunchFiles
from tidegauge.launch.requests import KeeperRequests
from tidegauge.osproc.kernel_calls import Arrived, SignalFile
from tidegauge.osproc.processes import descendants, descends, identity_of, send_signal
from tidegauge.probe.run_files.command_socket import CommandSocket

# Ends a command and all that descends from it: asked first, by force when its grace is over.

FIRST_LOOK_S, MAX_LOOK_S = 0.02, 0.5
"""Between two looks at who is left: a look costs about 30 us for each process of the machine."""


class Ending:
    """Ends a job once. ``family`` lists the remaining descendants, the command among them; only these are signalled.

    Only the command gets SIGTERM at first: a launcher like ``torchrun`` ends its ranks itself, and a rank that saves
    its state on SIGTERM should not get it twice, nor lose its data loaders meanwhile. What the command leaves behind,
    or has not ended after half of the grace, gets it too; after the grace, SIGKILL.
    """

    def __init__(
        self,
        command: ProcessId,
        family: Callable[[], Collection[ProcStat]],
        *,
        grace_s: float,
        now_s: float,
        send: Callable[[ProcessId, int], bool] = send_signal,
    ) -> None:
        self._command = command
        self._family = family
        self._send = send
        self._ask_all_s = now_s + grace_s / 2
        self._force_s = now_s + grace_s
        self._asked: set[ProcessId] = set()
        self._look_s = FIRST_LOOK_S
        self.next_look_s = now_s
        """Time of the next ``look``, on the clock of ``now_s``."""
        self._ask(command)

    def look(self, now_s: float) -> Collection[ProcStat]:
        """Signal the processes whose turn it is; returns those that are left."""
        left = [stat for stat in self._family() if not stat.ended]
        everybody = now_s >= self._ask_all_s or all(stat.process != self._command for stat in left)
        for stat in left:
            if now_s >= self._force_s:
                self._send(stat.process, signal.SIGKILL)
            elif everybody and stat.process not in self._asked:
                self._ask(stat.process)
        due_s = [due_s for due_s in (self._ask_all_s, self._force_s) if due_s > now_s]
        self.next_look_s = min([now_s + self._look_s, *due_s])
        self._look_s = min(2 * self._look_s, MAX_LOOK_S)
        return left

    def hurry(self, now_s: float) -> None:
        self._force_s = self.next_look_s = now_s

    def _ask(self, process: ProcessId) -> None:
        self._asked.add(process)
        self._send(process, signal.SIGTERM)
        self._send(process, signal.SIGCONT)  # one that is stopped would not hear it


# What the keeper tells the person at the terminal: lines that begin with ``tidegauge:``, each text in one write.

PREFIX = "tidegauge: "
_STDERR = 2


def say(text: str, *, below_the_command: bool = True) -> None:
    """Print ``text`` to stderr, if the terminal is still there. Never raises, whatever stderr is."""
    lines = "".join(f"{PREFIX}{one_line(line, len(line))}\n" for line in text.splitlines())
    with contextlib.suppress(OSError):
        # A progress bar leaves the cursor somewhere in its line.
        begin = "\n" if below_the_command and os.isatty(_STDERR) else ""
        rest = (begin + lines).encode(errors="replace")
        while rest:
            rest = rest[os.write(_STDERR, rest) :]


FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Sent to the keeper alone they are meant for the job. The terminal sends its own to the whole group by itself."""
ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
READ_SIGNALS = (*FORWARDED, signal.SIGCHLD)
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by every Python program for itself; the command gets them as a shell would give them."""
PERSON_ENDS_S = 60.0
"""For so long after a person asked the job to end it is not started again: the job may take a while to obey."""
STUCK_AFTER_S = 30.0
"""After SIGKILL: what still runs then sits in the kernel, and the person should know what everybody waits for."""
STOPPED_EXIT = 1
"""After an action that ended the job and did not start it again."""
CANNOT_START_EXIT = 126
IDLE_LOOK_S = 1.0
"""How often clients that say nothing are looked for while there are any."""


@dataclass(frozen=True)
class Launch:
    """The command that ``tidegauge run`` starts."""

    command: Sequence[str]
    environ: Mapping[str, str]
    record: LaunchRecord
    again: Sequence[str]
    """The command that starts it anew, to be shown to its owner."""
    child_mask: frozenset[int]
    """Signals that were blocked for ``tidegauge run``, and are so for the command."""


class Keeper:
    """The keeper of one job. ``run`` returns the exit code, negative for a signal (``os.waitstatus_to_exitcode``)."""

    def __init__(self, launch: Launch, signals: SignalFile, files: Optional[LaunchFiles]) -> None:
        self._launch = launch
        self._signals = signals
        self._files = files
        self._requests = KeeperRequests(
            launch.record, launch.environ, save=self._save, say=say, held_back=self._held_back
        )
        self._socket: Optional[CommandSocket] = None
        self._record_fails = False
        self._strangers = (
            frozenset(stat.process for stat in descendants(os.getpid())) if _has_children() else frozenset()
        )
        """Children from before the job: a script may start some and then ``exec`` us."""
        self._command: Optional[ProcessId] = None
        """``None`` between two attempts."""
        self._exit_code: Optional[int] = None
        """Of the command, as ``os.waitstatus_to_exitcode`` gives it, once it has ended."""
        self._ending: Optional[Ending] = None
        self._stuck_s = float("inf")
        self._person_ended_s = float("-inf")
        self._person_signal: Optional[int] = None
        """The signal by which a person asked to end the job, while it was being ended."""
        self._touch_s = time.monotonic() + TOUCH_EVERY_S

    def run(self) -> int:
        """Start the command and stay until it has ended for good. Raises ``OSError`` if it cannot be started."""
        self._open_files()
        try:
            self._start(restarts=0)
            return self._stay()
        finally:
            self._give_up_files(None)

    def _stay(self) -> int:
        try:
            while True:
                exit_code = self._turn()
                if exit_code is not None:
                    return exit_code
        except Exception as error:
            self._give_up_files(f"internal error ({type(error).__name__}: {error})")
            return self._only_wait()

    def _only_wait(self) -> int:
        """The fallback of a keeper that failed: the job has its terminal, and its exit code is passed on."""
        if self._exit_code is None and self._command is not None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._command.pid, 0)[1])
        return STOPPED_EXIT if self._exit_code is None else self._exit_code

    def _turn(self) -> Optional[int]:
        """Wait for the next event and handle it; the exit code when all is over."""
        ready = self._wait()
        for arrived in self._signals.arrived():
            if arrived.number != signal.SIGCHLD:
                self._heard(arrived)
        self._reap()
        if self._ending is None and self._exit_code is not None:
            self._requests.ended(LaunchState.ENDED, exit_status=self._exit_code, cancelled=self._person_ends())
            self._last_words()
            return self._exit_code
        self._serve(ready)
        stop, now_s = self._requests.stop, time.monotonic()
        if stop is None or self._command is None:
            return None
        if self._ending is None:
            self._ending = Ending(self._command, self._family, grace_s=stop.grace_s, now_s=now_s)
            self._stuck_s = now_s + stop.grace_s + STUCK_AFTER_S
        left = self._ending.look(now_s) if self._exit_code is not None or now_s >= self._ending.next_look_s else None
        if left is not None and now_s > self._stuck_s:
            self._stuck_s = float("inf")
            say(f"waiting for {_named(left)}, which has not ended after SIGKILL")
        return self._after(stop.then) if self._nobody_left(left) else None

    def _last_words(self) -> None:
        """Print why the job ran out of memory, if the command failed and its ranks' rings say so."""
        if self._exit_code == 0 or self._files is None:
            return
        with suppress(Exception):  # a word of help, no more
            from tidegauge.launch.post_mortem import out_of_memory_notes

            record = self._requests.record
            for note in out_of_memory_notes(
                self._files.descriptor,
                job_id=record.job_id,
                since_unix_s=record.started_unix_s,
                told=self._requests.told,
            ):
                say(note)

    def _after(self, then: LaunchState) -> Optional[int]:
        """Go on after everything has ended on request."""
        exit_status = self._exit_code
        assert exit_status is not None, "nobody is left, the command neither"
        self._ending, self._command, self._exit_code = None, None, None
        person = self._person_signal
        if then is LaunchState.RUNNING and person is None:
            return self._start_again()
        state = LaunchState.ENDED if then is LaunchState.RUNNING else then
        self._requests.ended(state, exit_status=exit_status, cancelled=True)
        if then is LaunchState.RUNNING and person is not None:
            say("stopped on your request, not restarted")
            return -person
        if then is LaunchState.HELD:
            changes = [f"{name}={value}" for name, value in self._requests.changed_environ.items()]
            again = shlex.join([*(["env", *changes] if changes else []), *self._launch.again])
            say(f"held. To start it again:\n    {again}")
        return STOPPED_EXIT

    def _start_again(self) -> Optional[int]:
        restarts = self._requests.record.restarts + 1
        say(f"restarting (attempt {restarts})")
        try:
            self._start(restarts=restarts)
        except OSError as error:
            say(f"{self._launch.command[0]} cannot be restarted: {error.strerror}")
            self._requests.ended(LaunchState.ENDED, exit_status=CANNOT_START_EXIT)
            return CANNOT_START_EXIT
        return None

    def _start(self, *, restarts: int) -> None:
        environ = {**self._requests.environ, ATTEMPT_VARIABLE: str(restarts)}
        pid = os.posix_spawnp(
            self._launch.command[0], list(self._launch.command), environ,
            setsigmask=self._launch.child_mask, setsigdef=PYTHON_IGNORES,
        )  # fmt: skip
        self._command, self._exit_code = identity_of(pid), None
        assert self._command is not None  # a zombie at least: only we can reap it
        self._requests.attempt_began(time.time(), restarts=restarts)

    # Signals and children

    def _heard(self, arrived: Arrived) -> None:
        if arrived.by_process and descends(arrived.sender_pid, os.getpid()):
            return  # the job's own "kill my group": it means others than itself
        if arrived.number in ENDING_SIGNALS:
            self._person_ended_s = time.monotonic()
            if self._requests.stop is not None:
                if self._person_signal is not None and self._ending is not None:
                    self._ending.hurry(time.monotonic())
                self._person_signal = arrived.number
        if arrived.by_process and self._command is not None:
            send_signal(self._command, arrived.number)

    def _held_back(self) -> Optional[str]:
        self._reap()
        if self._exit_code is not None:
            return "its command has just ended"
        if self._person_ends():
            return "its owner asked it to stop a moment ago"
        return None

    def _person_ends(self) -> bool:
        return time.monotonic() - self._person_ended_s < PERSON_ENDS_S

    def _reap(self) -> None:
        """Reap ended children: the command, and adopted orphans of it."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self._command is not None and pid == self._command.pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)

    def _family(self) -> list[ProcStat]:
        return [stat for stat in descendants(os.getpid()) if stat.process not in self._strangers]

    def _nobody_left(self, looked: Optional[Collection[ProcStat]]) -> bool:
        """Whether the job has no process any more. The kernel decides: orphans become children of the keeper, and a
        process whose parent ends while /proc is read is in no list."""
        if self._exit_code is None:
            return False
        if self._strangers:
            return looked is not None and not looked
        return not _has_children()

    # The socket and the record: the job goes on without them

    def _open_files(self) -> None:
        if self._files is None:
            say("no usable run directory (see docs/run.md): this job cannot be requeued or notified")
            return
        try:
            self._files.write(self._requests.record)
            self._socket = self._files.listen(self._requests.answer)
        except OSError as error:
            self._give_up_files(f"cannot listen for requests ({error.strerror})")

    def _save(self, record: LaunchRecord) -> None:
        """A record that cannot be written stays in memory: nothing is done twice while this keeper lives."""
        if self._files is not None:
            try:
                self._files.write(record)
            except OSError as error:
                if not self._record_fails:
                    say(f"cannot write the job's record ({error.strerror}): the job continues")
                self._record_fails = True

    def _give_up_files(self, why: Optional[str]) -> None:
        """Close record and socket; with a reason if that happens before the end."""
        files, self._files = self._files, None
        with suppress(OSError):
            if self._socket is not None:
                self._socket.close(unlink=True)
        self._socket = None
        if files is not None:
            files.close(keep_record=self._requests.record.exit_status is not None)
        if why is not None:
            say(f"{why}: the job continues, but cannot be requeued or notified")

    def _wait(self) -> list[int]:
        """Wait for the next event; returns the readable descriptors of the socket."""
        now_s = time.monotonic()
        due_s = [self._touch_s] if self._files is not None else []
        if self._ending is not None:
            due_s.append(self._ending.next_look_s)
        descriptors = [] if self._socket is None else self._socket.descriptors()
        if len(descriptors) > 1:
            due_s.append(now_s + IDLE_LOOK_S)
        poll = select.poll()
        for descriptor in (self._signals.descriptor, *descriptors):
            poll.register(descriptor, select.POLLIN)
        timeout_ms = max(0.0, min(due_s) - now_s) * 1000 + 1 if due_s else None
        return [descriptor for descriptor, _ in poll.poll(timeout_ms) if descriptor != self._signals.descriptor]

    def _serve(self, ready: Iterable[int]) -> None:
        now_s = time.monotonic()
        try:
            if self._socket is not None:
                for descriptor in ready:
                    self._socket.serve(descriptor, now_s=now_s)
                self._socket.drop_idle(now_s=now_s)
            if self._files is not None and now_s >= self._touch_s:
                self._touch_s = now_s + TOUCH_EVERY_S
                self._files.touch()
        except Exception as error:
            self._give_up_files(f"internal error while serving a request ({type(error).__name__}: {error})")


def _has_children() -> bool:
    """Whether there are children, ended ones that nobody has reaped included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _named(stats: Iterable[ProcStat]) -> str:
    return ", ".join(f"pid {stat.process.pid} ({stat.name})" for stat in stats)
