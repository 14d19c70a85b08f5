"""Collects evidence about a watched process's memory on request: one window at a time, of evidence or of a memory
profile, and single snapshots, recordings and searches for the holders of blocks.

Also owns the process's allocation history, for windows, the level ``trace`` and the command ``record``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tidegauge.core.evidence.rank_evidence import HolderSearch, RankFacts
from tidegauge.core.torch_version import torch_at_least
from tidegauge.probe.evidence.loading import PROFILE_MODULES, load
from tidegauge.probe.evidence.profile_window import ProfileAsk, ProfileWindow
from tidegauge.probe.evidence.recorded_window import RecordedWindow, WindowPhase
from tidegauge.probe.evidence.window import EvidenceWindow, WindowAsk
from tidegauge.probe.evidence.work import Searches, gather
from tidegauge.probe.faults import Faults, describe
from tidegauge.probe.levels import TRACE
from tidegauge.probe.pacing import Pacer, StoppedError, start_thread
from tidegauge.probe.requests import RequestRefusedError
from tidegauge.probe.run_files.evidence_files import EvidenceFiles
from tidegauge.probe.run_files.run_files import RunFiles
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.history import MAX_ENTRIES, History, Recorder
from tidegauge.probe.runtime.rank_snapshot import MAX_EVENTS, RankSnapshots
from tidegauge.probe.step_counting.boundary_calls import BoundaryCalls
from tidegauge.probe.step_counting.watch import Watch

if TYPE_CHECKING:
    from tidegauge.probe.evidence.profile_work import ProfileRecording

# Events that the level ``trace`` records: ``TIDEGAUGE_TRACE_ENTRIES``.

ENTRIES_VARIABLE = "TIDEGAUGE_TRACE_ENTRIES"
DEFAULT_ENTRIES = 50_000
"""15 MB with Python stacks; 30 steps of a 12-layer transformer."""
MIN_ENTRIES = 100


def trace_entries(environ: Mapping[str, str], torch_version: str) -> int:
    """Events in the ring: the variable's number, else as many as this torch can leave out of a snapshot."""
    asked = _asked(environ)
    if asked is not None:
        return asked
    return DEFAULT_ENTRIES if torch_at_least(torch_version, 2, 11) else MAX_EVENTS


def trace_complaint(environ: Mapping[str, str]) -> Optional[str]:
    """One line about an invalid value of the variable, or ``None``."""
    text = environ.get(ENTRIES_VARIABLE)
    if not text or _asked(environ) is not None:
        return None
    allowed = f"a whole number from {MIN_ENTRIES} to {MAX_ENTRIES}"
    return f"{ENTRIES_VARIABLE}={text[:40]!r} is not {allowed}: using the default"


def _asked(environ: Mapping[str, str]) -> Optional[int]:
    text = environ.get(ENTRIES_VARIABLE, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return int(text) if MIN_ENTRIES <= int(text) <= MAX_ENTRIES else None


_JOIN_S = 0.5
WAIT_S = 30.0
"""For a search that somebody asked for (``holders``) to end."""


def _search_holders(torch: Any, blocks: Sequence[tuple[int, int]], **means: Any) -> HolderSearch:
    from tidegauge.probe.holders.search import search_holders  # here, for a process that never looks

    return search_holders(torch, blocks, **means)


def _read_facts(torch: Any, **means: Any) -> RankFacts:
    from tidegauge.probe.evidence.rank_facts import read_facts  # likewise

    return read_facts(torch, **means)


def _recording(window: ProfileWindow, **means: Any) -> ProfileRecording:
    load(PROFILE_MODULES, Pacer(lambda: window.stopped))
    from tidegauge.probe.evidence.profile_work import ProfileRecording  # likewise

    return ProfileRecording(window, **means)


class EvidenceRecorder:
    """Collects one process's evidence. Idle before ``open``."""

    def __init__(
        self,
        environ: Mapping[str, str],
        backend: Backend,
        faults: Faults,
        boundary: BoundaryCalls,
        *,
        start: Callable[[Callable[[], None]], Optional[threading.Thread]] = start_thread,
        search: Callable[..., HolderSearch] = _search_holders,
        facts: Callable[..., RankFacts] = _read_facts,
        recording: Callable[..., ProfileRecording] = _recording,
    ) -> None:
        self.window: Optional[RecordedWindow] = None
        """The one that waits for step boundaries."""
        self.history: Optional[History] = None
        """``None`` before ``open``, and where this device has none."""
        self.snapshots: Optional[RankSnapshots] = None
        """``None`` while the process is not watched."""
        self.files: Optional[EvidenceFiles] = None
        self.note: Optional[str] = None
        """A remark about the level for whoever chose it."""
        self._environ = environ
        self._backend = backend
        self._faults = faults
        self._boundary = boundary
        self._start = start
        self._search = search
        self._facts = facts
        self._make_recording = recording
        self._evidence: Optional[EvidenceWindow] = None
        self._profile: Optional[ProfileWindow] = None
        """The newest window of each kind, in any phase."""
        self._stepped: Callable[[], Sequence[Any]] = list
        self._changing = threading.RLock()  # of ``window``; a signal handler may end in here again
        self._threads: list[threading.Thread] = []
        self._tracing = False
        self._searching = threading.Lock()

    # ----------------------------------------------------------------- beginning and ending

    def open(
        self,
        run_files: RunFiles,
        watch: Watch,
        steps: Callable[[], int],
        level: str,
        *,
        stepped: Callable[[], Sequence[Any]],
    ) -> None:
        """Watching begins; the device is initialised in this very process. ``steps``: boundaries so far; ``stepped``:
        the optimizers that are stepped."""
        self._stepped = stepped
        try:
            self._open(run_files, watch, steps)
            self.follow(level)
        except Exception as error:  # the readings begin all the same
            self._faults.caught("starting to record", error)

    def _open(self, run_files: RunFiles, watch: Watch, steps: Callable[[], int]) -> None:
        if self.history is None:
            self.history = self._backend.history(self._faults)
        self.files = run_files.evidence_files
        self.snapshots = RankSnapshots(
            self._backend,
            self.history,
            identity=lambda: run_files.identity,
            devices=lambda: watch.used,
            steps=steps,
        )

    def follow(self, level: str) -> None:
        """Record from now on at level ``trace``, and not any more at any other."""
        if self.history is None or self.snapshots is None:
            return
        self.note = None
        if level != TRACE:
            if self._tracing:
                self._tracing = False
                self.history.end()
            return
        complaint = trace_complaint(self._environ)
        if complaint is not None:
            self._faults.say_once(complaint)
        entries = trace_entries(self._environ, self._backend.torch_version)
        if self.history.begin(entries=entries, step=self.snapshots.steps()):
            self._tracing = True
        elif self.history.recorder() is Recorder.JOB:
            self.note = "the job itself records allocation history; level trace leaves it unchanged"
            self._faults.say_once(self.note)

    def shut(self) -> None:
        """Watching ends: drop a window under way, and end our recording."""
        self.snapshots = None
        self.window = None
        for window in (self._evidence, self._profile):
            if window is not None:
                window.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)
        self._tracing = False
        if self.history is not None:
            self.history.end()

    def abandon(self) -> None:
        """Forget the parent's recording, window and files, in a forked child."""
        if self.history is not None:
            self.history.forget()

    # ----------------------------------------------------------------- windows

    def at_boundary(self, *, least_s: float = 0.0) -> None:
        """A training step ended, in the training thread, while ``window`` is there; ``least_s`` is the window's."""
        window = self.window
        if window is None:
            return
        try:
            window.at_boundary(least_s=least_s)
        finally:
            if not window.waits_for_steps:
                with self._changing:
                    if self.window is window:
                        self.window = None

    def ask(self, ask: WindowAsk) -> EvidenceWindow:
        """Begin a window of evidence, or find the one of that id. A profile under way ends. Raises
        ``RequestRefusedError``."""
        snapshots, files = self.watched()
        known = self._evidence
        if known is not None and known.window_id == ask.evidence_id:
            return known
        self._refuse_beside_evidence()
        history = self.recording()
        if self._profile is not None:
            self._profile.give_way("evidence was asked for meanwhile")
        window = self._evidence = EvidenceWindow(ask, snapshots, history)
        try:
            self._begin(window, lambda: self._gather(window, files))
        except BaseException:
            self._evidence = None
            raise
        return window

    def ask_profile(self, ask: ProfileAsk, *, join: bool = False) -> ProfileWindow:
        """Begin a recording for a memory profile, or find the one of that id; with ``join`` any that is under way.
        Raises ``RequestRefusedError``."""
        snapshots, files = self.watched()
        known = self._profile
        if known is not None and known.window_id == ask.recording_id:
            return known
        self._refuse_beside_evidence()
        if known is not None and not known.is_over:
            if join:
                return known
            raise RequestRefusedError("busy", f"profile {known.window_id} is being recorded: {known.phase.value}")
        no_room = files.no_room_for_recording()
        if no_room is not None:
            raise RequestRefusedError("busy", no_room)  # by and by there may be some
        window = self._profile = ProfileWindow(ask, snapshots, self.recording())
        try:
            self._begin(window, lambda: self._guarded(lambda: self._record_profile(window, files)))
        except BaseException:
            self._profile = None
            raise
        return window

    def _refuse_beside_evidence(self) -> None:
        known = self._evidence
        if known is not None and not known.is_over:
            raise RequestRefusedError("busy", f"evidence {known.window_id} is being collected: {known.phase.value}")

    def _begin(self, window: RecordedWindow, gather: Callable[[], None]) -> None:
        with self._changing:
            self.window = window
        try:
            thread = self._start(gather)
        except BaseException:
            self.window = None  # nobody would end it
            window.stop()
            raise
        self._threads = [one for one in self._threads if one.is_alive()]
        if thread is not None:
            self._threads.append(thread)

    def find(self, evidence_id: str) -> EvidenceWindow:
        """The window of that id, if it is the newest one. Raises ``RequestRefusedError``."""
        if self._evidence is None or self._evidence.window_id != evidence_id:
            raise RequestRefusedError("unknown", "no evidence with that id was requested here, or another one since")
        return self._evidence

    def find_profile(self, recording_id: str) -> ProfileWindow:
        """The same of a recording for a profile. Raises ``RequestRefusedError``."""
        if self._profile is None or self._profile.window_id != recording_id:
            raise RequestRefusedError("unknown", "no profile with that id was requested here, or another one since")
        return self._profile

    def _gather(self, window: EvidenceWindow, files: EvidenceFiles) -> None:
        looks = Searches(
            search=lambda blocks, pacer, so_far: self.search(
                blocks, pacer=pacer, wait_s=WAIT_S, so_far=so_far, patience_s=window.patience_s, step_s=window.step_s
            ),
            facts=lambda pacer: self._facts(
                self._backend.torch,
                pause=pacer.rest,
                at_boundary=self._at_boundary,
                patience_s=window.patience_s,
                step_s=window.step_s,
            ),
        )
        self._guarded(lambda: gather(window, files, looks))

    def _record_profile(self, window: ProfileWindow, files: EvidenceFiles) -> None:
        try:
            recording = self._make_recording(
                window,
                torch=self._backend.torch,
                stepped=self._stepped,
                at_boundary=self._at_boundary,
                compiles=self._backend.compiles,
                faults=self._faults,
            )
        except StoppedError:
            window.phase = WindowPhase.DONE
        except Exception as error:
            window.give_way(f"no recording could be made ({describe(error)})")
            window.phase = WindowPhase.DONE
            raise
        else:
            recording.gather(files)

    def _guarded(self, gather: Callable[[], None]) -> None:
        try:
            gather()
        except OSError as error:  # a full disk
            why = f"a recording of this process's memory could not be written ({describe(error)})"
            self._faults.say_once(f"{why}; the job is not affected")
        except Exception as error:
            self._faults.caught("collecting evidence", error)

    # ----------------------------------------------------------------- what commands use

    def watched(self) -> tuple[RankSnapshots, EvidenceFiles]:
        """Snapshots and files of a process that is watched. Raises ``RequestRefusedError``."""
        if self.snapshots is None or self.files is None:
            raise RequestRefusedError("unable", "this process is not watched: attach first, with a level such as stats")
        return self.snapshots, self.files

    def recording(self) -> History:
        """The history of this process. Raises ``RequestRefusedError``."""
        if self.history is None:
            name, version = self._backend.name.upper(), self._backend.torch_version
            raise RequestRefusedError("unable", f"torch {version} has no allocation history for {name}")
        return self.history

    def search(
        self,
        blocks: Sequence[tuple[int, int]],
        *,
        pacer: Pacer,
        most_s: float = math.inf,
        wait_s: float = 0.0,
        **means: Any,
    ) -> HolderSearch:
        """Search for the holders of blocks, (address, bytes) each, over as many steps as it takes. Raises
        ``RequestRefusedError`` during another search."""
        if not self._searching.acquire(timeout=wait_s):
            raise RequestRefusedError("busy", "another search for holders is running; retry later")
        try:
            return self._search(
                self._backend.torch, blocks, most_s=most_s, pause=pacer.rest, at_boundary=self._at_boundary, **means
            )
        finally:
            self._searching.release()

    def _at_boundary(self, call: Callable[[], bool]) -> bool:
        """The job's tensors are looked at between its steps alone. Raises ``RequestRefusedError``."""
        return self._boundary.call(call, now=False)
