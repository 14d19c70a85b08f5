"""PyTorch's allocator settings, ``KEY:VALUE,KEY:[X:1,Y:2]``: which variable carries them, and how to change some.

A key that a torch does not know breaks its CUDA initialisation, so nothing is added here that was not asked for, and
what the owner wrote stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from tidegauge.core.torch_version import torch_at_least

CUDA_NAME = "PYTORCH_CUDA_ALLOC_CONF"
HIP_NAME = "PYTORCH_HIP_ALLOC_CONF"
GENERAL_NAME = "PYTORCH_ALLOC_CONF"
ALLOCATOR_VARIABLES = (CUDA_NAME, GENERAL_NAME, HIP_NAME)

_FORMER_NAMES = {
    "pinned_use_hip_host_register": "pinned_use_cuda_host_register",
    "release_lock_on_hipmalloc": "release_lock_on_cudamalloc",
}
"""Two spellings of one setting: torch takes either, so replacing one replaces the other."""


def conf_names(torch_version: Optional[str]) -> tuple[str, ...]:
    """The variables that this torch reads, the one that wins first; of an unknown torch, all that it may read.

    The CUDA name always wins. Up to 2.9 it is the only one on CUDA, although 2.9 prints that it is deprecated.
    """
    names = [CUDA_NAME]
    if _of_rocm(torch_version):
        names.append(HIP_NAME)
    if torch_version is None or torch_at_least(torch_version, 2, 10):
        names.append(GENERAL_NAME)
    return tuple(names)


def merge_alloc_conf(
    environ: Mapping[str, str], settings: Mapping[str, str], *, torch_version: Optional[str] = None
) -> dict[str, str]:
    """The variable to set, so that ``settings`` are in force beside those of ``environ``; empty without settings.

    ``environ`` is the job's. The variable is the one that is in force there; where none is, or the torch is unknown,
    the one that every version reads: the HIP name, which hipify makes of the CUDA name, where it is one of ROCm.
    """
    if not settings:
        return {}
    in_force = next((name for name in conf_names(torch_version) if environ.get(name, "").strip()), None)
    merged = parse_alloc_conf("" if in_force is None else environ[in_force])
    for key, value in settings.items():
        same = [known for known in merged if _canonical(known) == _canonical(key)]
        merged[same[0] if same else key] = value
    if in_force is None:
        known_new = torch_version is not None and torch_at_least(torch_version, 2, 10)
        name = GENERAL_NAME if known_new else HIP_NAME if _of_rocm(torch_version) else CUDA_NAME
    else:
        name = CUDA_NAME if torch_version is None else in_force
    return {name: format_alloc_conf(merged)}


def parse_alloc_conf(text: str) -> dict[str, str]:
    """Values by key, in the order written. Of a key written twice the last counts, as in torch.

    Never raises: a part that is not ``KEY:VALUE`` is kept under its own text with an empty value, for torch to judge.
    """
    found: dict[str, str] = {}
    for part in _parts(text):
        key, _, value = part.partition(":")
        found.pop(key.strip(), None)
        found[key.strip()] = value.strip()
    return found


def is_one_setting(key: str, value: str) -> bool:
    """Whether ``key:value`` stays one setting between others: no comma, colon or open bracket splits or joins it."""
    return parse_alloc_conf(f"{key}:{value},end:1") == {key: value, "end": "1"}


def format_alloc_conf(settings: Mapping[str, str]) -> str:
    """The text that ``parse_alloc_conf`` reads."""
    return ",".join(f"{key}:{value}" if value else key for key, value in settings.items())


def _parts(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _of_rocm(torch_version: Optional[str]) -> bool:
    return torch_version is not None and "rocm" in torch_version


def _canonical(key: str) -> str:
    return _FORMER_NAMES.get(key, key)
