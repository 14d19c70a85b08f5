"""Loads the modules that a window needs before it begins, one after the other.

The training thread waits for the interpreter's lock while one is loaded: all in one go hold a step up by 25 ms, by over
60 where none is compiled yet. A process that never has a window does not load them. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

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


def load(modules: Sequence[str], rest: Callable[[], None]) -> None:
    """Load those that are not there yet, with a rest after each. One that cannot be loaded is left to whoever needs
    it."""
    for name in modules:
        if name not in sys.modules:
            try:
                import_module(name)
            except ImportError:
                return
            rest()
