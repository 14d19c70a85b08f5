"""``tidegauge.profile()``: the memory profile of a block of training code, made in the process that runs it.

As the block ends, what happened in it is copied; profiles and advice are made when they are asked for. Nothing here
raises for a failure of Tidegauge's own: ``ProfiledBlock.problem`` has it.
"""

from __future__ import annotations

import contextlib
import gc
import html
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegauge.cli.errors import need
from tidegauge.cli.output import said_when_slow
from tidegauge.cli.profile.given import sorted_out
from tidegauge.cli.profile.recorded_block import BlockSurroundings, RecordedBlock
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

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording


class ProfiledBlock:
    """A context manager; after the block it has the profile of each device that was used in it."""

    def __init__(self, model: Any = None, optimizer: Any = None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._history: History | None = None
        self._names: ModuleNames | None = None
        self._gradients: GradientAddresses | None = None
        self._tensors: BlockTensors | None = None
        self._began_us = 0
        self._problem: str | None = None
        self._recorded: RecordedBlock | None = None
        """Until profiles are made of it."""
        self._surroundings: BlockSurroundings | None = None
        self._recordings: Mapping[int, NamedRecording] = {}
        """Until advice is made of them."""
        self._profiles: Mapping[int, StepProfile] = {}
        self._advices: Mapping[int, StepAdvice] = {}

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
        self._model = self._optimizer = None  # their memory is the program's, which may give it back
        if history is None or names is None or gradients is None or tensors is None:
            return
        with self._reporting(), said_when_slow("reading the allocator's history of the block", say=say):
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
            lost = None if self._began_us else lost_events(packed)  # of the job's own recording torch alone knows
            if lost is not None:
                self._met(lost)
            self._recorded = RecordedBlock(
                packed,
                since_us=self._began_us,
                owned=tensors.after(packed),
                owned_before=tensors.before(),
                gradients=tensors.seen(gradients.found),
                threads=Counter(device for device, _ in {(one.device, one.thread) for one in gradients.found}),
                modules_missing=names.missing,
            )
        with self._reporting("no advice"):
            if self._recorded is not None:
                self._surroundings = _surroundings(torch, self._recorded)

    @property
    def problem(self) -> str | None:
        """Why there is no profile, or what it lacks, for people; ``None`` where nothing failed."""
        self._make_profiles()
        return self._problem

    @property
    def profiles(self) -> Mapping[int, StepProfile]:
        """By device."""
        self._make_profiles()
        return self._profiles

    @property
    def advices(self) -> Mapping[int, StepAdvice]:
        """What would help, by device."""
        self._make_profiles()
        known = self._surroundings
        if self._recordings and known is not None:
            with self._reporting("no advice"), said_when_slow("working out what would make the peak smaller", say=say):
                self._advices = {device: known.advice(one) for device, one in self._recordings.items()}
        self._recordings = {}
        return self._advices

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
        found = self.advices.get(self.profile.device)
        if found is None:
            raise RuntimeError(self.problem or "no advice")
        return found

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
        from tidegauge.cli.profile.command import DEFAULT_TOP
        from tidegauge.cli.profile.page import profile_page, text_of

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
        self._problem = problem if self._problem is None else f"{self._problem}; {problem}"

    def _read(self, tensors: BlockTensors) -> None:
        try:
            if not tensors.read():
                self._met("some tensors of model and optimizer are left out: a backward pass runs")
        except Exception as error:
            self._met(f"some tensors of model and optimizer are left out: {describe(error)}")

    def _make_profiles(self) -> None:
        recorded = self._recorded
        if recorded is None:
            return
        with self._reporting(), said_when_slow("making the memory profile of the block", say=say):
            from tidegauge.analysis.profile.words import overlap

            self._recordings = recorded.recordings()
            for device in sorted(self._recordings):
                if recorded.threads.get(device, 1) > 1:
                    self._met(overlap(recorded.threads[device], device))
            self._profiles = {device: recorded.profile(one) for device, one in self._recordings.items()}
            if not self._profiles:
                self._met("no profile: no GPU memory was allocated in the block")
        self._recorded = None

    @contextlib.contextmanager
    def _reporting(self, missing: str = "no profile") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._met(f"{missing}: {describe(error)}")


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


def _surroundings(torch: Any, recorded: RecordedBlock) -> BlockSurroundings:
    devices = [one.device for one in recorded.packed.devices if one.events["action"]]
    return BlockSurroundings(_world_size(torch), {device: torch.cuda.mem_get_info(device)[1] for device in devices})


def lost_events(packed: PackedSnapshot) -> str | None:
    """What to say where the block had more events than our recording has room for."""
    if all(len(one.events["action"]) < MAX_ENTRIES for one in packed.devices):
        return None
    return (
        f"the block has more allocator events than the {MAX_ENTRIES:,} that are recorded: the profile is of the last "
        "ones, and the peak may have come before them; profile fewer steps"
    )


def _at_once() -> None:
    """The program waits: there is nothing to pace."""


def _world_size(torch: Any) -> int | None:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_world_size())
