"""How often is the evidence right? Runs the programs of bench/fresh_programs under a whole service, and compares.

    python bench/fresh_leaks.py OUT                                  # on the rig: all programs, steps of 0.1 s
    python bench/fresh_leaks.py OUT --step-seconds 10 --until evidence --minutes 30 --only lists_of_ranks at_exit
    python bench/fresh_leaks.py OUT --on gpu --at-once 20            # on a machine with a GPU; needs no Ray and no SQL

Each program runs under ``tidegauge run --memory-profile``, beside an agent, a coordinator, its escalation and its
incidents, all in this process, with incidents from severity ``warning`` on. It is copied out of the checkout first, so
that its code is the user's. What is true stands in the program: ``# LEAK`` marks the lines that allocate what is kept,
``# CALLER`` their callers, and ``TRUTH`` has words for the holder (one of them must occur in the path) and the causes
that are right; ``TRUTH = None`` is a healthy program.

=====================  =================================================================================
word                   what it means
=====================  =================================================================================
``right``              line, holder and cause are right
``partly``             nothing that was said is false, but something was not said
``WRONG``              something that was said is false
``WRONG AND NAMED``    the same, and the cause's certainty is ``named``
``nothing``            no evidence came
``quiet``, ``alarm``   of a healthy program: no incident, or one
=====================  =================================================================================

Prints a table; OUT gets ``fresh_leaks.json`` with all of it and the programs' output.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from direct_reporter import DirectReporter  # noqa: E402
from fakegpu.rig import Rig  # noqa: E402
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
from tidegauge.core.incidents import Incident  # noqa: E402
from tidegauge.core.incidents.steps import IncidentRules  # noqa: E402
from tidegauge.core.incidents.tracker import IncidentTracker  # noqa: E402
from tidegauge.core.verdicts import Severity  # noqa: E402
from tidegauge.core.views import JobView  # noqa: E402
from tidegauge.settings import Settings  # noqa: E402

if TYPE_CHECKING:
    from tidegauge.cluster.store import KeptEvidence

PROGRAMS = Path(__file__).with_name("fresh_programs")
HELPER = "loop"
ON_RIG = "TIDEGAUGE_BENCH_SCRATCH"
MEMORY_FRACTION = 0.03
"""2.4 GiB of 80: growth of a MiB each 10 s matters, too."""
PROGRAMS_OF_A_SERVICE = 20
"""A node takes in so much evidence of one user within an hour, and no more."""
AFTERWARDS_S = 4.0
"""A job goes on for so long after its incident has evidence; and evidence may come for so long after its end."""
NAMELESS = re.compile(r"(tuple|list|dict|set|object) \(|no Python object found")
"""A path that begins so says what kind of object holds, not which; or that none was found."""
RIGHT, PARTLY, WRONG, SIN, NOTHING = "right", "partly", "WRONG", "WRONG AND NAMED", "nothing"
QUIET, ALARM = "quiet", "alarm"


class Truth(NamedTuple):
    """What is true of a program, from its source."""

    name: str
    healthy: bool
    lines: frozenset[int] = frozenset()
    callers: frozenset[int] = frozenset()
    holder: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def truth_of(path: Path) -> Truth:
    source = path.read_text(encoding="utf-8")
    said = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TRUTH"
    )
    if said is None:
        return Truth(path.stem, healthy=True)
    marked = {
        mark: frozenset(at for at, line in enumerate(source.splitlines(), 1) if f"# {mark}" in line)
        for mark in ("LEAK", "CALLER")
    }
    assert marked["LEAK"], path
    return Truth(path.stem, False, marked["LEAK"], marked["CALLER"], tuple(said["holder"]), tuple(said["cause"]))


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


class Place(NamedTuple):
    """Where the programs run."""

    python: str
    environ: Mapping[str, str]
    programs: Path


class Job:
    """One program at work."""

    def __init__(self, truth: Truth, place: Place, service: Service, flags: Sequence[str], until: str) -> None:
        self.truth = truth
        self._service = service
        self._until = until
        self._log = service.run_dir.parent / f"{truth.name}.log"
        environ = {**place.environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir), "TIDEGAUGE_JOB_ID": truth.name}
        command = [
            sys.executable, "-m", "tidegauge", "run", "--memory-profile", f"--memory-fraction={MEMORY_FRACTION}",
            "--", place.python, str(place.programs / f"{truth.name}.py"), *flags,
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environ, cwd=place.programs, stdout=log, stderr=log)
        self._enough_s: float | None = None
        self._ended_s: float | None = None

    def is_over(self) -> bool:
        """Whether nothing more is to come; asks the program to end once there is enough."""
        now_s = time.monotonic()
        if self._process.poll() is not None:
            self._ended_s = now_s if self._ended_s is None else self._ended_s
            return now_s - self._ended_s > AFTERWARDS_S
        if self._enough_s is None and self._has_enough():
            self._enough_s = now_s
        if self._enough_s is not None and now_s - self._enough_s > AFTERWARDS_S:
            self.end()
        return False

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(30.0)

    def result(self) -> Result:
        said = self._log.read_text(encoding="utf-8", errors="replace")
        own = [line for line in said.splitlines() if line.startswith('{"steps"')]
        incidents = self._service.incidents_of(self.truth.name)
        whole = self._service.table.of_job(self.truth.name)
        pieces = [brief_of(one) for one in whole]
        shown = [brief for one in incidents for brief in one.evidence[:1]]
        briefs = list({brief.evidence_id: brief for brief in (*shown, *reversed(pieces))}.values())
        job = self._service.jobs.get(self.truth.name)
        return Result(
            self.truth, json.loads(own[-1]) if own else None, incidents, briefs, whole,
            None if job is None else job.state.value, self._process.returncode,
        )  # fmt: skip

    def _has_enough(self) -> bool:
        if self.truth.healthy:
            return False
        if self._until == "evidence":
            return bool(self._service.table.of_job(self.truth.name))
        return any(one.evidence for one in self._service.incidents_of(self.truth.name))


class Result(NamedTuple):
    """What was said of a program."""

    truth: Truth
    own: Any
    """The program's own last words; ``None``: it said none."""
    incidents: list[Incident]
    briefs: list[EvidenceBrief]
    """What the incident shows first, then all pieces, the newest first."""
    pieces: list[Evidence]
    state: str | None
    code: int | None

    @property
    def brief(self) -> EvidenceBrief | None:
        return next(iter(self.briefs), None)

    @property
    def signal(self) -> str | None:
        return next((one.key.cause.value for one in self.incidents), None)

    def grades(self, brief: EvidenceBrief) -> dict[str, bool | None]:
        """Of each part whether it is right; ``None``: not said."""
        truth = self.truth
        cause = None if brief.cause is EvidenceCause.UNKNOWN else brief.cause.value in truth.causes
        nameless = not brief.holder or NAMELESS.match(brief.holder)
        path = (brief.holder or "").replace(f"{truth.name}.py", "")
        holder = None if nameless else any(words in path for words in truth.holder)
        return {
            "line": self._is_at(brief.line, truth.lines),
            "caller": self._is_at(brief.through, truth.callers)
            if truth.callers and brief.through != brief.line
            else None,
            "holder": holder,
            "cause": cause,
        }

    def word(self) -> str:
        if self.truth.healthy:
            return ALARM if self.incidents else QUIET
        if self.brief is None:
            return NOTHING
        words = [self._word(brief) for brief in self.briefs]
        return SIN if SIN in words else words[0]

    def _word(self, brief: EvidenceBrief) -> str:
        grades = self.grades(brief)
        decisive = [grades[part] for part in ("line", "holder", "cause")]
        if False in decisive:
            return SIN if brief.confidence is Confidence.NAMED else WRONG
        return PARTLY if None in decisive else RIGHT

    def _is_at(self, line: CodeLine | None, lines: Collection[int]) -> bool | None:
        if line is None:
            return None
        return Path(line.filename).stem == self.truth.name and line.line in lines

    def row(self) -> list[str]:
        brief = self.brief
        if brief is None:
            return [self.truth.name, self.word(), self.signal or self.state or "-", *["-"] * 5]
        grades = self.grades(brief) if not self.truth.healthy else dict.fromkeys(("line", "caller", "holder", "cause"))
        marks = {None: "", True: "", False: " !"}
        return [
            self.truth.name,
            self.word(),
            self.signal or self.state or "-",
            _line_words(brief.line) + marks[grades["line"]],
            _line_words(brief.through) + marks[grades["caller"]],
            _shortened(brief.holder) + marks[grades["holder"]],
            brief.cause.value + marks[grades["cause"]],
            brief.confidence.value,
        ]

    def as_json(self) -> dict[str, Any]:
        truth = self.truth._asdict() | {"lines": sorted(self.truth.lines), "callers": sorted(self.truth.callers)}
        return {
            "name": self.truth.name,
            "word": self.word(),
            "truth": truth,
            "program": self.own,
            "exit": self.code,
            "state": self.state,
            "incidents": [{"cause": one.key.cause.value, "severity": one.severity.value} for one in self.incidents],
            "evidence": [
                {
                    "grades": None if self.truth.healthy else self.grades(brief),
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
                    "search_problem": None if search is None else search.problem,
                    "holders": [] if search is None else [[one.path, one.held_bytes] for one in search.holders],
                    "window_grown_bytes": piece.grown_bytes,
                }
        return {}


def _line_words(line: CodeLine | None) -> str:
    return "-" if line is None else f"{Path(line.filename).name}:{line.line} {line.function}"


def _shortened(text: str | None, most: int = 90) -> str:
    return "-" if not text else text if len(text) <= most else f"{text[: most - 20]} … {text[-17:]}"


def run_all(args: argparse.Namespace, place: Place, scratch: Path) -> list[Result]:
    truths = [truth_of(path) for path in sorted(place.programs.glob("*.py")) if path.stem != HELPER]
    waiting = [one for one in truths if args.only is None or re.search("|".join(args.only), one.name)]
    flags = ["--steps", str(args.steps), "--step-seconds", str(args.step_seconds)]
    end_s = time.monotonic() + 60 * args.minutes
    services: list[Service] = []
    running: list[Job] = []
    results: list[Result] = []
    try:
        while waiting or running:
            late = time.monotonic() > end_s
            while waiting and len(running) < args.at_once and not late:
                if not services or services[-1].programs == PROGRAMS_OF_A_SERVICE:
                    services.append(Service(scratch / f"service-{len(services)}"))
                    services[-1].start()
                services[-1].programs += 1
                running.append(Job(waiting.pop(0), place, services[-1], flags, args.until))
            for job in running:
                if late:
                    job.end()
            for job in [one for one in running if one.is_over() or time.monotonic() > end_s + 15]:
                running.remove(job)
                job.kill()
                results.append(job.result())
                print("  ".join(results[-1].row()), file=sys.stderr, flush=True)
                write(args, results)
            if late and not running:
                break
            time.sleep(0.5)
    finally:
        for job in running:
            job.kill()
        for service in services:
            service.stop()
    for truth in waiting:
        print(f"not run, no time left: {truth.name}", file=sys.stderr)
    return sorted(results, key=lambda one: (one.truth.healthy, one.truth.name))


def table_of(results: Sequence[Result]) -> str:
    header = ["program", "", "incident", "line", "called from", "holder", "cause", "certainty"]
    rows = [header, *(one.row() for one in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def summary_of(results: Sequence[Result]) -> dict[str, int]:
    words = [one.word() for one in results]
    return {word: words.count(word) for word in (RIGHT, PARTLY, WRONG, SIN, NOTHING, QUIET, ALARM)}


def write(args: argparse.Namespace, results: Sequence[Result]) -> None:
    about = {"on": args.on, "torch": args.torch, "step_seconds": args.step_seconds, "counts": summary_of(results)}
    said = {**about, "programs": [one.as_json() for one in results]}
    (args.out / "fresh_leaks.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def place_on(where: str, scratch: Path) -> Place:
    programs = scratch / "project"
    shutil.copytree(PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    environ |= {"OMP_NUM_THREADS": "1"}
    if where == "gpu":
        paths = [str(Path(path).resolve()) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return Place(sys.executable, {**environ, "PYTHONPATH": os.pathsep.join(paths)}, programs)
    environ.pop("PYTHONPATH", None)
    return Place(os.environ["TIDEGAUGE_BENCH_PYTHON"], environ, programs)


def begin_on_rig(version: str | None, scratch: Path) -> None:
    """Replaces this process by itself with fake GPUs."""
    rig = Rig.of(version) if version else Rig()
    reason = rig.available()
    if reason is not None:
        raise SystemExit(f"fresh_leaks: no rig: {reason}")
    environ = rig.environ(devices=1, state=scratch / "gpus")
    environ |= {ON_RIG: str(scratch), "TIDEGAUGE_BENCH_PYTHON": str(rig.python)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for fresh_leaks.json and the programs' output")
    parser.add_argument("--on", choices=("rig", "gpu"), default="rig")
    parser.add_argument("--torch", metavar="VERSION", help="on the rig of that release, such as 2.11.0")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="programs whose names contain one of these")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--at-once", type=int, default=5, help="programs at a time (default 5)")
    parser.add_argument(
        "--until", choices=("incident", "evidence"), default="incident",
        help="a leaking program ends when its incident has evidence, or when there is evidence",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=30.0, help="of the whole run; what is left then is ended")
    args = parser.parse_args()
    if importlib.util.find_spec("zstandard") is None:
        raise SystemExit("fresh_leaks: an agent keeps no evidence without the package zstandard")
    scratch = Path(os.environ.get(ON_RIG) or tempfile.mkdtemp(prefix="fresh-", dir="/dev/shm"))
    try:
        if args.on == "rig" and ON_RIG not in os.environ:
            begin_on_rig(args.torch, scratch)
        began_s = time.monotonic()
        args.out.mkdir(parents=True, exist_ok=True)
        results = run_all(args, place_on(args.on, scratch), scratch)
        for log in scratch.glob("*/*.log"):
            shutil.copy(log, args.out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    counts = summary_of(results)
    print(table_of(results))
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"in {time.monotonic() - began_s:.0f} s")
    return 1 if counts[SIN] else 0


if __name__ == "__main__":
    sys.exit(main())
