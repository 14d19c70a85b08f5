"""The allocator settings that a requeue may change, with the values that PyTorch takes.

A key or value that a job's torch does not know breaks its CUDA initialisation: so the list is short, and a requeue is
held back where a key is newer than the job's torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidegauge.core.torch_version import torch_at_least

OLDEST_TORCH = (2, 2)
"""The oldest torch that the probe supports: older keys need no look at the job's version."""


class AllocatorSetting(NamedTuple):
    """One key of ``PYTORCH_CUDA_ALLOC_CONF``."""

    takes: str
    is_valid: Callable[[str], bool]
    since: tuple[int, int] = OLDEST_TORCH


def _is_power_of_two(text: str) -> bool:
    return text.isdecimal() and int(text).bit_count() == 1


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def _is_above_20(text: str) -> bool:
    return text.isdecimal() and int(text) > 20


ALLOCATOR_SETTINGS: Mapping[str, AllocatorSetting] = {
    "expandable_segments": AllocatorSetting("True or False", lambda text: text in ("True", "False")),
    "garbage_collection_threshold": AllocatorSetting("a number between 0 and 1", _is_share),
    "large_segment_size_mb": AllocatorSetting("whole MiB above 20", _is_above_20, since=(2, 11)),
    "max_split_size_mb": AllocatorSetting("whole MiB above 20", _is_above_20),
    "roundup_power2_divisions": AllocatorSetting("a power of two", _is_power_of_two),
}

EXPANDABLE = {"expandable_segments": "True"}
"""The cure for fragmentation."""


def check_settings(settings: dict[str, str]) -> dict[str, str]:
    """``settings`` as they are. Raises ``ValueError`` for a key or a value that would break a job's start."""
    for key, value in settings.items():
        setting = ALLOCATOR_SETTINGS.get(key)
        if setting is None:
            raise ValueError(
                f"{key!r} is not an allocator setting that a requeue may change; choose from "
                f"{', '.join(ALLOCATOR_SETTINGS)} (the action cap sets a memory fraction)"
            )
        if not setting.is_valid(value):
            raise ValueError(f"{key} takes {setting.takes}, not {value!r}")
    return settings


def too_new(settings: Mapping[str, str], torch_version: str | None) -> tuple[str, ...]:
    """The keys that a job's torch does not know, or may not know because its version is unknown."""
    return tuple(
        key
        for key in settings
        if (since := ALLOCATOR_SETTINGS[key].since) > OLDEST_TORCH
        and not (torch_version is not None and torch_at_least(torch_version, *since))
    )
