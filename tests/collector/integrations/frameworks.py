"""Stand-ins for the frameworks, as far as the callbacks touch them, and for ``tidegauge``'s public functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tidegauge.probe.requests import CheckpointRequest

REQUEST = CheckpointRequest("r1", 7, 4e9)


class FakeBlock:
    """``tidegauge.profile``'s; ``calls`` are those of its ``FakeTidegauge``."""

    problem = None

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._calls.append("profile begins")

    def __exit__(self, *_: object) -> None:
        self._calls.append("profile ends")

    def __repr__(self) -> str:
        return "what fills the GPU"

    def to_html(self, path: str) -> Path:
        return Path(path)


class FakeTidegauge:
    """The public functions: what was called, and the function that is registered."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.save: Callable[..., object] | None = None
        self.fails: BaseException | None = None

    def attach(self, level: str) -> None:
        self.calls.append(f"attach {level}")

    def step(self) -> None:
        self.calls.append("step")
        if self.fails is not None:
            raise self.fails

    def profile(self, model: Any, optimizer: Any) -> FakeBlock:
        self.calls.append(f"profile of {model} and {optimizer}")
        return FakeBlock(self.calls)

    def on_checkpoint_request(self, save: Callable[..., object] | None) -> None:
        self.save = save


def with_framework(monkeypatch: pytest.MonkeyPatch, folder: Path, sources: Mapping[str, str]) -> None:
    """Make packages of these sources (by dotted name) importable, in the place of any that are installed."""
    for name in [each for each in sys.modules if each.partition(".")[0] in {one.partition(".")[0] for one in sources}]:
        monkeypatch.delitem(sys.modules, name)
    for name, source in sources.items():
        file = folder.joinpath(*name.split("."), "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        for parent in file.parent.parents:
            if parent == folder:
                break
            (parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)


def integration(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[ModuleType, FakeTidegauge]:
    """The module afresh, on the framework that is importable now, above a ``FakeTidegauge``."""
    full_name = f"tidegauge.integrations.{name}"
    monkeypatch.delitem(sys.modules, full_name, raising=False)
    module = importlib.import_module(full_name)
    fake = FakeTidegauge()
    monkeypatch.setattr(module, "tidegauge", fake)
    return module, fake


def anything(**parts: Any) -> Any:
    """An object with these attributes."""
    return SimpleNamespace(**parts)
