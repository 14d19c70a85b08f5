"""Runs programs beside a whole service in one process, and grades what is said of them (fresh_leaks, public_programs).

Each program runs under ``tidegauge run --memory-profile``, beside an agent, a coordinator, its escalation and its
incidents, all in this process, with incidents from severity ``warning`` on.

=====================  =================================================================================
word                   what it means
=====================  =================================================================================
``right``              ranks, line, holder and cause are right; of host memory: ranks and process
``partly``             nothing that was said is false, but something was not said
``WRONG``              something that was said is false
``WRONG AND NAMED``    the same, and the cause's certainty is ``named``
``nothing``            no incident came, and no evidence
``quiet``, ``alarm``   of a healthy program: no incident, or one
``FAILED``             of a healthy program: it ended with an error, and no incident
=====================  =================================================================================
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import tidegauge  # noqa: E402
from fakegpu.rig import Rig  # noqa: E402
from tidegauge.agent.direct_reporter import DirectReporter  # noqa: E402
from tidegauge.agent.job_settings import open_job_settings  # noqa: E402
from tidegauge.agent.node_agent import open_node_agent  # noqa: E402
from tidegauge.agent.runner import AgentRunner  # noqa: E402
from tidegauge.cluster.coordinator.coordinator import Coordinator  # noqa: E402
from tidegauge.cluster.incident_loops.escalation_loop import open_escalation  # noqa: E402
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks  # noqa: E402
from tidegauge.core.evidence import Evidence, brief_of  # noqa: E402
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause  # noqa: E402
from tidegauge.core.evidence.owners import CodeLine  # noqa: E402
from tidegauge.core.ids import JobKey  # noqa: E402
from tidegauge.core.incidents import Incident, IncidentCause  # noqa: E402
from tidegauge.core.incidents.steps import IncidentRules  # noqa: E402
from tidegauge.core.incidents.tracker import IncidentTracker  # noqa: E402
from tidegauge.core.verdicts import Severity  # noqa: E402
from tidegauge.core.views import JobView  # noqa: E402
from tidegauge.settings import Settings  # noqa: E402

if TYPE_CHECKING:
    from tidegauge.cluster.store import KeptEvidence


ON_RIG = "TIDEGAUGE_BENCH_SCRATCH"
PROGRAMS_OF_A_SERVICE = 20
"""A node takes in so much evidence of one user within an hour, and no more."""
AFTERWARDS_S = 4.0
"""A job goes on for so long after its incident has evidence; and evidence may come for so long after its end."""
ENDING_S = 20.0
"""A program that was asked to end is killed after so long."""
NAMELESS = re.compile(r"(tuple|list|dict|set|object) \(|no Python object found")
"""A path that begins so says what kind of object holds, not which; or that none was found."""
RIGHT, PARTLY, WRONG, SIN, NOTHING = "right", "partly", "WRONG", "WRONG AND NAMED", "nothing"
QUIET, ALARM, FAILED = "quiet", "alarm", "FAILED"
OWN_PROCESS = "own"


class Truth(NamedTuple):
    """What is true of a program, from its source."""

    name: str
    healthy: bool
    lines: frozenset[str] = frozenset()
    """``file.py:7``: the lines that allocate what is kept."""
    callers: frozenset[str] = frozenset()
    holder: tuple[str, ...] = ()
    """One of these words must occur in the path."""
    causes: tuple[str, ...] = ()
    ranks: frozenset[int] | None = None
    """The ranks that grow; ``None``: all, or not graded."""
    host_process: str = ""
    """Where host memory grows: words of the name of the process that does, or ``OWN_PROCESS``, the rank's."""


class Program(NamedTuple):
    """A program, and how it is run."""

    truth: Truth
    command: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    own: Callable[[str], Mapping[str, Any] | None]
    """What the program says of itself in its output; ``steps`` among it is compared."""
    steps_late: int = 0
    """Its output lags so many steps behind."""
    memory_fraction: float = 0.03
    """2.4 GiB of 80: growth of a MiB each 10 s matters, too."""
    seconds: float | None = None
    """It is ended after so long; ``None``: it ends by itself."""


@dataclass
class Table:
    """``EvidenceTable`` in memory."""

    pieces: list[Evidence] = field(default_factory=list)

    def keep(self, pieces: Sequence[Evidence], **_: float) -> Collection[Evidence]:
        known = {(one.job, one.evidence_id) for one in self.pieces}
        new = [one for one in pieces if (one.job, one.evidence_id) not in known]
        self.pieces += new
        return new

    def recent(self, **_: float) -> Iterator[KeptEvidence]:
        return iter(())

    def of_open_incidents(self, **_: int) -> Iterator[KeptEvidence]:
        return iter(())

    def open_among(self, _: Collection[JobKey]) -> frozenset[JobKey]:
        return frozenset()

    def of_job(self, job_id: str) -> list[Evidence]:
        return [one for one in tuple(self.pieces) if one.job.job_id == job_id]


class Service:
    """An agent, a coordinator, its escalation and its incidents, in threads of this process."""

    def __init__(self, scratch: Path) -> None:
        self.programs = 0
        self.run_dir = scratch / "run"
        self.run_dir.mkdir(parents=True, exist_ok=True)
        settings = Settings(run_dir=self.run_dir, state_dir=scratch / "state", cluster="bench")
        self.table = Table()
        self.incidents: dict[int, Incident] = {}
        self.jobs: dict[str, JobView] = {}
        """As last seen, by id."""
        self.coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="bench")
        self._tracker = IncidentTracker((), next_number=1, rules=IncidentRules(min_severity=Severity.WARNING))
        self._agent = open_node_agent(settings, {})
        self._runner = AgentRunner(
            self._agent, DirectReporter(self.coordinator.report), open_job_settings(settings, {}),
            poll_period_s=settings.poll_period_s, report_period_s=settings.report_period_s,
            node_id="bench", incarnation="bench",
        )  # fmt: skip
        asks = EvidenceAsks(scratch / "asks")
        self._escalation = open_escalation(self.coordinator, lambda: self.table, asks)
        self._stopped = threading.Event()
        self._turns = threading.Thread(target=self._turn_on, daemon=True)

    def start(self) -> None:
        self._runner.start()
        self._escalation.start()
        self._turns.start()

    def stop(self) -> None:
        self._escalation.stop()
        self._stopped.set()
        self._turns.join(10.0)
        self._runner.stop(30.0)
        self._agent.close()

    def incidents_of(self, job_id: str) -> list[Incident]:
        return [one for one in tuple(self.incidents.values()) if one.key.job.job_id == job_id]

    def _turn_on(self) -> None:
        while not self._stopped.wait(1.0):
            jobs = self.coordinator.jobs()
            self.jobs |= {job.job_id: job for job in jobs}
            changes = self._tracker.update(
                jobs, now_s=time.time(), gpu_total_bytes=self.coordinator.gpu_usable_bytes(),
                evidence=self.coordinator.evidence(),
            )  # fmt: skip
            self.incidents |= {change.incident.number: change.incident for change in changes}


class Job:
    """One program at work."""

    def __init__(self, program: Program, service: Service, until: str) -> None:
        self.truth = program.truth
        self._program = program
        self._service = service
        self._until = until
        self._log = service.run_dir.parent / f"{self.truth.name}.log"
        environ = {**program.environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir), "TIDEGAUGE_JOB_ID": self.truth.name}
        command = [
            sys.executable, "-m", "tidegauge", "run", "--memory-profile",
            f"--memory-fraction={program.memory_fraction}", "--", *program.command,
        ]  # fmt: skip
        self._began_s = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environ, cwd=program.cwd, stdout=log, stderr=log, start_new_session=True
            )
        self._after_s: dict[str, float] = {}
        self._enough_s: float | None = None
        self._asked_s: float | None = None
        self._ended_s: float | None = None

    def is_over(self) -> bool:
        """Whether nothing more is to come; asks the program to end once there is enough."""
        now_s = time.monotonic()
        self._look(now_s - self._began_s)
        if self._process.poll() is not None:
            if self._ended_s is None:
                self._ended_s = now_s
                self.kill()  # before the last reading: ranks whose launcher has ended may go on
            return now_s - self._ended_s > AFTERWARDS_S
        if self._enough_s is None and self._has_enough():
            self._enough_s = now_s
        if self._enough_s is not None and now_s - self._enough_s > AFTERWARDS_S:
            self.end()
        if self._program.seconds is not None and now_s - self._began_s > self._program.seconds:
            self.end()
        return self._asked_s is not None and now_s - self._asked_s > ENDING_S

    def end(self) -> None:
        if self._asked_s is None and self._process.poll() is None:
            self._asked_s = time.monotonic()
            self._process.terminate()

    def kill(self) -> None:
        """Ends what is left of it, launchers' children too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30.0)

    def result(self) -> Result:
        said = self._log.read_text(encoding="utf-8", errors="replace")
        incidents = self._service.incidents_of(self.truth.name)
        whole = self._service.table.of_job(self.truth.name)
        pieces = [brief_of(one) for one in whole]
        shown = [brief for one in incidents for brief in one.evidence[:1]]
        briefs = list({brief.evidence_id: brief for brief in (*shown, *reversed(pieces))}.values())
        job = self._service.jobs.get(self.truth.name)
        return Result(
            self.truth, self._program.own(said), incidents, briefs, whole,
            None if job is None else job.state.value, self._process.returncode,
            {} if job is None else {int(rank.identity.rank): rank.step for rank in job.ranks},
            self._program.steps_late, dict(self._after_s), self._asked_s is not None,
        )  # fmt: skip

    def _look(self, now_s: float) -> None:
        incidents = self._service.incidents_of(self.truth.name)
        pieces = self._service.table.of_job(self.truth.name)
        seen = {
            "incident": bool(incidents),
            "told": bool(pieces),
            "evidence": any(not one.searching for one in pieces),
            "named": any(not brief.searching for one in incidents for brief in one.evidence),
        }
        self._after_s |= {name: now_s for name, there in seen.items() if there and name not in self._after_s}

    def _has_enough(self) -> bool:
        if self.truth.healthy:
            return False
        if self.truth.host_process:
            return "incident" in self._after_s
        return ("evidence" if self._until == "evidence" else "named") in self._after_s


class Result(NamedTuple):
    """What was said of a program."""

    truth: Truth
    own: Mapping[str, Any] | None
    """The program's own words; ``None``: it said none."""
    incidents: list[Incident]
    briefs: list[EvidenceBrief]
    """What the incident shows first, then all pieces, the newest first."""
    pieces: list[Evidence]
    state: str | None
    code: int | None
    steps: Mapping[int, int] = {}
    """As Tidegauge counted, by rank."""
    steps_late: int = 0
    after_s: Mapping[str, float] = {}
    """From the start of the command to the first ``incident``, evidence whose search may go on (``told``), whole
    ``evidence``, and incident with that (``named``)."""
    asked_to_end: bool = False

    @property
    def brief(self) -> EvidenceBrief | None:
        return next(iter(self.briefs), None)

    @property
    def signal(self) -> str | None:
        return next((one.key.cause.value for one in self.incidents), None)

    @property
    def ranks_right(self) -> bool | None:
        """Whether the ranks of the incidents are those that grow; ``None``: nothing is known of them, or said."""
        ranks = {rank for one in self.incidents for rank in one.ranks}
        return ranks <= self.truth.ranks if ranks and self.truth.ranks is not None else None

    @property
    def steps_right(self) -> bool | None:
        """Whether each rank's steps are as many as the program says; ``None``: it says nothing."""
        own = None if self.own is None else self.own.get("steps")
        if own is None:
            return None
        return bool(self.steps) and all(own <= steps <= own + self.steps_late for steps in self.steps.values())

    def grades(self, brief: EvidenceBrief) -> dict[str, bool | None]:
        """Of each part whether it is right; ``None``: not said."""
        truth = self.truth
        cause = None if brief.cause is EvidenceCause.UNKNOWN else brief.cause.value in truth.causes
        nameless = not brief.holder or NAMELESS.match(brief.holder)
        path = re.sub(r"\b\w+\.py\b", "", brief.holder or "")
        holder = None if nameless else any(words in path for words in truth.holder)
        return {
            "line": _is_among(brief.line, truth.lines),
            "caller": _is_among(brief.through, truth.callers)
            if truth.callers and brief.through != brief.line
            else None,
            "holder": holder,
            "cause": cause,
        }

    def word(self) -> str:
        if self.truth.healthy:
            if self.incidents:
                return ALARM
            return QUIET if self.asked_to_end or self.code == 0 else FAILED
        if self.ranks_right is False:
            return WRONG
        if self.truth.host_process:
            return self._word_of_host_memory()
        if self.brief is None:
            return PARTLY if self.incidents else NOTHING
        words = [self._word(brief) for brief in self.briefs]
        return SIN if SIN in words else words[0]

    def _word(self, brief: EvidenceBrief) -> str:
        grades = self.grades(brief)
        decisive = [grades[part] for part in ("line", "holder", "cause")]
        if False in decisive:
            return SIN if brief.confidence is Confidence.NAMED else WRONG
        return PARTLY if None in decisive else RIGHT

    def _word_of_host_memory(self) -> str:
        if not self.incidents:
            return NOTHING
        if any(one.key.cause is not IncidentCause.HOST_MEMORY for one in self.incidents):
            return WRONG
        told = [finding for one in self.incidents for finding in one.findings if finding.host_process is not None]
        if not told:
            return PARTLY
        right = [
            finding.host_process.process == finding.process
            if self.truth.host_process == OWN_PROCESS
            else self.truth.host_process in finding.host_process.name
            for finding in told
            if finding.host_process is not None
        ]
        return RIGHT if all(right) else WRONG

    def row(self) -> list[str]:
        brief = self.brief
        marks = {None: "", True: "", False: " !"}
        counted = sorted(set(self.steps.values()))
        own = None if self.own is None else self.own.get("steps")
        row = [
            self.truth.name,
            self.word(),
            (self.signal or self.state or "-") + marks[self.ranks_right],
            _seconds(self.after_s.get("incident")),
            _seconds(self.after_s.get("named")),
            f"{'-' if own is None else own} {'–'.join(map(str, counted)) or '-'}{marks[self.steps_right]}",
        ]
        if brief is None:
            process = next((one.host_process for i in self.incidents for one in i.findings if one.host_process), None)
            return [*row, "-", "-", "-" if process is None else f"process {process.name}", "-", "-"]
        grades = self.grades(brief) if not self.truth.healthy else dict.fromkeys(("line", "caller", "holder", "cause"))
        return [
            *row,
            _line_words(brief.line) + marks[grades["line"]],
            _line_words(brief.through) + marks[grades["caller"]],
            _shortened(brief.holder) + marks[grades["holder"]],
            brief.cause.value + marks[grades["cause"]],
            brief.confidence.value,
        ]

    def as_json(self) -> dict[str, Any]:
        truth = {
            name: sorted(said) if isinstance(said, frozenset) else said for name, said in self.truth._asdict().items()
        }
        return {
            "name": self.truth.name,
            "word": self.word(),
            "truth": truth,
            "program": self.own,
            "steps": self.steps,
            "steps_right": self.steps_right,
            "after_s": {name: round(seconds, 1) for name, seconds in self.after_s.items()},
            "exit": self.code,
            "state": self.state,
            "incidents": [_incident_as_json(one) for one in self.incidents],
            "evidence": [
                {
                    "grades": None if self.truth.healthy else self.grades(brief),
                    "rank": brief.rank,
                    "line": _line_words(brief.line),
                    "caller": _line_words(brief.through),
                    "holder": brief.holder,
                    "cause": brief.cause.value,
                    "confidence": brief.confidence.value,
                    "advice": brief.advice,
                    "grown_bytes": brief.grown_bytes,
                    "window_steps": brief.window_steps,
                    "bound": None if brief.bound is None else str(brief.bound),
                    **self._of_the_piece(brief),
                }
                for brief in self.briefs
            ],
        }

    def _of_the_piece(self, brief: EvidenceBrief) -> dict[str, Any]:
        """What the brief leaves out."""
        for piece in self.pieces:
            if piece.evidence_id == brief.evidence_id:
                search = piece.search
                return {
                    "because": piece.cause.because,
                    "problems": piece.problems,
                    "searching": piece.searching,
                    "search_problem": None if search is None else search.problem,
                    "search_s": None if search is None else round(search.took_s, 1),
                    "search_objects": None if search is None else search.objects,
                    "holders": [] if search is None else [[one.path, one.held_bytes] for one in search.holders],
                    "window_grown_bytes": piece.grown_bytes,
                }
        return {}


def _incident_as_json(incident: Incident) -> dict[str, Any]:
    return {
        "cause": incident.key.cause.value,
        "severity": incident.severity.value,
        "ranks": incident.ranks,
        "common": incident.common,
        "onset_step": incident.onset_step,
        "grown_bytes": incident.grown_bytes,
        "host_processes": [None if one.host_process is None else one.host_process.name for one in incident.findings],
    }


def _is_among(line: CodeLine | None, lines: Collection[str]) -> bool | None:
    return None if line is None else f"{Path(line.filename).name}:{line.line}" in lines


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s"


def _line_words(line: CodeLine | None) -> str:
    return "-" if line is None else f"{Path(line.filename).name}:{line.line} {line.function}"


def _shortened(text: str | None, most: int = 90) -> str:
    return "-" if not text else text if len(text) <= most else f"{text[: most - 20]} … {text[-17:]}"


def run_all(
    programs: Sequence[Program], scratch: Path, *, at_once: int, minutes: float, until: str,
    each: Callable[[Sequence[Result]], None],
) -> list[Result]:  # fmt: skip
    """``each`` gets what there is after every program; what is left after ``minutes`` is ended."""
    end_s = time.monotonic() + 60 * minutes
    waiting = list(programs)
    services: list[Service] = []
    running: list[Job] = []
    results: list[Result] = []
    try:
        while waiting or running:
            late = time.monotonic() > end_s
            while waiting and len(running) < at_once and not late:
                if not services or services[-1].programs == PROGRAMS_OF_A_SERVICE:
                    services.append(Service(scratch / f"service-{len(services)}"))
                    services[-1].start()
                services[-1].programs += 1
                running.append(Job(waiting.pop(0), services[-1], until))
            for job in running:
                if late:
                    job.end()
            for job in [one for one in running if one.is_over() or time.monotonic() > end_s + ENDING_S]:
                running.remove(job)
                job.kill()
                results.append(job.result())
                print("  ".join(results[-1].row()), file=sys.stderr, flush=True)
                each(results)
            if late and not running:
                break
            time.sleep(0.5)
    finally:
        for job in running:
            job.kill()
        for service in services:
            service.stop()
    for program in waiting:
        print(f"not run, no time left: {program.truth.name}", file=sys.stderr)
    return sorted(results, key=lambda one: (one.truth.healthy, one.truth.name))


def table_of(results: Sequence[Result]) -> str:
    header = [
        "program", "", "incident", "after", "named", "steps: own, counted", "line", "called from", "holder", "cause",
        "certainty",
    ]  # fmt: skip
    rows = [header, *(one.row() for one in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def summary_of(results: Sequence[Result]) -> dict[str, int]:
    words = [one.word() for one in results]
    return {word: words.count(word) for word in (RIGHT, PARTLY, WRONG, SIN, NOTHING, QUIET, ALARM, FAILED)}


def write(path: Path, about: Mapping[str, Any], results: Sequence[Result]) -> None:
    said = {**about, "counts": summary_of(results), "programs": [one.as_json() for one in results]}
    path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


class Place(NamedTuple):
    """Where programs run."""

    python: str
    environ: Mapping[str, str]


def place_on(where: str) -> Place:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    environ |= {"OMP_NUM_THREADS": "1"}
    if where == "gpu":
        paths = [str(Path(path).resolve()) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return Place(sys.executable, {**environ, "PYTHONPATH": os.pathsep.join(paths)})
    environ["PYTHONPATH"] = str(Path(tidegauge.__file__).parents[1])  # the probe is of this checkout, too
    return Place(os.environ["TIDEGAUGE_BENCH_PYTHON"], environ)


@contextmanager
def scratch_on(where: str, version: str | None, devices: int) -> Iterator[Path]:
    """A folder that is gone afterwards; on the rig this process is first replaced by itself with fake GPUs."""
    if importlib.util.find_spec("zstandard") is None:
        raise SystemExit("an agent keeps no evidence without the package zstandard")
    scratch = Path(os.environ.get(ON_RIG) or tempfile.mkdtemp(prefix="watched-", dir="/dev/shm"))
    try:
        if where == "rig" and ON_RIG not in os.environ:
            _begin_on_rig(version, devices, scratch)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def copy_logs(scratch: Path, out: Path) -> None:
    for log in scratch.glob("service-*/*.log"):
        shutil.copy(log, out)


def _begin_on_rig(version: str | None, devices: int, scratch: Path) -> None:
    rig = Rig.of(version) if version else Rig()
    reason = rig.available()
    if reason is not None:
        raise SystemExit(f"no rig: {reason}")
    environ = rig.environ(devices=devices, state=scratch / "gpus")
    environ |= {ON_RIG: str(scratch), "TIDEGAUGE_BENCH_PYTHON": str(rig.python)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environ)
