"""Loads the modules that a window needs before it begins, one after the other.

The training thread waits for the interpreter's lock while one is loaded: all of them take 25 ms of processor time, over
60 where none is compiled yet, and so would hold one step up by that. A process that never has a window does not load
them. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from tidegauge.probe.pacing import Pacer

_HOLDERS, _EVIDENCE = "tidegauge.probe.holders.", "tidegauge.probe.evidence."
_OF_BOTH = (
    "urllib.parse",
    "tidegauge.probe.code_roots",
    f"{_HOLDERS}looks",
    f"{_HOLDERS}bounds",
    f"{_HOLDERS}frames",
    f"{_HOLDERS}ref_paths",
    f"{_HOLDERS}links",
    f"{_HOLDERS}pace",
    f"{_HOLDERS}places",
    f"{_HOLDERS}tensors",
    f"{_HOLDERS}from_names",
)
EVIDENCE_MODULES = (
    *_OF_BOTH,
    f"{_HOLDERS}graphs",
    f"{_EVIDENCE}rank_facts",
    f"{_HOLDERS}finds",
    f"{_HOLDERS}from_referrers",
    f"{_HOLDERS}growth",
    f"{_HOLDERS}wording",
    f"{_HOLDERS}search",
)
"""Each behind those that it imports."""
PROFILE_MODULES = (
    *_OF_BOTH,
    f"{_EVIDENCE}module_paths",
    f"{_EVIDENCE}further_tensors",
    f"{_EVIDENCE}module_names",
    f"{_EVIDENCE}owned_tensors",
    f"{_EVIDENCE}profile_work",
)


RESTS = 25
"""After each module: longer than a step of a small model, so that no step waits for two."""


def load(modules: Sequence[str], pacer: Pacer) -> None:
    """Load those that are not there yet, with rests after each. One that cannot be loaded is left to whoever needs
    it. Raises ``StoppedError``."""
    for name in modules:
        if name not in sys.modules:
            try:
                import_module(name)
            except ImportError:
                return
            for _ in range(RESTS):
                pacer.rest()
