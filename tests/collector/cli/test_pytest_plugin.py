"""The pytest plugin: limits of GPU memory, the report, and that it costs nothing where neither is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "tidegauge.cli.profile.pytest_plugin"
TORCH = """
import sys
from types import SimpleNamespace

stats = {"allocated_bytes.all.peak": 0, "allocation.all.allocated": 0}
held = 0


def allocate(mib):
    global held
    held += mib << 20
    stats["allocated_bytes.all.peak"] = max(stats["allocated_bytes.all.peak"], held)
    stats["allocation.all.allocated"] += 1


def free(mib):
    global held
    held -= mib << 20


def reset(device):
    stats["allocated_bytes.all.peak"] = held


cuda = SimpleNamespace(
    is_available=lambda: AVAILABLE, is_initialized=lambda: AVAILABLE, device_count=lambda: 1, init=lambda: None,
    reset_peak_memory_stats=reset, memory_stats=lambda device: dict(stats),
)
"""
"""A torch that counts, and cannot record."""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it may be installed, or not
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p {PLUGIN} -p no:cacheprovider")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    pytester.syspathinsert()
    return pytester


def with_gpu(project: pytest.Pytester, *, available: bool = True) -> None:
    project.makepyfile(torch=f"AVAILABLE = {available}\n{TORCH}")


LIMITED = """
    import pytest
    import torch

    @pytest.mark.limit_gpu_memory("{limit}")
    def test_step():
        torch.allocate(100)
        torch.free(100)
        {body}
"""


def test_a_test_within_its_limit_passes(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(LIMITED.format(limit="100 MiB", body=""))
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_test_beyond_its_limit_fails_and_says_by_how_much(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(LIMITED.format(limit="75 MiB", body=""))
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*100.0 MiB of GPU memory allocated at the peak, 25.0 MiB over 75.0 MiB"])


def test_a_failing_test_fails_for_its_own_reason(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(LIMITED.format(limit="75 MiB", body="assert False, 'the loss is wrong'"))
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the loss is wrong*"])
    result.stdout.no_fnmatch_line("*of GPU memory allocated*")


def test_the_peak_of_an_earlier_test_does_not_count(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(
        """
        import pytest
        import torch

        def test_large():
            torch.allocate(500)
            torch.free(500)

        @pytest.mark.limit_gpu_memory("10 MiB")
        def test_small():
            torch.allocate(9)
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('"plenty"', "*limit_gpu_memory: 'plenty' is not a size above 0*"),
        ("", "*limit_gpu_memory takes one size*"),
        ('"1 GiB", "2 GiB"', "*limit_gpu_memory takes one size*"),
    ],
)
def test_a_mark_that_makes_no_sense_fails_its_test(project: pytest.Pytester, mark: str, said: str) -> None:
    with_gpu(project)
    project.makepyfile(f"import pytest\n@pytest.mark.limit_gpu_memory({mark})\ndef test_step(): pass\n")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_without_a_gpu_the_limit_is_not_checked_and_a_warning_says_so(project: pytest.Pytester) -> None:
    with_gpu(project, available=False)
    project.makepyfile(LIMITED.format(limit="75 MiB", body=""))
    result = project.runpytest_inprocess("-Wdefault")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*limit_gpu_memory was not checked: PyTorch has no GPU here"])


def test_the_report_lists_tests_that_allocated_by_their_peaks(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(
        """
        import torch
        def test_none(): pass
        def test_small(): torch.allocate(1); torch.free(1)
        def test_large(): torch.allocate(30); torch.free(30)
        """
    )
    result = project.runpytest_inprocess("--gpu-memory-report")
    result.stdout.fnmatch_lines(
        ["*highest peaks of allocated GPU memory*", "  30.0 MiB  *::test_large", "   1.0 MiB  *::test_small"]
    )
    result.stdout.no_fnmatch_line("*::test_none")


def test_the_report_of_tests_without_a_gpu_says_so(project: pytest.Pytester) -> None:
    project.makepyfile("def test_none(): pass")
    project.runpytest_inprocess("--gpu-memory-report").stdout.fnmatch_lines(["no test has allocated any"])


def test_strict_markers_know_the_mark(project: pytest.Pytester) -> None:
    with_gpu(project)
    project.makepyfile(LIMITED.format(limit="1GiB", body=""))
    project.runpytest_inprocess("--strict-markers").assert_outcomes(passed=1)


def test_it_imports_nothing_before_a_test_has_the_mark() -> None:
    code = f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(["tidegauge", "tidegauge.cli", "tidegauge.cli.profile", PLUGIN])
