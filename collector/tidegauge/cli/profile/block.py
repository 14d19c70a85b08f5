"""``tidegauge.profile()``: the memory profile of a block of training code, made in the process that runs it.

Nothing here raises for a failure of Tidegauge's own: ``ProfiledBlock.problem`` has it.
"""

from __future__ import annotations

import contextlib
import gc
import html
import math
import os
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.profile.words import overlap
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.cli.errors import need
from tidegauge.cli.output import said_when_slow
from tidegauge.cli.profile.advising import advise
from tidegauge.cli.profile.command import DEFAULT_TOP
from tidegauge.cli.profile.given import sorted_out
from tidegauge.cli.profile.page import profile_page, text_of
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor, module_of
from tidegauge.core.profile.step_profile import OwnedMemory, ProfileMoment, SeenGradient, StepProfile
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.probe.evidence.further_tensors import further_tensors
from tidegauge.probe.evidence.module_names import ModuleNames
from tidegauge.probe.evidence.module_paths import Models
from tidegauge.probe.evidence.owned_tensors import OwnedTensors
from tidegauge.probe.evidence.snapshot_packing import pack_columns
from tidegauge.probe.faults import Faults, describe, say
from tidegauge.probe.holders.pace import do_some
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.gradient_addresses import GradientAddress, GradientAddresses
from tidegauge.probe.runtime.history import MAX_ENTRIES, History
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot
from tidegauge.probe.runtime.undisturbed import collector_held_off, compiler_left_alone


class ProfiledBlock:
    """A context manager; after the block it has the profile of each device that was used in it."""

    def __init__(self, model: Any = None, optimizer: Any = None) -> None:
        self.profiles: Mapping[int, StepProfile] = {}
        """By device."""
        self.advices: Mapping[int, StepAdvice] = {}
        """What would help, by device."""
        self.problem: str | None = None
        """Why there is no profile, for people; ``None`` where nothing failed."""
        self._model = model
        self._optimizer = optimizer
        self._history: History | None = None
        self._names: ModuleNames | None = None
        self._gradients: GradientAddresses | None = None
        self._tensors: BlockTensors | None = None
        self._began_us = 0

    def __enter__(self) -> ProfiledBlock:
        with self._reporting():
            torch = sys.modules.get("torch")
            if torch is None or not torch.cuda.is_available():
                self._met("no profile: this process has no GPU that PyTorch can use")
                return self
            torch.cuda.init()  # asking whether a history is on crashes before
            faults = Faults()
            tensors = self._tensors = self._found_tensors(torch)
            self._history, self._names = History(torch, faults), ModuleNames(torch, faults, tensors.numbered)
            self._gradients = GradientAddresses(torch, faults)
            if not self._history.begin(entries=MAX_ENTRIES, step=0):
                self._began_us = time.time_ns() // 1000  # the job's own, which may be on for long
            tensors.name(self._names)
            self._gradients.begin()
            self._names.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        history, self._history = self._history, None
        names, self._names = self._names, None
        gradients, self._gradients = self._gradients, None
        tensors, self._tensors = self._tensors, None
        if history is None or names is None or gradients is None or tensors is None:
            return
        with self._reporting(), said_when_slow("making the memory profile of the block", say=say):
            torch = sys.modules["torch"]
            try:
                gradients.end()
                names.end()
                self._read(tensors)
                with compiler_left_alone(torch), collector_held_off():
                    recorded = torch.cuda.memory._snapshot()
            finally:
                history.end()
            facts = {"torch_version": torch.__version__}
            packed = pack_columns(RawSnapshot(recorded, facts, 0.0), Pacer(sleep=lambda _: None))
            lost = (
                None if self._began_us else lost_events(packed)
            )  # how many events the job's own has, torch alone knows
            if lost is not None:
                self._met(lost)
            threads = Counter(device for device, _ in {(one.device, one.thread) for one in gradients.found})
            recordings = recordings_of(
                packed,
                tensors.after(packed),
                since_us=self._began_us,
                owned_before=tensors.before(),
                gradients=tensors.seen(gradients.found),
                threads=threads,
            )
            for device in sorted(recordings):
                if threads[device] > 1:
                    self._met(overlap(threads[device], device))
            self.profiles = {
                device: profile_of_recording(one, modules_missing=names.missing) for device, one in recordings.items()
            }
            if not self.profiles:
                self._met("no profile: no GPU memory was allocated in the block")
            self.advices = self._advised(torch, recordings)

    @property
    def profile(self) -> StepProfile:
        """Of the device with the highest peak. Raises ``RuntimeError`` with the reason where there is none."""
        if not self.profiles:
            raise RuntimeError(self.problem or "no profile: it is there after the `with` block that trains")
        return max(self.profiles.values(), key=lambda one: one.peak.allocated_bytes)

    @property
    def peak(self) -> ProfileMoment:
        """The peak of that device: ``peak.allocated_bytes``, ``peak.by_category``, ``peak.phase``."""
        return self.profile.peak

    @property
    def advice(self) -> StepAdvice:
        """What would make that peak smaller: ``advice.measures``, the largest saving first, and ``advice.room``."""
        device = self.profile.device
        if device not in self.advices:
            raise RuntimeError(self.problem or "no advice")
        return self.advices[device]

    def to_html(self, path: str | os.PathLike[str] = "tidegauge-profile.html") -> Path:
        """Write the page of that device: memory over the block, by category. Raises ``RuntimeError``, ``CommandError``
        where the package of pages is missing, and ``OSError``."""
        pages = need("tidegauge_exporter.reports.profile_page", extra="agent", what="a page")
        text = pages.render_profile(
            self.profile, self.advice, subject=f"process {os.getpid()}", made_unix_s=time.time()
        )
        Path(path).write_text(text, encoding="utf-8", errors="replace")
        return Path(path)

    def __repr__(self) -> str:
        # What a terminal's IPython shows below a cell, and print().
        if not self.profiles:
            return self.problem or "no profile yet"
        texts = [
            text_of(profile_page(one, DEFAULT_TOP, self.advices.get(device))) for device, one in self.profiles.items()
        ]
        return "\n\n".join(filter(None, (self.problem, *texts)))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _found_tensors(self, torch: Any) -> BlockTensors:
        try:
            models, optimizers, wrong = sorted_out(torch, self._model, self._optimizer)
            for problem in wrong:
                self._met(problem)
            return BlockTensors(torch, models, optimizers)
        except Exception as error:
            self._met(f"model and optimizer are left out: {describe(error)}")
            return BlockTensors(torch, (), ())

    def _met(self, problem: str) -> None:
        self.problem = problem if self.problem is None else f"{self.problem}; {problem}"

    def _read(self, tensors: BlockTensors) -> None:
        try:
            if not tensors.read():
                self._met("some tensors of model and optimizer are left out: a backward pass runs")
        except Exception as error:
            self._met(f"some tensors of model and optimizer are left out: {describe(error)}")

    def _advised(self, torch: Any, recordings: Mapping[int, NamedRecording]) -> dict[int, StepAdvice]:
        try:
            ranks = _world_size(torch)
            return {
                device: advise(one, ranks=ranks, card_bytes=torch.cuda.mem_get_info(device)[1])
                for device, one in recordings.items()
            }
        except Exception as error:
            self._met(f"no advice: {describe(error)}")
            return {}

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._met(f"no profile: {describe(error)}")


class BlockTensors:
    """Tensors of known purpose before and after a block, read as the probe reads them."""

    def __init__(self, torch: Any, models: Iterable[Any], optimizers: Iterable[Any]) -> None:
        self._torch = torch
        self._tensors = OwnedTensors(torch, tuple)
        self._tensors.give([*models, *parallel_models(torch)], optimizers)
        self._tensors.name_modules(_at_once)
        self._before = self._tensors.reading()
        self._after = self._tensors.reading()
        do_some(torch, self._before.whole(), math.inf)

    @property
    def numbered(self) -> Models:
        return self._tensors.numbered

    def name(self, names: ModuleNames) -> None:
        names.give(self._tensors.module_paths())

    def read(self) -> bool:
        """Behind the block; whether that was all."""
        self._after = self._tensors.reading()
        return do_some(self._torch, self._after.whole(), math.inf)[0]

    def before(self) -> list[OwnedMemory]:
        return self._memory(self._before.owned(_at_once))

    def after(self, packed: PackedSnapshot) -> list[OwnedMemory]:
        owned = self._after.owned(_at_once)
        further = further_tensors(packed, owned, {}, self._after.bucket_bytes, _at_once)
        return self._memory([*owned, *further])

    def seen(self, found: Iterable[GradientAddress]) -> list[SeenGradient]:
        """Of the gradients that optimizers stepped with, those of the models' parameters."""
        seen = []
        for one in found:
            known = self._after.module_of_parameter(one.parameter)
            if known is not None:
                tensor = OwnedTensor(one.address, 0, Category.GRADIENTS, *known)
                seen.append(SeenGradient(one.address, one.unix_us, module_of(tensor, self._tensors.models) or ""))
        return seen

    def _memory(self, tensors: Iterable[OwnedTensor]) -> list[OwnedMemory]:
        models = self._tensors.models
        return [OwnedMemory(one.address, one.category, module_of(one, models)) for one in tensors]


def parallel_models(torch: Any) -> list[Any]:
    """The ``DistributedDataParallel`` of the process, whoever made them: their buckets are no model's."""
    if _world_size(torch) is None:
        return []
    ddp = torch.nn.parallel.DistributedDataParallel
    return [one for one in gc.get_objects() if issubclass(type(one), ddp)]


def lost_events(packed: PackedSnapshot) -> str | None:
    """What to say where the block had more events than our recording has room for."""
    if all(len(one.events["action"]) < MAX_ENTRIES for one in packed.devices):
        return None
    return (
        f"the block has more allocator events than the {MAX_ENTRIES:,} that are recorded: the profile is of the last "
        "ones, and the peak may have come before them; profile fewer steps"
    )


def recordings_of(
    packed: PackedSnapshot,
    owned: Iterable[OwnedMemory],
    *,
    since_us: int = 0,
    owned_before: Iterable[OwnedMemory] = (),
    gradients: Iterable[SeenGradient] = (),
    threads: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, NamedRecording]:
    """The recordings in a snapshot, by device, without events before a Unix time; ``threads``: how many stepped
    optimizers on each device. Raises ``BadTraceError`` and ``TraceError``."""
    owned, before, seen, found = list(owned), list(owned_before), list(gradients), {}
    for device, trace in from_packed(packed).traces.items():
        began = bisect_left(trace.time_us, since_us)
        trace = trace.since(began) if began else trace
        if len(trace):
            found[device] = recording_of(
                with_beginning(trace),
                owned=owned,
                owned_before=before,
                gradients=seen,
                stepping_threads=threads.get(device, 1),
            )
    return found


def _at_once() -> None:
    """The program waits: there is nothing to pace."""


def _world_size(torch: Any) -> int | None:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_world_size())
