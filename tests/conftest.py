"""What holds for all tests: Hypothesis' profiles (``examples.py``), durations that ``make durations`` prints, and no
file that stays open."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import examples

pytest_plugins = ("thermometer",)

examples.register()


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules live to the end: no collection has to look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _agents_are_closed() -> Iterator[None]:
    """Thousands of tests share one process, whose files may be limited to 1,024."""
    yield
    if "fake_node" in sys.modules:
        sys.modules["fake_node"].close_agents()
