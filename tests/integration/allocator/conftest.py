"""The recordings of the real allocators, made once a session."""

from __future__ import annotations

import pytest

from integration.allocator.recordings import Recorder


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("allocators"))
