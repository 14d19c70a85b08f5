"""Waits for ``import torch`` without importing it. Read at interpreter start: this module imports next to nothing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs more to import than all of this
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class TorchImportWatcher:
    """A finder on ``sys.meta_path`` that finds nothing itself, but calls all ``then`` once ``torch`` is imported.

    It wraps ``exec_module`` of the loader that the other finders give for ``torch``, for that one import, so that
    ``torch.__spec__`` and ``torch.__loader__`` stay what they are.
    """

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self.then = [then]
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._searching:  # another finder may ask all finders, as this one does
            return None
        self._searching = True
        try:
            return self._found(path, target)
        finally:
            self._searching = False

    def _found(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find("torch", path, target) if find is not None else None
            if spec is not None:
                self._wrap(spec)
                return spec
        return None

    def _wrap(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the instance's: the class has the real one
            execute(module)
            if self in sys.meta_path:  # not so when torch was imported twice at once
                sys.meta_path.remove(self)
                for then in self.then:
                    then(module)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign] # SAFETY: undone by its first call
        except Exception:
            return  # a loader with slots: this process is not watched, and torch is imported as ever


def when_torch_is_imported(then: Callable[[ModuleType], None]) -> None:
    """Call ``then(torch)`` as soon as ``torch`` is there: now, or at the end of its import."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__version__", None) is not None:
        then(torch)
        return
    for finder in sys.meta_path:
        if isinstance(finder, TorchImportWatcher):
            finder.then.append(then)
            return
    sys.meta_path.insert(0, TorchImportWatcher(then))
