"""The closed loop, all real but the GPU: jobs under ``tidegauge run``, the service on Ray, a policy that acts."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import LADDER, Job, Site, check_went_on, done, to_the_requeue
from integration.service import Service, eventually, told
from matrix import turn
from tidegauge.cli.demo.jobs import last_lines

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]

GPU_BYTES = 160 << 30
CAP = 0.05
"""8 GiB, which a job that leaks 4 MiB a step reaches before step 2,050."""
HALF_EATEN = 1000
"""Steps after which that job has eaten half of its cap, nearly."""
STEPS = 400
"""At least. The cap is two minutes away, in which each process of the service may stand still for a while."""
UNTIL_ENDED = 1_000_000
"""Steps of a job that the test ends."""


@pytest.fixture
def site(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """With the parameter "dangerous", incidents open as they do by default."""
    environ = rig.environ(devices=2, total_bytes=GPU_BYTES, state=tmp_path / "gpus")
    service = Service(environ)
    early = getattr(request, "param", None) != "dangerous"
    one = Site(service, str(rig.python), environ, tmp_path, early=early)
    one.set_mode("act")
    try:
        service.up()
        yield one
    finally:
        service.close()


@turn(4)
@pytest.mark.parametrize("site", ["dangerous"], indirect=True)
def test_a_leak_is_cured_once_it_is_dangerous_and_nobody_else_is_touched(site: Site, tmp_path: Path) -> None:
    capped = ("--requeue", "--memory-fraction", str(CAP))
    cured = tmp_path / "cured"
    until = ("--until", str(cured))
    with (
        site.job("leaky", "--leak-rank", "1", *until, steps=STEPS, run_flags=capped) as leaky,
        site.job("healthy", *until, steps=STEPS) as healthy,
    ):
        _requeued(site, "leaky", leaky)
        cured.touch()
        codes = {name: job.wait(300) for name, job in (("healthy", healthy), ("leaky", leaky))}
    logs = "\n".join(last_lines(job.log, 15) for job in (leaky, healthy))
    assert codes == {"healthy": 0, "leaky": 0}, f"{logs}\n{site.service.logs()}"

    # Warned, saved, started again before its cap would have ended it, gone on from there, finished.
    first, *rest = leaky.told("began")
    assert first["step"] == 0
    assert rest, logs
    saves = [saved["step"] for saved in leaky.told("saved")]
    assert saves[0] > HALF_EATEN, "not before it was dangerous"
    assert [start["step"] for start in rest] == saves[: len(rest)]
    assert len(saves) <= len(rest) + 1, "the last attempt may finish between a checkpoint and its requeue"
    assert [start["attempt"] for start in rest] == list(range(1, len(rest) + 1))
    assert leaky.told("finished")[0]["step"] >= STEPS
    assert "OutOfMemoryError" not in leaky.log.read_text()
    actions = done(site.decisions("leaky"))
    assert actions[actions.index("requeue") - 3 :][:4] == LADDER
    assert actions.count("requeue") == len(rest)
    incident = site.incidents("leaky")[-1]
    assert [finding["rank"] for finding in incident["findings"]] == [1]

    # The healthy job: one attempt, no incident.
    assert [line["what"] for line in healthy.story()] == ["began", "finished"]
    assert site.incidents("healthy") == []

    number = site.incidents("leaky")[-1]["number"]
    page = told(lambda: site.service.call("incidents", "show", str(number)))
    for part in ("rank 1", "checkpoint", "requeue", "rule leak"):
        assert part in page.out
    metrics = site.service.get_text("/metrics")
    assert 'tidegauge_actions_total{action="requeue",cluster="test",outcome="done"}' in metrics


@turn(5)
def test_of_two_launches_side_by_side_both_are_saved_before_the_job_is_ended(site: Site, tmp_path: Path) -> None:
    cured = tmp_path / "cured"
    until = ("--until", str(cured))
    with site.two_launches("pair", ("--leak-rank", "1", *until), until, steps=STEPS) as (leaky, healthy):
        _requeued(site, "pair", leaky, healthy)
        cured.touch()
        assert leaky.wait(300) == 0, f"{last_lines(leaky.log, 15)}\n{site.service.logs()}"
    for job in (leaky, healthy):
        check_went_on(job.told, steps=STEPS)
    incidents = site.incidents("pair")
    assert {finding["rank"] for incident in incidents for finding in incident["findings"]} == {1}
    assert all(incident["group_name"].startswith("pid ") for incident in incidents)
    saved = [
        one for one in site.decisions("pair") if one["decision"]["action"] == "checkpoint" and one["outcome"] == "done"
    ]
    assert saved[0]["detail"].count("2 of 2 ranks saved") == 2


@turn(0)
def test_a_launch_that_cannot_be_asked_keeps_the_job_from_being_ended_and_the_owner_is_told(
    site: Site, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    until = ("--until", str(end))
    with site.two_launches("pair", ("--leak-rank", "1", *until), ("--no-callback", *until), steps=1) as (
        leaky,
        healthy,
    ):
        why = "cannot checkpoint on request: give it tidegauge.on_checkpoint_request(fn), or TIDEGAUGE_CHECKPOINT=none"
        eventually(lambda: why in leaky.log.read_text(), "the owner is told why", within_s=180)
        # As long as it takes to warn twice and to save, and more: a rule that ended it would have done so by now.
        eventually(lambda: site.decisions("pair")[-1]["finished_s"], "the message is delivered")
        end.touch()
        assert leaky.wait(300) == 0
    assert {*done(site.decisions("pair"))} == {"notify"}
    for job in (leaky, healthy):
        assert [line["what"] for line in job.story()] == ["began", "finished"]


@turn(1)
def test_a_launch_that_torchrun_restarts_beside_another_keeps_its_name(site: Site, tmp_path: Path) -> None:
    def groups() -> dict[str, tuple[str, list[int]]]:
        """Key and living pids of each attempt of each group, by what `tidegauge jobs` calls it."""
        living = [job for job in site.service.answer("/api/v1/jobs")["jobs"] if job["running"]]
        return {
            f"{job['group_name']}, attempt {job['attempt']}": (
                job["group"], [rank["process"]["pid"] for rank in job["ranks"] if rank["alive"]]
            )
            for job in living
        }  # fmt: skip

    def all_ranks_of(*names: str) -> bool:
        there = groups()
        return all(name in there and len(there[name][1]) == 2 for name in names)

    until = ("--until", str(tmp_path / "end"))
    with site.two_launches("pair", until, until, steps=1, max_restarts=1) as (first, second):
        eventually(lambda: first.told("began") and second.told("began") and len(groups()) == 2, "both have names")
        launchers = sorted(groups())
        one, other = (name.split(",")[0] for name in launchers)
        assert (one[:4], other[:4]) == ("pid ", "pid "), launchers
        eventually(lambda: all_ranks_of(*launchers), "all ranks are watched")
        before = groups()
        os.kill(before[f"{other}, attempt 0"][1][1], signal.SIGKILL)
        eventually(lambda: all_ranks_of(f"{one}, attempt 0", f"{other}, attempt 1"), f"{other} goes on in attempt 1")
        after = groups()
        assert after[f"{one}, attempt 0"] == before[f"{one}, attempt 0"]
        assert after[f"{other}, attempt 1"][0] == before[f"{other}, attempt 0"][0]
        listed = told(lambda: site.service.call("top", "--once", "--job", "pair")).out
        for name in (f"pair ({one})", f"pair ({other}, 1)"):
            assert name in listed
            assert name in told(partial(site.service.call, "top", "--once", "--job", name)).out


def test_fragmentation_is_cured_by_a_setting_of_the_next_attempt(site: Site, tmp_path: Path) -> None:
    cured = tmp_path / "cured"
    # It would have filled the GPUs after 2,000 steps: it makes them slowly.
    slowly = ("--pause-seconds", "0.1", "--until", str(cured))
    with site.job("fragmenting", "--fragment", *slowly, steps=600) as fragmenting:
        _requeued(site, "fragmenting", fragmenting)
        cured.touch()
        assert fragmenting.wait(300) == 0, f"{last_lines(fragmenting.log, 15)}\n{site.service.logs()}"

    # The next attempt has the setting, and its reserved memory stands still.
    assert len(fragmenting.told("began")) == 2, site.service.call("policy", "log").out
    second = fragmenting.told("began")[1]
    assert second["alloc_conf"] == "expandable_segments:True"
    saved, finished = fragmenting.told("saved"), fragmenting.told("finished")
    assert len(saved) == 1
    assert finished[0]["reserved_bytes"] < saved[0]["reserved_bytes"] / 2
    assert done(site.decisions("fragmenting"))[-1] == "requeue"


def _requeued(site: Site, name: str, *launches: Job) -> None:
    """All are in their second attempt, and it is written down: of a job that has ended a coordinator that looks late
    cannot tell whether it was started again."""
    for job in launches:
        eventually(partial(_is_in_another_attempt, job), "the second attempt", within_s=300)
    eventually(lambda: "requeue" in done(site.decisions(name)), "the requeue is written down")


@turn(2)
def _is_in_another_attempt(job: Job) -> bool:
    """Or has ended: then what follows says so."""
    return len(job.told("began")) > 1 or job.process.poll() is not None


def test_observe_does_nothing_and_says_what_it_would(site: Site) -> None:
    site.set_mode("observe")
    with site.job("leaky", "--leak-rank", "1", steps=UNTIL_ENDED) as leaky:
        records = eventually(
            lambda: found if "requeue" in _would(found := site.decisions("leaky")) else None,
            "what would have been done", within_s=300,
        )  # fmt: skip
        assert to_the_requeue(_would(records))[-4:] == LADDER
        assert done(records) == []
        assert [line["what"] for line in leaky.story()] == ["began"]
        assert "incident" not in leaky.log.read_text()

        # The admin has seen enough: the same job is now acted on, from the first warning on.
        site.set_mode("act")
        eventually(lambda: len(leaky.told("began")) > 1, "the second attempt", within_s=200)
        actions = eventually(lambda: to_the_requeue(done(site.decisions("leaky"))), "the requeue is done")
        assert actions[-4:] == LADDER


def _would(records: list[dict[str, Any]]) -> list[str]:
    return [record["decision"]["action"] for record in records if record["decision"]["disposition"] == "would"]


def test_coordinator_that_is_killed_after_every_step_does_each_thing_once(site: Site) -> None:
    kills: list[str] = []
    with site.job("leaky", "--leak-rank", "1", steps=UNTIL_ENDED) as leaky:
        before = _progress(site)
        # What was done while this process stood still met no kill: then the next attempt's ladder is watched as well.
        while "requeue" not in before.finished or not _enough(kills):
            assert leaky.process.poll() is None, last_lines(leaky.log, 30)
            # As soon as something new is on disk: in the midst of what follows from it.
            after = eventually(
                lambda last=before: now if (now := _progress(site)) != last else None,  # type: ignore[misc]  # SAFETY: the default binds the loop's value
                "a step forward", within_s=200,
            )  # fmt: skip
            before, moment = after, after.latest_since(before)
            for pid in site.service.coordinators():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills.append(moment)
        actions = eventually(lambda: to_the_requeue(done(site.decisions("leaky"))), "the audit")
        eventually(lambda: len(leaky.told("began")) > 1, "the second attempt")
        # The second attempt leaks too, and may be warned by now: what was done more often than decided stays so.
        eventually(lambda: _felt(leaky) == _audited(site), "the job has felt what the audit has, no more and no less")
    assert actions[-4:] == LADDER


def _enough(kills: list[str]) -> bool:
    """Decided, begun and finished, each rung; but two of these are seen as one if this process stands still."""
    return len(kills) >= 2 * len(LADDER) and {*kills} == {"decided", "begun", "finished"}


def _felt(job: Job) -> tuple[int, int, int]:
    """How often it was started again, saved, and told of an incident, by its own word."""
    log = job.log.read_text(errors="replace")
    return len(job.told("began")) - 1, len(job.told("saved")), log.count("tidegauge: Incident")


def _audited(site: Site) -> tuple[int, int, int]:
    """The same by the audit, of what has come to its end."""
    records = [record for record in site.decisions("leaky") if record["outcome"] is not None]
    messages = [record for record in records if record["decision"]["action"] == "notify"]
    return done(records).count("requeue"), done(records).count("checkpoint"), len(messages)


class _Progress(NamedTuple):
    """What is on disk of the decisions; how often one was begun is left out, for every kill adds to that."""

    decided: tuple[str, ...]
    begun: tuple[str, ...]
    finished: tuple[str, ...]

    def latest_since(self, before: _Progress) -> str:
        """Which of the three it was that came last."""
        return next(name for name in reversed(self._fields) if getattr(self, name) != getattr(before, name))


def _progress(site: Site) -> _Progress:
    """Read beside the coordinator, from the database itself."""
    path = f"file:{site.service.files.root}/tidegauge.db?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=60)) as base:
        rows = base.execute("select action, status from decisions order by decided_s, decision_id").fetchall()
    return _Progress(
        decided=tuple(action for action, _ in rows),
        begun=tuple(action for action, status in rows if status != "decided"),
        finished=tuple(action for action, status in rows if status == "finished"),
    )
