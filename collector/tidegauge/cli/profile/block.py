"""``tidegauge.profile()``: the memory profile of a block of training code, made in the process that runs it.

Nothing here raises for a failure of Tidegauge's own: ``ProfiledBlock.problem`` has it.
"""

from __future__ import annotations

import contextlib
import gc
import html
import os
import pickle
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.snapshots.reading import read_bytes
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.cli.errors import need
from tidegauge.cli.profile.advising import advise
from tidegauge.cli.profile.command import DEFAULT_TOP
from tidegauge.cli.profile.page import profile_page, text_of
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import OwnedMemory, ProfileMoment, SeenGradient, StepProfile
from tidegauge.probe.evidence.module_names import ModuleNames, module_paths
from tidegauge.probe.evidence.module_paths import Models
from tidegauge.probe.evidence.owned_tensors import logged_bucket_sizes
from tidegauge.probe.faults import Faults, describe
from tidegauge.probe.runtime.gradient_addresses import GradientAddress, GradientAddresses
from tidegauge.probe.runtime.history import MAX_ENTRIES, History
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
        self._began_us = 0

    def __enter__(self) -> ProfiledBlock:
        with self._reporting():
            torch = sys.modules.get("torch")
            if torch is None or not torch.cuda.is_available():
                self.problem = "no profile: this process has no GPU that PyTorch can use"
                return self
            torch.cuda.init()  # asking whether a history is on crashes before
            faults = Faults()
            self._history, self._names = History(torch, faults), ModuleNames(torch, faults)
            self._gradients = GradientAddresses(torch, faults)
            if not self._history.begin(entries=MAX_ENTRIES, step=0):
                self._began_us = time.time_ns() // 1000  # the job's own, which may be on for long
            self._gradients.begin()
            self._names.begin(_each(self._model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        history, self._history = self._history, None
        names, self._names = self._names, None
        gradients, self._gradients = self._gradients, None
        if history is None or names is None or gradients is None:
            return
        with self._reporting():
            torch = sys.modules["torch"]
            try:
                gradients.end()
                names.end()
                owned = self._owned()
                seen = seen_gradients(self._model, gradients.found)
                with compiler_left_alone(torch), collector_held_off():
                    recorded = torch.cuda.memory._snapshot()
            finally:
                history.end()
            owned += bucket_memory(recorded, owned, bucket_sizes(torch))
            recordings = recordings_of(recorded, owned, torch.__version__, since_us=self._began_us, gradients=seen)
            self.profiles = {
                device: profile_of_recording(one, modules_missing=names.missing) for device, one in recordings.items()
            }
            if not self.profiles:
                self.problem = "no profile: no GPU memory was allocated in the block"
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
        return "\n\n".join(
            text_of(profile_page(one, DEFAULT_TOP, self.advices.get(device))) for device, one in self.profiles.items()
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _owned(self) -> list[OwnedMemory]:
        try:
            return list(owned_memory(self._model, self._optimizer))
        except Exception as error:
            self.problem = f"model and optimizer are left out: {describe(error)}"
            return []

    def _advised(self, torch: Any, recordings: Mapping[int, NamedRecording]) -> dict[int, StepAdvice]:
        try:
            ranks = _world_size(torch)
            return {
                device: advise(one, ranks=ranks, card_bytes=torch.cuda.mem_get_info(device)[1])
                for device, one in recordings.items()
            }
        except Exception as error:
            self.problem = f"no advice: {describe(error)}"
            return {}

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.problem = f"no profile: {describe(error)}"


def owned_memory(model: Any, optimizer: Any) -> Iterator[OwnedMemory]:
    """The tensors of a ``torch.nn.Module`` and of a ``torch.optim.Optimizer``, or of several, that are on a GPU; of a
    DTensor, the part of this rank. Either may be ``None``."""
    found: list[tuple[Category, Any, str | None]] = []
    modules = _modules_of_parameters(model)
    for path, module in module_paths(_each(model), Models()):
        for parameter in module.parameters(recurse=False):
            found += [(Category.PARAMETERS, parameter, path), (Category.GRADIENTS, parameter.grad, path)]
        found += [(Category.BUFFERS, buffer, path) for buffer in module.buffers(recurse=False)]
    for one in _each(optimizer):
        for parameter, values in one.state.items():
            path_of = modules.get(id(parameter))
            found += [(Category.OPTIMIZER_STATE, value, path_of) for value in values.values()]
    for category, tensor, owner in found:
        local = getattr(tensor, "_local_tensor", tensor)
        if getattr(local, "is_cuda", False):
            yield OwnedMemory(local.untyped_storage().data_ptr(), category, owner)


def seen_gradients(model: Any, found: Iterable[GradientAddress]) -> list[SeenGradient]:
    """Of the gradients that optimizers stepped with, those of the model's parameters."""
    modules: dict[int, str] = {}
    with contextlib.suppress(Exception):  # what is no model has been told already
        modules = _modules_of_parameters(model)
    return [SeenGradient(one.address, one.unix_us, modules[one.parameter]) for one in found if one.parameter in modules]


def bucket_sizes(torch: Any) -> Counter[int]:
    """How many gradient buckets there are of each size, in bytes, by DDP's own log
    (``DistributedDataParallel._get_ddp_logging_data``); they are C++'s, which has no addresses of them."""
    sizes = Counter[int]()
    if _world_size(torch) is None:
        return sizes
    ddp = torch.nn.parallel.DistributedDataParallel
    for model in [one for one in gc.get_objects() if issubclass(type(one), ddp)]:
        sizes.update(logged_bucket_sizes(model._get_ddp_logging_data()))
    return sizes


def bucket_memory(
    recorded: Mapping[str, Any], owned: Iterable[OwnedMemory], sizes: Mapping[int, int]
) -> list[OwnedMemory]:
    """The blocks of these buckets in a snapshot: as many of a size as there are buckets, of those without a stack and
    without an owner."""
    left, addresses, found = Counter(sizes), sorted(one.address for one in owned), []
    for segment in recorded["segments"] if sizes else ():
        address = segment["address"]
        for block in segment["blocks"]:
            at, end = bisect_left(addresses, address), address + block["size"]
            is_owned = at < len(addresses) and addresses[at] < end
            is_live = block["state"] == "active_allocated" and not block.get("frames")
            if is_live and not is_owned and left[block["requested_size"]] > 0:
                left[block["requested_size"]] -= 1
                found.append(OwnedMemory(address, Category.COMMUNICATION))
            address = end
    return found


def recordings_of(
    recorded: Mapping[str, Any],
    owned: Iterable[OwnedMemory],
    version: str,
    *,
    since_us: int = 0,
    gradients: Iterable[SeenGradient] = (),
) -> dict[int, NamedRecording]:
    """The recordings of ``torch.cuda.memory._snapshot()``, by device, without events before a Unix time. Raises
    ``BadTraceError`` and ``TraceError``."""
    owned, seen, found = list(owned), list(gradients), {}
    for device, trace in read_bytes(pickle.dumps(dict(recorded), protocol=4)).traces.items():
        began = bisect_left(trace.time_us, since_us)
        trace = replace(trace.since(began) if began else trace, torch_version=version)
        if len(trace):
            found[device] = recording_of(with_beginning(trace), owned=owned, gradients=seen)
    return found


def _world_size(torch: Any) -> int | None:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_world_size())


def _modules_of_parameters(model: Any) -> dict[int, str]:
    """The path of the first module that has it, by a parameter's id."""
    modules: dict[int, str] = {}
    for path, module in module_paths(_each(model), Models()):
        for parameter in module.parameters(recurse=False):
            modules.setdefault(id(parameter), path)
    return modules


def _each(given: Any) -> list[Any]:
    return [] if given is None else list(given) if type(given) in (list, tuple) else [given]
