"""The closed loop, all real but the GPU: jobs under ``tidegauge run``, the service on Ray, a policy that acts."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import Site, done
from integration.service import Service, eventually
from tidegauge.cli.demo_jobs import last_lines

pytestmark = [pytest.mark.rig, pytest.mark.timeout(500)]

STEPS = 2400
CAP = 8 / 80
"""Of 80 GiB: 8 GiB, which a job that leaks 4 MiB a step reaches before step 2,050."""
LADDER = ["notify", "notify", "checkpoint", "requeue"]


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")
    service = Service(environ)
    one = Site(service, str(rig.python), environ, tmp_path)
    one.set_mode("act")
    try:
        service.up()
        yield one
    finally:
        service.close()


def test_leak_and_fragmentation_are_cured_and_nobody_else_is_touched(site: Site) -> None:
    capped = ("--requeue", "--memory-fraction", str(CAP))
    with (
        site.job("leaky", "--leak-rank", "1", steps=STEPS, run_flags=capped) as leaky,
        site.job("fragmenting", "--fragment", steps=STEPS) as fragmenting,
        site.job("healthy", steps=STEPS) as healthy,
    ):
        codes = {name: job.wait(240) for name, job in (("healthy", healthy), ("leaky", leaky))}
        codes["fragmenting"] = fragmenting.wait(120)
    logs = "\n".join(last_lines(job.log, 15) for job in (leaky, fragmenting, healthy))
    assert codes == {"healthy": 0, "leaky": 0, "fragmenting": 0}, f"{logs}\n{site.service.logs()}"

    # The leak: warned, saved, started again before its cap would have ended it, gone on from there, finished.
    first, *rest = leaky.told("began")
    assert first["step"] == 0
    assert rest, logs
    assert [start["step"] for start in rest] == [saved["step"] for saved in leaky.told("saved")]
    assert [start["attempt"] for start in rest] == list(range(1, len(rest) + 1))
    assert leaky.told("finished")[0]["step"] == STEPS
    assert "OutOfMemoryError" not in leaky.log.read_text()
    actions = done(site.decisions("leaky"))
    assert actions[actions.index("requeue") - 3 :][:4] == LADDER
    assert actions.count("requeue") == len(rest)
    incident = site.incidents("leaky")[-1]
    assert [finding["rank"] for finding in incident["findings"]] == [1]

    # Fragmentation: the next attempt has the setting, and its reserved memory stands still.
    assert len(fragmenting.told("began")) == 2, site.service.call("policy", "log").out
    second = fragmenting.told("began")[1]
    assert second["alloc_conf"] == "expandable_segments:True"
    saved, finished = fragmenting.told("saved"), fragmenting.told("finished")
    assert len(saved) == 1
    assert finished[0]["reserved_bytes"] < saved[0]["reserved_bytes"] / 2
    assert done(site.decisions("fragmenting"))[-1] == "requeue"

    # The healthy job: one attempt, no incident.
    assert [line["what"] for line in healthy.story()] == ["began", "finished"]
    assert site.incidents("healthy") == []

    page = site.service.call("incidents", "show", str(site.incidents("leaky")[-1]["number"]))
    for part in ("rank 1", "checkpoint", "requeue", "rule leak"):
        assert part in page.out
    metrics = site.service.get_text("/metrics")
    assert 'tidegauge_actions_total{action="requeue",cluster="test",outcome="done"}' in metrics


def test_observe_does_nothing_and_says_what_it_would(site: Site) -> None:
    site.set_mode("observe")
    with site.job("leaky", "--leak-rank", "1", steps=6000) as leaky:
        records = eventually(
            lambda: found if "requeue" in _would(found := site.decisions("leaky")) else None,
            "what would have been done", within_s=150,
        )  # fmt: skip
        assert _would(records)[-4:] == LADDER
        assert done(records) == []
        assert [line["what"] for line in leaky.story()] == ["began"]
        assert "incident" not in leaky.log.read_text()

        # The admin has seen enough: the same job is now acted on, from the first warning on.
        site.set_mode("act")
        eventually(lambda: len(leaky.told("began")) > 1, "the second attempt", within_s=90)
        assert done(site.decisions("leaky"))[-4:] == LADDER


def _would(records: list[dict[str, Any]]) -> list[str]:
    return [record["decision"]["action"] for record in records if record["decision"]["disposition"] == "would"]


def test_coordinator_that_is_killed_after_every_step_does_each_thing_once(site: Site) -> None:
    kills = 0
    with site.job("leaky", "--leak-rank", "1", steps=6000) as leaky:
        before = _progress(site)
        while "requeue" not in before.finished:
            assert leaky.process.poll() is None, last_lines(leaky.log, 30)
            # As soon as something new is on disk: in the midst of what follows from it.
            before = eventually(
                lambda last=before: now if (now := _progress(site)) != last else None,  # type: ignore[misc]  # SAFETY: the default binds the loop's value
                "a step forward", within_s=120,
            )  # fmt: skip
            for pid in site.service.coordinators():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        records = eventually(lambda: site.decisions("leaky"), "the audit")
        eventually(lambda: len(leaky.told("began")) > 1, "the second attempt")
        log = leaky.log.read_text()
    assert kills >= 3 * len(LADDER), "decided, begun and finished, each of them"
    assert done(records)[-4:] == LADDER
    assert len(leaky.told("began")) == 2
    assert len(leaky.told("saved")) == done(records).count("checkpoint")
    messages = [record for record in records if record["decision"]["action"] == "notify"]
    assert log.count("tidegauge: Tidegauge, incident") == len(messages), log


class _Progress(NamedTuple):
    """What is on disk of the decisions; how often one was begun is left out, for every kill adds to that."""

    decided: tuple[str, ...]
    begun: tuple[str, ...]
    finished: tuple[str, ...]


def _progress(site: Site) -> _Progress:
    """Read beside the coordinator, from the database itself."""
    with contextlib.closing(sqlite3.connect(f"file:{site.service.files.root}/tidegauge.db?mode=ro", uri=True)) as base:
        rows = base.execute("select action, status from decisions order by decided_s, decision_id").fetchall()
    return _Progress(
        decided=tuple(action for action, _ in rows),
        begun=tuple(action for action, status in rows if status != "decided"),
        finished=tuple(action for action, status in rows if status == "finished"),
    )
