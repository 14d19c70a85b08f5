"""The supervisor as a real process over a small engine of our own: start, failure, death of the engine, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegauge.cli.errors import ENVIRONMENT
from tidegauge.cli.main import main
from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace, look_at_place
from tidegauge.cluster.ray_service.supervisor import RestartPace
from tidegauge.cluster.service_record import (
    NodeSpec,
    ServiceRecord,
    StateFiles,
    prepare_state_dir,
    read_record,
    write_spec,
)
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import descendants, is_alive, send_signal

SUPERVISE = """
import sys
import time
from pathlib import Path
from tidegauge.cluster.service_record import StateFiles, read_spec
from tidegauge.cluster.ray_service.supervisor import EngineCommands, RestartPace, supervise
root, start, deploy, stand_in, keeps_trying = sys.argv[1:]
files = StateFiles(Path(root))
fast = RestartPace(0.02, 0.02, 0.1, end_grace_s=0.02, end_deadline_s=60, monotonic_s=lambda: 20 * time.monotonic())
alone = [sys.executable, "-c", stand_in, str(files.agent_place)] if stand_in else []
commands = EngineCommands(["sh", "-c", start], ["sh", "-c", deploy], alone)
sys.exit(supervise(read_spec(files.node), files, commands, pace=fast, keeps_trying=keeps_trying == "yes"))
"""
"""Waits of seconds pass in hundredths, and those for a coordinator twenty times as fast."""

STAND_IN = """
import signal, sys
from pathlib import Path
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
AgentPlace(Path(sys.argv[1]), AgentKind.STAND_IN).wait()
signal.pause()
"""
"""An agent that only waits for the place."""

WITHIN_S = 60.0
CORRUPTED = (
    "[2026-11-30 07:46:17,015 C 31726 31726] (gcs_server) rocksdb_store_client.cc:179:  An unexpected system state has "
    "occurred. Check failed: open_status.ok() Failed to open RocksDB at {gcs}/tables: Corruption: CURRENT file "
    "corrupted"
)
"""What gcs_server of Ray 2.60 printed over a broken CURRENT."""


class Node:
    """A state directory and what supervises it. The engine is a ``sleep`` that goes by the name of raylet."""

    def __init__(self, root: Path) -> None:
        self.files = prepare_state_dir(root / "s")
        self.raylet = root / "raylet"
        self.raylet.symlink_to("/bin/sleep")
        self.supervisor: subprocess.Popen[bytes] | None = None

    @property
    def engine(self) -> str:
        """A shell line that leaves an engine behind: two daemons, one of which ignores SIGTERM."""
        return (
            f"setsid sh -c 'trap \"\" TERM; exec sleep 601' & {self.raylet} 600 & "
            "until [ $(cat /proc/$!/comm) = raylet ]; do :; done"
        )

    def fails_over(self, name: str, says: str = CORRUPTED) -> str:
        """A shell line that fails while a file of the saved cluster state is there, as a head's gcs_server would."""
        logs = f"{self.files.root}/engine/session_latest/logs"
        says = f"echo '{says.format(gcs=self.files.gcs)}' > {logs}/gcs_server.err"
        return f"test -e {self.files.gcs}/{name} && {{ mkdir -p {logs}; {says}; exit 1; }}"

    def supervise(
        self, start: str, deploy: str = "true", *, is_head: bool = True, stand_in: str = "", keeps_trying: bool = False
    ) -> None:
        spec = NodeSpec(
            state_dir=str(self.files.root), engine_dir=str(self.files.root / "engine"),
            token_file=str(self.files.token), head_address="127.0.0.1:1", node_address="127.0.0.1", is_head=is_head,
            settings={},
        )  # fmt: skip
        write_spec(self.files, spec)
        keeps = "yes" if keeps_trying else "no"
        command = [sys.executable, "-c", SUPERVISE, str(self.files.root), start, deploy, stand_in, keeps]
        self.supervisor = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)

    def until(self, true: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < deadline_s, self.record
            time.sleep(0.02)

    @property
    def record(self) -> ServiceRecord | None:
        return read_record(self.files)

    @property
    def phase(self) -> str | None:
        return None if self.record is None else self.record.phase

    def raylets(self) -> list[ProcessId]:
        assert self.supervisor is not None
        return [s.process for s in descendants(self.supervisor.pid) if s.name == "raylet" and not s.ended]

    def holder(self) -> ProcessId | None:
        state = look_at_place(self.files.agent_place)
        return state.holder.process if state.is_held and state.holder is not None else None

    def close(self) -> None:
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.terminate()
            self.supervisor.wait(WITHIN_S)


@pytest.fixture
def node(short_path: Path) -> Iterator[Node]:
    node = Node(short_path)
    yield node
    node.close()


def test_daemons_that_left_their_session_and_ignore_sigterm_end_with_the_service(node: Node) -> None:
    node.supervise(node.engine)
    node.until(lambda: node.phase == "running")
    (raylet,) = node.raylets()
    assert node.supervisor is not None
    everybody = [stat.process for stat in descendants(node.supervisor.pid)]
    assert len(everybody) == 2
    node.supervisor.terminate()
    assert node.supervisor.wait(WITHIN_S) == 0
    assert not any(is_alive(process) for process in [raylet, *everybody])
    assert sorted(path.name for path in node.files.root.iterdir()) == ["lock", "logs", "node.json"]


def test_an_engine_that_dies_is_started_again(node: Node) -> None:
    node.supervise(node.engine)
    node.until(lambda: node.phase == "running")
    (first,) = node.raylets()
    send_signal(first, signal.SIGKILL)
    node.until(lambda: node.raylets() not in ([], [first]) and node.phase == "running")
    assert len(node.raylets()) == 1


def test_a_first_start_that_fails_ends_the_service_and_says_why(node: Node) -> None:
    node.supervise("echo noise; echo RPC error: InvalidAuthToken: bla; exit 1")
    assert node.supervisor is not None
    assert node.supervisor.wait(WITHIN_S) == 3
    assert node.record is not None
    assert (node.record.phase, node.record.alive) == ("failed", False)
    assert "refuses the token" in node.record.detail
    assert "engine-start.log" in node.record.detail
    assert service_control.running_record(node.files) is None


def test_an_engine_that_dies_at_once_is_a_failed_start(node: Node) -> None:
    node.supervise("true")
    assert node.supervisor is not None
    assert node.supervisor.wait(WITHIN_S) == 3
    assert node.record is not None
    assert "there is no raylet" in node.record.detail


def test_a_node_whose_head_is_not_there_says_so_at_once(node: Node) -> None:
    node.supervise(node.engine, is_head=False)
    assert node.supervisor is not None
    assert node.supervisor.wait(WITHIN_S) == 3
    assert node.record is not None
    assert "no answer from 127.0.0.1:1" in node.record.detail


def test_cluster_state_that_the_engine_cannot_start_from_is_put_aside(node: Node) -> None:
    node.files.gcs.mkdir()
    (node.files.gcs / "broken").touch()
    node.supervise(f"{node.fails_over('broken')}; {node.engine}")
    node.until(lambda: node.phase == "running")
    assert [path.name for path in node.files.root.glob("gcs.broken-*/*")] == ["broken"]


@pytest.mark.parametrize(
    "says",
    [
        "The current node timed out during startup.",
        "Failed to open RocksDB at {gcs}/kv: IO error: While lock file: {gcs}/LOCK: Resource temporarily unavailable",
        "Failed to open RocksDB at {gcs}/kv: IO error: No space left on device: While appending to file",
        "gcs_server.cc:195: GCS storage type is StorageType::ROCKSDB_PERSIST",
    ],
)
def test_no_number_of_slow_starts_costs_the_cluster_state(node: Node, short_path: Path, says: str) -> None:
    """The nodes of a head that forgets them have to start anew."""
    tries, fail = short_path / "tries", node.files.gcs / "kept"
    node.supervise(f"echo >> {tries}; test -e {short_path}/again && {node.fails_over('kept', says)}; {node.engine}")
    node.until(lambda: node.phase == "running")
    (first,) = node.raylets()
    node.files.gcs.mkdir()
    fail.touch()
    (short_path / "again").touch()
    send_signal(first, signal.SIGKILL)
    node.until(lambda: len(tries.read_text()) > 5)
    assert fail.exists()
    (short_path / "again").unlink()
    node.until(lambda: node.raylets() not in ([], [first]) and node.phase == "running")
    assert fail.exists()
    assert list(node.files.root.glob("gcs.broken-*")) == []


def test_cluster_state_that_breaks_while_the_service_runs_is_put_aside_too(node: Node) -> None:
    earlier = node.files.root / "gcs.broken-1"
    earlier.mkdir()
    node.supervise(f"{node.fails_over('broken')}; {node.engine}")
    node.until(lambda: node.phase == "running")
    (first,) = node.raylets()
    node.files.gcs.mkdir()
    (node.files.gcs / "broken").touch()
    send_signal(first, signal.SIGKILL)
    node.until(lambda: node.raylets() not in ([], [first]) and node.phase == "running")
    assert [path.name for path in node.files.root.glob("gcs.broken-*/*")] == ["broken"]
    assert not earlier.exists()


def test_supervisor_keeps_the_first_broken_gcs_state_through_failed_restarts(node: Node, short_path: Path) -> None:
    fail, tries = short_path / "fail", short_path / "tries"
    over = node.fails_over("good")
    node.supervise(f"echo >> {tries}; mkdir -p {node.files.gcs}; {over}; test -e {fail} && exit 1; {node.engine}")
    node.until(lambda: node.phase == "running")
    (first,) = node.raylets()
    (node.files.gcs / "good").touch()
    fail.touch()
    send_signal(first, signal.SIGKILL)
    node.until(
        lambda: len(tries.read_text()) > 3
    )  # the first, one that failed over the state, one without it: the next
    assert [path.name for path in node.files.root.glob("gcs.broken-*/*")] == ["good"]


def test_a_coordinator_that_does_not_start_is_a_failed_start(node: Node) -> None:
    node.supervise(node.engine, "echo no actors today; exit 3")
    assert node.supervisor is not None
    assert node.supervisor.wait(WITHIN_S) == 3
    assert node.record is not None
    assert "the coordinator did not start: no actors today" in node.record.detail


def test_a_second_supervisor_for_the_same_state_directory_refuses(node: Node, short_path: Path) -> None:
    node.supervise(node.engine)
    node.until(lambda: node.phase == "running")
    assert node.record is not None
    command = [sys.executable, "-c", SUPERVISE, str(node.files.root), "true", "true", "", "no"]
    assert subprocess.run(command, capture_output=True, timeout=WITHIN_S, check=False).returncode == 3
    assert node.phase == "running"


def test_a_node_whose_agent_can_never_start_is_a_failed_start(node: Node) -> None:
    node.files.agent_place.mkdir()
    node.supervise(node.engine, stand_in=STAND_IN, keeps_trying=True)
    assert node.supervisor is not None
    assert node.supervisor.wait(WITHIN_S) == 3
    assert node.record is not None
    assert node.record.phase == "failed"
    assert f"{node.files.agent_place}'" in node.record.detail


def test_a_service_that_gives_up_over_another_agent_leaves_the_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service_control, "FIRST_AGENT_TIMEOUT_S", 0.1)
    other = AgentPlace(node.files.agent_place, AgentKind.ENGINE)
    assert other.take()
    node.supervise(node.engine)
    assert node.supervisor is not None
    with pytest.raises(service_control.ServiceError) as caught:
        service_control.wait_until_up(node.files, node.supervisor, lambda _: None)
    why = f"no agent of this service can be at work: another agent (pid {os.getpid()}) holds {node.files.agent_place}"
    assert str(caught.value).startswith(why)
    service_control.give_up(node.files, node.supervisor, str(caught.value))
    assert node.supervisor.poll() is not None
    assert main(["status", "--set", f"state_dir={node.files.root}"]) == ENVIRONMENT
    assert f"the last `tidegauge up` failed: {why}" in capsys.readouterr().err
    other.release()


def test_a_place_that_breaks_while_the_service_runs_does_not_end_the_supervisor(node: Node) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)
    node.until(lambda: node.phase == "running" and node.holder())
    node.files.agent_place.rename(node.files.root / "aside")
    node.files.agent_place.mkdir()
    (raylet,) = node.raylets()
    send_signal(raylet, signal.SIGKILL)
    node.until(lambda: node.phase == "running" and node.raylets() not in ([], [raylet]))


def test_a_stop_while_the_engine_starts_leaves_nothing(node: Node) -> None:
    node.supervise("sleep 603; true")
    assert node.supervisor is not None
    pid = node.supervisor.pid
    node.until(lambda: "sleep" in {stat.name for stat in descendants(pid)})
    starting = [stat.process for stat in descendants(pid)]
    node.supervisor.terminate()
    assert node.supervisor.wait(WITHIN_S) == 0
    assert not any(is_alive(process) for process in starting)


def test_service_control_ends_processes_left_by_a_killed_supervisor(node: Node) -> None:
    node.supervise(node.engine)
    node.until(lambda: node.phase == "running")
    assert node.supervisor is not None
    record = node.record
    assert record is not None
    left = [stat.process for stat in descendants(node.supervisor.pid)]
    os.kill(node.supervisor.pid, signal.SIGKILL)
    node.supervisor.wait(WITHIN_S)
    assert any(is_alive(process) for process in left)
    quick = RestartPace(end_grace_s=0.02, end_deadline_s=WITHIN_S)
    assert service_control.end(StateFiles(node.files.root), lambda _: None, pace=quick) is True
    assert not any(is_alive(process) for process in left)


def test_a_coordinator_that_failed_to_start_later_is_started_again(node: Node, short_path: Path) -> None:
    """The deploy command is called once with the engine, and again as nobody is announced."""
    calls = short_path / "calls"
    node.supervise(node.engine, f"echo once >> {calls}")
    node.until(lambda: calls.exists() and len(calls.read_text().split()) >= 2)
    assert node.phase == "running"


def test_node_has_an_agent_beside_the_engine_that_outlives_the_engines_restart(node: Node) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)
    node.until(lambda: node.phase == "running" and node.holder())
    stand_in, (raylet,) = node.holder(), node.raylets()
    send_signal(raylet, signal.SIGKILL)
    node.until(lambda: node.phase == "running" and node.raylets() not in ([], [raylet]))
    assert node.holder() == stand_in is not None
    node.close()
    assert not is_alive(stand_in)


def test_agent_beside_the_engine_that_is_killed_is_followed_by_another(node: Node) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)
    node.until(lambda: node.phase == "running" and node.holder())
    first = node.holder()
    assert first is not None
    send_signal(first, signal.SIGKILL)
    node.until(lambda: node.holder() not in (None, first))


def test_agent_beside_the_engine_that_is_stopped_is_followed_by_another(node: Node) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)
    node.until(lambda: node.phase == "running" and node.holder())
    first = node.holder()
    assert first is not None
    send_signal(first, signal.SIGSTOP)
    node.until(lambda: node.holder() not in (None, first))
    assert not is_alive(first)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_agent_that_waits_beside_the_engine_is_replaced_when_it_is_gone_or_stopped(node: Node, number: int) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)

    def waiting() -> list[ProcessId]:
        assert node.supervisor is not None
        beside = [s for s in descendants(node.supervisor.pid) if s.name.startswith("python") and not s.ended]
        return [s.process for s in beside if node.holder() and s.process != node.holder()]

    seen: list[list[ProcessId]] = [[]]

    def one_stays() -> bool:
        """At two looks: a command of the supervisor's has its name, too, until it is executed."""
        seen.append(waiting())
        return node.phase == "running" and len(seen[-1]) == 1 and seen[-1] == seen[-2]

    node.until(one_stays)
    holder, (first,) = node.holder(), seen[-1]
    send_signal(first, number)
    node.until(lambda: waiting() not in ([], [first]))
    assert node.holder() == holder


def test_engines_agent_takes_the_place_and_the_supervisor_leaves_it_there(node: Node) -> None:
    node.supervise(node.engine, stand_in=STAND_IN)
    node.until(lambda: node.phase == "running" and node.holder())
    beside = node.holder()
    assert beside is not None
    place = AgentPlace(node.files.agent_place, AgentKind.ENGINE)
    place.take_over()
    node.until(lambda: not is_alive(beside))
    ours = node.holder()
    time.sleep(0.2)  # ten looks
    assert node.holder() == ours != beside
    place.release()
    node.until(lambda: node.holder() not in (None, ours))


def test_node_that_keeps_trying_has_an_agent_before_its_head_was_ever_there(node: Node) -> None:
    node.supervise(node.engine, is_head=False, stand_in=STAND_IN, keeps_trying=True)
    node.until(lambda: node.phase == "restarting" and node.holder())
    stand_in = node.holder()
    assert "is the head up" in str(node.record and node.record.detail)
    node.close()
    assert node.supervisor is not None
    assert node.supervisor.returncode == 0
    assert stand_in is not None
    assert not is_alive(stand_in)
