"""A coordinator with a database beside one node agent, in the test's own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tidegauge.agent.node_agent import NodeAgent
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.earlier_runs import EarlierRunsLookup
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.job_records.record import JobRecord


class Head:
    """A coordinator with its recorder and database, which take the reports of one agent."""

    def __init__(self, agent: NodeAgent, folder: Path) -> None:
        self._agent = agent
        self._folder = folder
        self.store: Store
        self.start()

    def start(self) -> None:
        self.store = open_store(sqlite_url(self._folder))
        self.coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="c")
        self._recorder = JobRecorder(
            self.coordinator.jobs, self.store.jobs, history_of=self.coordinator.history_of, now_s=time.time,
            monotonic_s=time.monotonic,
        )  # fmt: skip
        self._earlier = EarlierRunsLookup(
            self.coordinator.jobs, self.store.jobs, self.coordinator.know_earlier_runs, now_s=time.time
        )

    def kill(self) -> None:
        """Without a last look."""
        self.store.close()

    def look_until(self, done: Callable[[], bool], *, within_s: float = 60.0) -> None:
        end_s = time.monotonic() + within_s
        while True:
            self._agent.poll()
            summary = self._agent.summary(node_id="n", incarnation="a", metrics_address=None)
            self._agent.hear_of_bounds(self.coordinator.report(summary).peer_bounds)
            self._recorder.tick()
            self._earlier.tick()
            if done():
                return
            assert time.monotonic() < end_s, [one._replace(job_name=None) for one in self.records().values()]
            time.sleep(0.5)

    def highest_bytes(self) -> int:
        return max(rank.highest_reserved_bytes for job in self.coordinator.jobs() for rank in job.ranks)

    def records(self) -> dict[str, JobRecord]:
        running = self.store.jobs.running()
        return {record.job.job_id: record for record in (*running, *self.store.jobs.ended(limit=9))}
