"""Replaces attributes for a while, and restores them exactly."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional

_MISSING = object()


class Patches:
    """Use as a context manager: on leaving, the last replacement is undone first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        where: Optional[TracebackType],
    ) -> None:
        while self._undo:
            owner, name, former = self._undo.pop()
            if former is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, former)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``. What ``owner`` itself does not define, but inherits, is deleted again afterwards."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def replace_known(self, owner: Any, name: str, value: Any) -> None:
        """The same, where this version of PyTorch has such a name at all."""
        if hasattr(owner, name):
            self.replace(owner, name, value)
