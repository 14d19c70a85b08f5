"""The allocator's settings that decide where a block goes, and how torch reads them from ``PYTORCH_ALLOC_CONF``.

What each torch knows and refuses is from its own parser (allocator notes, 5.7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Callable, Optional

from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.torch_version import torch_at_least

MIB = 1 << 20
DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB
DIVISION_BUCKETS = 16
"""``roundup_power2_divisions`` has one for each power of two from 1 MiB to 32 GiB."""

_SINCE = {
    "max_split_size_mb": (1, 10),
    "roundup_power2_divisions": (1, 12),
    "garbage_collection_threshold": (1, 12),
    "backend": (1, 13),
    "expandable_segments": (2, 1),
    "release_lock_on_cudamalloc": (2, 1),
    "release_lock_on_hipmalloc": (2, 1),
    "pinned_use_cuda_host_register": (2, 1),
    "pinned_use_hip_host_register": (2, 1),
    "pinned_num_register_threads": (2, 1),
    "max_non_split_rounding_mb": (2, 5),
    "pinned_use_background_threads": (2, 6),
    "graph_capture_record_stream_reuse": (2, 9),
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_free_catch_all": (2, 12),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The torch that first read each key."""

_SWITCHES = frozenset(
    {
        "expandable_segments", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_use_background_threads",
        "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
    }
)  # fmt: skip
_NOT_MODELLED = frozenset({"expandable_segments_reserve", "expandable_segments_reserve_by_class"})


class TieBreak(str, Enum):
    """The order in which equally large free blocks of a stream are used, by torch version (allocator notes, 5.6)."""

    ADDRESS = "address"
    """torch up to 2.11: the lowest address."""
    BLOCK = "block"
    """2.12: the block object that was made first (each split makes one)."""
    SEGMENT = "segment"
    """From 2.13: the segment that was made first, then the lowest address."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of ``PYTORCH_ALLOC_CONF`` that decide placement. Sizes in bytes; ``None``: not limited."""

    max_split_bytes: Optional[int] = None
    """``max_split_size_mb``: larger blocks are never split."""
    max_non_split_rounding_bytes: Optional[int] = None
    """``max_non_split_rounding_mb``; ``None`` means the large segment's size."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_BUCKETS
    garbage_collection_threshold: float = 0.0
    """Share of the cap; without a cap it does nothing."""
    expandable_segments: bool = False
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    """``large_segment_size_mb`` (torch 2.11)."""
    memory_fraction: Optional[float] = None
    """``per_process_memory_fraction`` (torch 2.10)."""
    tie_break: TieBreak = TieBreak.SEGMENT
    memory_pools_flush: bool = True
    """From torch 2.13 a request of a ``MemPool``, too, gives back the cache of the default pool before it fails."""


def tie_break_of(torch_version: Optional[str]) -> TieBreak:
    """The order of equally large blocks in this torch; for an unknown torch, the newest rule."""
    if torch_version is None or not re.match(r"\d+\.\d+", torch_version) or torch_at_least(torch_version, 2, 13):
        return TieBreak.SEGMENT
    return TieBreak.BLOCK if torch_at_least(torch_version, 2, 12) else TieBreak.ADDRESS


def parse_settings(conf: str, torch_version: Optional[str] = None) -> AllocatorSettings:
    """The settings that this text puts in force; an empty one the defaults.

    Keys that do not decide where a block goes are accepted and left out. Raises `ValueError`, in words for people, for
    what this torch would refuse, and for a backend that is not modelled.
    """
    tie_break = tie_break_of(torch_version)
    settings = AllocatorSettings(tie_break=tie_break, memory_pools_flush=tie_break is TieBreak.SEGMENT)
    values = parse_alloc_conf(conf)
    for key in values:
        _check_key(key, torch_version)
    for key in sorted(values, key=lambda one: one != "large_segment_size_mb"):  # others are checked against this one
        settings = _with(settings, key, values[key])
    return _as_old_torch_reads(settings, values, torch_version)


def _check_key(key: str, torch_version: Optional[str]) -> None:
    since = _SINCE.get(key)
    if since is not None and (torch_version is None or torch_at_least(torch_version, *since)):
        return
    version = torch_version or ""
    known = ", ".join(name for name, first in _SINCE.items() if not version or torch_at_least(version, *first))
    reason = "" if since is None else f" (it came with {since[0]}.{since[1]})"
    raise ValueError(
        f"torch {version or 'of any version'} has no allocator setting {key!r}{reason} and would not start with it;"
        f" it knows {known}"
    )


def _with(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    """``settings`` with one more in force."""
    if key in _NOT_MODELLED:
        raise ValueError(f"allocator setting {key}: how much address space is reserved is not modelled")
    if key in _SWITCHES:
        if text not in ("True", "False"):
            raise _refused(key, text, "True or False")
        return replace(settings, expandable_segments=text == "True") if key == "expandable_segments" else settings
    reader = _READERS.get(key)
    return settings if reader is None else reader(settings, key, text)


def _refused(key: str, text: str, expected: str) -> ValueError:
    return ValueError(f"allocator setting {key}:{text}: torch takes {expected}")


def _read_backend(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    if text == "native":
        return settings
    if text == "cudaMallocAsync":
        raise ValueError("allocator setting backend:cudaMallocAsync: that is CUDA's allocator, which is not modelled")
    raise _refused(key, text, "native or cudaMallocAsync")


def _read_large_segment(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    size = _mebibytes(key, text)
    if size <= 10 * MIB:
        raise _refused(key, text, "more than 10")
    return replace(settings, large_segment_bytes=size)


def _read_max_split(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    return replace(settings, max_split_bytes=_at_least_a_segment(settings, key, text))


def _read_rounding(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    return replace(settings, max_non_split_rounding_bytes=_at_least_a_segment(settings, key, text))


def _read_threshold(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    share = _number(key, text)
    if not 0 < share < 1:
        raise _refused(key, text, "a number between 0 and 1, neither of them")
    return replace(settings, garbage_collection_threshold=share)


def _read_fraction(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    share = _number(key, text)
    if not 0 <= share <= 1:
        raise _refused(key, text, "a number from 0 to 1")
    return replace(settings, memory_fraction=share)


def _read_divisions(settings: AllocatorSettings, key: str, text: str) -> AllocatorSettings:
    if not text.startswith("["):
        return replace(settings, roundup_power2_divisions=(_division(key, text, least=1),) * DIVISION_BUCKETS)
    buckets = [0] * DIVISION_BUCKETS
    last = -1
    for name, value in _bucket_entries(key, text):
        division = _division(key, value, least=0)
        if name == ">":
            buckets[last + 1 :] = [division] * (DIVISION_BUCKETS - last - 1)
            continue
        bucket = _bucket(key, name)
        first = 0 if last < 0 else bucket  # what is below the first one named is as it is; gaps stay without division
        buckets[first : bucket + 1] = [division] * (bucket + 1 - first)
        last = bucket
    return replace(settings, roundup_power2_divisions=tuple(buckets))


def _bucket_entries(key: str, text: str) -> Iterator[tuple[str, str]]:
    """Names and values in ``[256:1,512:2,>:4]``."""
    if not text.endswith("]"):
        raise _refused(key, text, "a list that ends with ]")
    for part in filter(None, (piece.strip() for piece in text[1:-1].split(","))):
        name, _, value = part.partition(":")
        yield name.strip(), value.strip()


def _bucket(key: str, name: str) -> int:
    """The place of the bucket that begins with so many MiB."""
    mebibytes = _whole(key, name)
    if mebibytes <= 0 or mebibytes & (mebibytes - 1):
        raise _refused(key, name, "sizes that are powers of two, in MiB")
    return min(mebibytes.bit_length() - 1, DIVISION_BUCKETS - 1)


def _as_old_torch_reads(
    settings: AllocatorSettings, values: Mapping[str, str], torch_version: Optional[str]
) -> AllocatorSettings:
    """Up to 2.9 the rest of a list, ``>``, takes in the last bucket that the list names."""
    text = values.get("roundup_power2_divisions", "")
    if torch_version is None or torch_at_least(torch_version, 2, 10) or ">" not in text:
        return settings
    names = [name for name, _ in _bucket_entries("roundup_power2_divisions", text)]
    buckets = list(settings.roundup_power2_divisions)
    last = _bucket("roundup_power2_divisions", names[-2]) if len(names) > 1 and names[-1] == ">" else None
    if last is not None and last + 1 < DIVISION_BUCKETS:
        buckets[last] = buckets[last + 1]
    return replace(settings, roundup_power2_divisions=tuple(buckets))


_READERS: dict[str, Callable[[AllocatorSettings, str, str], AllocatorSettings]] = {
    "backend": _read_backend,
    "large_segment_size_mb": _read_large_segment,
    "max_split_size_mb": _read_max_split,
    "max_non_split_rounding_mb": _read_rounding,
    "garbage_collection_threshold": _read_threshold,
    "per_process_memory_fraction": _read_fraction,
    "roundup_power2_divisions": _read_divisions,
}


def _at_least_a_segment(settings: AllocatorSettings, key: str, text: str) -> int:
    size = _mebibytes(key, text)
    if size < settings.large_segment_bytes:
        raise _refused(key, text, f"at least {settings.large_segment_bytes // MIB}, the size of a large segment")
    return size


def _division(key: str, text: str, *, least: int) -> int:
    division = _whole(key, text)
    if division < least or division & (division - 1):
        raise _refused(key, text, "powers of two")
    return division


def _mebibytes(key: str, text: str) -> int:
    """The size in bytes. Torch cuts what is too large to the largest size that there is."""
    return min(_whole(key, text), 1 << 40) * MIB


def _whole(key: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise _refused(key, text, "a whole number")
    return int(text)


def _number(key: str, text: str) -> float:
    if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", text):
        raise _refused(key, text, "a number")
    return float(text)
