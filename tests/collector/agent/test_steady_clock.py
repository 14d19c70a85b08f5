"""The clock that files age by: whatever is done to the host's clock, they become old by the time that really passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import rank_view
from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import FolderStore
from tidegauge.steady_clock import MAX_AHEAD_S, SAVE_EVERY_S, SteadyClock, boottime_s, read_boot_id

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S
START_S = 1.8e9


@dataclass
class Host:
    """A host whose clock somebody sets, and which may boot."""

    wall: float = START_S
    since_boot: float = 1000.0
    boots: int = 1

    def clock(self, path: Path) -> SteadyClock:
        """Of an agent that starts now."""
        return SteadyClock(
            path, wall_s=lambda: self.wall, since_boot_s=lambda: self.since_boot, boot_id=lambda: f"boot {self.boots}"
        )

    def let_pass(self, seconds: float) -> None:
        self.wall += seconds
        self.since_boot += seconds

    def boot(self, *, off_s: float = 0.0) -> None:
        self.wall += off_s
        self.since_boot = 10.0
        self.boots += 1


def test_steady_clock_starts_at_the_host_clock(tmp_path: Path) -> None:
    assert Host().clock(tmp_path / "clock").unix_s() == START_S


@given(jump_s=st.floats(-50 * YEAR_S, 50 * YEAR_S), passed_s=st.floats(0, YEAR_S), restart=st.booleans())
def test_no_setting_of_the_clock_is_seen_in_the_life_of_a_host(
    tmp_path_factory: pytest.TempPathFactory, jump_s: float, passed_s: float, restart: bool
) -> None:
    path = tmp_path_factory.mktemp("state") / "clock"
    host = Host()
    clock = host.clock(path)
    assert clock.unix_s() == START_S
    host.wall += jump_s
    host.let_pass(passed_s)
    clock = host.clock(path) if restart else clock
    assert clock.unix_s() == pytest.approx(START_S + passed_s, abs=1e-3)


@pytest.mark.parametrize(
    ("off_s", "seen_s"),
    [(3600.0, 3600.0), (60 * DAY_S, MAX_AHEAD_S), (-50 * YEAR_S, 0.0)],
    ids=["the clock is right", "off for long, or the clock leads", "the clock's battery is empty"],
)
def test_a_boot_lets_a_day_pass_at_most(tmp_path: Path, off_s: float, seen_s: float) -> None:
    host = Host()
    host.clock(tmp_path / "clock").unix_s()
    host.boot(off_s=off_s)
    assert host.clock(tmp_path / "clock").unix_s() == pytest.approx(START_S + seen_s)


def test_steady_clock_after_a_reboot_lags_by_one_save_interval_at_most(tmp_path: Path) -> None:
    host = Host()
    clock = host.clock(tmp_path / "clock")
    for _ in range(100):
        clock.unix_s()
        host.let_pass(SAVE_EVERY_S / 2)
    host.boot(off_s=-YEAR_S)
    assert host.clock(tmp_path / "clock").unix_s() > START_S + 99 * SAVE_EVERY_S / 2 - SAVE_EVERY_S


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"unix_s": "x", "since_boot_s": 1, "boot_id": "a"}'])
def test_a_damaged_file_is_said_and_the_host_believed(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "clock").write_text(content)
    assert Host().clock(tmp_path / "clock").unix_s() == START_S
    assert "cannot be used" in caplog.text


def test_a_disk_that_cannot_be_written_costs_nothing_but_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    host = Host()
    clock = host.clock(tmp_path / "file" / "clock")
    for _ in range(3):
        host.let_pass(SAVE_EVERY_S)
        clock.unix_s()
    assert clock.unix_s() == START_S + 3 * SAVE_EVERY_S
    assert caplog.text.count("cannot be written") == 1


def test_the_real_clocks_of_this_host(tmp_path: Path) -> None:
    first = SteadyClock(tmp_path / "clock").unix_s()
    assert SteadyClock(tmp_path / "clock", wall_s=lambda: 0.0).unix_s() == pytest.approx(first, abs=60.0)
    assert len(read_boot_id()) == 36
    assert boottime_s() > 0


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_jump_of_the_clock_deletes_no_snapshot(tmp_path: Path, jump_s: float) -> None:
    host = Host()
    store = FolderStore(tmp_path / "snapshots", hostname="node-a")

    def shelf() -> SnapshotArchive:
        keeping = Keeping(14 * DAY_S, 1 << 20)
        clock = host.clock(tmp_path / "clock")
        return SnapshotArchive(store, keeping, EvidenceBudget(), cluster="lab", steady_unix_s=clock.unix_s)

    def keep(step: int) -> str:
        ref = on.keep(
            rank_view(), b"columns", step=step, at_unix_s=host.wall, now_s=0.0, now_unix_s=host.wall, protected=()
        )
        return ref.key

    def kept() -> set[str]:
        on.tidy(now_unix_s=host.wall, wanted=frozenset(), protected=())
        return {entry.key for entry in store.entries()}

    on = shelf()
    before = keep(1)
    host.wall += jump_s
    meanwhile = keep(2)
    assert kept() == {before, meanwhile}
    on = shelf()  # the agent is restarted while the clock is wrong
    assert kept() == {before, meanwhile}
    host.wall -= jump_s
    host.let_pass(13 * DAY_S)
    assert kept() == {before, meanwhile}
    host.let_pass(2 * DAY_S)
    assert kept() == set()
