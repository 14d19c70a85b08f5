"""What people see of an incident after 89 days, beside what they saw of it on its day: the real database, loops and
pages, with what is deleted by default deleted in between."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from evidence_values import evidence
from html_text import Page
from rank_profiles import rank_profile
from sample_views import GIB, MIB, identity, rank_summary
from scheduler_values import JOB, decision, died_of_oom, finding, incident, oom_record
from still_service import AwayEngine, StillLoop
from tidegauge.cli.main import main
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import DAY_S, ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.incident_loops.incident_recording import IncidentRecorder
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.evidence import brief_of
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge.core.verdicts import Severity
from tidegauge.core.views import NodeSummary
from tidegauge.settings import Settings
from waiting import PATIENCE_S

AGO_S = 89 * DAY_S
"""Whole days: times of day are those of the other story."""
LED_S = 3 * DAY_S
"""From the first growth to the error: what was collected at the beginning is older than the incident's end."""
EVERY_S = 2400.0
"""Between two reports: as many points as a curve may have, which are put together by stretches of absolute time."""
SETTINGS = Settings(cluster="lab", grafana_url="http://grafana.example", public_url="http://head.example:9495")
SERVICE_URL = str(SETTINGS.public_url)
PATHS = ("node0:/var/lib/tidegauge/snapshots/lab/4711/0/rank-1/step-204-1800000000250.snap.zst",)


@dataclass
class Head:
    """A head node whose clock stands at ``now_s``; ``error_s`` is when its job runs out of memory."""

    folder: Path
    error_s: float
    now_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.now_s = self.error_s - LED_S
        self.store: Store = open_store(sqlite_url(self.folder))
        self.restart()

    def restart(self) -> None:
        """Nothing but the database stays."""
        self.coordinator = Coordinator(wall_s=self.clock, monotonic_s=self.clock, incarnation="c")
        history_of = self.coordinator.history_of
        jobs = JobRecorder(
            self.coordinator.jobs, self.store.jobs, history_of=history_of, now_s=self.clock, monotonic_s=self.clock
        )
        incidents = IncidentRecorder(
            self.store.incidents.open_incidents, self.coordinator.jobs, self.store.incidents, history_of=history_of,
            monotonic_s=self.clock,
        )  # fmt: skip
        self.loop = ActionLoop(
            lambda: Opened(self.store, StillLoop(), self.clock, recorders=(jobs, incidents)),
            keep_incidents_s=SETTINGS.keep_incidents_days * DAY_S,
            keep_jobs_s=SETTINGS.keep_jobs_days * DAY_S,
        )
        self.loop.turn()

    def clock(self) -> float:
        return self.now_s

    def save(self, kind: ChangeKind, one: Incident) -> None:
        self.store.incidents.save([IncidentChange(kind, self.now_s, one)])

    def look(self, step: int, *, alive: bool = True) -> None:
        """The agent reports the ranks of the job, the second of which grows by 12 MiB a step."""
        ranks = tuple(
            rank_summary(
                rank, identity=identity(rank), process=ProcessId(1000 + rank, 5_000 + rank), step=step, alive=alive,
                allocated_bytes=20 * GIB + 12 * MIB * step * rank, reserved_bytes=24 * GIB + 12 * MIB * step * rank,
                last_sample_unix_s=self.now_s, last_oom=None if alive or not rank else self.oom,
            )
            for rank in (0, 1)
        )  # fmt: skip
        self.coordinator.engine_nodes([EngineNode("engine-0", "node0", "10.0.0.7")])
        self.coordinator.report(NodeSummary("engine-0", "node0", 1, "i", None, self.now_s, ranks))
        self.loop.turn()

    def live(self) -> None:
        """Growth is found, its owner is told, its cause is collected; it ends in an error that has its own incident."""
        steps = int(LED_S / EVERY_S)
        self.oom = oom_record(at_unix_s=self.error_s, step=steps, wanted_bytes=20 * MIB, free_bytes=10 * MIB)
        piece = evidence(1, at_unix_s=self.now_s + 9 * EVERY_S)
        whole = died_of_oom()
        assert whole.ran_out is not None
        assert whole.foreseen is not None
        over = replace(
            whole, evidence=(brief_of(piece),), snapshots=PATHS, onset_step=2, findings=(finding(1, step=steps),),
            opened_unix_s=self.now_s + 10 * EVERY_S, updated_unix_s=self.error_s - 8.0,
            closed_unix_s=self.error_s + 2.0, ran_out=whole.ran_out._replace(oom=self.oom),
            foreseen=whole.foreseen._replace(at_unix_s=self.error_s - 28.0),
        )  # fmt: skip
        growing = incident(
            number=1, severity=Severity.WARNING, opened_unix_s=over.opened_unix_s, findings=(finding(1, step=10),),
            onset_step=2,
        )  # fmt: skip
        for step in range(1, steps):
            self.now_s += EVERY_S
            self.look(step)
            if step == 9:
                self.store.evidence.keep([piece], at_s=self.now_s)
                self.store.profiles.keep([rank_profile(1)], at_s=self.now_s)
            if step == 10:
                self.save(ChangeKind.OPENED, growing)
                self._decide()
        self.now_s = self.error_s + 2.0
        self.look(steps, alive=False)
        error = incident(
            IncidentCause.OUT_OF_MEMORY, number=2, grew_in=1, findings=(finding(1, oom=self.oom),), onset_step=None,
            opened_unix_s=self.error_s, updated_unix_s=self.error_s, bytes_per_step=None, seconds_to_oom=None,
        )  # fmt: skip
        self.save(ChangeKind.OPENED, error)
        self.save(ChangeKind.CLOSED, over)
        self.look(steps, alive=False)
        self.now_s += 30.0
        self.save(ChangeKind.CLOSED, replace(error, state=over.state, closure=over.closure, closed_unix_s=self.now_s))
        self.look(steps, alive=False)

    def _decide(self) -> None:
        about = self.store.incidents.open_incidents()[0]
        done, on_hold = (
            decision(ActionKind.NOTIFY, decision_id="1:leak:0:1", incident=about, decided_s=self.now_s),
            decision(
                ActionKind.CHECKPOINT, decision_id="1:leak:1:1:withheld", incident=about, decided_s=self.now_s,
                rung=1, disposition=Disposition.WITHHELD, brake="paused", reason="actions are paused",
            ),
        )  # fmt: skip
        self.store.audit.write_ahead([done, on_hold])
        self.store.audit.begin(done.decision_id, at_s=self.now_s)
        self.store.audit.finish(done.decision_id, Outcome.DONE, "written to the job's terminal", at_s=self.now_s)

    def pass_days(self, days: int) -> None:
        for _ in range(days):
            self.now_s += DAY_S
            self.loop.turn()

    @contextmanager
    def serving(self) -> Iterator[str]:
        service = CoordinatorService(
            self.coordinator, AwayEngine(), exporter_pages(SETTINGS), self.loop, cluster="lab", host="127.0.0.1",
            port=0, advertise_host="127.0.0.1", asks=EvidenceAsks(self.folder / "asks"),
        )  # fmt: skip
        service.start()
        try:
            yield service.url
        finally:
            service.stop()


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Head, Head]]:
    """Two heads: the incident of one ended a minute ago, the one of the other 89 days before it."""
    now_s = float(int(time.time()) - 60)  # so that 89 days earlier differs by no rounding
    today = Head(tmp_path_factory.mktemp("today"), now_s)
    today.live()
    old = Head(tmp_path_factory.mktemp("old"), now_s - AGO_S)
    old.live()
    old.restart()
    old.pass_days(89)
    assert old.coordinator.jobs() == ()
    yield today, old
    for head in (today, old):
        head.store.close()


def undated(text: str) -> str:
    """The text without days; times of day stay."""
    without = re.sub(r"\d{4}-\d\d-\d\d", "DAY", text)
    without = re.sub(r"(from|to)=\d{13}", r"\1=MS", without)
    without = re.sub(r">\d\d-\d\d</text>", ">DAY</text>", without)
    return re.sub(r"\([^()]* ago\)", "(once)", without)


def get(url: str) -> str:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def both(days: tuple[Head, Head], seen: Callable[[str], str]) -> tuple[str, str]:
    texts = []
    for head in days:
        with head.serving() as url:
            texts.append(undated(seen(url)))
    return texts[0], texts[1]


@pytest.mark.parametrize("number", [1, 2])
def test_page_of_an_incident_is_the_same_after_89_days(days: tuple[Head, Head], number: int) -> None:
    today, old = both(days, lambda url: get(f"{url}/report?incident={number}"))
    words = Page(today).text
    assert "No readings" not in words
    assert "out of memory" in words
    assert old == without_snapshots(today)


def without_snapshots(today: str) -> str:
    """The page of the day, where it speaks of snapshots as the later one, which nodes have deleted by then."""
    gone = '<p class="muted">1 snapshot is gone: nodes delete snapshots after 14 days.</p>'
    without = re.sub(f"<ul><li><code>{re.escape(undated(PATHS[0]))}</code></li></ul>", gone, today)
    return without.replace(" adds flame graphs and the allocator map.", " adds flame graphs.")


@pytest.mark.parametrize("number", [1, 2])
def test_links_of_an_old_page_lead_somewhere(days: tuple[Head, Head], number: int) -> None:
    _, old = days
    with old.serving() as url:
        own = [link for link in Page(get(f"{url}/report?incident={number}")).links if SERVICE_URL in link]
        assert any("report?incident=" in link for link in own)
        for link in own:
            assert get(link.replace(SERVICE_URL, url))


@pytest.mark.parametrize("command", ["incidents show 1", "incidents show 2", "job 4711"])
def test_terminal_tells_the_same_after_89_days(
    days: tuple[Head, Head], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(url: str) -> str:
        assert main([*command.split(), "--api", url]) == 0
        return re.sub(r"http://127[^/]*", "URL", capsys.readouterr().out)

    today, old = both(days, said)
    today = re.sub(
        r"snapshot: node0:\S+(\s+\S+.zst)?", "1 snapshot is gone: nodes delete snapshots after 14 days", today
    )
    assert old == today.replace("stacks, curves and memory map:", "stacks and curves:")


def test_report_of_the_terminal_has_the_same_sections_after_89_days(
    days: tuple[Head, Head], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(url: str) -> str:
        assert main(["report", "1", "-o", str(tmp_path / "page.html"), "--api", url]) == 0
        capsys.readouterr()
        return (tmp_path / "page.html").read_text()

    today, old = (re.findall("<h2>.*?</h2>|<h3>.*?</h3>", page) for page in both(days, made))
    assert old == today


def test_profile_stays_as_long_as_the_record_of_its_job(days: tuple[Head, Head]) -> None:
    for head in days:
        assert [one.rank for one in head.store.profiles.of_job(JOB, limit=9)] == [1]
