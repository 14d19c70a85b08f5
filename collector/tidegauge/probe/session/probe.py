"""The probe of one process: its start, its entry points for torch, and its end.

Every entry point (hooks, callbacks, thread, commands) catches ``Exception`` and counts it in ``Faults``. Other
exceptions (``KeyboardInterrupt``, ``SystemExit``) are the job's own, from its signal handlers, and pass through;
``checkpoint`` calls the job's code on request, and defines itself what becomes of its exceptions.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Optional

from tidegauge.core.jobs.variables import FRACTION_VARIABLE, SHARE_VARIABLE, parse_fraction
from tidegauge.core.ring_layout import MAX_DEVICES
from tidegauge.core.samples import TICKS_ALONE_S, EventCode
from tidegauge.core.version import __version__
from tidegauge.probe.checkpoint.callbacks import Checkpoints
from tidegauge.probe.evidence.recorder import EvidenceRecorder
from tidegauge.probe.faults import Faults
from tidegauge.probe.identity import claimed_place
from tidegauge.probe.levels import DORMANT, WATCHING_LEVELS
from tidegauge.probe.oom_observer import OomObserver
from tidegauge.probe.process_facts import OwnProcessFacts, read_process_facts
from tidegauge.probe.requests import Save
from tidegauge.probe.run_files.oom_snapshot import RefusedAllocation
from tidegauge.probe.run_files.run_files import RunFiles
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.fraction import DeviceCap, complaint, of_earlier_runs
from tidegauge.probe.script import read_script
from tidegauge.probe.session.commands import Commands
from tidegauge.probe.session.helper import TICK_PERIOD_S, Helper
from tidegauge.probe.step_counting.boundary_calls import LOOK_WAIT_S, BoundaryCalls
from tidegauge.probe.step_counting.module_calls import ModuleCalls
from tidegauge.probe.step_counting.steps import StepCounter, inside_another_step, stepped_key
from tidegauge.probe.step_counting.watch import Watch

MAX_TICKS_ALONE = int(TICKS_ALONE_S / TICK_PERIOD_S)
"""Ticks without a step after which the job is told about ``tidegauge.step()``."""
MIN_QUIET_S = 20.0
"""Without a step since watching began, until calls of modules are taken for boundaries."""
MIN_QUIET_AFTER_STEPS_S = TICKS_ALONE_S
"""The same where steps ended before: as long as it takes until memory is judged over time."""
MIN_WINDOW_S = 10.0
"""Of a window by calls of modules, which may be closer than steps: a model that generates is called for each token."""


class Probe:
    """The probe, one per process. ``arm`` makes it wait for the device; ``close`` ends it; ``after_fork`` resets it."""

    def __init__(
        self,
        level: str,
        backend: Backend,
        *,
        environ: Mapping[str, str] = os.environ,
        faults: Optional[Faults] = None,
        process_facts: Callable[[], OwnProcessFacts] = read_process_facts,
        with_helper: bool = True,
        save: Optional[Save] = None,
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
        self._reset(save)

    def _reset(self, save: Optional[Save]) -> None:
        """Set the initial state, at construction and in a forked child."""
        self.watch = None
        self.steps = StepCounter()
        self.module_calls = ModuleCalls(self._backend, self._module_boundary, self.faults)
        self.helper: Optional[Helper] = None
        self.cap = DeviceCap(self._backend)
        boundary = BoundaryCalls(self.at_next_step, self.capturing, wait_s=LOOK_WAIT_S)
        self.evidence = EvidenceRecorder(self._environ, self._backend, self.faults, boundary)
        self._lock = threading.RLock()  # for beginning and ending, never taken by a hook while watching
        self._run_files: Optional[RunFiles] = None
        self._begun = False
        self._off = False
        self._observing = False
        self._ticks_alone = 0
        self._script_read = False
        self._oom_observer = OomObserver(self._environ, self._backend)
        self._at_step: deque[Callable[[], None]] = deque()
        self.checkpoints = Checkpoints(
            self._environ, backend=self._backend, steps=lambda: self.steps.steps, faults=self.faults, save=save
        )
        self._asked = self.checkpoints.waiting  # one look-up less at every step
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
        """The device runtime came up in this process: cap it, then watch it, or wait for the command ``attach``."""
        try:
            with self._lock:
                if self._begun or self._off:
                    return
                self._begun = True
                self._run_files = RunFiles(self._environ, self._process_facts(), self._backend, self.faults)
                self._apply_fraction_from_environment()
                self._say_what_is_wrong_in_the_environment()
                if self.level in WATCHING_LEVELS:
                    self._start_watching()
                self._start_helper()
        except Exception as error:
            self.faults.caught("starting", error)

    def _apply_fraction_from_environment(self) -> None:
        fraction = parse_fraction(self._environ.get(FRACTION_VARIABLE, ""))
        earlier = of_earlier_runs(self._environ, self._backend)
        if earlier is not None:
            fraction, line = earlier
            place = claimed_place(self._environ)
            if place is None or place.rank == 0:
                self.faults.say_once(line)
        if fraction is not None:
            self.cap.set(fraction, used=())

    def _say_what_is_wrong_in_the_environment(self) -> None:
        lines = (
            complaint(self._environ, FRACTION_VARIABLE, "no cap is set"),
            complaint(self._environ, SHARE_VARIABLE, "no share is recorded"),
            self.checkpoints.means().complaint(),
        )
        for line in filter(None, lines):
            self.faults.say_once(line)

    def _start_watching(self) -> None:
        assert self._run_files is not None
        devices = self._backend.device_count()
        ring = self._run_files.open_ring(devices) if 1 <= devices <= MAX_DEVICES else None
        if ring is None:
            return
        self._publish_identity()
        blind = self._backend.blind_because()
        if blind is not None:
            self.faults.say_once(f"this process's memory is not recorded: {blind}")
            return
        watch = Watch(self._backend, ring, self.steps, self.faults, device_count=devices)
        watch.limit_fraction = self.cap.fraction
        self.watch = watch
        if not self._observing:
            self._observing = self._backend.on_out_of_memory(self.out_of_memory)
        self.evidence.open(
            self._run_files, watch, self._boundaries, self.level, stepped=lambda: self.steps.optimizers()
        )

    def _publish_identity(self) -> None:
        with self._lock:  # the training thread and the helper may both have news, and the older must not come last
            if self._run_files is not None:
                way = self.checkpoints.means().way
                self._run_files.publish(level=self.level, limit_fraction=self.cap.fraction, checkpoint=way)

    def _start_helper(self) -> None:
        if not self._with_helper or self.helper is not None:
            return
        assert self._run_files is not None
        self.helper = Helper(self._run_files.open_socket(Commands(self).answer), self.tick, self.faults)
        self.helper.ticking = self.watch is not None
        self.helper.start()

    # ----------------------------------------------------------------- calls from torch

    def optimizer_stepped(self, optimizer: Any, wrapper: FrameType) -> None:
        """The global post-step hook: after every ``step()`` of every optimizer."""
        if self._off:
            return
        due = False
        try:
            nested = inside_another_step(wrapper)
            due = self.steps.optimizer_stepped(stepped_key(optimizer), optimizer, nested=nested)
            if not self._begun:
                self._stepped_before_device()
            if due and self.watch is not None:
                self._boundary(self.watch)
        except Exception as error:
            self.faults.caught("the step hook", error)
        if due and self._asked:  # outside of the try, which would swallow what the job's own code raises
            self.checkpoints.at_boundary()

    def explicit_step(self) -> None:
        """``tidegauge.step()``: a step ended here, and optimizers are not counted any more."""
        try:
            self.steps.explicit_step()
            if self.watch is not None:
                self._boundary(self.watch)
        except Exception as error:
            self.faults.caught("tidegauge.step()", error)
        if self._asked and not self._off:
            self.checkpoints.at_boundary()

    def _boundary(self, watch: Watch) -> None:
        watch.step()
        self.cap.catch_up(used=watch.used)
        if self.module_calls.on:
            self.module_calls.switch_off()
        self._serve_waiting()

    def _module_boundary(self) -> None:
        """A boundary of a loop that steps no optimizer: for what waits, never a record or a step."""
        if self.watch is not None:
            self._serve_waiting(least_s=MIN_WINDOW_S)
        else:
            self.module_calls.switch_off()  # another thread switched it on just when watching ended

    def _serve_waiting(self, *, least_s: float = 0.0) -> None:
        if self.evidence.window is not None:
            self.evidence.at_boundary(least_s=least_s)
        while self._at_step:
            self._at_step.popleft()()

    def _boundaries(self) -> int:
        return self.steps.steps + self.module_calls.boundaries

    def _look_for_boundaries(self) -> None:
        """Look at calls of modules for as long as something waits for a boundary and no steps come."""
        watch = self.watch
        waits = self.evidence.window is not None or bool(self._at_step)
        if watch is None or not waits:
            self.module_calls.switch_off()
        elif watch.used and watch.quiet_s >= (
            MIN_QUIET_AFTER_STEPS_S if self.steps.raw_steps or self.steps.steps else MIN_QUIET_S
        ):
            self.module_calls.switch_on()

    def _stepped_before_device(self) -> None:
        if self._backend.ready():  # initialised past the queue of calls
            self.device_ready()
        elif not self._forked and self._environ.get("LOCAL_RANK", "0") == "0":
            self.faults.say_once(
                f"no training step has used {self._backend.name.upper()} so far: no device memory to watch"
            )

    def out_of_memory(self, device: int, wanted_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """The allocator's observer, in the thread that is about to get the OutOfMemoryError."""
        try:
            if self.watch is not None and self._run_files is not None:
                refusal = RefusedAllocation(device, max(wanted_bytes, 0), max(limit_bytes, 0), max(free_bytes, 0))
                self._oom_observer.saw(refusal, self.watch, self._run_files)
        except Exception as error:  # an exception from here would take the place of the job's OutOfMemoryError
            self.faults.caught("the out-of-memory observer", error)

    def tick(self) -> None:
        """Twice a second, in the helper thread."""
        watch = self.watch
        if watch is None:
            return
        watch.tick()
        self._look_for_steps()
        self._look_for_boundaries()
        self.cap.catch_up(used=watch.used)
        if self._run_files is None:
            return
        if not self._script_read:
            self._script_read = True  # once, also if it fails
            self._run_files.script = read_script()
            self._publish_identity()
        elif not self._run_files.place_known and self._backend.distributed() is not None:
            self._publish_identity()

    def _look_for_steps(self) -> None:
        """Tell a job without steps once how to count them: its loop calls no optimizer of torch."""
        if self.steps.raw_steps or self.steps.steps or self._ticks_alone > MAX_TICKS_ALONE:
            return
        self._ticks_alone += 1
        if self._ticks_alone == MAX_TICKS_ALONE and self._environ.get("LOCAL_RANK", "0") == "0":
            self.faults.say_once(
                "no training step seen so far, so memory is judged over time; if this process trains, call "
                "tidegauge.step() once a step"
            )

    # ----------------------------------------------------------------- what commands ask for

    def switch_on(self, level: str) -> bool:
        """Go from ``dormant`` (or detached) to watching; whether it is watching now."""
        with self._lock:
            self.level = level
            if self.watch is None and self._begun and not self._off:
                self._start_watching()
            else:
                self.evidence.follow(level)
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

    def save_with(self, save: Optional[Save]) -> None:
        """The job registers the function that saves its state, another one in its place, or none any more."""
        try:
            self.checkpoints.save = save
            self._publish_identity()
        except Exception as error:
            self.faults.caught("registering a checkpoint callback", error)

    def at_next_step(self, call: Callable[[], None]) -> None:
        """Have ``call`` run in the training thread at the next recorded step boundary."""
        self._at_step.append(call)
        self._look_for_boundaries()

    def capturing(self) -> bool:
        """Whether the calling thread captures a CUDA graph, in which the allocator must be left alone."""
        return self._backend.capturing()

    # ----------------------------------------------------------------- ending

    def last_words(self) -> None:
        """Explain an out-of-memory error that ended the program, below its traceback."""
        try:
            self._oom_observer.last_words(self._run_files, self.watch)
        except Exception as error:
            self.faults.caught("its last words", error)

    def end(self) -> None:
        """End with the process: read each device once more, for what was allocated since the last record is part of
        the peaks that stay."""
        try:
            if self.watch is not None:
                self.watch.read_once_more()
        except Exception as error:
            self.faults.caught("its last reading", error)
        self.close()

    def close(self) -> None:
        """End, with the process or after too many errors: note it in the ring, which stays for the agent."""
        try:
            self._off = True
            self._asked.clear()  # nobody could look any more
            self.evidence.shut()  # before the helper, which may be at work for it
            if self.helper is not None:
                self.helper.stop()
                self.helper = None
            self._end_watching()
        except Exception as error:
            self.faults.caught("ending", error)

    def after_fork(self) -> None:
        """Forget the parent's ring, socket and thread in a forked child, which gets its own if it uses a device."""
        try:
            run_files, helper = self._run_files, self.helper
            self._forked = True
            self.module_calls.abandon()
            self.evidence.abandon()
            self._reset(self.checkpoints.save)
            if helper is not None:
                helper.abandon()
            if run_files is not None:
                run_files.abandon()
        except Exception as error:
            self.faults.caught("forgetting its parent", error)

    @property
    def socket_path(self) -> Optional[str]:
        """Path of the command socket, once there is one."""
        return self._run_files.socket_path if self._run_files is not None else None

    def describe(self) -> dict[str, Any]:
        """The answer to ``ping``: plain values, small."""
        history, ring = self.evidence.history, self._run_files.ring if self._run_files is not None else None
        return {
            "pid": os.getpid(),
            "version": __version__,
            "level": self.level,
            "watching": self.watch is not None,
            "step": self.steps.steps,
            "raw_steps": self.steps.raw_steps,
            "devices": list(self.watch.used) if self.watch is not None else [],
            "ring": ring.path if ring is not None else None,
            "limit_fraction": self.cap.fraction,
            "gpu_share": parse_fraction(self._environ.get(SHARE_VARIABLE, "")),
            "checkpoint": self.checkpoints.means().way,
            "recording": history.recorder().value if history is not None else None,
            "errors": self.faults.count,
        }

    def _end_watching(self) -> None:
        watch, self.watch = self.watch, None
        self.module_calls.switch_off()
        self.evidence.shut()
        if watch is not None:
            watch.note(EventCode.DETACHED)

    def _note_fault(self, count: int) -> None:
        if self.watch is not None:
            self.watch.note(EventCode.PROBE_ERROR, (count, 0, 0))
