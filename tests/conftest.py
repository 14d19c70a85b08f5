"""What holds for all tests: Hypothesis' profiles (``examples.py``), durations that ``make durations`` prints, no
file that stays open, and no process that outlives an interrupted run (``leftovers.py``)."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import examples

pytest_plugins = ("leftovers", "thermometer")

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


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For Unix sockets (paths of up to 107 bytes, unix(7)) and shell lines: short and plain, whatever ``TMPDIR`` is."""
    with tempfile.TemporaryDirectory(prefix="tg-", dir="/tmp") as folder:
        yield Path(folder)
