"""``tidegauge demo`` runs the service with a leaking and a healthy job: the verdict, then the healthy job's profile."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidegauge.cli.demo.jobs import Torch, find_torch, last_lines, training_job
from tidegauge.cli.errors import CommandError, need
from tidegauge.cli.output import live_table, progress
from tidegauge.cli.service_api import ANSWER_S, LOOK_EVERY_S, until
from tidegauge.cli.verdict.answer import verdict_sentence
from tidegauge.cluster.api import client
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import brief_sentences
from tidegauge.core.incidents import Incident
from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import LeakState, Severity, Verdict, state_word
from tidegauge.core.wire import from_wire

HELP = "run a demo: the service and two small training jobs, one of which leaks on rank 1"
HEADER = ("job", "rank", "GPU", "step", "allocated", "reserved", "nontorch", "verdict", "per step", "OOM in")
LEAKING, HEALTHY = "demo-leak", "demo-healthy"
NAMES = {LEAKING: "leaky", HEALTHY: "healthy"}
LEAK_RANK = 1
RANKS = 2
"""Of each job."""
PROFILED_LINES = 5
_PROFILE = ("profile", HEALTHY, "--top", str(PROFILED_LINES))
PROFILE_WITHIN_S = 30.0
"""For one that the agent began by itself."""
EVIDENCE_WITHIN_S = 90.0
"""Maximum time after the verdict for a window of 34 steps, a search and a turn of the coordinator; usually seconds."""

Answer = Mapping[str, Any]
"""A rank in an answer of ``/api/v1/jobs``."""


class LatestAnswers:
    """The API's latest answer for each rank of each job."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], Answer] = {}

    def add(self, jobs: list[Answer]) -> None:
        for job in jobs:
            for rank in job["ranks"]:
                self._ranks[str(job["job_id"]), int(rank["identity"]["rank"])] = rank

    def ranks(self, job_id: str) -> dict[int, Answer]:
        return {number: rank for (job, number), rank in sorted(self._ranks.items()) if job == job_id}

    def verdicts(self, job_id: str) -> dict[int, Verdict]:
        return {number: from_wire(Verdict, rank["verdict"]) for number, rank in self.ranks(job_id).items()}

    def rows(self, job_names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
        """A row under ``HEADER`` for each rank."""
        for job_id, name in job_names.items():
            verdicts = self.verdicts(job_id)
            for number, rank in self.ranks(job_id).items():
                verdict = verdicts[number]
                yield (
                    name,
                    str(number),
                    "-" if rank["gpu"] is None else str(rank["gpu"]),
                    str(rank["step"]),
                    format_bytes(rank["allocated_bytes"]),
                    format_bytes(rank["reserved_bytes"]),
                    "-" if rank["nontorch_bytes"] is None else format_bytes(rank["nontorch_bytes"]),
                    _state(verdict),
                    "" if verdict.bytes_per_step is None else format_bytes(verdict.bytes_per_step.likely),
                    "" if verdict.seconds_to_oom is None else format_band(verdict.seconds_to_oom),
                )


def _state(verdict: Verdict) -> str:
    """The state with the signal that grows: "ok", "growing (allocated)"."""
    word = state_word(verdict.state, verdict.severity)
    return word if verdict.signal is None else f"{word} ({verdict.signal.value})"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="Python interpreter whose PyTorch sees a GPU"
    )
    parser.add_argument(
        "--backend", choices=["nccl", "gloo"], help="torch.distributed backend (default: nccl if each rank has a GPU)"
    )
    parser.add_argument("--seconds", type=float, default=85.0, help="time limit for finding the leak (default: 85)")
    parser.add_argument("--keep", action="store_true", help="keep jobs and service running until Ctrl-C")
    parser.add_argument(
        "--folder", type=Path, help="folder for report, profile and metrics (default: a new one in /tmp)"
    )


def run(args: argparse.Namespace) -> int:
    need("ray", extra="agent", what="the demo")
    torch = find_torch(args.python)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tidegauge-demo-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"PyTorch {torch.version} on {torch.device_count} x {torch.device_name}")
    environ = {**os.environ, "TIDEGAUGE_RUN_DIR": str(folder / "run")}
    (folder / "run").mkdir(exist_ok=True)
    history = LatestAnswers()
    with contextlib.ExitStack() as running:
        for job_id, leak_rank in ((LEAKING, LEAK_RANK), (HEALTHY, None)):
            running.enter_context(
                training_job(
                    torch,
                    job_id=job_id,
                    leak_rank=leak_rank,
                    environ=environ,
                    log_file=_log(folder, job_id),
                    backend=args.backend,
                )
            )
        print("started two torchrun jobs with two ranks each: a healthy one, and one whose rank 1 keeps its outputs")
        api_url = running.enter_context(_service(folder, environ))
        found = _watch(api_url, history, folder, seconds=args.seconds)
        evidence = _wait_for_evidence(api_url) if found else None
        profile = _profile_healthy(folder, environ) if found else None
        metrics = _save_metrics(api_url, folder)
        report = _save_report(folder, api_url, environ) if found else None
        _tell(history, evidence, found=found)
        if profile is not None:
            _tell_profile(profile, torch)
        print(f"\nreport    {report or 'none: no incident'}")
        if profile is not None and profile.returncode == 0:
            print(f"profile   {_profile_page(folder)}: the healthy job's, as a page")
        print(f"metrics   {metrics}: what Prometheus scrapes from /metrics on each node")
        print("Grafana   dashboards and Prometheus rules for a real service: deploy/observability/README.md")
        if args.keep:
            print(f"web page  {api_url}/ in a browser on this machine; Ctrl-C ends the demo", flush=True)
            _wait_for_ctrl_c()
        else:
            print("web page  the service has one while it runs: `make demo KEEP=1` keeps it for you to look at")
    shutil.rmtree(folder / "run", ignore_errors=True)
    if not found:
        raise CommandError(f"the planted leak was not found within {args.seconds:.0f} s; logs: {folder}")
    return 0


def _wait_for_ctrl_c() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600.0)


def _log(folder: Path, job_id: str) -> Path:
    return folder / f"{NAMES[job_id]}.log"


@contextlib.contextmanager
def _service(folder: Path, environ: dict[str, str]) -> Iterator[str]:
    """Start the service with its own state and free ports, and yield the URL of its API."""
    chosen = [f"state_dir={folder / 'state'}", f"run_dir={folder / 'run'}", "cluster=demo"]
    chosen += ["incident_severity=warning"]  # nobody should wait until half of a card is eaten
    chosen += [f"{port}=0" for port in ("metrics_port", "api_port", "engine_port")]
    chosen += ["listen_host=127.0.0.1", "web_config_file=", "api_tokens_file="]
    settings = [word for assignment in chosen for word in ("--set", assignment)]

    def tidegauge(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidegauge", *command, *settings],
            env=environ, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    print("starting the service (Ray, one agent on this node, the coordinator) …", flush=True)
    try:
        up = tidegauge("up", "--json")
        if up.returncode:
            raise CommandError(f"the service did not start; logs: {folder / 'state' / 'logs'}")
        yield str(json.loads(up.stdout)["api_url"])
    finally:
        tidegauge("down")
        shutil.rmtree(folder / "state", ignore_errors=True)


def _watch(api_url: str, history: LatestAnswers, folder: Path, *, seconds: float) -> bool:
    """Show the table until the leak is found and the healthy job has run as long. False after ``seconds``."""
    end = time.monotonic() + seconds
    with live_table(HEADER) as show:
        while time.monotonic() < end:
            history.add(client.get(api_url, "/api/v1/jobs", timeout_s=ANSWER_S)["jobs"])
            show(list(history.rows(NAMES)))
            if _settled(history):
                return True
            time.sleep(LOOK_EVERY_S)
    for job_id in NAMES:
        if not history.ranks(job_id):
            raise CommandError(
                f"the {NAMES[job_id]} job did not appear; end of its output:\n{last_lines(_log(folder, job_id))}"
            )
    return False


def _settled(history: LatestAnswers) -> bool:
    verdict = history.verdicts(LEAKING).get(LEAK_RANK)
    healthy = history.ranks(HEALTHY)
    return (
        verdict is not None
        and verdict.state is LeakState.LEAK
        and len(healthy) == RANKS
        # The healthy job must have run as long: otherwise no alarm would mean nothing.
        and all(rank["step"] >= (verdict.alarm_step or 0) for rank in healthy.values())
    )


def _save_metrics(api_url: str, folder: Path) -> Path:
    """Scrape every target of ``/sd`` once, as Prometheus does, into a file."""
    path = folder / "metrics.prom"
    groups = json.loads(client.get_bytes(api_url, "/sd", timeout_s=ANSWER_S))
    targets = [target for group in groups for target in group["targets"]]
    pages = [client.get_bytes(f"http://{target}", "/metrics", timeout_s=ANSWER_S) for target in targets]
    path.write_bytes(b"".join(pages))
    return path


def _wait_for_evidence(api_url: str) -> EvidenceBrief | None:
    """The evidence on the leaking rank, which agent and coordinator began to collect at the suspicion."""

    def look() -> EvidenceBrief | None:
        answer = client.get(api_url, "/api/v1/incidents?all=1", timeout_s=ANSWER_S)
        incidents = [from_wire(Incident, raw) for raw in answer["incidents"]]
        found = (one.evidence[0] for one in incidents if one.key.job.job_id == LEAKING and one.evidence)
        return next((brief for brief in found if not brief.searching), None)

    with progress("demo") as say:
        say("waiting for evidence: the line that allocates, and what holds the memory")
        return until(look, within_s=EVIDENCE_WITHIN_S)


def _profile_healthy(folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``tidegauge profile`` of the healthy job, which still runs; writes its page as well."""
    command = [sys.executable, "-m", "tidegauge", *_PROFILE, "--html", str(_profile_page(folder))]
    command += ["--set", f"state_dir={folder / 'state'}"]  # not --api: only the service's own user may ask ranks

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], env=environ, capture_output=True, text=True, check=False)

    with progress("demo") as say:
        say("recording two steps of the healthy job, for its memory profile")
        asked = ask("--now")
        if asked.returncode == 0:
            return asked
        # The agent may be making one by itself. Then the ranks refuse another, and that one is as new.
        made = until(lambda: done if (done := ask()).returncode == 0 else None, within_s=PROFILE_WITHIN_S)
    return made or asked


def _tell_profile(profile: subprocess.CompletedProcess[str], torch: Torch) -> None:
    if profile.returncode:
        print(f"\nNo memory profile of the healthy job: {profile.stderr.strip()}")
        return
    print(f"\nThe healthy job's memory on a {torch.device_name}, by `tidegauge {' '.join(_PROFILE)} --now`.")
    if torch.device_count >= RANKS:
        print("Each of its ranks shares its GPU with one of the leaky job: below, those are the other jobs.\n")
    else:
        print("All ranks of both jobs share a GPU: below, they are each other's other jobs and processes.\n")
    print(profile.stdout.strip())


def _profile_page(folder: Path) -> Path:
    return folder / "profile.html"


def _save_report(folder: Path, api_url: str, environ: dict[str, str]) -> Path | None:
    """Write the report with ``tidegauge report``, while the service runs."""
    path = folder / "report.html"
    command = ["report", LEAKING, "--job", "--api", api_url, "-o", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge", *command],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    return path


def _tell(history: LatestAnswers, evidence: EvidenceBrief | None, *, found: bool) -> None:
    print()
    for job_id, name in NAMES.items():
        for rank, verdict in sorted(history.verdicts(job_id).items()):
            print(f"{name} job, rank {rank}: {verdict_sentence(verdict)}")
            if evidence is not None and (job_id, rank) == (LEAKING, evidence.rank):
                print(*(f"  {sentence}" for sentence in brief_sentences(evidence)), sep="\n")
    accused = [rank for rank, verdict in history.verdicts(HEALTHY).items() if verdict.state is LeakState.LEAK]
    if found and not accused:
        print("Found the planted leak; no false alarms.")
        if history.verdicts(LEAKING)[LEAK_RANK].severity is not Severity.CRITICAL:
            print(
                "The growth is not dangerous yet. By default an incident opens once half of the free memory is used up;"
            )
            print("the demo opens it at once (incident_severity=warning).")
    elif accused:
        print(f"FALSE ALARM: rank {accused[0]} of the healthy job was reported. Please file a bug with the folder.")
