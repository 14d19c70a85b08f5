"""Evidence thread: follows a window of a memory profile, packs its snapshot, and writes the recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Optional

from tidegauge.core.profile.rank_recording import MAX_OWNED, OwnedTensor, RankRecording
from tidegauge.core.run_dirs import PROFILE_SNAPSHOT_SUFFIX
from tidegauge.core.snapshot_columns import DeviceColumns, PackedSnapshot
from tidegauge.probe.evidence.further_tensors import further_tensors
from tidegauge.probe.evidence.module_names import ModuleNames
from tidegauge.probe.evidence.owned_tensors import OwnedTensors, TensorReading
from tidegauge.probe.evidence.profile_window import ProfileWindow
from tidegauge.probe.evidence.recorded_window import WindowPhase
from tidegauge.probe.evidence.snapshot_packing import ALLOC, let_go, pack_columns
from tidegauge.probe.evidence.work import roots_or_none
from tidegauge.probe.faults import Faults, describe
from tidegauge.probe.holders.pace import AtBoundary, Budget, NoBoundaryError, OutOfWorkError, Slices, Work, do_some
from tidegauge.probe.pacing import Pacer, StoppedError
from tidegauge.probe.run_files.evidence_files import EvidenceFiles

MAX_READ_S = 0.01
"""At the boundary at which the recording begins or ends; what is left is read at later ones."""
MAX_UNITS = 500_000
"""Of work, for the search of modules and optimizers."""
_SEARCH_SHARE = 4
"""Divisor of the window's time: where steps are slow, the search is cut short after so much of it."""
_EARLY_US = 10_000
"""By which the allocator's clock may differ from ours."""


class ProfileRecording:
    """One recording of a memory profile, from the command to the files."""

    def __init__(
        self,
        window: ProfileWindow,
        *,
        torch: Any,
        stepped: Callable[[], Sequence[Any]],
        at_boundary: AtBoundary,
        compiles: Callable[[], bool],
        faults: Faults,
    ) -> None:
        self.window = window
        window.read_before, window.read_after, window.over = self._read_before, self._read_after, self._no_more_names
        self._torch = torch
        self._stepped = stepped
        self._at_boundary = at_boundary
        self._compiles = compiles
        self._faults = faults
        self._names = ModuleNames(torch, faults)
        self._problems: list[str] = []
        self._tensors: Optional[OwnedTensors] = None
        self._before: Optional[TensorReading] = None
        self._after: Optional[TensorReading] = None
        self._unread: Optional[Work[None]] = None
        """What was not read at the last boundary."""

    def gather(self, files: EvidenceFiles) -> None:
        """Follow the window to its end and write its files, none if it was stopped. Returns when all is done."""
        window = self.window
        try:
            files.remove_recording()  # of an earlier window
            recording = self._record(files)
            window.problem = recording.problem
            self._write(recording, files)
        except StoppedError:
            files.remove_recording()
        except Exception as error:
            window.problem = f"no recording could be written ({describe(error)})"
            raise
        finally:
            self._no_more_names()
            self._tensors = self._before = self._after = None
            window.phase = WindowPhase.DONE

    def _write(self, recording: RankRecording, files: EvidenceFiles) -> None:
        """Where there is no room for it, write why. Raises ``OSError`` and ``StoppedError``."""
        try:
            files.write_recording(recording, self._pacer())
        except OSError as error:
            self.window.problem = f"the recording could not be written ({describe(error)})"
            files.remove_recording()
            told = replace(recording, snapshot_file=None, owned=(), owned_before=(), problem=self.window.problem)
            files.write_recording(told, self._pacer())

    # ----------------------------------------------------------------- in the training thread

    def _read_before(self) -> None:
        if self._tensors is not None:
            self._before = self._tensors.reading()
            self._read(self._before.gradients())
        self._names.begin(names_others=False)

    def _read_after(self) -> None:
        if self._tensors is not None:
            self._after = self._tensors.reading()
            self._unread = self._read(self._after.whole())

    def _read(self, work: Work[None]) -> Optional[Work[None]]:
        """What is left of it. An error costs the tensors, not the window."""
        try:
            done, _ = do_some(self._torch, work, MAX_READ_S)
        except Exception as error:
            self._problems.append(f"some tensors could not be read ({describe(error)})")
            return None
        return None if done else work

    def _no_more_names(self) -> None:
        """In any thread."""
        try:
            self._names.end()
        except Exception as error:
            self._faults.caught("taking hooks away from modules", error)

    # ----------------------------------------------------------------- in the evidence thread

    def _pacer(self) -> Pacer:
        return Pacer(lambda: self.window.stopped)

    def _record(self, files: EvidenceFiles) -> RankRecording:
        """The recording, once the window is over. Raises ``StoppedError``."""
        window, pacer = self.window, self._pacer()
        self._find()
        roots = roots_or_none(pacer, self._problems)
        window.open()
        raw = window.next_snapshot()
        file, device, is_complete = None, 0, False
        owned: tuple[OwnedTensor, ...] = ()
        if raw is not None:
            packed = pack_columns(raw, pacer)
            let_go(raw, pacer)
            device, is_complete = _device(packed), self._has_all(packed, pacer)
            if not is_complete:
                self._problems.append(_lacking(packed, window.ask.max_events))
            if any(len(one.events["action"]) for one in packed.devices):
                file = self._write_snapshot(packed, files, pacer)
            elif is_complete:
                self._problems.append("nothing was allocated in the recorded steps")
            self._read_on()
            if self._after is not None:
                owned = self._after.owned(pacer.pace)
                others = self._tensors.others if self._tensors is not None else {}
                owned += tuple(further_tensors(packed, owned, others, self._after.bucket_bytes, pacer.pace))
        elif window.problem is not None:
            self._problems.clear()  # of a recording that there is not
        pacer.rest()
        return RankRecording(
            recording_id=window.ask.recording_id,
            reason=window.ask.reason,
            device=device,
            began_step=window.began_step,
            ended_step=max(window.began_step, window.ended_step),
            snapshot_file=file,
            boundaries_us=tuple(window.boundaries_us),
            owned=owned[:MAX_OWNED],
            owned_before=() if self._before is None else self._before.owned(pacer.pace),
            models=() if self._tensors is None else tuple(self._tensors.models),
            modules_missing=self._names.missing,
            is_complete=is_complete,
            is_compiled=self._compiles(),
            longest_stall_s=window.longest_stall_s,
            roots=roots,
            problem="; ".join(dict.fromkeys(filter(None, [window.problem, *self._problems]))) or None,
        )

    def _write_snapshot(self, packed: PackedSnapshot, files: EvidenceFiles, pacer: Pacer) -> Optional[str]:
        """Its name, or a problem more."""
        try:
            return files.write_snapshot(PROFILE_SNAPSHOT_SUFFIX, packed, pacer)[0]
        except OSError as error:
            self._problems.append(f"the snapshot could not be written ({describe(error)})")
            return None

    def _find(self) -> None:
        """Find the modules and optimizers, before the recording begins."""
        window = self.window
        try:
            tensors = self._tensors = OwnedTensors(self._torch, self._stepped)
            pacer = Pacer(lambda: not window.waits_for_steps)
            self._run(tensors.find(), pacer, most_s=window.ask.most_s / _SEARCH_SHARE)
            tensors.name_modules(pacer.pace)
            self._names.give(tensors.module_paths())
        except StoppedError:
            if window.stopped:
                raise
        except Exception as error:
            self._problems.append(f"the search for the model's tensors failed ({describe(error)})")

    def _read_on(self) -> None:
        unread, self._unread = self._unread, None
        if unread is None:
            return
        try:
            self._run(unread, self._pacer(), most_s=self.window.patience_s)
        except StoppedError:
            raise
        except Exception as error:
            self._problems.append(f"some tensors could not be read ({describe(error)})")

    def _run(self, work: Work[None], pacer: Pacer, *, most_s: float) -> None:
        window = self.window
        budget = Budget(MAX_UNITS, most_s=most_s, patience_s=window.patience_s, step_s=window.step_s)
        slices = Slices(self._torch, budget, pause=pacer.rest, at_boundary=self._at_boundary)
        try:
            slices.run(work)
        except (OutOfWorkError, NoBoundaryError) as error:
            self._problems.append(f"some of the model's tensors may lack: {error}")
        finally:
            work.close()
            window.longest_stall_s = max(window.longest_stall_s, slices.longest_slice_s)

    def _has_all(self, packed: PackedSnapshot, pacer: Pacer) -> bool:
        """Whether the snapshot has each allocation of its steps."""
        since_us = 0 if self.window.is_ours else self.window.boundaries_us[0] - _EARLY_US
        counts = {one.device: _allocations(one, since_us, pacer) for one in packed.devices}
        return all(counts.get(device, 0) >= count for device, count in self.window.allocations.items())


def _allocations(one: DeviceColumns, since_us: int, pacer: Pacer) -> int:
    count = 0
    times_us = one.events["time_us"] or [since_us] * len(one.events["action"])
    for action, time_us in zip(one.events["action"], times_us):
        count += action == ALLOC and time_us >= since_us
        pacer.pace()
    return count


def _lacking(packed: PackedSnapshot, max_events: int) -> str:
    events = sum(len(one.events["action"]) for one in packed.devices)
    if events:
        return f"the recording has the last {events:,} events alone: max_events of {max_events:,} is too small"
    return "the snapshot has no events of the steps"


def _device(packed: PackedSnapshot) -> int:
    """The one with most events."""
    return max(packed.devices, key=lambda one: len(one.events["action"])).device if packed.devices else 0
