"""``python -m tidegauge.cluster.ray_service.supervisor NODE_JSON`` keeps this node's engine running until a signal.

It is one small process (standard library only) above everything: it starts Ray, restarts it when it dies, and adopts
every process that Ray leaves behind (``PR_SET_CHILD_SUBREAPER``, prctl(2)). So all processes of the service are its
descendants, and none survives the end of the service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import logging.handlers
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tidegauge.cluster.ray_service.agent_care import AgentCare
from tidegauge.cluster.ray_service.agent_place import look_at_place
from tidegauge.cluster.ray_service.engine_tls import tls_files, why_no_handshake
from tidegauge.cluster.ray_service.node_command import (
    answers,
    broken_state,
    engine_environ,
    explain,
    start_command,
)
from tidegauge.cluster.service_record import (
    NodeSpec,
    RecordError,
    ServiceRecord,
    StateFiles,
    read_address,
    read_spec,
    remove_traces,
    take_lock,
    write_record,
)
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.kernel_calls import become_subreaper
from tidegauge.osproc.processes import descendants, end_processes, identity_of, is_alive
from tidegauge.steady_clock import read_boot_id

# When to see to a coordinator that does not announce itself: Ray starts one that died, not one that never started.

COORDINATOR_AWAY_S, MAX_AWAY_S = 10.0, 60.0
"""Ray starts one that died again within 2 s."""


class CoordinatorCare:
    """Decides when to redeploy a coordinator that has not announced itself for a while. The waits grow: on a full disk
    it may run and be unable to announce itself."""

    def __init__(self, files: StateFiles, monotonic_s: Callable[[], float]) -> None:
        self._files = files
        self._monotonic_s = monotonic_s
        self._away_since_s: float | None = None
        self._wait_s = COORDINATOR_AWAY_S

    def is_due(self) -> bool:
        """Check once; true when the wait is over, after which the next wait is twice as long."""
        now_s = self._monotonic_s()
        if read_address(self._files.api) is not None:
            self._away_since_s, self._wait_s = None, COORDINATOR_AWAY_S
            return False
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s < self._wait_s:
            return False
        self._away_since_s, self._wait_s = now_s, min(2 * self._wait_s, MAX_AWAY_S)
        return True


log = logging.getLogger("tidegauge.cluster.ray_service.supervisor")

ESSENTIAL = ("raylet", "gcs_server")
"""Without these there is no engine; Ray itself looks after the others."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
LOOK_PERIOD_S = 1.0
START_TIMEOUT_S = 300.0
"""``ray start`` takes 2-15 s; where processors are taken by others or the host swaps, minutes."""
CONNECT_TIMEOUT_S = 5.0
IS_BACK_TIMEOUT_S = 1.0
"""For a head that was away: it is asked again soon."""
END_GRACE_S = 1.0
END_DEADLINE_S = 15.0
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0
MIN_ROOM_BYTES = 32 << 20
"""Below this much on the disk of the state directory the engine is not started: a head's cluster state takes 27 MiB."""
MAX_LOG_BYTES = 1 << 20
"""Of gcs_server's output, the end that is read."""
AGENT_FIRST_S, AGENT_LOOK_S = 10.0, 0.1
"""The longest wait for a stand-in, and how often it is looked for."""
RAN_WELL_S = 60.0
"""After this long the next failure starts again at the shortest wait."""


KEEP_TRYING = "--keep-trying"
"""Argument of this program: see ``Supervisor``."""


class StopAsked(Exception):  # noqa: N818 - not an error
    """A stop signal arrived."""


class EngineStartError(Exception):
    """The engine did not start; the message ends with the engine's output."""


class EngineCommands(NamedTuple):
    """The commands that start the engine; each exits, with 0 for success."""

    start: Sequence[str]
    """Leaves the engine's processes behind."""
    deploy: Sequence[str]
    """On a head, after ``start``: makes sure that the coordinator runs."""
    stand_in: Sequence[str] = ()
    """Waits until the engine has no agent, and is the node's agent until there is one; empty: there is none either."""


class RestartPace(NamedTuple):
    """The waits of the supervisor: between checks, before a restart, for a coordinator, for processes to end."""

    look_s: float = LOOK_PERIOD_S
    first_retry_s: float = FIRST_RETRY_S
    longest_retry_s: float = MAX_RETRY_S
    end_grace_s: float = END_GRACE_S
    """Between SIGTERM and SIGKILL to what is left of the engine."""
    end_deadline_s: float = END_DEADLINE_S
    """What has not ended by then is said to be left."""
    monotonic_s: Callable[[], float] = time.monotonic
    """The clock that coordinators are waited for by."""


class Supervisor:
    """``run`` returns the process's exit code: 0 after a stop signal, 3 if the first start failed."""

    def __init__(
        self,
        spec: NodeSpec,
        files: StateFiles,
        environ: Mapping[str, str],
        commands: EngineCommands,
        *,
        pace: RestartPace = RestartPace(),  # noqa: B008 - a constant
        keeps_trying: bool = False,
    ) -> None:
        """``keeps_trying``: also after a first start that failed."""
        me = identity_of(os.getpid())
        assert me is not None
        self._spec = spec
        self._files = files
        self._commands = commands
        self._pace = pace
        self._keeps_trying = keeps_trying
        self._agent_care = AgentCare(files.agent_place, self._start_stand_in, monotonic_s=time.monotonic)
        self._agent_looked_s = float("-inf")
        self._agent_problem: str | None = None
        """Why the agent cannot be looked after, as it was logged."""
        self._wait_s = pace.first_retry_s
        """Before the next restart of the engine."""
        self._stand_in: subprocess.Popen[bytes] | None = None
        gcs_dir = files.gcs if spec.is_head else None
        self._environ = engine_environ(spec, environ, node_file=files.node, gcs_dir=gcs_dir)
        self._essential: tuple[ProcessId, ...] = ()
        self._record = ServiceRecord(
            supervisor=me, boot_id=read_boot_id(), phase="starting", detail="starting", spec=spec,
            started_unix_s=time.time(),
        )  # fmt: skip

    def run(self) -> int:
        try:
            try:
                while not self._starts():
                    pass  # it has put right what it could
            except EngineStartError as error:
                log.error("%s", error)
                if not self._keeps_trying:
                    self._end_engine(with_stand_in=True)
                    remove_traces(self._files, self._spec, keep_cluster_state=True)
                    self._say("failed", str(error))
                    return 3
                self._restart_until_it_runs(str(error))
            self._watch()
        except StopAsked:
            log.info("asked to stop")
        self._say("stopping", "ending the engine")
        left = self._end_engine(with_stand_in=True)
        for stat in left:
            log.error("process %d (%s) did not end", stat.process.pid, stat.name)
        remove_traces(self._files, self._spec)
        self._files.record.unlink(missing_ok=True)
        return 3 if left else 0

    def refuse(self, why: str) -> int:
        """Start nothing, and leave the reason; returns the exit code."""
        log.error("%s", why)
        self._say("failed", why)
        return 3

    def _starts(self) -> bool:
        """Start the engine; false if it failed over the saved cluster state, which is then put aside. That is done only
        where gcs_server names the state: a busy host is slow and its state is whole, and without it the nodes are lost.
        Raises ``EngineStartError`` where the state is not to blame."""
        try:
            self._start()
        except EngineStartError as error:
            reason = self._broken_state()
            if reason is None:
                raise
            self._put_state_aside(f"{error}: {reason}")
            return False
        return True

    def _put_state_aside(self, why: str) -> None:
        """Let the next start begin without the saved state, which is kept for people (the latest one)."""
        aside = self._files.root / f"gcs.broken-{int(time.time())}"
        log.warning("%s; the saved cluster state is moved to %s", why, aside)
        self._end_engine()
        for earlier in self._files.root.glob("gcs.broken-*"):
            shutil.rmtree(earlier, ignore_errors=True)
        self._files.gcs.rename(aside)

    def _broken_state(self) -> str | None:
        """What gcs_server says of the saved cluster state, if that made the start fail."""
        if not self._spec.is_head or not self._files.gcs.exists():
            return None
        logs = Path(self._spec.engine_dir, "session_latest", "logs")
        return broken_state(_end_of(logs / "gcs_server.err")) or broken_state(_end_of(logs / "gcs_server.out"))

    def _watch(self) -> None:
        while True:
            began_s = time.monotonic()
            care = CoordinatorCare(self._files, self._pace.monotonic_s)
            while all(is_alive(process) for process in self._essential):
                self._sleep(self._pace.look_s)
                if self._spec.is_head and care.is_due():
                    self._deploy_again()
            log.warning("the engine died; see its logs in %s/session_latest/logs", self._spec.engine_dir)
            if time.monotonic() - began_s > RAN_WELL_S:
                self._wait_s = self._pace.first_retry_s
            self._restart_until_it_runs("the engine died")

    def _restart_until_it_runs(self, why: str) -> None:
        while (failure := self._restart(why)) is not None:
            why, self._wait_s = failure, min(2 * self._wait_s, self._pace.longest_retry_s)

    def _restart(self, why: str) -> str | None:
        """Why it failed, ``None`` where it did not."""
        self._say("restarting", f"{why}: restarting the engine in {self._wait_s:.0f} s")
        self._end_engine()
        self._wait_for_agent()
        self._pause(self._wait_s)
        try:
            while not self._starts():
                pass  # it has put right what it could
        except EngineStartError as error:
            log.error("%s", error)
            return str(error)
        return None

    def _deploy_again(self) -> None:
        """Ray restarts a coordinator that died, but not one that never started."""
        log.warning("no coordinator is announced: starting one if none is running")
        try:
            self._call(self._commands.deploy, "deploy.log", "the coordinator did not start")
        except EngineStartError as error:
            log.error("%s", error)

    def _pause(self, wait_s: float) -> None:
        """Wait, but little longer than a missing head or missing disk space stays missing: half a minute is long for a
        node that only waits for that. Raises ``StopAsked``."""
        until_s = time.monotonic() + wait_s
        lacked = self._lacks_something()
        while (left_s := until_s - time.monotonic()) > 0:
            self._sleep(min(left_s, self._pace.look_s))
            if lacked and not self._lacks_something():
                return

    def _lacks_something(self) -> bool:
        """Whether a start would fail now because of the disk or the head."""
        if shutil.disk_usage(self._files.root).free < MIN_ROOM_BYTES:
            return True
        return not self._spec.is_head and not answers(self._spec.head_address, timeout_s=IS_BACK_TIMEOUT_S)

    def _start(self) -> None:
        role = "head" if self._spec.is_head else f"node of {self._spec.head_address}"
        self._say(self._starting(), f"starting the engine (Ray, {role})")
        self._look_after_agent()
        if not self._spec.is_head and not answers(self._spec.head_address, timeout_s=CONNECT_TIMEOUT_S):
            # Ray would try for minutes, and then not say that this was it.
            raise EngineStartError(f"no answer from {self._spec.head_address}: is the head up and reachable?")
        tls = tls_files(self._spec.settings, self._spec.state_dir)
        if not self._spec.is_head and (
            reason := why_no_handshake(self._spec.head_address, tls, timeout_s=CONNECT_TIMEOUT_S)
        ):
            raise EngineStartError(reason)
        engine_dir = Path(self._spec.engine_dir)
        shutil.rmtree(engine_dir, ignore_errors=True)  # files of an engine that died do not help the next one
        try:
            engine_dir.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise EngineStartError(f"{self._spec.engine_dir} cannot be created: {error.strerror}") from error
        if (room_bytes := shutil.disk_usage(self._files.root).free) < MIN_ROOM_BYTES:
            # Ray would hang on it, or start and die.
            raise EngineStartError(
                f"only {room_bytes >> 20} MiB are free on the disk of {self._files.root}; the engine needs "
                f"{MIN_ROOM_BYTES >> 20} MiB"
            )
        self._call(self._commands.start, "engine-start.log", "Ray did not start")
        self._essential = tuple(s.process for s in descendants(os.getpid()) if s.name in ESSENTIAL and not s.ended)
        if not self._essential:
            raise EngineStartError("Ray reported a start, but there is no raylet")
        if self._spec.is_head:
            self._say(self._starting(), "starting the coordinator")
            self._call(self._commands.deploy, "deploy.log", "the coordinator did not start")
        self._say("running", "running")
        log.info("the engine is running (%s)", role)

    def _starting(self) -> str:
        return "starting" if self._record.phase == "starting" else "restarting"

    def _call(self, command: Sequence[str], log_name: str, what_failed: str) -> None:
        """Run a child to its end, its output in a log file. Raises ``EngineStartError``, ``StopAsked``."""
        path = self._files.logs / log_name
        with _open_log(path) as output:
            child = subprocess.Popen(
                command, env=self._environ, cwd=self._files.root, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, []),
            )  # fmt: skip
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while child.poll() is None:
            if time.monotonic() > deadline_s:
                child.kill()
                child.wait()
                raise EngineStartError(f"{what_failed} within {START_TIMEOUT_S:.0f} s; see {path}")
            self._sleep(0.1, keep=child.pid)
        if child.returncode != 0:
            said = path.read_text(errors="replace") if path.exists() else ""
            why = explain(said, self._spec)
            raise EngineStartError(f"{what_failed}: {why}; see {path}")

    def _sleep(self, seconds: float, *, keep: int = 0) -> None:
        """Wait until a signal at the latest. Reaps ended children, except ``keep``. Raises ``StopAsked``."""
        came = signal.sigtimedwait(STOP_SIGNALS | {signal.SIGCHLD}, seconds)
        if came is not None and came.si_signo in STOP_SIGNALS:
            raise StopAsked
        self._look_after_agent()
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT only looks: the status of the child that somebody waits for must stay there.
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == keep:
                    break
                os.waitpid(ended.si_pid, 0)

    def _look_after_agent(self) -> None:
        """See to it that an agent is at work on the node; at most once in ``look_s``."""
        now_s = time.monotonic()
        if not self._commands.stand_in or now_s - self._agent_looked_s < 0.9 * self._pace.look_s:
            return
        self._agent_looked_s = now_s
        problem: str | None = None
        try:
            self._agent_care.look()
        except OSError as error:  # also no descriptors or processes left: the engine is looked after all the same
            problem = str(error)
        if problem is not None and problem != self._agent_problem:
            log.warning("the node's agent cannot be looked after now: %s", problem)
        self._agent_problem = problem

    def _wait_for_agent(self) -> None:
        """Let a stand-in take the place before the engine starts: Ray would take the processors from it. Raises
        ``StopAsked``."""
        self._agent_looked_s = float("-inf")
        until_s = time.monotonic() + AGENT_FIRST_S
        while self._commands.stand_in and time.monotonic() < until_s:
            self._sleep(AGENT_LOOK_S)
            if self._agent_problem is not None or self._agent_care.spare is None:
                return  # it will not come
            with contextlib.suppress(OSError):
                if look_at_place(self._files.agent_place).is_held:
                    return

    def _start_stand_in(self) -> ProcessId:
        with _open_log(self._files.logs / "stand-in.log") as output:
            self._stand_in = subprocess.Popen(
                self._commands.stand_in, env=self._environ, cwd=self._files.root, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, []),
            )  # fmt: skip
        process = identity_of(self._stand_in.pid)
        assert process is not None, "nobody but this thread reaps it"
        return process

    def _end_engine(self, *, with_stand_in: bool = False) -> list[ProcStat]:
        """End all processes below this one; those that did not end are returned."""

        def mine() -> list[ProcStat]:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            beside = {self._agent_care.spare, self._agent_care.stand_in} - {None} if not with_stand_in else set()
            apart = beside | {stat.process for one in beside if one for stat in descendants(one.pid)}
            return [stat for stat in descendants(os.getpid()) if stat.process not in apart]

        return end_processes(mine, grace_s=self._pace.end_grace_s, deadline_s=self._pace.end_deadline_s)

    def _say(self, phase: str, detail: str) -> None:
        processes = tuple((stat.process, stat.name) for stat in descendants(os.getpid()) if not stat.ended)
        self._record = dataclasses.replace(self._record, phase=phase, detail=detail, processes=processes)
        try:
            write_record(self._files, self._record)
        except OSError as error:  # a full disk: the engine is looked after all the same
            log.warning("%s cannot be written: %s", self._files.record, error.strerror or error)


def supervise(
    spec: NodeSpec,
    files: StateFiles,
    commands: EngineCommands,
    *,
    pace: RestartPace = RestartPace(),  # noqa: B008 - a constant
    keeps_trying: bool = False,
) -> int:
    """Turn this process into the supervisor of ``files``; returns its exit code."""
    lock = take_lock(files)
    if lock is None:
        print("another supervisor is using this state directory", file=sys.stderr)
        return 3
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | {signal.SIGCHLD})
    become_subreaper()
    supervisor = Supervisor(spec, files, os.environ, commands, pace=pace, keeps_trying=keeps_trying)
    try:
        look_at_place(files.agent_place)
    except OSError as error:  # the node would never have an agent
        return supervisor.refuse(f"the node's agent cannot start: {error}")
    return supervisor.run()


def _end_of(path: Path) -> str:
    """The end of a log file; nothing where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as log_file:
        log_file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
        return log_file.read().decode(errors="replace")
    return ""


def _open_log(path: Path) -> IO[str]:
    """The log file of a child; ``/dev/null`` on a disk that is too full for another file."""
    try:
        path.write_bytes(b"")
        return path.open("a")  # a stand-in may still write to it while the next one waits
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror or error)
        return Path(os.devnull).open("w")


def main(argv: Sequence[str]) -> int:
    try:
        spec = read_spec(Path(argv[1]))
    except RecordError as error:
        print(error, file=sys.stderr)
        return 3
    files = StateFiles(Path(spec.state_dir))
    handler = logging.handlers.RotatingFileHandler(files.logs / "supervisor.log", maxBytes=1_000_000, backupCount=1)
    logging.basicConfig(
        level=logging.INFO, handlers=[handler, logging.StreamHandler()],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )  # fmt: skip
    deploy = [sys.executable, "-m", "tidegauge.cluster.ray_service.deploy", str(files.node)]
    stand_in = [sys.executable, "-m", "tidegauge.cluster.ray_service.stand_in", str(files.node)]
    commands = EngineCommands(start_command(spec), deploy, stand_in)
    return supervise(spec, files, commands, keeps_trying=KEEP_TRYING in argv[2:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
