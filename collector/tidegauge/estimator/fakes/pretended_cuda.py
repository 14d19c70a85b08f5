"""Fakes ``torch.cuda`` of a process with one GPU: answers training code without a driver."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Optional

import torch

from tidegauge.estimator.fakes.patches import Patches
from tidegauge.estimator.gpus import Target
from tidegauge.estimator.recording import AllocatorEventLog, EstimateError

WARP = 32


def _nothing(*_: object, **__: object) -> None:
    return None


class PretendedStream:
    """``torch.cuda.Stream``: everything runs at once and in order, but allocations on it have memory of their own."""

    device_index = 0
    device_type = 1

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams = streams
        self._former: list[int] = []
        self.stream_id = self.cuda_stream = number
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> PretendedStream:
        self._former.append(self._streams.log.stream)
        self._streams.log.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.log.stream = self._former.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PretendedStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else PretendedEvent()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    wait_stream = wait_event = synchronize = _nothing


class Streams:
    """The streams of the fake GPU: number 0 is the default one, each new one gets the next number."""

    def __init__(self, log: AllocatorEventLog) -> None:
        self.log = log
        self._made = 0

    def kind(self) -> type[PretendedStream]:
        """A class to be called as ``torch.cuda.Stream`` is."""
        streams = self

        class Stream(PretendedStream):
            def __init__(self, *_: object, **__: object) -> None:
                streams._made += 1
                super().__init__(streams, streams._made)

        return Stream

    def current(self, *_: object) -> PretendedStream:
        return PretendedStream(self, self.log.stream)

    def default(self, *_: object) -> PretendedStream:
        return PretendedStream(self, 0)

    def make_current(self, stream: PretendedStream) -> None:
        self.log.stream = stream.stream_id

    def within(self, stream: Optional[PretendedStream]) -> PretendedStream:
        """``torch.cuda.stream(...)``: ``None`` changes nothing."""
        return stream if stream is not None else self.current()


class PretendedEvent:
    """``torch.cuda.Event``: has always happened."""

    def __init__(self, *_: object, **__: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds; not zero, as rates are worked out from it."""
        return 1.0

    record = wait = synchronize = _nothing


class RefusedGraph:
    """``torch.cuda.CUDAGraph``; a class, as libraries name it in annotations."""

    def __init__(self, *_: object, **__: object) -> None:
        raise _refusal("A CUDA graph", "build the step without one")


def refuse(what: str, advice: str) -> Callable[..., Any]:
    def refused(*_: object, **__: object) -> Any:
        raise _refusal(what, advice)

    return refused


def _refusal(what: str, advice: str) -> EstimateError:
    return EstimateError(f"{what} cannot run without a GPU, so FUNCTION cannot be estimated as it is: {advice}")


def pretend_cuda(patches: Patches, target: Target, log: AllocatorEventLog) -> None:
    """Replace what reaches for the driver, in ``torch.cuda`` and ``torch.accelerator``."""
    streams = Streams(log)
    for name, answer in _answers(target, log, streams).items():
        patches.replace_known(torch.cuda, name, answer)
    for name in ("manual_seed", "manual_seed_all"):
        patches.replace_known(torch.cuda.random, name, _nothing)
    patches.replace_known(torch.cuda, "default_generators", (torch.Generator(),))
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        for name, answer in _accelerator_answers(log, streams).items():
            patches.replace_known(accelerator, name, answer)
    if torch.version.cuda is None:
        patches.replace(torch.version, "cuda", "13.0")


def _answers(target: Target, log: AllocatorEventLog, streams: Streams) -> dict[str, Any]:
    properties = _properties(target)
    stream_kind = streams.kind()
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: target.capability >= (8, 0),
        "is_tf32_supported": lambda: target.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: target.name,
        "get_device_capability": lambda *_: target.capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{target.capability[0]}{target.capability[1]}"],
        "mem_get_info": lambda *_: (target.total_bytes - log.live_bytes, target.total_bytes),
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "Stream": stream_kind,
        "Event": PretendedEvent,
        "ExternalStream": stream_kind,
        "stream": streams.within,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "set_stream": streams.make_current,
        "CUDAGraph": RefusedGraph,
        "graph": RefusedGraph,
        "make_graphed_callables": RefusedGraph,
        "device": _Device,
        "device_of": _Device,
    }
    answers.update(dict.fromkeys(("memory_allocated", "memory_reserved"), lambda *_: log.live_bytes))
    answers.update(dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda *_: log.peak_bytes))
    answers.update(dict.fromkeys(_WITHOUT_EFFECT, _nothing))
    return answers


_WITHOUT_EFFECT = (
    "init", "_lazy_init", "_lazy_call", "set_device", "synchronize", "empty_cache", "ipc_collect",
    "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "set_rng_state", "set_rng_state_all",
)  # fmt: skip


def _accelerator_answers(log: AllocatorEventLog, streams: Streams) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "device_count": lambda: 1,
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "current_stream": streams.current,
        "set_stream": streams.make_current,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "memory_allocated": lambda *_: log.live_bytes,
        "max_memory_allocated": lambda *_: log.peak_bytes,
        "reset_peak_memory_stats": _nothing,
    }


def _properties(target: Target) -> SimpleNamespace:
    return SimpleNamespace(
        name=target.name, major=target.capability[0], minor=target.capability[1], total_memory=target.total_bytes,
        multi_processor_count=target.multiprocessors, is_integrated=False, is_multi_gpu_board=False, warp_size=WARP,
    )  # fmt: skip


class _Device:
    """``with torch.cuda.device(...)``: there is one."""

    def __init__(self, *_: object) -> None:
        self.idx = self.prev_idx = 0

    __enter__ = __exit__ = _nothing
