"""Starts and ends the service of one state directory, for the commands. No Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tidegauge.cluster.api import client
from tidegauge.cluster.ray_service.agent_place import AgentKind, look_at_place, why_not_ours
from tidegauge.cluster.ray_service.supervisor import KEEP_TRYING, RestartPace
from tidegauge.cluster.service_record import (
    RecordError,
    ServiceRecord,
    StateFiles,
    announced_by,
    local_api,
    read_record,
    remove_traces,
    take_lock,
    write_record,
)
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.files import why_unwritable
from tidegauge.osproc.processes import (
    end_processes,
    is_alive,
    send_signal,
    session_members,
    stat_of,
)
from tidegauge.steady_clock import read_boot_id

FIRST_AGENT_TIMEOUT_S = 60.0
"""From "the engine runs" to the first report of this node's agent; 2-4 s where the machine is not busy."""
POLL_S = 0.1

Progress = Callable[[str], None]
"""Called with a sentence whenever something else is being waited for."""


class ServiceError(Exception):
    """The service did not start or did not end; the message names the log."""


def running_record(files: StateFiles) -> ServiceRecord | None:
    """The record of the running service, or ``None``: a record that a crash left behind does not count.

    Raises ``RecordError``.
    """
    record = read_record(files)
    return record if record is not None and record.alive else None


def start_in_background(files: StateFiles) -> subprocess.Popen[bytes]:
    """Start the supervisor for ``node.json``, in a session of its own, so that it outlives terminal and caller."""
    with (files.logs / "supervisor.out").open("w") as output:
        return subprocess.Popen(
            supervisor_command(files), cwd=files.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip


def run_in_foreground(files: StateFiles, *, keeps_trying: bool) -> int:
    """Be the service until a signal ends it; the exit code is the supervisor's. ``keeps_trying``: also after a first
    start that failed.

    systemd and containers make this process a session leader, and it becomes the supervisor itself. From a shell it
    is not one: then the supervisor is a child, and signals are passed on to it.
    """
    os.chdir(files.root)
    command = [*supervisor_command(files), *([KEEP_TRYING] if keeps_trying else [])]
    if os.getsid(0) == os.getpid():
        os.execv(sys.executable, command)
    child = subprocess.Popen(command, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    return child.wait()


def supervisor_command(files: StateFiles) -> list[str]:
    return [sys.executable, "-m", "tidegauge.cluster.ray_service.supervisor", str(files.node)]


def wait_until_up(files: StateFiles, supervisor: subprocess.Popen[bytes], progress: Progress) -> ServiceRecord:
    """Wait until the engine runs and this node's agent reports. Raises ``ServiceError`` if the supervisor gives up."""
    record = _wait_for_engine(files, supervisor, progress)
    progress("waiting for this node's agent")
    deadline_s = time.monotonic() + FIRST_AGENT_TIMEOUT_S
    while not _agent_is_there(files, record):
        if supervisor.poll() is not None:
            raise ServiceError(f"the service ended during startup; see {files.logs}")
        if time.monotonic() > deadline_s:
            if (why := why_not_ours(files.agent_place, supervisor.pid)) is not None:
                raise ServiceError(f"no agent of this service can be at work: {why}")
            raise ServiceError(
                f"the engine is running, but no agent has reported from this node for {FIRST_AGENT_TIMEOUT_S:.0f} "
                f"s; see {files.logs}/agent.log here and "
                f"{'' if record.spec.is_head else 'on the head '}coordinator.log"
            )
        time.sleep(POLL_S)
    return record


def give_up(
    files: StateFiles,
    supervisor: subprocess.Popen[bytes],
    why: str,
    *,
    pace: RestartPace = RestartPace(),  # noqa: B008 - a constant
) -> None:
    """End a service that did not come up, and leave the reason to ``tidegauge status``."""
    record = _record_of(files, supervisor.pid)
    supervisor.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        supervisor.wait(pace.end_deadline_s + 5)
    if record is not None and not record.alive:
        with contextlib.suppress(OSError):  # a full disk: `up` says it
            write_record(files, dataclasses.replace(record, phase="failed", detail=why))


def why_not_seen(files: StateFiles, record: ServiceRecord | None) -> str | None:
    """Why nothing may be done with the state directory though its record names no living supervisor: one has the lock.
    ``None``: none has."""
    if record is not None and record.alive:
        return None
    try:
        handle = os.open(files.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return (
            f"a service that cannot be seen here uses the state directory {files.root}: it has just been started, or "
            "runs in another container or on another host. Run this there, or choose another directory with "
            "--set state_dir=DIR"
        )
    finally:
        os.close(handle)
    return None


def end(
    files: StateFiles,
    progress: Progress,
    *,
    pace: RestartPace = RestartPace(),  # noqa: B008 - a constant
) -> bool:
    """End the service of this state directory and remove what it needed only while it ran.

    Works as well after a crash, when only leftovers are there. ``False`` if there was nothing to end. Raises
    ``ServiceError`` if a process does not end.
    """
    try:
        record = read_record(files)
    except RecordError as error:
        # Without it nobody knows which processes are the service's: touch none.
        try:
            lock = take_lock(files)
        except OSError:
            raise ServiceError(str(error)) from error
        if lock is None:
            raise ServiceError(
                f"a service is running, but {error}; end its processes one by one, as `ps` shows them"
            ) from error
        os.close(lock)
        files.record.unlink()
        return True
    if record is None:
        return False
    if (why := why_not_seen(files, record)) is not None:
        raise ServiceError(why)
    if record.alive:
        progress("ending the service")
        _end_supervisor(record, deadline_s=pace.end_deadline_s + 5)
    left = sweep(record, pace=pace)
    if left:
        names = ", ".join(f"{stat.process.pid} ({stat.name})" for stat in left)
        raise ServiceError(f"these processes of the service did not end: {names}")
    remove_traces(files, record.spec)
    files.record.unlink(missing_ok=True)
    return True


def sweep(
    record: ServiceRecord,
    *,
    pace: RestartPace = RestartPace(),  # noqa: B008 - a constant
) -> list[ProcStat]:
    """End every process of the service that is still there; returns those that do not end.

    With the supervisor's own end nothing is left. After it was killed, its session and its record tell who is ours.
    """
    if record.boot_id != read_boot_id():
        return []

    def ours() -> list[ProcStat]:
        known = [stat_of(process.pid) for process, _ in record.processes if is_alive(process)]
        return [stat for stat in known if stat is not None] + session_members(record.supervisor)

    return end_processes(ours, grace_s=pace.end_grace_s, deadline_s=pace.end_deadline_s)


def _wait_for_engine(files: StateFiles, supervisor: subprocess.Popen[bytes], progress: Progress) -> ServiceRecord:
    said = ""
    while True:
        ended = supervisor.poll() is not None
        record = _record_of(files, supervisor.pid)
        if record is not None and record.phase == "running":
            return record
        if record is not None and record.phase == "failed":
            raise ServiceError(record.detail)
        if ended:
            if (why := why_unwritable(files.root)) is not None:
                raise ServiceError(
                    f"the service did not start: {files.root} cannot be written: {why}; free space there or make it "
                    "writable, then run this again"
                )
            last = (files.logs / "supervisor.out").read_text(errors="replace").strip().splitlines()
            raise ServiceError(f"the service did not start: {last[-1] if last else 'no output'}; see {files.logs}")
        if record is not None and record.detail != said:
            said = record.detail
            progress(said)
        time.sleep(POLL_S)


def _record_of(files: StateFiles, supervisor_pid: int) -> ServiceRecord | None:
    with contextlib.suppress(RecordError):
        record = read_record(files)
        if record is not None and record.supervisor.pid == supervisor_pid:
            return record
    return None


def _agent_is_there(files: StateFiles, record: ServiceRecord) -> bool:
    try:
        place = look_at_place(files.agent_place)
    except OSError:  # the supervisor says why
        return False
    if not place.is_held or place.holder is None or place.holder.kind is not AgentKind.ENGINE:
        return False  # as yet it is the one beside the engine, at most
    if announced_by(files.agent) != place.holder.process:
        return False
    if not record.spec.is_head:
        return True
    api_url = local_api(files)
    try:
        return api_url is not None and bool(client.get(api_url, "/api/v1/status")["healthy"])
    except (client.ApiError, KeyError):
        return False


def _end_supervisor(record: ServiceRecord, *, deadline_s: float) -> None:
    supervisor: ProcessId = record.supervisor
    send_signal(supervisor, signal.SIGTERM)
    until_s = time.monotonic() + deadline_s
    while is_alive(supervisor):
        if time.monotonic() > until_s:
            send_signal(supervisor, signal.SIGKILL)
        time.sleep(0.02)
