"""When the supervisor sees to a coordinator that does not announce itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.cluster.ray_service.supervisor import COORDINATOR_AWAY_S, CoordinatorCare
from tidegauge.cluster.service_record import StateFiles, prepare_state_dir, write_address


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare_state_dir(tmp_path / "s")


def test_a_coordinator_that_announces_itself_is_left_alone(files: StateFiles) -> None:
    now_s = [0.0]
    care = CoordinatorCare(files, lambda: now_s[0])
    write_address(files.api, "http://127.0.0.1:9495")
    for now_s[0] in range(0, 600, 2):
        assert not care.is_due()


def test_a_coordinator_that_is_not_announced_is_seen_to_less_and_less_often(files: StateFiles) -> None:
    now_s = [0.0]
    care = CoordinatorCare(files, lambda: now_s[0])
    due_s = []
    for now_s[0] in range(0, 300, 2):
        if care.is_due():
            due_s.append(now_s[0])
    assert due_s == [10, 30, 70, 130, 190, 250]
    write_address(files.api, "http://127.0.0.1:9495")
    assert not care.is_due()
    files.api.unlink()
    assert not care.is_due()
    now_s[0] += COORDINATOR_AWAY_S
    assert care.is_due()
