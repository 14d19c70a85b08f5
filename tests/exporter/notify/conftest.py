from __future__ import annotations

from pathlib import Path

import pytest

from exporter.notify.channel import Channel


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    return Channel(tmp_path / "notified.jsonl")
