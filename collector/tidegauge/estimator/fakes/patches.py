"""Replaces attributes for a while, and restores them exactly."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

_MISSING = object()


class Patches(ExitStack):
    """Use as a context manager: on leaving, the last replacement is undone first."""

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``. What ``owner`` itself does not define, but inherits, is deleted again afterwards."""
        former = vars(owner).get(name, _MISSING)
        if former is _MISSING:
            self.callback(delattr, owner, name)
        else:
            self.callback(setattr, owner, name, former)
        setattr(owner, name, value)

    def replace_known(self, owner: Any, name: str, value: Any) -> None:
        """The same, where this version of PyTorch has such a name at all."""
        if hasattr(owner, name):
            self.replace(owner, name, value)
