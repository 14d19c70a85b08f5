"""The switch for all actions: in doubt it is off, and a reset counts once, when it was written down."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegauge.cluster.incident_loops.action_switch import MAX_REASON_CHARS, ActionSwitch
from tidegauge.core.incidents.actions import Switches

NOON_S = 1_800_000_000.0
NOW_S = 1_800_000_100.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "actions.json"


@pytest.fixture
def switch(path: Path) -> ActionSwitch:
    return ActionSwitch(path)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[None]:
    """Somebody else is changing the file."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


def test_without_a_file_nothing_is_paused_and_nothing_was_reset(switch: ActionSwitch) -> None:
    assert switch.read(now_s=NOW_S) == Switches()


def test_a_pause_says_who_when_and_why(switch: ActionSwitch) -> None:
    switch.pause("moving\nthe  racks", "ada", NOON_S)
    paused = switch.read(now_s=NOW_S).paused
    assert paused is not None
    assert paused.startswith("by ada since 2027-01-1")
    assert paused.endswith(": moving the racks")


def test_a_pause_needs_no_reason_and_a_long_one_is_cut(switch: ActionSwitch) -> None:
    switch.pause(None, "ada", NOON_S)
    short = switch.read(now_s=NOW_S).paused
    switch.pause("x" * 9999, "ada", NOON_S)
    long = switch.read(now_s=NOW_S).paused
    assert short is not None
    assert long == f"{short}: {'x' * MAX_REASON_CHARS}"


def test_resuming_ends_the_pause_and_resets_the_breaker_at_the_moment_of_the_next_look(switch: ActionSwitch) -> None:
    switch.pause("maintenance", "ada", NOON_S)
    switch.resume("grace", NOON_S + 60)
    assert switch.read(now_s=NOW_S) == Switches(paused=None, breaker_reset_s=NOW_S)


def test_a_reset_counts_once_however_often_and_after_whatever_restart_it_is_read(path: Path) -> None:
    ActionSwitch(path).resume("ada", NOON_S)
    ActionSwitch(path).read(now_s=NOW_S)
    assert ActionSwitch(path).read(now_s=NOW_S + 50).breaker_reset_s == NOW_S
    ActionSwitch(path).resume("ada", NOON_S + 60)
    assert ActionSwitch(path).read(now_s=NOW_S + 70).breaker_reset_s == NOW_S + 70


def test_a_reset_that_another_thread_noted_meanwhile_is_not_noted_again(switch: ActionSwitch) -> None:
    switch.resume("ada", NOON_S)
    switch.read(now_s=NOW_S)
    assert switch._take_notice(NOW_S + 50).reset_s == NOW_S


def test_a_pause_keeps_the_reset_before_it(switch: ActionSwitch) -> None:
    switch.resume("ada", NOON_S)
    switch.read(now_s=NOW_S)
    switch.pause(None, "ada", NOON_S + 200)
    assert switch.read(now_s=NOW_S + 200).breaker_reset_s == NOW_S


@pytest.mark.usefixtures("locked")
def test_a_reset_that_cannot_be_noted_does_not_count(path: Path) -> None:
    asked = {"paused": None, "reset_asked_by": "ada", "reset_s": 7.0}
    path.write_text(json.dumps(asked))
    assert ActionSwitch(path).read(now_s=NOW_S) == Switches(paused=None, breaker_reset_s=7.0)
    assert json.loads(path.read_text()) == asked


@pytest.mark.usefixtures("locked")
def test_a_pause_is_seen_while_somebody_else_changes_the_file(path: Path) -> None:
    path.write_text(json.dumps({"paused": "by ada", "reset_asked_by": "ada", "reset_s": None}))
    assert ActionSwitch(path).read(now_s=NOW_S).paused == "by ada"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"paused": null}', "[" * 100_000,
        '{"paused": 1, "reset_asked_by": null, "reset_s": null}',
        '{"paused": null, "reset_asked_by": true, "reset_s": null}',
        '{"paused": null, "reset_asked_by": null, "reset_s": NaN}',
        '{"paused": null, "reset_asked_by": null, "reset_s": "3"}',
        '{"paused": null, "reset_asked_by": null, "reset_s": null, "more": 1}',
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_means_paused_and_says_what_mends_it(path: Path, text: str) -> None:
    path.write_text(text)
    paused = ActionSwitch(path).read(now_s=NOW_S).paused
    assert paused is not None
    assert "actions.json" in paused
    assert "tidegauge policy resume" in paused
    ActionSwitch(path).resume("ada", NOON_S)
    assert ActionSwitch(path).read(now_s=NOW_S) == Switches(breaker_reset_s=NOW_S)


def test_a_file_that_cannot_be_read_means_paused(path: Path) -> None:
    path.mkdir()
    assert "Is a directory" in (ActionSwitch(path).read(now_s=NOW_S).paused or "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=st.binary(max_size=200))
def test_whatever_the_file_holds_reading_never_raises(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert ActionSwitch(path).read(now_s=NOW_S).paused is not None


def test_a_damaged_file_can_be_paused_over(path: Path) -> None:
    path.write_text("{")
    ActionSwitch(path).pause("careful", "ada", NOON_S)
    assert (ActionSwitch(path).read(now_s=NOW_S).paused or "").endswith(": careful")


def test_the_file_is_closed_to_others(path: Path) -> None:
    ActionSwitch(path).pause(None, "ada", NOON_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_action_switch_file_set_by_root_belongs_to_the_state_directorys_owner(path: Path) -> None:
    os.chown(path.parent, 12345, 12345)
    ActionSwitch(path).pause(None, "root", NOON_S)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_a_pause_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ActionSwitch(tmp_path / "gone" / "actions.json").pause(None, "ada", NOON_S)
