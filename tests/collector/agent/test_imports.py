"""The agent is on every node: what it imports is memory that every node pays."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"llvmlite", "matplotlib", "numba", "numpy", "pandas", "scipy", "sqlalchemy", "torch"}
"""Installed beside it on many nodes. numba and what it brings took 25 MiB of the agent's own memory."""


@pytest.mark.parametrize("module", ["tidegauge.agent.node_agent", "tidegauge_exporter.metrics.server"])
def test_the_agent_brings_no_heavy_library_along(module: str) -> None:
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) & HEAVY == set()
