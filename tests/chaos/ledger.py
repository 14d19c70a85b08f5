"""One scenario's account: what was there before it, all that was shown while it ran, and what is there after it.

While a scenario runs, the API is asked again and again: whatever it ever showed was acknowledged, and has to be there
in the end. What the jobs say of themselves (their pids, steps and checkpoints) is the other side of the account.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from chaos.jobs import TrainingJob
from chaos.nodes import Node
from chaos.promises import (
    FRESH,
    KEPT,
    MAX_UNSEEN_S,
    ONCE,
    UNBROKEN,
    UNDISTURBED,
    Account,
    Attempt,
    JobRecord,
    allowed_gap,
    broken_series,
    disturbed,
    interrupted,
    longest_gap,
    lost,
    moved_onset,
    twice,
    unseen,
)
from chaos.scrapes import NodeScrapes
from chaos.site import SCRAPE_S, ChaosSite
from tidegauge.cluster.api import client

BEFORE_S = 15.0
"""How much of the training before the trouble is what its steps are compared with."""
STALE_WITHIN_S = 3.0 * SCRAPE_S
"""A sample is one scrape old at most, has waited for the agent's look (0.5 s), and a scrape may take its timeout."""
SAMPLE_AGE = """
(time() - tidegauge_rank_last_sample_timestamp_seconds{UUID!=""})
and on (hostname, job_id, attempt, rank, UUID) tidegauge_rank_allocated_bytes
"""
"""Of ranks whose memory is shown. (Counters, and when a rank was last seen, linger for two minutes after its end. A
tenant who claims to be a rank has no device.)"""
LOOK_EVERY_S = 1.0
SETTLED_WITHIN_S = 20.0
ANSWER_WITHIN_S = 60.0
"""Before the trouble and after it the API answers; not at the first call where the machine stands still for seconds."""
TOLD = "tidegauge: Incident"
"""How a message to the owner begins where the job prints."""
CHECK_DATABASE = """
import sqlite3, sys
print(*sqlite3.connect(sys.argv[1], uri=True, timeout=60).execute("pragma quick_check").fetchone())
"""


class Watch:
    """``begin``, the trouble, ``finish``."""

    def __init__(self, site: ChaosSite) -> None:
        self._site = site
        self._shown = Account()
        self._before: dict[str, JobRecord] = {}
        self._requeues: dict[str, int] = {}
        self._open: set[int] = set()
        self._ids: set[str] = set()
        """Of all jobs that the API showed."""
        self._ended: set[str] = set()
        self._frozen: set[tuple[str, int]] = set()
        self._dateless: set[str] = set()
        self._away: set[str] = set()
        self._scrapes = [NodeScrapes(node) for node in site.nodes]
        self._attempts: dict[str, int] = {}
        """By job: its attempt when the scenario began. Counters of earlier ones may linger."""
        self._onset: tuple[int, int, int] | None = None
        """Of the leak when the scenario began: its job's attempt, its onset, and the rank's step."""
        self._stop = threading.Event()
        self._looker = threading.Thread(target=self._look_on, name="chaos-ledger", daemon=True)
        self.agents: dict[str, list[int]] = {}
        """By node: the pids of its agent when the scenario began."""
        self._began_s = self._asked_s = 0.0
        self._began_unix_s = 0.0
        self.longest_gap_s = 0.0
        """Between two steps of one rank, of all that were to go on; after ``finish``."""
        self.stalest_s = 0.0
        """The oldest sample that Prometheus showed of a rank; after ``finish``."""
        self.unseen_s = 0.0
        """The longest time for which a scrape of a node would have missed a rank; after ``finish``."""
        self.load = 0.0
        """The highest load average of a minute meanwhile."""

    def dead(self, job: str) -> None:
        """This job was ended on purpose: it need not go on. Its series must end like any other's."""
        self._ended.add(job)

    def frozen(self, job: str, rank: int) -> None:
        """This rank is stopped for a while: it makes no steps, and its samples get old."""
        self._frozen.add((job, rank))

    def dateless(self, job: str) -> None:
        """The clock of this job's node is wrong on purpose: the time that its samples bear means nothing."""
        self._dateless.add(job)

    def away(self, node: Node) -> None:
        """All of this node's service is ended or stopped on purpose: nobody answers there meanwhile."""
        self._away.add(node.name)

    def prepared(self) -> None:
        """What was needed for the trouble is done (a service restarted with another clock or disk): from now on nodes
        have to answer."""
        self._asked_s = time.monotonic()

    def requeues_before(self, job: str) -> int:
        """How often the job had been requeued when the scenario began."""
        return self._requeues[job]

    def begin(self) -> None:
        """Raises ``AssertionError`` if the API shows nothing."""
        self._shown = account_of(self._site)
        self._before = {job.name: record_of(job) for job in self._site.jobs.values() if job.is_running()}
        self._requeues = {name: self._shown.carried_out(name, "requeue") for name in self._before}
        self._attempts = {name: self._attempt_of(name) for name in self._before}
        self._open = self._shown.open_numbers()
        self.agents = {node.name: node.pids("agent") for node in self._site.nodes}
        self._onset = self._onset_now()
        for scrapes in self._scrapes:
            scrapes.start()
        self._began_s, self._began_unix_s = time.monotonic(), time.time()
        self._asked_s = self._began_s
        self._looker.start()

    def finish(self) -> dict[str, list[str]]:
        """What is wrong, by promise. Raises ``AssertionError`` if nothing can be compared."""
        self._stop.set()
        self._looker.join()
        for scrapes in self._scrapes:
            scrapes.close()
        ended_s = time.monotonic()
        now, records = self._settled()
        going_on = [
            name for name, record in self._before.items()
            if name not in self._ended and records[name].starts == record.starts
        ]  # fmt: skip
        return {
            UNDISTURBED: self._disturbed(records, now),
            KEPT: lost(self._shown, now) + interrupted(self._open, now, going_on) + self._damaged(),
            ONCE: [line for record in records.values() for line in twice(record, now)],
            FRESH: self._stale(),
            UNBROKEN: self._unseen(ended_s, going_on) + self._moved(),
        }

    def _settled(self) -> tuple[Account, dict[str, JobRecord]]:
        """What there is now. A requeue is in the audit before the job has begun again: that is waited for."""
        deadline_s = time.monotonic() + SETTLED_WITHIN_S
        while True:
            # The jobs first: what they felt was in the audit before, and what is begun between the two readings is not
            # held against it.
            records = {name: record_of(self._site.jobs[name]) for name in self._site.jobs}
            now = account_of(self._site)
            on_its_way = [
                name for name, before in self._before.items()
                if name not in self._ended and self._requeues_since(name, now) > records[name].starts - before.starts
            ]  # fmt: skip
            if not on_its_way or time.monotonic() > deadline_s:
                return now, records
            time.sleep(LOOK_EVERY_S)

    def _requeues_since(self, name: str, now: Account) -> int:
        return now.carried_out(name, "requeue") - self._requeues[name]

    def _look_on(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.load = max(self.load, os.getloadavg()[0])
            with contextlib.suppress(client.ApiError):
                look(self._site, self._shown)

    def _disturbed(self, records: dict[str, JobRecord], now: Account) -> list[str]:
        said = []
        for name, before in self._before.items():
            if name not in self._ended:
                said += disturbed(before, records[name], requeues=self._requeues_since(name, now))
                said += [line for rank in before.pids for line in self._gaps(self._site.jobs[name], rank)]
        return said

    def _gaps(self, job: TrainingJob, rank: int) -> list[str]:
        if (job.name, rank) in self._frozen:
            return []
        now_s = time.monotonic()  # before the steps are read: whatever holds us up in between is not the rank's
        steps, saving = job.steps(rank), {line["step"] for line in job.told("saving", rank=rank)}
        before_s = longest_gap([s for s in steps if self._began_s - BEFORE_S < s.at_s <= self._began_s], saving)
        # From the last step before the trouble on: the gap may have begun with it.
        gap_s = longest_gap([s for s in steps if s.at_s > self._began_s - 1.0], saving)
        is_beginning = steps[-1].pid != job.rank_pids()[rank]
        if steps[-1].step not in saving and not is_beginning:
            gap_s = max(gap_s, now_s - steps[-1].at_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        if gap_s <= allowed_gap(before_s):
            return []
        return [f"{job.name} rank {rank} made no step for {gap_s:.1f} s (before: {before_s:.1f} s)"]

    def _damaged(self) -> list[str]:
        """What the database says of itself."""
        base = f"file:{self._site.head.state_dir}/tidegauge.db?mode=ro"
        done = self._site.head.run_in([sys.executable, "-c", CHECK_DATABASE, base], timeout_s=120.0)
        return [] if done.stdout.strip() == "ok" else [f"the database is damaged: {done.stdout}{done.stderr[-300:]}"]

    def _stale(self) -> list[str]:
        """Samples of ranks that were older than a scrape explains, whenever Prometheus would have shown them: of ranks
        and agents that are gone, and of values of before that came back."""
        said = []
        for series in self._site.prometheus.range(SAMPLE_AGE, self._began_unix_s, time.time()):
            job, rank = self._name_of(series["metric"]["job_id"]), int(series["metric"]["rank"])
            if (job, rank) in self._frozen or job in self._dateless or job not in self._site.jobs:
                continue  # the last: of a tenant's, who may say what they like
            oldest_s = max(float(value) for _, value in series["values"])
            self.stalest_s = max(self.stalest_s, oldest_s)
            if oldest_s > STALE_WITHIN_S:
                said.append(f"Prometheus showed {job} rank {rank} with a sample {oldest_s:.1f} s old")
        return said

    def _unseen(self, ended_s: float, going_on: Collection[str]) -> list[str]:
        said = []
        ours = {one: self._name_of(one) for one in self._ids}
        attempts = {Attempt(one, self._attempts[name]): name for one, name in ours.items() if name in self._attempts}
        for scrapes in self._scrapes:
            name = scrapes.node.name
            said += [f"{name}: {line}" for line in broken_series(scrapes.pages, self._asked_s, jobs=attempts)]
            if name in self._away:
                continue
            gap_s = unseen(
                scrapes.pages, self._asked_s, ended_s,
                jobs={one for one, name in attempts.items() if name in going_on},
            )  # fmt: skip
            self.unseen_s = max(self.unseen_s, gap_s)
            if gap_s > MAX_UNSEEN_S:
                said.append(f"{name}: a scrape would have missed a rank for {gap_s:.1f} s")
        return said

    def _moved(self) -> list[str]:
        before = self._onset
        if before is None or self._attempt_of("leaky") != before[0]:
            return []  # its next attempt is another leak, which may not be seen yet
        now = self._onset_now()
        return moved_onset(before[1], None if now is None else now[1], before[2])

    def _attempt_of(self, name: str) -> int:
        return max(int(line["attempt"]) for line in self._site.jobs[name].told("began"))

    def _onset_now(self) -> tuple[int, int, int] | None:
        """Of the leaking rank's present attempt, as the API shows it."""
        attempt = self._attempt_of("leaky")
        for job in self._site.eventually(
            lambda: self._site.api("/api/v1/jobs")["jobs"], "jobs", within_s=ANSWER_WITHIN_S
        ):
            self._ids.add(job["job_id"])
            for rank in job["ranks"]:
                onset = rank["verdict"]["onset_step"]
                if (job["job_name"], job["attempt"]) == ("leaky", attempt) and onset is not None:
                    return attempt, onset, rank["step"]
        return None

    def _name_of(self, job_id: str) -> str:
        return next(
            (job.name for job in self._site.jobs.values() if job_id in job.log.read_text(errors="replace")), job_id
        )


def account_of(site: ChaosSite) -> Account:
    """What the API shows, as soon as it answers all that is asked. Raises ``AssertionError`` if it does not."""

    def whole() -> Account:
        account = Account()
        look(site, account)
        return account

    shown: Account = site.eventually(whole, "the API shows what there is", within_s=ANSWER_WITHIN_S)
    return shown


def look(site: ChaosSite, account: Account) -> None:
    """Add what the API shows now. Raises ``ApiError``."""
    for line in site.api("/api/v1/incidents?all=1&limit=1000")["incidents"]:
        page, number = site.api(f"/api/v1/incident?number={line['number']}"), line["number"]
        account.incidents[number] = page["incident"]
        lines = {(change["kind"], change["at_unix_s"]) for change in page["history"] if change["kind"] != "updated"}
        account.lines.setdefault(number, set()).update(lines)
        account.decisions.update({record["decision"]["decision_id"]: record for record in page["decisions"]})
        for place in page["incident"]["snapshots"]:
            account.snapshots.setdefault(place, _digest(place))


def record_of(job: TrainingJob) -> JobRecord:
    return JobRecord(
        name=job.name,
        running=job.is_running(),
        starts=len(job.told("began")),
        pids=job.rank_pids(),
        saved_for=[line["request"] for line in job.told("saving")],
        messages=job.log.read_text(errors="replace").count(TOLD),
    )


def _digest(place: str) -> str:
    """Of a snapshot at ``HOST:PATH``; hosts share their files."""
    try:
        return hashlib.sha256(Path(place.partition(":")[2]).read_bytes()).hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
