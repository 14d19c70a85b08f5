"""The probe's helper thread: ticks twice a second and serves the command socket in between."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Optional

from tidegauge.probe.faults import Faults
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.own_descriptor import DescriptorLostError, OwnDescriptor

TICK_PERIOD_S = 0.5
_JOIN_S = 0.5


class Helper:
    """Runs until stopped; as a daemon thread, it never keeps the process alive."""

    def __init__(self, commands: Optional[CommandSocket], tick: Callable[[], None], faults: Faults) -> None:
        self.ticking = False
        """Whether ``tick`` is called; set it, then ``wake()``."""
        self._commands = commands
        self._tick = tick
        self._faults = faults
        self._stopping = False
        self._wake_read, self._wake_write = map(OwnDescriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self._deaf = False
        """The job closed our descriptors: only ticks are left, without commands and waking."""
        self._thread = threading.Thread(target=self._run, name="tidegauge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look at its state now."""
        try:
            os.write(self._wake_write.number(), b"!")
        except OSError:
            return  # full of wakes already, closed, or lost

    def stop(self) -> None:
        """End the thread; waits at most half a second for it, and not at all from within."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        if self._commands is not None:
            self._commands.close(unlink=True)

    def abandon(self) -> None:
        """Close inherited descriptors in a forked child, where the thread does not exist, and change nothing shared."""
        self._wake_read.close()
        self._wake_write.close()
        if self._commands is not None:
            self._commands.close(unlink=False)

    def _run(self) -> None:
        # A signal for the process must go to a thread of the job, which may be waiting for just that (sigwait).
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        next_tick_s = time.monotonic()
        while not self._stopping:
            next_tick_s = self._turn(next_tick_s)

    def _turn(self, next_tick_s: float) -> float:
        """Wait for a command or the next tick, and handle it; the time of the tick after that."""
        try:
            self._wait(max(0.0, next_tick_s - time.monotonic()) if self.ticking else None)
            now_s = time.monotonic()
            if self._stopping or not self.ticking:
                return now_s
            if now_s < next_tick_s:
                return next_tick_s
            self._tick()
        except Exception as error:
            self._faults.caught("its helper thread", error)
            time.sleep(0.0 if self._stopping else TICK_PERIOD_S)  # a failing poll must not become a busy loop
        # From now, not from the last one: after a suspended hour there is nothing to catch up with.
        return time.monotonic() + TICK_PERIOD_S

    def _wait(self, timeout_s: Optional[float]) -> None:
        if self._deaf:
            time.sleep(TICK_PERIOD_S if timeout_s is None else timeout_s)
            return
        try:
            self._serve(timeout_s)
        except DescriptorLostError as error:
            self._deaf = True
            self._faults.say_once(f"{error.strerror}: it continues without accepting commands")

    def _serve(self, timeout_s: Optional[float]) -> None:
        # poll: a select() cannot take descriptors above 1023, and a training job may have thousands open
        poll = select.poll()
        wake_read = self._wake_read.number()
        poll.register(wake_read, select.POLLIN)
        descriptors = self._commands.descriptors() if self._commands is not None else []
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if len(descriptors) > 1 and (timeout_s is None or timeout_s > 1.0):
            timeout_s = 1.0  # clients are there: look for idle ones
        ready = poll.poll(None if timeout_s is None else timeout_s * 1000.0)
        now_s = time.monotonic()
        for descriptor, _ in ready:
            if descriptor == wake_read:
                os.read(self._wake_read.number(), 4096)
            elif self._commands is not None:
                self._commands.serve(descriptor, now_s=now_s)
        if self._commands is not None:
            self._commands.drop_idle(now_s=now_s)
