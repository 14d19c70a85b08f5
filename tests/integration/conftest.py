"""Fixtures for tests that use real servers or the fake-GPU rig."""

from __future__ import annotations

import pytest

from fakegpu.rig import Rig
from integration.needs import missing


@pytest.fixture(scope="session")
def rig() -> Rig:
    """The fake-GPU rig, built; the test is skipped with the reason where it cannot be."""
    rig = Rig()
    reason = rig.available()
    if reason is not None:
        missing(reason)
    return rig
