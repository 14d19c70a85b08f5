"""A machine with several users, and an opener of root's on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from integration.needs import missing
from integration.security.opener_rig import (
    RunningOpener,
    running_opener,
)
from integration.security.users import Machine, machine


@pytest.fixture
def node() -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("it takes root to be several users")
    with machine() as one:
        yield one


@pytest.fixture
def opener(node: Machine) -> Iterator[RunningOpener]:
    with running_opener(node.run_dir) as one:
        yield one
