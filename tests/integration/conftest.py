"""Fixtures for tests that use real servers or the fake-GPU rig."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from integration.shards import ByFile, longest_file_first
from matrix import TURNS, keep_chosen

HERE = Path(__file__).parent
TIMEOUT_S = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", default="", help="run the tests of these cells of tests/matrix.py, and no others")
    parser.addoption("--turn", type=int, choices=range(TURNS), help="of the long tests, run those of this turn alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a test waits for has a limit of its own, and says what it was when that is over. The test's own comes later,
    also where servers have to be started first, and the machine stands still for a while."""
    keep_chosen(config, items)
    if hasattr(config, "workerinput"):
        longest_file_first(items)
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """Shards take whole files: a server that a module starts is started once."""
    return ByFile(config, log)


@pytest.fixture(scope="session")
def rig() -> Rig:
    """The fake-GPU rig, built; the test is skipped with the reason where it cannot be."""
    rig = Rig()
    reason = rig.available()
    if reason is not None:
        missing(reason)
    return rig
