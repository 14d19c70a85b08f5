"""The place of a node's agent: one holder at any time, whatever ends it, and a successor that asks it to go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

from tidegauge.cluster.ray_service.agent_place import (
    END_GRACE_S,
    LEAVE_S,
    AgentKind,
    AgentPlace,
    PlaceHolder,
    PlaceState,
    look_at_place,
    why_not_ours,
)
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import identity_of

HOLD = """
import signal, sys
from pathlib import Path
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
place = AgentPlace(Path(sys.argv[1]), AgentKind.STAND_IN)
assert place.take()
place.serves_at(9401)
print("held", flush=True)
signal.pause()
"""


class Holders:
    """Processes that hold a place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._all: list[subprocess.Popen[str]] = []

    def start(self, how: str = "polite") -> subprocess.Popen[str]:
        """One that has taken it."""
        holder = subprocess.Popen([sys.executable, "-c", HOLD, str(self.path), how], stdout=subprocess.PIPE, text=True)
        self._all.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    def close(self) -> None:
        for holder in self._all:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    holders = Holders(tmp_path / "agent.lock")
    yield holders
    holders.close()


def me() -> ProcessId:
    process = identity_of(os.getpid())
    assert process is not None
    return process


class Waits:
    """A clock that passes while somebody sleeps on it."""

    def __init__(self, *, pace: float = 1.0) -> None:
        self.now_s = 0.0
        self._pace = pace

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds * self._pace


def test_place_that_nobody_took_is_free(tmp_path: Path) -> None:
    assert look_at_place(tmp_path / "agent.lock") == PlaceState(is_held=False, holder=None, beat_ns=0)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_place_that_is_no_file_says_what_to_do_and_is_taken_when_that_is_done(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.lock"
    make(path)
    with pytest.raises(OSError, match=r"remove it, .*agent\.lock"):
        look_at_place(path)
    waits = Waits()

    def sleep(seconds: float) -> None:
        waits.sleep(seconds)
        if waits.now_s > 10:
            path.rename(tmp_path / "aside")

    place = AgentPlace(path, AgentKind.ENGINE, monotonic_s=waits.monotonic_s, sleep=sleep)
    place.take_over()
    assert look_at_place(path).is_held
    assert len(caplog.records) == 1
    place.release()


def test_place_whose_file_is_deleted_is_taken_anew_at_the_next_beat(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    place = AgentPlace(path, AgentKind.ENGINE)
    assert place.take()
    place.serves_at(9401)
    path.unlink()
    assert not look_at_place(path).is_held
    place.beat()
    state = look_at_place(path)
    assert (state.is_held, state.holder) == (True, PlaceHolder(me(), AgentKind.ENGINE, 9401))
    place.release()
    assert not look_at_place(path).is_held


def test_holder_of_a_deleted_file_ends_where_another_agent_has_the_place(holders: Holders) -> None:
    asked: list[tuple[ProcessId, int]] = []

    def kill(process: ProcessId, number: int) -> bool:
        asked.append((process, number))
        return True

    place = AgentPlace(holders.path, AgentKind.ENGINE, kill=kill)
    assert place.take()
    holders.path.unlink()
    holders.start()
    place.beat()
    assert asked == [(me(), signal.SIGTERM)]
    place.release()


def test_waiter_takes_the_place_at_its_path_and_no_deleted_file(holders: Holders) -> None:
    holder = holders.start()

    def delete_and_end() -> None:
        holders.path.unlink()
        holder.kill()

    timer = Timer(0.2, delete_and_end)
    timer.start()
    place = AgentPlace(holders.path, AgentKind.STAND_IN)
    place.wait()
    state = look_at_place(holders.path)
    assert (state.is_held, state.holder) == (True, PlaceHolder(me(), AgentKind.STAND_IN, None))
    place.release()


def test_place_is_held_by_one_and_says_by_whom(holders: Holders) -> None:
    held = holders.start()
    state = look_at_place(holders.path)
    assert state.is_held
    assert state.holder is not None
    assert (state.holder.process.pid, state.holder.kind, state.holder.port) == (held.pid, AgentKind.STAND_IN, 9401)
    assert not AgentPlace(holders.path, AgentKind.STAND_IN).take()


def test_place_of_a_killed_holder_is_free_and_its_port_known(holders: Holders) -> None:
    held = holders.start()
    held.kill()
    held.wait()
    place = AgentPlace(holders.path, AgentKind.ENGINE)
    assert place.take()
    assert place.last_port == 9401
    assert look_at_place(holders.path).holder == PlaceHolder(me(), AgentKind.ENGINE, 9401)
    place.release()
    assert not look_at_place(holders.path).is_held


def test_engines_agent_asks_the_holder_to_end_and_takes_its_place(holders: Holders) -> None:
    held = holders.start()
    place = AgentPlace(holders.path, AgentKind.ENGINE)
    place.take_over()
    assert held.wait(60) == -signal.SIGTERM
    assert look_at_place(holders.path).holder == PlaceHolder(me(), AgentKind.ENGINE, 9401)
    place.release()


@pytest.mark.parametrize("how", ["stubborn", "stopped"])
def test_holder_that_does_not_end_is_killed(holders: Holders, how: str) -> None:
    held = holders.start(how)
    if how == "stopped":
        os.kill(held.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, held.pid, os.WSTOPPED)  # until then a SIGTERM would overtake it
    clock = Waits(pace=10 * END_GRACE_S)
    place = AgentPlace(holders.path, AgentKind.ENGINE, monotonic_s=clock.monotonic_s, sleep=clock.sleep)
    place.take_over()
    assert held.wait(60) == -signal.SIGKILL
    place.release()


def test_place_taken_twice_by_one_process_is_one_hold(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path / "agent.lock", AgentKind.ENGINE)
    assert place.take()
    assert place.take()
    place.release()
    assert not look_at_place(tmp_path / "agent.lock").is_held


def test_beats_show_from_outside_once_a_second(tmp_path: Path) -> None:
    clock = Waits()
    place = AgentPlace(tmp_path / "agent.lock", AgentKind.ENGINE, monotonic_s=clock.monotonic_s)
    assert place.take()
    place.beat()
    os.utime(place._path, ns=(1, 1))
    place.beat()
    assert look_at_place(tmp_path / "agent.lock").beat_ns == 1  # not yet
    clock.now_s += 1.0
    place.beat()
    assert look_at_place(tmp_path / "agent.lock").beat_ns > 1
    place.release()


@pytest.mark.parametrize("content", [b"", b"{", json.dumps({"process": [1], "kind": "?", "port": 1}).encode()])
def test_place_whose_file_says_nothing_of_use_is_taken_all_the_same(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.lock"
    path.write_bytes(content)
    assert look_at_place(path) == PlaceState(is_held=False, holder=None, beat_ns=path.stat().st_mtime_ns)
    place = AgentPlace(path, AgentKind.ENGINE)
    assert place.take()
    assert place.last_port is None
    place.release()


def test_stand_in_that_waits_has_the_place_when_the_holder_is_killed(holders: Holders) -> None:
    held = holders.start()
    Timer(0.2, held.kill).start()
    place = AgentPlace(holders.path, AgentKind.STAND_IN)
    place.wait()
    assert place.last_port == 9401
    assert look_at_place(holders.path).holder == PlaceHolder(me(), AgentKind.STAND_IN, 9401)
    place.release()


def test_stand_in_that_waits_leaves_the_place_to_an_agent_of_the_engines(tmp_path: Path) -> None:
    path, asked = tmp_path / "agent.lock", []
    before = AgentPlace(path, AgentKind.STAND_IN)
    assert before.take()
    clock = Waits()

    def sleep(seconds: float) -> None:
        """The engine's agent has asked; the holder ends, and the other stand-in is the first to see it."""
        asked.append(seconds)
        if len(asked) == 1:
            before.release()
            AgentPlace(path, AgentKind.STAND_IN, monotonic_s=clock.monotonic_s, sleep=leaves).wait()

    def leaves(seconds: float) -> None:
        clock.sleep(seconds)
        raise InterruptedError

    engine = AgentPlace(path, AgentKind.ENGINE, sleep=sleep)
    with pytest.raises(InterruptedError):
        engine.take_over()
    assert not look_at_place(path).is_held
    assert engine.take()
    engine.release()


def test_stand_in_takes_the_place_after_all_where_the_engines_agent_only_wants_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "agent.lock", Waits()
    before = AgentPlace(path, AgentKind.STAND_IN)
    assert before.take()
    waits = AgentPlace(path, AgentKind.STAND_IN, monotonic_s=clock.monotonic_s, sleep=clock.sleep)

    def stopped(_: float) -> None:
        before.release()
        waits.wait()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        AgentPlace(path, AgentKind.ENGINE, sleep=stopped).take_over()
    assert LEAVE_S <= clock.now_s < LEAVE_S + 1
    assert look_at_place(path).is_held
    waits.release()


def test_place_says_which_other_agent_keeps_ours_from_it(tmp_path: Path, holders: Holders) -> None:
    path = holders.path
    assert why_not_ours(path, os.getpid()) is None, "nobody has it"
    holder = holders.start()
    assert why_not_ours(path, os.getpid()) is None, "it descends from this process"
    why = why_not_ours(path, holder.pid + 1)
    assert why == f"another agent (pid {holder.pid}) holds {path} and has not ended when asked to: end it (`kill " \
        f"{holder.pid}`)"  # fmt: skip
    path.write_text(json.dumps({"process": [holder.pid, 1], "kind": "engine", "port": None}))
    assert "in another container or on another host" in (why_not_ours(path, os.getpid()) or "")
    path.write_text("")
    assert f"end it (`fuser {path}` names it)" in (why_not_ours(path, os.getpid()) or "")
    holders.close()
    path.unlink()
    path.mkdir()
    assert "remove it" in (why_not_ours(path, os.getpid()) or "")


def test_agent_that_waits_for_its_place_in_vain_says_once_who_has_it(
    holders: Holders, caplog: pytest.LogCaptureFixture
) -> None:
    holder, waits = holders.start(), Waits()

    def kills_nobody(_: ProcessId, __: int) -> bool:
        if waits.now_s > 8 * END_GRACE_S:
            holder.kill()
            holder.wait()
        return False

    place = AgentPlace(
        holders.path, AgentKind.ENGINE, monotonic_s=waits.monotonic_s, sleep=waits.sleep, kill=kills_nobody
    )  # fmt: skip
    place.take_over()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"this agent waits for its place: another agent (pid {holder.pid}) holds {holders.path}")
    place.release()


def test_file_that_cannot_be_made_is_tried_again_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, slept = tmp_path / "later", []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            folder.mkdir()

    place = AgentPlace(folder / "agent.lock", AgentKind.ENGINE, sleep=sleep)
    place.take_over()
    assert len(slept) == 3
    assert len(caplog.records) == 1
    place.release()
