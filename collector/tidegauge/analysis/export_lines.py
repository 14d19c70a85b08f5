"""The shell line that sets allocator settings. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Optional

from tidegauge.core.alloc_conf import CUDA_NAME, GENERAL_NAME, merge_alloc_conf
from tidegauge.core.text import one_line


def line_for(settings: Mapping[str, str], *, today: str, torch_version: Optional[str]) -> str:
    """The shell line that replaces ``today``'s settings by ``settings``, quoted: a recording cannot inject commands.

    torch up to 2.9 reads the CUDA name only; an unknown torch is told by the name that all of them read. From 2.10 on
    the CUDA name still wins, so one that may carry today's settings has to go.
    """
    named = merge_alloc_conf({}, settings, torch_version=torch_version)
    if not named:
        return f"unset {GENERAL_NAME} {CUDA_NAME}"
    ((name, text),) = named.items()
    line = f"export {name}={shlex.quote(one_line(text, len(text)))}"
    return line if name == CUDA_NAME or not today else f"unset {CUDA_NAME}; {line}"
