"""A terminal on which all work is slow, so that what is said of slow work is said at once."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest


class _AtOnce:
    """``threading.Timer``."""

    def __init__(self, _after_s: float, call: Callable[..., object], args: Sequence[object]) -> None:
        self._call, self._args = call, args

    def start(self) -> None:
        self._call(*self._args)

    def cancel(self) -> None:
        pass


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slow_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Standard error becomes one; returns what tells the lines on it."""
    terminal = _Terminal()
    monkeypatch.setattr("tidegauge.cli.output.threading", SimpleNamespace(Timer=_AtOnce))
    monkeypatch.setattr(sys, "stderr", terminal)
    return lambda: terminal.getvalue().splitlines()
