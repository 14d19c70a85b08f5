"""``tidegauge run --with-service`` runs a service for one Slurm allocation, for clusters without a permanent one.

The head runs beside the command, and an agent on every other node in an overlapping job step. The service only
observes, listens on loopback, and ends with the command. Its failures are printed, and the command runs on without it.

Its results are files in one folder: ``jobs.json`` and ``incidents.json`` are the API's answers, ``summary.txt`` has the
tables that the commands print, and ``incident-N.html`` are the reports. Each file is replaced atomically, so that a
killed job leaves complete files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import CommandError, UsageError
from tidegauge.cli.jobs import incidents, jobs
from tidegauge.cli.output import write_own
from tidegauge.cli.service.allocation_node import JoinOrder, end_supervisor, keep_logs, new_state_dir, start_supervisor
from tidegauge.cli.service.up import check_installed
from tidegauge.cli.service_api import until
from tidegauge.cluster.api import client
from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.ray_service.allocation import (
    LOOPBACK,
    Allocation,
    AllocationError,
    can_overlap,
    head_address_for,
    join_command,
    join_environ,
    read_allocation,
)
from tidegauge.cluster.ray_service.node_command import free_ports
from tidegauge.cluster.service_record import (
    NodeSpec,
    StateFiles,
    choose_engine_dir,
    make_token,
    read_address,
    write_spec,
)
from tidegauge.core.run_dirs import DEFAULT_RUN_DIRS
from tidegauge.core.units import format_count

if TYPE_CHECKING:
    from tidegauge.settings import Settings

SAVE_EVERY_S = 10.0
"""Interval of saving results, seconds: Slurm ends all processes of a job at once, the service too."""
JOIN_END_TIMEOUT_S = 25.0
SITE_RUN_DIR, JOBS_SHM = Path(DEFAULT_RUN_DIRS[0]), Path(DEFAULT_RUN_DIRS[1]).parent
KEPT_SETTINGS = ("cluster", "poll_period_s", "report_period_s", "linger_s", "slurm", "slurm_bin_dir", "slurm_conf")
"""Settings that are taken from the user's or the site's configuration; others are for a permanent service."""
MAX_REPORTS = 20
REPORT_TIMEOUT_S = 20.0
_ALL = "all=1&since=0&limit=200"
SETTLE_S = 5.0
"""Time within which agents report the end of all ranks, seconds: they look twice a second and report once."""
_LOOK_S = 0.2


def run_with_service(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run ``command`` with a service, and return its exit status as a shell does.

    Raises ``CommandError`` outside of an allocation, ``OSError`` if the command cannot be started.
    """
    try:
        allocation = read_allocation(os.environ)
    except AllocationError as error:
        raise UsageError(str(error)) from error
    passing = _PassedSignals()
    folder = _results_folder(allocation)
    service = JobService(allocation, folder, run_dir=own_run_dir(allocation, uid=os.getuid()))
    try:
        service.start()
        return passing.run(command, {**environ, **service.job_variables}, service.save)
    finally:
        service.finish()


def own_run_dir(allocation: Allocation, *, uid: int, site: Path = SITE_RUN_DIR) -> str | None:
    """A run directory for this job alone, or ``None`` for the usual ones if the site has its own.

    The service of the site, which uses those, must see the job's ranks too.
    """
    return None if site.is_dir() else str(JOBS_SHM / f"tidegauge-{uid}-{allocation.job_id}")


def job_service_settings(environ: Mapping[str, str], *, state_dir: Path, run_dir: str | None) -> Settings:
    """The settings of the job's service. Raises ``CommandError`` for an invalid configuration file."""
    from tidegauge.settings import Settings

    known = {f"TIDEGAUGE_{name.upper()}" for name in Settings.model_fields} | {"TIDEGAUGE_CONFIG"}
    theirs = load_settings(argparse.Namespace(), {name: environ[name] for name in known & environ.keys()})
    return Settings(
        **{name: getattr(theirs, name) for name in KEPT_SETTINGS},
        state_dir=state_dir,
        run_dir=None if run_dir is None else Path(run_dir),
        listen_host=LOOPBACK,
        metrics_port=0,
        api_port=0,
        engine_port=0,
    )


class ResultFiles:
    """The files of one folder, and which reports are up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marks: dict[str, object] = {}

    def save(self, api_url: str) -> str:
        """Write all files, and return the summary. Raises ``ApiError``, ``CommandError``, ``OSError``."""
        for name, path in (("jobs.json", "/api/v1/jobs"), ("incidents.json", f"/api/v1/incidents?{_ALL}")):
            write_own(self.folder / name, json.dumps(client.get(api_url, path), indent=1).encode())
        summary = _printed(jobs, ["--api", api_url]) + "\n" + _printed(incidents, ["--api", api_url, "--all"])
        write_own(self.folder / "summary.txt", summary.encode())
        marks = client.get(api_url, "/api/v1/incident-marks?since=0")["marks"]
        for number in sorted(marks, key=int)[-MAX_REPORTS:]:
            if self._marks.get(number) != marks[number]:
                page = client.get_bytes(api_url, f"/report?incident={number}", timeout_s=REPORT_TIMEOUT_S)
                write_own(self.folder / f"incident-{number}.html", page)
                self._marks[number] = marks[number]
        return summary


class JobService:
    """The service of one allocation. Its methods print failures instead of raising them, as the job can run on."""

    def __init__(self, allocation: Allocation, folder: Path, *, run_dir: str | None) -> None:
        self._allocation = allocation
        self._folder = folder
        self._results = ResultFiles(folder)
        self._run_dir = run_dir
        self._files: StateFiles | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._join: subprocess.Popen[bytes] | None = None
        self._api_url: str | None = None

    @property
    def job_variables(self) -> Mapping[str, str]:
        return {} if self._run_dir is None else {"TIDEGAUGE_RUN_DIR": self._run_dir}

    def start(self) -> None:
        """Start the service on this host; the other nodes join while the job starts."""
        try:
            spec = self._start_head()
        except (service_control.ServiceError, AllocationError, CommandError, OSError) as error:
            _say(f"the service did not start; the command runs without it: {error}")
            return
        try:
            self._start_join(spec)
        except (AllocationError, OSError) as error:
            _say(f"watching only this host: {error}")
        _say(_where_to_look(self._allocation, self._api_url or ""))

    def save(self) -> None:
        """Save the results so far, if the service runs."""
        url = self._api_url
        if url is not None:
            quietly(lambda: self._results.save(url), _say, f"cannot save results in {self._folder}")

    def finish(self) -> None:
        """Save the results, end the service and remove its temporary files."""
        if self._api_url is not None:
            failure = f"results in {self._folder} are a few seconds old"
            quietly(self._keep_all, _say, failure)
        if self._join is not None:
            _end_join(self._join)
        if self._supervisor is not None:
            end_supervisor(self._supervisor)
        if self._files is not None:
            keep_logs(self._files, self._folder / "logs" / socket.gethostname())
            shutil.rmtree(self._files.root, ignore_errors=True)
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)

    def _start_head(self) -> NodeSpec:
        check_installed()
        files = self._files = new_state_dir()
        address = head_address_for(self._allocation)
        settings = job_service_settings(os.environ, state_dir=files.root, run_dir=self._run_dir)
        make_token(files)
        write_spec(
            files,
            NodeSpec(
                state_dir=str(files.root),
                engine_dir=str(choose_engine_dir(files.root)),
                token_file=str(files.token),
                head_address=f"{address}:{free_ports(1)[0]}",
                node_address=address,
                is_head=True,
                settings=settings.model_dump(mode="json"),
            ),
        )
        self._supervisor = start_supervisor(files, os.environ)
        record = service_control.wait_until_up(files, self._supervisor, lambda _: None)
        self._api_url = read_address(files.api)
        return record.spec

    def _start_join(self, spec: NodeSpec) -> None:
        if not self._allocation.others:
            return
        if not can_overlap():
            raise AllocationError("srun has no --overlap (needs Slurm 20.11), so no agent can run beside the job step")
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        order = JoinOrder(
            spec.head_address, Path(spec.token_file).read_text(), spec.settings, str(logs), self._run_dir
        )  # fmt: skip
        command = join_command(self._allocation, task=[sys.executable, "-m", "tidegauge.cli.service.allocation_node"])
        with (logs / "join.log").open("w") as output:
            self._join = subprocess.Popen(
                command, env=join_environ(os.environ), stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        assert self._join.stdin is not None
        self._join.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._join.stdin.flush()

    def _keep_all(self) -> None:
        assert self._api_url is not None
        wait_until_ended(self._api_url)
        summary = self._results.save(self._api_url)
        nodes = client.get(self._api_url, "/api/v1/nodes")["nodes"]
        hosts = len(self._allocation.others) + 1
        if len(nodes) < hosts:
            _say(f"only {len(nodes)} of {hosts} hosts were watched; see {self._folder / 'logs'}")
        print(summary, file=sys.stderr)
        _say(f"results: {self._folder}")


class _PassedSignals:
    """The signal handlers, which pass signals on to the command; before it starts, a signal ends this process.

    Ctrl-C and ``Ctrl-\\`` reach the command by themselves, as both are in the terminal's foreground group.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._pass)

    def run(self, command: Sequence[str], environ: Mapping[str, str], now_and_then: Callable[[], None]) -> int:
        """Run the command, and return its exit status, 128 + N if signal N ended it. Raises ``OSError``."""
        self._child = subprocess.Popen(command, env=environ)
        while not _has_ended(self._child, within_s=SAVE_EVERY_S):
            now_and_then()
        status = self._child.returncode
        return status if status >= 0 else 128 - status

    def _pass(self, number: int, _frame: object) -> None:
        if self._child is None:
            raise SystemExit(128 + number)
        if number not in (signal.SIGINT, signal.SIGQUIT):
            self._child.send_signal(number)


def _has_ended(child: subprocess.Popen[bytes], *, within_s: float) -> bool:
    try:
        child.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _results_folder(allocation: Allocation) -> Path:
    """The folder of results, where ``sbatch`` was called. Raises ``CommandError``."""
    place = Path(os.environ.get("SLURM_SUBMIT_DIR", "."))
    try:
        return make_folder(place, allocation.job_id, allocation.restarts)
    except OSError as error:
        raise CommandError(
            f"cannot create the results folder: {error}; submit the job from a writable folder"
        ) from error


def _where_to_look(allocation: Allocation, api_url: str) -> str:
    look = f"tidegauge jobs --api {api_url}"
    nodes = format_count(len(allocation.nodes), "node")
    started = f"watching job {allocation.job_id} on {nodes} with a service of its own; show it with: "
    if allocation.here is None:
        return f"{started}{look}"
    return (
        f"{started}srun --jobid={allocation.job_id} --overlap --nodes=1 --ntasks=1 --nodelist={allocation.here} {look}"
    )


def _end_join(join: subprocess.Popen[bytes]) -> None:
    """End the job step by closing its input, so that its nodes clean up; else by ending srun."""
    assert join.stdin is not None
    with contextlib.suppress(OSError):  # it has ended already
        join.stdin.close()
    if not _has_ended(join, within_s=JOIN_END_TIMEOUT_S):
        join.terminate()
        join.wait()


def _say(text: str) -> None:
    print(f"tidegauge: {text}", file=sys.stderr, flush=True)


def make_folder(submit_dir: Path, job_id: str, restarts: int) -> Path:
    """``tidegauge-<job id>``, with ``-<attempt>`` for one after the first. Raises ``OSError``."""
    attempt = f"-{restarts}" if restarts else ""
    folder = submit_dir / f"tidegauge-{job_id}{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wait_until_ended(api_url: str, *, within_s: float = SETTLE_S) -> None:
    """Wait until the service reports no living rank, or for ``within_s``. Raises ``ApiError``."""
    until(lambda: None if _lives(client.get(api_url, "/api/v1/jobs")) else True, within_s=within_s, every_s=_LOOK_S)


def quietly(what: Callable[[], object], say: Callable[[str], None], failure: str) -> None:
    """Call ``what``, and only print its failure."""
    try:
        what()
    except (client.ApiError, CommandError, OSError) as error:
        say(f"{failure}: {error}")


def _lives(answer: dict[str, Any]) -> bool:
    return any(rank["alive"] for job in answer["jobs"] for rank in job["ranks"])


def _printed(command: ModuleType, arguments: Sequence[str]) -> str:
    """The output of a command. Raises ``CommandError``."""
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command.run(parser.parse_args(arguments))
    return printed.getvalue()
