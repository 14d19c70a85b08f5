"""What is done by a key in ``tidegauge top``, only once it is confirmed; and the screens of what happened."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from sample_views import NOW_S, job_record
from scheduler_values import decision, incident, record
from tidegauge.cli.errors import CommandError
from tidegauge.cli.top import screens as top_screens
from tidegauge.cli.top.acts import exempt_question
from tidegauge.cli.top.happened import changes, ended_page, job_command
from tidegauge.cli.top.model import JobMeant
from tidegauge.cli.top.screens import LiveScreen
from tidegauge.cli.top.service import Service
from tidegauge.cluster.views import Event, EventKind
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import IncidentState
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.exemption import ExemptingCommand
from top_reader import Reader, read
from top_world import World

JOB = JobMeant(JobKey("48211", 0, 1001), JobKey("48211", 0, 1001), "ada", "slurm")


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in [LiveScreen, *LiveScreen.__subclasses__()]:
        monkeypatch.setattr(screen, "REFRESH_S", 3600.0)
    monkeypatch.setattr(top_screens, "SAID_S", 3600.0)


def test_actions_are_paused_with_a_reason_and_resumed_and_escape_does_nothing() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("P")
        assert "Pause all actions on lab?" in reader.text()
        await reader.press("y", "escape")
        assert reader.screen()[-1] == " cancelled: nothing was done"
        assert reader.world.switched == []
        await reader.press("P", "a", "b", "enter")
        assert reader.world.switched == [("paused", "ab")]
        assert reader.screen()[-1] == " paused."
        reader.world.status = replace(reader.world.status, paused="by ada since 08:00")
        reader.world.elapsed_s += 100.0
        await reader.look_again()
        await reader.press("P")
        assert "Actions are paused by ada since 08:00." in reader.text()
        await reader.press("enter")
        assert len(reader.world.switched) == 1, "only the key that is named does it"
        await reader.press("y")
        assert reader.world.switched[1] == ("resumed", None)

    read(story)


def test_an_incident_is_graded_and_the_servers_refusal_is_said() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("a")
        assert "Acknowledge incident 12, or say whether it was a leak?" in reader.text()
        assert "job 48211 of ada" in reader.text()
        await reader.press("n")
        assert reader.world.sent == [("/api/v1/grades", {"incident": "12", "grade": "not_a_leak"})]
        assert reader.screen()[-1].startswith(" Recorded.")
        reader.world.problem = "this service has no authentication, so it cannot tell who answers"
        await reader.press("a", "y")
        assert reader.screen()[-1] == " this service has no authentication, so it cannot tell who answers"
        reader.world.problem = None
        await reader.press("a", "a")
        assert reader.world.sent[-1] == ("/api/v1/acts", {"incident": "12", "act": "acknowledge"})
        await reader.press("a", "u")
        assert reader.world.sent[-1] == ("/api/v1/acts", {"incident": "12", "act": "unacknowledge"})
        assert reader.screen()[-1] == " said and done"
        await reader.press("end", "a")
        assert "no open incident here to acknowledge" in reader.screen()[-1]

    read(story)


def test_a_rank_is_asked_for_a_snapshot_or_for_a_profile() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter", "enter", "s")
        assert "Ask rank 11 of job 48211 of ada?" in reader.text()
        await reader.press("p")
        assert reader.world.sent == [
            ("/api/v1/profiles", {"job_id": "48211", "attempt": "0", "uid": "1001", "ranks": "11"})
        ]
        await reader.press("s", "s")
        ((_, rank, request),) = reader.world.wishes
        assert (rank, request["command"], request["reason"]) == (11, "snapshot", "asked")
        await reader.press("s", "escape")
        assert len(reader.world.wishes) == 1

    read(story)


def test_a_job_is_exempted_by_its_scheduler_or_it_is_said_who_can() -> None:
    ran: list[tuple[str, ...]] = []

    def run(command: ExemptingCommand) -> str:
        ran.append(command.words)
        return "done"

    asked = exempt_question(JOB, run=run, which=lambda _: "/bin/scontrol")
    assert "`scontrol update JobId=48211 Comment=tidegauge:keep` as you" in " ".join(asked.sentences)
    (choice,) = asked.choices
    assert (choice.key, choice.do("")) == ("y", "done")
    assert ran == [("scontrol", "update", "JobId=48211", "Comment=tidegauge:keep")]
    for job, words in (
        (JOB, "Run this where scontrol works, as the owner or an admin: scontrol update JobId=48211"),
        (JOB._replace(scheduler="kubernetes"), "kubectl annotate --overwrite KIND NAME tidegauge.dev/actions=keep"),
        (JOB._replace(scheduler=None), "an admin adds a pattern under `brakes.exempt`"),
        (JOB._replace(is_exempt=True), "It is exempt already"),
    ):
        found = exempt_question(job, which=lambda _: None)
        assert (words in " ".join(found.sentences), found.choices) == (True, ())


def test_x_says_what_it_would_do_to_which_job() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("end", "x")
        assert "Exempt job run-7f3a of linus from actions?" in reader.text()
        await reader.press("y")
        assert "Esc back" in reader.text(), "there is nothing to confirm"
        await reader.press("escape")
        assert "Exempt" not in reader.text()

    read(story)


def test_the_switch_of_another_machines_service_is_not_the_one_here() -> None:
    args = argparse.Namespace(api="http://head:9495", config=None, set=[])
    service = Service.of(args)
    for switch, what in ((service.pause, "pause"), (service.resume, "resume")):
        with pytest.raises(CommandError, match=f"run `tidegauge policy {what}` there, as the service's user or root"):
            switch(None)


def test_the_log_has_nodes_jobs_verdicts_incidents_and_actions_the_newest_first() -> None:
    events = [
        Event(1, NOW_S - 50, EventKind.NODE_STALE, "no report from n1", "id", "n1"),
        Event(2, NOW_S - 10, EventKind.NODE_BACK, "n1 reports again", "id", "n1"),
    ]
    told = incident(number=3, opened_unix_s=NOW_S - 40)
    closed = replace(told, number=4, state=IncidentState.CLOSED, closed_unix_s=NOW_S - 5)
    did = record(decision(incident=told, decided_s=NOW_S - 30, disposition=Disposition.DO), Outcome.DONE)
    would = record(decision(ActionKind.CHECKPOINT, incident=told, decided_s=NOW_S - 20, disposition=Disposition.WOULD))
    ended = job_record(ended_unix_s=NOW_S - 1, end=JobEnd.OOM)
    found = changes(events, [told, closed], [did, would], [ended])
    assert [one.what.text for one in found if one.what.text != "action"] == [
        "job ended", "incident closed", "node back", "no action", "incident opened", "incident opened", "node silent",
    ]  # fmt: skip
    assert [one.incident for one in found if one.what.text.startswith("incident")] == [4, 3, 4]
    assert [one.text for one in changes(events, [], [], [], "AGAIN")] == ["n1 reports again"]


def test_l_shows_the_log_also_while_the_database_is_away_and_opens_incidents() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("l")
        assert "the newest first" in reader.screen()[2]
        assert "job began" in reader.text()
        await reader.press("slash", *"opened", "enter", "enter")
        assert "incident 12" in reader.screen()[0]
        await reader.press("escape", "slash", "escape")
        reader.world.store.problem = "disk full"
        before = len(reader.app.screen.query_one("#rows")._rows)  # type: ignore[attr-defined]
        await reader.look_again()
        assert "incidents, actions and ends of jobs are unavailable" in reader.screen()[1]
        assert 0 < len(reader.app.screen.query_one("#rows")._rows) < before  # type: ignore[attr-defined]
        await reader.press("end")
        row = reader.app.screen.query_one("#rows")._rows[-1]  # type: ignore[attr-defined]
        await reader.press("enter")
        assert (row.text in reader.text(), "Esc back" in reader.text()) == (True, True)

    read(story, World().live(reports=20).tell_incidents(), size=(120, 30))


def test_the_log_asks_for_new_events_only() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("l")
        last = reader.world.coordinator.events()[-1].seq
        reader.world.asked.clear()
        reader.world.report_one(node_id="99")
        await reader.look_again()
        assert f"/api/v1/events?after={last}" in reader.world.asked
        assert "/api/v1/events?after=0" not in reader.world.asked
        assert "gpu-node-99" in reader.text()

    read(story, size=(120, 30))


def test_e_shows_how_jobs_ended_and_the_command_that_shows_the_rest() -> None:
    world = World().live(reports=3).tell_incidents()
    world.store.jobs.records += [
        job_record(job=JobKey("48000", 1, 1001), user_name="ada", end=JobEnd.OOM, ended_unix_s=NOW_S - 60),
        job_record(job=JobKey("47000", 0, 1002), user_name="grace", end=JobEnd.COMPLETED, ended_unix_s=NOW_S - 600),
    ]

    async def story(reader: Reader) -> None:
        await reader.press("e")
        assert "2 jobs, the latest end first" in reader.screen()[2]
        assert "OOM" in reader.screen()[4]
        assert "48000 (1)" in reader.screen()[4]
        await reader.press("enter")
        assert "job 48000 (1)" in reader.text().replace("attempt 1", "1")
        assert "`tidegauge job 48000 --attempt 1 --uid 1001`" in reader.text()
        await reader.press("escape", "slash", *"grace", "enter")
        assert "1 job with 'grace'" in reader.screen()[2]

    read(story, world)


def test_the_page_of_a_job_that_ended_names_its_commands() -> None:
    one = job_record(job=JobKey("48000", 1, 1001), incidents=(7,), end=JobEnd.OOM, ended_unix_s=NOW_S)
    texts = " ".join(text for _, text in ended_page(one))
    assert job_command(one.job) in texts
    assert "`tidegauge report 7` makes a page of incident 7" in texts
