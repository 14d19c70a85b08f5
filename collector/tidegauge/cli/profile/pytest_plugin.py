"""The pytest plugin: ``@pytest.mark.limit_gpu_memory("2 GiB")`` and ``--gpu-memory-report``.

Pytest loads it wherever Tidegauge is installed. So it imports nothing of Tidegauge's, and torch least of all, before a
test has the mark; a report reads the counters of a torch that a test has imported. With an older pluggy or Python it
stays quiet rather than break a test run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

MARK = "limit_gpu_memory"
OPTION = "--gpu-memory-report"
PEAK = "gpu_peak_bytes"
"""The user property of a test's report that has its peak; JUnit's file has it as well."""
MAX_REPORTED = 10


class GpuLimitNotCheckedWarning(pytest.PytestWarning):
    """A limit of GPU memory was not checked."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tidegauge").addoption(
        OPTION,
        action="store_true",
        help=f"list the {MAX_REPORTED} tests with the highest peaks of allocated GPU memory",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f'{MARK}(limit): fail the test if it has more GPU memory allocated than this at any time: "2 GiB"'
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker(MARK)
    if mark is None and not item.config.getoption(OPTION):
        yield
        return
    try:
        limit = None if mark is None else _limit_bytes(mark)
    except ValueError as error:
        outcome: Any = yield
        _fail(outcome, str(error))
        return
    with _Measured(profiled=limit is not None) as measured:
        outcome = yield
    peak = measured.peak_bytes
    if peak is not None:
        item.user_properties.append((PEAK, peak))
    if limit is None or outcome.excinfo is not None:  # a test that failed says so
        return
    if peak is None:
        item.warn(GpuLimitNotCheckedWarning(f"{MARK} was not checked: {measured.problem}"))
    elif peak > limit:
        _fail(outcome, measured.failure(peak, limit))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not terminalreporter.config.getoption(OPTION):
        return
    found = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                found += [(value, report.nodeid) for name, value in report.user_properties if name == PEAK]
    terminalreporter.section("highest peaks of allocated GPU memory")
    for peak, test in sorted(found, key=lambda one: (-one[0], one[1]))[:MAX_REPORTED]:
        terminalreporter.write_line(f"{_format(peak):>10}  {test}")
    if not found:
        terminalreporter.write_line("no test has allocated any")


def _fail(outcome: Any, message: str) -> None:
    failure = pytest.fail.Exception(message, pytrace=False)
    if not hasattr(outcome, "force_exception"):  # pluggy before 1.1
        raise failure
    outcome.force_exception(failure)


class _Measured:
    """The GPU memory of a block: by PyTorch's counters, and with a profile where one is asked for."""

    def __init__(self, *, profiled: bool) -> None:
        self.peak_bytes: int | None = None
        """On the device where it is highest; ``None``: the block has allocated nothing, or there is no GPU."""
        self.problem = "PyTorch is not installed"
        self._profiled = profiled
        self._profile: AbstractContextManager[Any] = nullcontext()
        self._made: list[int] = []

    def __enter__(self) -> _Measured:
        torch = _torch(needed=self._profiled)
        if torch is not None and torch.cuda.is_initialized():
            for device in _devices(torch):
                torch.cuda.reset_peak_memory_stats(device)
            self._made = _counted(torch, "allocation.all.allocated")
        if self._profiled and torch is not None:
            self._profile = importlib.import_module("tidegauge").profile()
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        torch = _torch(needed=False)
        if torch is None:
            return
        if not torch.cuda.is_initialized():
            self.problem = "the test has not used a GPU" if torch.cuda.is_available() else "PyTorch has no GPU here"
            return
        peaks, made = _counted(torch, "allocated_bytes.all.peak"), _counted(torch, "allocation.all.allocated")
        if self._profiled or made != (self._made or [0] * len(made)):
            self.peak_bytes = max([*peaks, *self._profiled_peaks()], default=0)

    def failure(self, peak: int, limit: int) -> str:
        """What the test did, and what its memory was made of."""
        said = f"{_format(peak)} of GPU memory allocated at the peak, {_format(peak - limit)} over {_format(limit)}"
        return f"{said}\n\n{self._profile}"

    def _profiled_peaks(self) -> list[int]:
        """A test that resets PyTorch's peak has them all the same."""
        return [one.peak.allocated_bytes for one in getattr(self._profile, "profiles", {}).values()]


def _torch(*, needed: bool) -> Any:
    """Torch, if a test has imported it, or if it is ``needed`` and there; ``None``: a job without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None and needed:
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            return None
    return torch if hasattr(torch, "cuda") else None


def _devices(torch: Any) -> range:
    return range(torch.cuda.device_count())


def _counted(torch: Any, name: str) -> list[int]:
    """A counter of each device."""
    return [int(torch.cuda.memory_stats(device).get(name, 0)) for device in _devices(torch)]


def _limit_bytes(mark: pytest.Mark) -> int:
    """Raises ``ValueError``."""
    if len(mark.args) != 1 or mark.kwargs:
        raise ValueError(f'{MARK} takes one size, such as @pytest.mark.{MARK}("2 GiB")')
    try:
        size: int = importlib.import_module("tidegauge.cli.arguments").parse_size(str(mark.args[0]))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{MARK}: {error}") from error
    return size


def _format(count: int) -> str:
    text: str = importlib.import_module("tidegauge.core.units").format_bytes(count)
    return text
