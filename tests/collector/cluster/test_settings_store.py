"""`JobSettingsStore`: settings kept on disk, handed out with replies, and waited for until all nodes have them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from fake_node import FakeClock
from sample_views import identity, rank_summary
from tidegauge.agent.job_settings import JobSettingsFiles
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.settings_store import (
    DAY_S,
    LOOK_EVERY_S,
    MAX_JOBS,
    UNSEEN_DAYS,
    JobSettingsStore,
    SettingsKeptError,
)
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobId
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.jobs.settings import JobSettings, digest, encode
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.probe.job_settings import take_settings
from tidegauge.protocol.messages import ReportReply
from tidegauge_scheduler_hooks.ports import SettingsStore
from waiting import PATIENCE_S

ONE = JobSettings("4711", 1001, 1, alloc_conf={"expandable_segments": "True"})
OTHER = JobSettings("4712", 1002, 3, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.5"})


class Site:
    """A coordinator with a store, and nodes that report to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.looked = threading.Event()
        """Set when the store looks at who reports."""
        self.begin()

    def begin(self) -> None:
        """Once more, as after a crash: only the file is left."""
        self.coordinator = Coordinator(
            wall_s=self.clock.unix_s, monotonic_s=self.clock.monotonic_s, incarnation="c1", stale_after_s=10.0
        )
        self.store = JobSettingsStore(
            self.path, wall_s=self.clock.unix_s, reporting=self.reporting,
            monotonic_s=self.clock.monotonic_s,
        )  # fmt: skip
        self.coordinator.lay_down(self.store)

    def reporting(self) -> tuple[NodeSummary, ...]:
        self.looked.set()
        return self.coordinator.heard_lately()

    def report(self, node: str, settings_digest: str | None, *ranks: RankSummary) -> ReportReply:
        summary = NodeSummary(
            f"id-{node}", node, 1, "i1", None, self.clock.unix_s(), ranks, settings_digest=settings_digest
        )
        return self.coordinator.report(summary)

    def kept(self) -> set[str]:
        return {raw["settings"]["job_id"] for raw in json.loads(self.path.read_text())["jobs"]}

    def wait_for_all(self) -> Future[list[str]]:
        """``missing_on`` in a thread that has begun to wait: it has looked, and lets the store go only for that."""
        self.looked.clear()
        future: Future[list[str]] = Future()
        waits = threading.Thread(
            target=lambda: future.set_result(list(self.store.missing_on(timeout_s=60.0))), daemon=True
        )
        waits.start()
        assert self.looked.wait(PATIENCE_S)
        return future


def rank_of(settings: JobSettings) -> RankSummary:
    return rank_summary(0, identity=identity(0, job_id=JobId(settings.job_id)), uid=settings.uid)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "settings.json")


def test_settings_store_implements_the_hooks_port(site: Site) -> None:
    store: SettingsStore = site.store
    assert store.get("4711", 1001) is None
    assert issubclass(SettingsKeptError, AuditError)


def test_settings_store_survives_a_crash(site: Site) -> None:
    site.store.put(ONE)
    site.store.put(OTHER)
    site.begin()
    assert (site.store.get("4711", 1001), site.store.get("4712", 1002)) == (ONE, OTHER)
    assert site.path.stat().st_mode & 0o777 == 0o600


def test_the_last_word_counts_and_each_job_has_one(site: Site) -> None:
    later = replace(ONE, from_restart=2)
    site.store.put(ONE)
    site.store.put(later)
    assert site.store.get("4711", 1001) == later
    assert site.report("a", None).job_settings == (later,)


def test_settings_are_of_one_users_job(site: Site) -> None:
    site.store.put(ONE)
    assert site.store.get("4711", 1002) is None
    again = replace(ONE, uid=1002)
    site.store.put(again)
    assert (site.store.get("4711", 1001), site.store.get("4711", 1002)) == (None, again)
    assert site.report("a", None).job_settings == (again,)


@pytest.mark.parametrize(
    "environ",
    [{"LD_PRELOAD": "evil.so"}, {"TIDEGAUGE_X": "x" * 4000}, {f"TIDEGAUGE_{n}": "x" * 2000 for n in "ABCDEFGHI"}],
)
def test_settings_store_refuses_values_that_no_probe_accepts(site: Site, environ: Mapping[str, str]) -> None:
    with pytest.raises(ValueError, match=r"would set|no usable text|longer than"):
        site.store.put(JobSettings("4711", 1001, environ=environ))
    assert site.report("a", digest(())).job_settings is None


def test_a_node_gets_all_settings_until_it_has_them(site: Site) -> None:
    assert site.report("a", digest(())).job_settings is None
    site.store.put(ONE)
    for settings_digest in (digest(()), None, digest(())):
        assert site.report("a", settings_digest).job_settings == (ONE,)
    assert site.report("a", digest([ONE])).job_settings is None
    assert site.report("b", digest([OTHER])).job_settings == (ONE,)


def test_without_a_store_no_node_is_told_anything() -> None:
    clock = FakeClock()
    coordinator = Coordinator(wall_s=clock.unix_s, monotonic_s=clock.monotonic_s, incarnation="c1")
    summary = NodeSummary("id", "a", 1, "i1", None, clock.unix_s(), settings_digest=digest([ONE]))
    assert coordinator.report(summary).job_settings is None


def test_waiting_ends_when_the_last_node_has_them(site: Site) -> None:
    site.report("a", digest(()))
    site.report("b", digest(()))
    site.store.put(ONE)
    waiting = site.wait_for_all()
    site.report("a", digest([ONE]))
    assert not waiting.done()
    site.report("b", digest([ONE]))
    assert waiting.result(PATIENCE_S) == []


def test_after_the_time_is_over_the_hosts_without_them_are_named(site: Site) -> None:
    for host, settings_digest in (("c", None), ("a", digest([ONE])), ("b", digest(()))):
        site.report(host, settings_digest)
    site.store.put(ONE)
    assert site.store.missing_on(timeout_s=0.0) == ["b", "c"]


def test_a_host_that_runs_no_jobs_is_not_waited_for(site: Site) -> None:
    head = NodeSummary("id-head", "head", 1, "i1", None, site.clock.unix_s(), slurm_node=False)
    site.coordinator.report(head)
    site.coordinator.report(replace(head, node_id="id-a", hostname="a", slurm_node=True))
    site.store.put(ONE)
    assert site.store.missing_on(timeout_s=0.0) == ["a"]


def test_nodes_that_do_not_report_are_not_waited_for(site: Site) -> None:
    site.coordinator.engine_nodes([EngineNode("id-gone", "gone", "10.0.0.1"), EngineNode("id-new", "new", "10.0.0.2")])
    site.report("gone", digest(()))
    site.report("stale", digest(()))
    site.coordinator.engine_nodes([EngineNode("id-stale", "stale", "10.0.0.3")])
    site.clock.pass_s(11)
    site.report("here", digest([ONE]))
    site.store.put(ONE)
    assert site.store.missing_on(timeout_s=60.0) == []


def test_settings_store_misses_no_node_if_none_reports(site: Site) -> None:
    site.store.put(ONE)
    assert site.store.missing_on(timeout_s=60.0) == []


def test_settings_that_change_meanwhile_are_waited_for_too(site: Site) -> None:
    site.report("a", digest(()))
    site.store.put(ONE)
    waiting = site.wait_for_all()
    site.store.put(OTHER)
    site.report("a", digest([ONE]))
    assert not waiting.done()
    site.report("a", digest([ONE, OTHER]))
    assert waiting.result(PATIENCE_S) == []


def test_settings_of_jobs_that_nobody_has_seen_for_long_are_dropped(site: Site) -> None:
    site.store.put(ONE)
    site.clock.pass_s((UNSEEN_DAYS - 1) * DAY_S)
    site.store.put(OTHER)
    assert site.kept() == {"4711", "4712"}
    site.clock.pass_s(1.5 * DAY_S)
    site.store.put(replace(OTHER, job_id="4713"))
    assert site.kept() == {"4712", "4713"}
    assert site.report("a", None).job_settings == (OTHER, replace(OTHER, job_id="4713"))


def test_a_job_that_runs_keeps_its_settings_however_long_and_then_may_wait_in_the_queue(site: Site) -> None:
    site.store.put(ONE)
    for _ in range(40):
        site.clock.pass_s(DAY_S)
        site.report("a", digest([ONE]), rank_of(ONE))
    site.clock.pass_s((UNSEEN_DAYS - 1) * DAY_S)
    site.begin()
    site.store.put(OTHER)
    assert site.kept() == {"4711", "4712"}


def test_a_job_of_the_same_number_of_another_user_is_not_it(site: Site) -> None:
    site.store.put(ONE)
    site.clock.pass_s((UNSEEN_DAYS + 1) * DAY_S)
    site.report("a", digest([ONE]), rank_of(replace(ONE, uid=1002)))
    assert site.kept() == set()
    assert site.store.get("4711", 1001) is None


def test_the_file_is_not_written_at_every_report(site: Site) -> None:
    site.store.put(ONE)
    inodes = []
    for _ in range(13):
        inodes.append(site.path.stat().st_ino)
        site.clock.pass_s(LOOK_EVERY_S / 6)
        site.report("a", digest([ONE]), rank_of(ONE))
    changes = [after != before for before, after in zip(inodes, inodes[1:])]
    assert changes == [n in (5, 11) for n in range(12)]


def test_beyond_the_most_the_oldest_are_dropped(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    now_s = site.clock.unix_s()
    settings = json.loads(encode(JobSettings("", 1)))
    jobs = [{"seen_unix_s": now_s - n, "settings": {**settings, "job_id": str(n)}} for n in range(MAX_JOBS)]
    site.path.write_text(json.dumps({"version": 1, "jobs": jobs}))
    site.begin()
    site.store.put(replace(ONE, job_id="new"))
    assert site.store.get(str(MAX_JOBS - 1), 1) is None
    assert None not in (site.store.get(str(MAX_JOBS - 2), 1), site.store.get("0", 1), site.store.get("new", 1001))
    assert "dropping the 1 oldest" in caplog.text


def test_settings_store_keeps_the_old_value_if_a_write_fails(site: Site) -> None:
    site.store.put(ONE)
    site.path.unlink()
    site.path.mkdir()
    with pytest.raises(SettingsKeptError, match=r"settings\.json cannot be written"):
        site.store.put(replace(ONE, from_restart=9))
    assert site.store.get("4711", 1001) == ONE
    assert site.report("a", digest([ONE])).job_settings is None


def test_reports_are_answered_though_the_file_cannot_be_written(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.store.put(ONE)
    site.path.unlink()
    site.path.mkdir()
    site.clock.pass_s(LOOK_EVERY_S)
    assert site.report("a", None, rank_of(ONE)).job_settings == (ONE,)
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 2, "jobs": []}', '{"version": 1}', '{"version": 1, "jobs": [{}]}',
     '{"version": 1, "jobs": [{"seen_unix_s": 1, "settings": {"version": 1, "environ": {"PATH": "/"}}}]}', "[" * 9999],
)  # fmt: skip
def test_a_damaged_file_is_said_loudly_and_kept_aside(site: Site, text: str, caplog: pytest.LogCaptureFixture) -> None:
    site.path.write_text(text)
    site.begin()
    assert site.report("a", digest([ONE])).job_settings == ()
    assert [(record.levelname, "is damaged" in record.getMessage()) for record in caplog.records[:1]] == [
        ("ERROR", True)
    ]
    assert site.path.with_name("settings.json.damaged").read_text() == text
    site.store.put(ONE)
    assert site.kept() == {"4711"}


def test_a_file_that_cannot_be_read_is_an_error_not_an_empty_store(site: Site) -> None:
    site.path.mkdir()
    with pytest.raises(SettingsKeptError, match="cannot be read"):
        site.begin()


def test_from_the_store_to_the_job(site: Site, tmp_path: Path) -> None:
    """Coordinator, agent and probe; the coordinator crashes in between, and the agent is another one afterwards."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    job = {"TIDEGAUGE_RUN_DIR": str(run_dir), "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}

    def node_reports() -> None:
        files = JobSettingsFiles([run_dir])
        reply = site.report("a", files.digest())
        if reply.job_settings is not None:
            files.write(reply.job_settings)

    settings = replace(ONE, uid=os.getuid())
    node_reports()
    site.store.put(settings)
    site.begin()
    node_reports()
    node_reports()
    assert site.store.missing_on(timeout_s=0.0) == []
    first, second = {**job, "SLURM_RESTART_COUNT": "0"}, dict(job)
    take_settings(first)
    take_settings(second)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in first
    assert second["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
