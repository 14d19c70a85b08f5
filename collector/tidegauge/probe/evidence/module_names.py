"""Puts the path of the module that runs on each allocation, while a history is recorded.

Torch (2.11 and later) writes a word of each thread's own to every event of the history: ``user_metadata``. Temporary
global forward hooks set it to ``MODULE_WORD`` and the module's path, and give the thread's earlier word back. The
backward pass has threads of its own, so what it allocates has no path but where checkpointing computes again.

Hooks make ``torch.compile`` compile again, so a process that compiles gets none. Keeps no module alive.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

from tidegauge.core.snapshot_columns import MODULE_WORD
from tidegauge.probe.evidence.module_paths import Models, joined, named_modules
from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime.backend import compiles, module_hooks

MAX_NAMED_MODULES = 100_000
MAX_ROOTS = 64
"""Models whose modules are named; a program that makes a new model for each call has no more of them named."""
OLD_TORCH = "this PyTorch does not name the modules of allocations; 2.11 and later do"
COMPILED = "this process has called torch.compile, whose code would be compiled again with hooks on modules"


class _Call(NamedTuple):
    """A named module that runs in a thread."""

    module: int
    before: str
    """The thread's word when it was called."""
    word: str


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[_Call] = []


class ModuleNames:
    """Names allocations between ``begin`` and ``end``. Made once CUDA is initialised in this very process."""

    def __init__(self, torch: Any, faults: Faults, models: Optional[Models] = None) -> None:
        """``models``: those that have names already."""
        self.missing: Optional[str] = None
        """Why allocations have no module, or only some of them, for people; ``None``: they have."""
        self._torch = torch
        self._faults = faults
        self._thread = _Thread()
        self._remove: list[Callable[[], None]] = []
        self._words: dict[int, tuple[weakref.ref[object], str]] = {}
        """Of modules by their addresses."""
        self._models = models or Models()
        self._roots = 0
        self._names_others = True
        self._process = os.getpid()
        self._get: Callable[[], str]
        self._set: Callable[[str], None]

    def give(self, modules: Iterable[tuple[weakref.ref[Any], str]]) -> None:
        """Name these before ``begin``, in any thread, with their paths."""
        for reference, path in modules:
            module = reference()
            if module is not None and len(self._words) < MAX_NAMED_MODULES:
                self._words[id(module)] = (reference, MODULE_WORD + path)

    def begin(self, *, names_others: bool = True) -> bool:
        """Name allocations from now on; false where that cannot be, and ``missing`` says why.

        ``names_others``: a model that was not given is named when it is called outside of all others. Without it no
        code of the job's runs.
        """
        try:
            return self._begin(names_others)
        except Exception as error:
            self._stop("naming modules", error)
            return False

    def _begin(self, names_others: bool) -> bool:
        native = self._torch._C
        if not hasattr(native, "_cuda_setMemoryMetadata") or not hasattr(native, "_cuda_getMemoryMetadata"):
            self.missing = OLD_TORCH
            return False
        hooks = module_hooks(self._torch)
        if hooks is None:
            self.missing = COMPILED
            return False
        self._get, self._set = native._cuda_getMemoryMetadata, native._cuda_setMemoryMetadata
        word = self._get()
        # One of ours is left where hooks were taken away while a module ran. An allocator of another kind raises here,
        # and not in the model.
        self._set("" if word.startswith(MODULE_WORD) else word)
        self._names_others = names_others
        self._remove = hooks(self._entered, self._left)
        return True

    def end(self) -> None:
        """Take the hooks away, and give this thread its word back if a module is still running in it."""
        remove, self._remove = self._remove, []
        for each in remove:
            each()
        calls, self._thread.calls = self._thread.calls, []
        if calls and self._get() in {call.word for call in calls}:
            self._set(calls[0].before)
        self._words.clear()

    def _entered(self, module: object) -> None:
        try:
            calls = self._calls()
            if calls is None:
                return
            if not calls:
                if compiles(self._torch):
                    self.missing = COMPILED
                    self.end()
                    return
                if self._names_others and self._word(module) is None:
                    self._name(module)
            word = self._word(module)
            if word is not None:
                calls.append(_Call(id(module), self._get(), word))
                self._set(word)
        except Exception as error:
            self._stop("the hook before modules", error)

    def _left(self, module: object) -> None:
        """Also after a module that raised. What an exception of another kind has left behind goes with it."""
        try:
            calls = self._calls()
            if not calls:
                return
            place = next((place for place in reversed(range(len(calls))) if calls[place].module == id(module)), None)
            if place is None:
                return
            if self._get() in {call.word for call in calls[place:]}:  # else the job has set a word of its own
                self._set(calls[place].before)
            del calls[place:]
        except Exception as error:
            self._stop("the hook after modules", error)

    def _calls(self) -> Optional[list[_Call]]:
        """The named modules that run in this thread, outermost first; ``None`` where nothing is to be done."""
        if not self._remove or os.getpid() != self._process:  # a forked worker has the hooks as well
            return None
        return self._thread.calls

    def _word(self, module: object) -> Optional[str]:
        known = self._words.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def _name(self, root: Any) -> None:
        """Name a model's modules that have no name yet; the model's class is the beginning of their paths."""
        if self._roots >= MAX_ROOTS:
            return
        self._roots += 1
        modules = [weakref.ref(module) for _, module in root.named_modules()]
        for reference, path, model in named_modules(modules, self._models, pace=lambda: None):
            module = reference()
            if len(self._words) >= MAX_NAMED_MODULES:
                return
            if self._word(module) is None:
                self._words[id(module)] = (reference, MODULE_WORD + joined(self._models.names[model], path))

    def _stop(self, where: str, error: Exception) -> None:
        self._faults.caught(where, error)
        self.missing = f"naming modules failed: {type(error).__name__}"
        self.end()
