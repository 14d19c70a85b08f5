"""The probe of one process: when it begins, what it does at each call from torch, and how it ends.

Every entry point (hooks, callbacks, thread, commands) catches ``Exception`` and counts it in ``Faults``. What is not
an ``Exception`` (``KeyboardInterrupt``, ``SystemExit``) is the job's own, from its signal handlers, and goes through.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Optional

from tidegauge import __version__
from tidegauge.core.ring_layout import MAX_DEVICES
from tidegauge.core.run_dirs import socket_name
from tidegauge.core.samples import EventCode
from tidegauge.probe.backend import Backend
from tidegauge.probe.command_socket import CommandSocket
from tidegauge.probe.commands import Commands
from tidegauge.probe.faults import Faults
from tidegauge.probe.fraction import FRACTION_VARIABLE, Cap, parse_fraction
from tidegauge.probe.helper import Helper
from tidegauge.probe.identity import TorchFacts, claimed_place, identify
from tidegauge.probe.levels import DORMANT, WATCHING_LEVELS
from tidegauge.probe.process_facts import ProcessFacts, read_process_facts
from tidegauge.probe.ring_writer import RingWriter, open_ring
from tidegauge.probe.run_folder import RunFolder, open_any_run_folder
from tidegauge.probe.steps import StepCounter, inside_another_step, stepped_key
from tidegauge.probe.watch import Watch


class Probe:
    """One per process. ``arm`` makes it wait for the device; ``close`` ends it; ``after_fork`` begins anew."""

    def __init__(
        self,
        level: str,
        backend: Backend,
        *,
        environ: Mapping[str, str] = os.environ,
        faults: Optional[Faults] = None,
        process_facts: Callable[[], ProcessFacts] = read_process_facts,
        with_helper: bool = True,
    ) -> None:
        self.level = level
        self.faults = faults or Faults()
        self.steps = StepCounter()
        self.watch: Optional[Watch] = None
        self._backend = backend
        self._environ = environ
        self._process_facts = process_facts
        self._with_helper = with_helper
        self._forked = False
        self._reset()

    def _reset(self) -> None:
        """The state of a process in which nothing has begun; at construction, and in a forked child."""
        self.watch = None
        self.steps = StepCounter()
        self.ring: Optional[RingWriter] = None
        self.helper: Optional[Helper] = None
        self.socket_path: Optional[str] = None
        self.cap = Cap(self._backend)
        self._lock = threading.RLock()  # for beginning and ending, never taken by a hook while watching
        self._folder: Optional[RunFolder] = None
        self._facts: Optional[ProcessFacts] = None
        self._begun = False
        self._off = False
        self._observing = False
        self._place_known = True
        self._at_step: deque[Callable[[], None]] = deque()
        self.faults.on_fault = self._note_fault
        self.faults.on_limit = self.close

    # ----------------------------------------------------------------- beginning

    def arm(self) -> None:
        """Register with torch; called once, after its import. Nothing heavy happens before the device is ready."""
        try:
            self._backend.on_optimizer_step(self.optimizer_stepped)
            self._backend.when_ready(self.device_ready)
        except Exception as error:
            self.faults.caught("arming", error)

    def device_ready(self) -> None:
        """The device runtime came up in this process: cap it, then watch, or wait for the command to."""
        try:
            with self._lock:
                if self._begun or self._off:
                    return
                self._begun = True
                self._facts = self._process_facts()
                self._apply_fraction_from_environment()
                if self.level in WATCHING_LEVELS:
                    self._start_watching()
                self._start_helper()
        except Exception as error:
            self.faults.caught("starting", error)

    def _apply_fraction_from_environment(self) -> None:
        text = self._environ.get(FRACTION_VARIABLE)
        if not text:
            return
        fraction = parse_fraction(text)
        if fraction is None:
            self.faults.say_once(f"{FRACTION_VARIABLE}={text[:40]!r} is not above 0 and at most 1: no cap is set")
        else:
            self.cap.set(fraction, used=())

    def _start_watching(self) -> None:
        devices = self._backend.device_count()
        if not 1 <= devices <= MAX_DEVICES or not self._open_ring(devices):
            return
        assert self.ring is not None
        self._publish_identity()
        blind = self._backend.blind_because()
        if blind is not None:
            self.faults.say_once(f"memory of this process is not recorded: {blind}")
            return
        watch = Watch(self._backend, self.ring, self.steps, self.faults, device_count=devices)
        watch.limit_fraction = self.cap.fraction
        self.watch = watch
        if not self._observing:
            self._observing = self._backend.on_out_of_memory(self.out_of_memory)

    def _open_ring(self, devices: int) -> bool:
        if self.ring is not None:
            return True
        assert self._facts is not None
        folder, self.ring, refused = open_ring(self._environ, self._facts.process, device_count=devices)
        if folder is None:
            self.faults.say_once(f"nothing is recorded, there is no folder to write to ({'; '.join(refused)[:300]})")
            return False
        if self._folder is not None:
            self._folder.close()
        self._folder = folder
        folder.remove_leftovers()
        return True

    def _publish_identity(self) -> None:
        if self.ring is None or self._facts is None:
            return
        distributed = self._backend.distributed()
        self._place_known = distributed is not None or claimed_place(self._environ) is not None
        torch = TorchFacts(
            version=self._backend.torch_version,
            device_uuids=self._backend.device_uuids(self._environ),
            distributed=distributed,
        )
        self.ring.publish(
            identify(self._environ, self._facts, torch, level=self.level, limit_fraction=self.cap.fraction)
        )

    def _start_helper(self) -> None:
        if not self._with_helper or self.helper is not None:
            return
        self.helper = Helper(self._open_socket(), self.tick, self.faults)
        self.helper.ticking = self.watch is not None
        self.helper.start()

    def _open_socket(self) -> Optional[CommandSocket]:
        assert self._facts is not None
        if self._folder is None:
            self._folder = open_any_run_folder(self._environ)
        if self._folder is None:
            return None
        try:
            commands = CommandSocket(
                self._folder,
                socket_name(self._facts.process),
                Commands(self).answer,
                allowed_uids=frozenset({0, os.geteuid()}),
            )
        except OSError as error:
            self.faults.caught("opening its command socket", error)
            return None
        self.socket_path = commands.path
        return commands

    # ----------------------------------------------------------------- calls from torch

    def optimizer_stepped(self, optimizer: Any, wrapper: FrameType) -> None:
        """The global post-step hook: after every ``step()`` of every optimizer."""
        if self._off:
            return
        try:
            nested = inside_another_step(wrapper)
            due = self.steps.optimizer_stepped(stepped_key(optimizer), nested=nested)
            if not self._begun:
                self._stepped_before_device()
            if due and self.watch is not None:
                self._boundary(self.watch)
        except Exception as error:
            self.faults.caught("the step hook", error)

    def explicit_step(self) -> None:
        """``tidegauge.step()``: a step ended here, and optimizers are not counted any more."""
        try:
            self.steps.explicit_step()
            if self.watch is not None:
                self._boundary(self.watch)
        except Exception as error:
            self.faults.caught("tidegauge.step()", error)

    def _boundary(self, watch: Watch) -> None:
        watch.step()
        self.cap.catch_up(used=watch.used)
        while self._at_step:
            self._at_step.popleft()()

    def _stepped_before_device(self) -> None:
        if self._backend.ready():  # initialised past the queue of calls
            self.device_ready()
        elif not self._forked and self._environ.get("LOCAL_RANK", "0") == "0":
            self.faults.say_once(
                f"training steps run without {self._backend.name.upper()} so far: there is no device memory to watch"
            )

    def out_of_memory(self, device: int, wanted_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """The allocator's observer, in the thread that is about to get the OutOfMemoryError."""
        try:
            if self.watch is not None:
                facts = (max(wanted_bytes, 0), max(free_bytes, 0), max(limit_bytes, 0))
                self.watch.event(EventCode.OUT_OF_MEMORY, facts, device=device)
        except Exception as error:  # an exception from here would take the place of the job's OutOfMemoryError
            self.faults.caught("the out-of-memory observer", error)

    def tick(self) -> None:
        """Twice a second, in the helper thread."""
        watch = self.watch
        if watch is None:
            return
        watch.tick()
        self.cap.catch_up(used=watch.used)
        if not self._place_known and self._backend.distributed() is not None:
            self._publish_identity()

    # ----------------------------------------------------------------- what commands ask for

    def switch_on(self, level: str) -> bool:
        """From ``dormant`` (or detached) to watching; whether it is watching now."""
        with self._lock:
            self.level = level
            if self.watch is None and self._begun and not self._off:
                self._start_watching()
            else:
                self._publish_identity()
            if self.helper is not None:
                self.helper.ticking = self.watch is not None
                self.helper.wake()
            return self.watch is not None

    def detach(self) -> None:
        """Back to ``dormant``: nothing is read any more, the socket stays."""
        with self._lock:
            self._end_watching()
            self.level = DORMANT
            self._publish_identity()
            if self.helper is not None:
                self.helper.ticking = False

    def set_fraction(self, fraction: float) -> None:
        """Cap the devices now, and record it."""
        with self._lock:
            self.cap.set(fraction, used=self.watch.used if self.watch is not None else ())
            if self.watch is not None:
                self.watch.limit_fraction = fraction
                self.watch.event(EventCode.FRACTION_SET, (round(fraction * 1e6), 0, 0))
            self._publish_identity()

    def empty_cache(self) -> Optional[float]:
        """Give cached memory back, in the calling thread; seconds it took, or ``None`` if no device is in use."""
        watch = self.watch
        if watch is None or not watch.used:
            return None
        began_s = time.perf_counter()
        self._backend.empty_cache(watch.used[0])
        return time.perf_counter() - began_s

    def at_next_step(self, call: Callable[[], None]) -> None:
        """Have ``call`` run in the training thread at the next recorded step boundary."""
        self._at_step.append(call)

    def capturing(self) -> bool:
        """Whether the calling thread captures a CUDA graph, in which the allocator must be left alone."""
        return self._backend.capturing()

    # ----------------------------------------------------------------- ending

    def close(self) -> None:
        """Over, for the process ends or the probe fails too often: say so in the ring, which stays for the agent."""
        try:
            self._off = True
            if self.helper is not None:
                self.helper.stop()
                self.helper = None
            self._end_watching()
        except Exception as error:
            self.faults.caught("ending", error)

    def after_fork(self) -> None:
        """In a forked child: forget the parent's ring, socket and thread. A child that uses a device gets its own."""
        try:
            ring, helper, folder = self.ring, self.helper, self._folder
            self._forked = True
            self._reset()
            if ring is not None:
                ring.abandon()
            if helper is not None:
                helper.abandon()
            if folder is not None:
                folder.close()
        except Exception as error:
            self.faults.caught("forgetting its parent", error)

    def describe(self) -> dict[str, Any]:
        """What ``ping`` answers."""
        return {
            "pid": os.getpid(),
            "version": __version__,
            "level": self.level,
            "watching": self.watch is not None,
            "step": self.steps.steps,
            "raw_steps": self.steps.raw_steps,
            "devices": list(self.watch.used) if self.watch is not None else [],
            "ring": self.ring.path if self.ring is not None else None,
            "limit_fraction": self.cap.fraction,
            "errors": self.faults.count,
        }

    def _end_watching(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.note(EventCode.DETACHED)

    def _note_fault(self, count: int) -> None:
        if self.watch is not None:
            self.watch.note(EventCode.PROBE_ERROR, (count, 0, 0))
