"""What to do where a test's server or compiler is missing: say so; and in CI, where nothing may be missing, fail."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """End the running test: skipped with ``reason`` on a person's machine, failed in CI (``CI=true``)."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (scripts/system_packages.sh and `make rig` provide it)")
    pytest.skip(reason)
