"""How long each test and each fixture took, and how much processor time tests and their children used: a pytest plugin
(``tests/conftest.py``) that writes what ``make durations`` prints, one file a tier in ``build/durations``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "build" / "durations"
MIN_FIXTURE_S = 0.05
"""Fixtures that took less are not recorded."""
_FIXTURE, _CPU = "fixture_s", "cpu_s"
_cpu_began = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", help="record the durations of this run for `make durations`, under this name")


def pytest_configure(config: pytest.Config) -> None:
    tier = config.getoption("tier")
    whole = not config.option.keyword  # what -k leaves is no tier
    if tier and whole and not hasattr(config, "workerinput"):  # with pytest-xdist: the controller alone
        config.pluginmanager.register(_Recorder(str(tier)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, object, object]:
    """Time a fixture; those that it asks for are set up before, and not in it."""
    began_s = time.perf_counter()
    try:
        return (yield)
    finally:
        took_s = time.perf_counter() - began_s
        item = getattr(request, "_pyfuncitem", None)
        if took_s >= MIN_FIXTURE_S and item is not None:
            item.user_properties.append((_FIXTURE, [fixturedef.argname, fixturedef.baseid, round(took_s, 3)]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_cpu_began] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Note the processor time of the test, its fixtures' included where they were made or ended for it."""
    try:
        return (yield)
    finally:
        item.user_properties.append((_CPU, round(_cpu_s() - item.stash.get(_cpu_began, _cpu_s()), 3)))


def _cpu_s() -> float:
    """Of this process and of its children that it has waited for (times(2)); daemons that left it are not in it."""
    return sum(os.times()[:4])


class _Recorder:
    """Collects the reports of one run and writes them at its end."""

    def __init__(self, tier: str) -> None:
        self._path = FOLDER / f"{tier}.json"
        self._began_s = time.perf_counter()
        self._tests: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._fixtures: list[object] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] = round(self._tests.get(report.nodeid, 0.0) + report.duration, 4)
        if report.when == "setup":
            self._fixtures += [value for name, value in report.user_properties if name == _FIXTURE]
        if report.when == "teardown":
            self._cpu[report.nodeid] = sum(float(str(value)) for name, value in report.user_properties if name == _CPU)

    def pytest_sessionfinish(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        wall_s = time.perf_counter() - self._began_s
        found = {"wall_s": wall_s, "tests": self._tests, "cpu": self._cpu, "fixtures": self._fixtures}
        self._path.write_text(json.dumps(found))
