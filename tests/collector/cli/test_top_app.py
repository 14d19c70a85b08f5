"""``tidegauge top`` as its reader uses it: textual's own pilot presses the keys, a made-up cluster answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import Input

from evidence_values import news
from sample_views import LEAK, identity, rank_summary
from tidegauge.cli.errors import CommandError
from tidegauge.cli.top import screens as top_screens
from tidegauge.cli.top.app import TopApp
from tidegauge.cli.top.model import Selection, Sort
from tidegauge.cli.top.page_screens import IncidentScreen
from tidegauge.cli.top.screens import LiveScreen
from tidegauge.cli.top.table import RowTable
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents.evidence import with_evidence
from top_reader import Reader, read
from top_world import World


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks when a test says so (``look_again``), however long that takes here; clicks follow each other at once."""
    monkeypatch.setattr(LiveScreen, "REFRESH_S", 3600.0)
    monkeypatch.setattr(IncidentScreen, "REFRESH_S", 3600.0)
    monkeypatch.setattr(TopApp, "CLICK_CHAIN_TIME_THRESHOLD", 3600.0)
    monkeypatch.setattr(top_screens, "SAID_S", 3600.0)


def test_the_cluster_its_jobs_and_its_incidents_are_on_one_screen() -> None:
    async def story(reader: Reader) -> None:
        lines = reader.screen()
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith(" tidegauge  lab")
        assert lines[1] == " 7 nodes   7 jobs, 1 leak, 2 growing   56 GPUs, 57% full"
        assert lines[4].split()[:4] == ["\u25b8leak", "!!!", "48211", "ada"]
        assert " policy observe, 2 incidents open" in lines
        assert any("#12" in line and "would checkpoint" in line for line in lines)
        assert "Enter open" in lines[-1]
        assert lines[2] == " 7 jobs, 1 ended, by time to OOM", "as many as the headline says"

    read(story)


def test_enter_goes_from_the_cluster_to_a_job_to_a_rank_and_escape_back() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter")
        assert reader.screen()[0].startswith(" tidegauge  lab \u203a job 48211")
        assert reader.screen()[4].split()[:4] == ["\u25b8leak", "!!!", "11", "gpu-node-01"]
        await reader.press("enter")
        assert "job 48211 \u203a rank 11" in reader.screen()[0]
        assert "leaks 12.0 MiB per step since step 4,310" in reader.text()
        assert "\u2588" in reader.text()
        await reader.press("escape")
        assert "rank 11" not in reader.screen()[0]
        await reader.press("escape", "escape")
        assert "job 48211" not in reader.screen()[0], "at the top, escape does nothing"
        assert len(reader.jobs()) == 8

    read(story)


def test_z_draws_a_rank_from_nothing_to_its_limit_and_back() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter", "enter")
        assert " 0 B " not in reader.text()
        await reader.press("z")
        assert reader.text().count("  0 B ") == 4, "the foot of each of the four charts"
        await reader.press("z")
        assert "68.2 GiB" in reader.text()

    read(story, World().live(reports=60).tell_incidents(), size=(90, 30))


def test_the_cursor_stays_on_its_job_when_the_order_changes() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("down", "down")
        assert reader.chosen() == "48219"
        await reader.press("n")
        assert reader.chosen() == "48219"
        await reader.press("end", "enter")
        assert "job run-7f3a" in reader.screen()[0]

    read(story)


def test_keys_sort() -> None:
    async def story(reader: Reader) -> None:
        assert reader.jobs()[0] == "48211"
        await reader.press("m")
        assert reader.jobs()[0] == "48230"
        assert "by share of memory used" in reader.text()
        await reader.press("g")
        assert reader.jobs()[0] == "48211"
        await reader.press("n")
        assert reader.jobs()[:2] == ["48190", "48211"]
        await reader.press("o")
        assert "by state" in reader.text()
        await reader.press("o")
        assert ("by user" in reader.text(), reader.jobs()[:3]) == (True, ["48211", "48230", "48231"])
        for words in ("by host", "by number of ranks", "by step", "by memory used", "by time to OOM"):
            await reader.press("o")
            assert words in reader.text()
        assert reader.jobs()[0] == "48211"
        assert reader.jobs()[-1] == "run-7f3a", "what has ended comes last in every order"

    read(story)


def test_a_filter_is_typed_seen_at_once_kept_by_enter_and_left_by_escape() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("slash", "v", "i", "t")
        assert reader.jobs() == ["48219"]
        assert "with 'vit'" in reader.text()
        assert "filter: vit" in reader.text()
        await reader.press("tab")
        assert "filter: vit" in reader.text(), "the line has its prompt also while the table has the keys"
        await reader.press("slash", "enter")
        assert reader.jobs() == ["48219"]
        assert not reader.app.screen.query_one("#filter", Input).display
        assert "filter:" not in reader.text()
        await reader.press("slash", "q", "q")
        assert "8 jobs hidden" in reader.text(), "q is a letter here"
        await reader.press("escape")
        assert len(reader.jobs()) == 8

    read(story)


def test_u_shows_my_own_jobs_and_their_incidents_only() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("u")
        assert reader.jobs() == ["48211", "48230"]
        assert "#11" not in reader.text()
        await reader.press("u")
        assert len(reader.jobs()) == 8

    read(story)


@pytest.mark.parametrize("key", ["tab", "i"])
def test_an_incident_is_opened_from_the_pane_and_tells_its_story(key: str) -> None:
    async def story(reader: Reader) -> None:
        await reader.press(key, "enter")
        assert "incident 12" in reader.screen()[0]
        assert reader.screen()[1] == " leak, critical, open"
        assert "Rank 11 of job 48211 leaks 12.0 MiB per step" in reader.text()
        await reader.press("end")
        assert "What happens next" in reader.text()
        await reader.press("escape")
        assert len(reader.jobs()) == 8

    read(story)


def test_r_names_the_report_of_the_incident_at_hand_and_keeps_its_address_for_the_end() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("r")
        assert reader.screen()[-1] == " report: http://head:9495/report?incident=12"
        await reader.press("i", "down", "r")
        assert reader.screen()[-1].endswith("incident=11")
        await reader.press("tab", "end", "r")
        page = reader.app.addresses[-1]
        assert page.startswith("http://head:9495/job?job_id=")
        assert reader.screen()[-1] == f" web page: {page}"
        await reader.press("home", "enter", "r", "enter", "r")
        assert reader.screen()[-1].endswith("incident=12")
        reports = [f"http://head:9495/report?incident={number}" for number in (12, 11)]
        assert reader.app.addresses == [*reports, page]

    read(story)


def test_when_nobody_answers_the_last_figures_stay_and_are_called_old() -> None:
    async def story(reader: Reader) -> None:
        reader.world.problem = "http://127.0.0.1:9 does not answer: refused"
        await reader.look_again()
        assert reader.screen()[1].startswith(" NO ANSWER for ")
        assert "figures are stale http://127.0.0.1:9 does not answer" in reader.screen()[1]
        assert len(reader.jobs()) == 8
        await reader.press("enter")
        assert "NO ANSWER http://127.0.0.1:9 does not answer" in reader.screen()[1]
        reader.world.problem = None
        await reader.press("escape")
        assert "NO ANSWER" not in reader.text()

    read(story)


def test_a_long_reason_for_no_answer_fills_the_line() -> None:
    async def story(reader: Reader) -> None:
        reader.world.problem = "no answer from http://gpu-head-0001.example.org:9495: timed out"
        await reader.look_again()
        assert "figures are stale no answer from http://gpu-head-" in reader.screen()[1]
        assert len(reader.screen()[1]) == 80
        assert reader.screen()[1].endswith("\u2026")

    read(story)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_keys_that_help_and_quit_are_on_every_terminal(width: int) -> None:
    async def story(reader: Reader) -> None:
        assert reader.screen()[-1].endswith("? help  q quit")
        assert "Enter open" in reader.screen()[-1]
        await reader.press("enter")
        assert reader.screen()[-1].startswith(" Esc back  ")
        assert reader.screen()[-1].endswith("? help  q quit")

    read(story, size=(width, 24))


def test_the_log_says_nothing_of_changes_before_it_knows_them() -> None:
    async def story(reader: Reader) -> None:
        reader.world.problem = "no answer"
        await reader.press("l")
        assert "nothing has changed" not in reader.text()

    read(story)


def test_jobs_are_seen_while_the_database_of_incidents_is_away() -> None:
    world = World().live(reports=5).tell_incidents()
    world.store.problem = "disk full"

    async def story(reader: Reader) -> None:
        assert len(reader.jobs()) == 8
        assert "unavailable: the database of incidents and actions is unavailable: disk full" in reader.text()
        await reader.press("enter", "r")
        assert "web page: http://head:9495/job?" in reader.screen()[-1]

    read(story, world, size=(120, 24))


def test_new_figures_come_with_the_next_look() -> None:
    async def story(reader: Reader) -> None:
        reader.world.elapsed_s += 2.0
        reader.world.report_one(rank_summary(identity=identity(job_id=JobId("new"))), node_id="99")
        await reader.look_again()
        assert "new" in reader.jobs()

    read(story)


def test_a_look_is_two_requests() -> None:
    async def story(reader: Reader) -> None:
        for keys, paths in (((), ["overview", "incidents"]), (("enter",), ["job", "incidents"])):
            await reader.press(*keys)
            reader.world.asked.clear()
            await reader.look_again()
            assert [path.partition("?")[0].rpartition("/")[2] for path in reader.world.asked] == paths
        await reader.press("enter")
        reader.world.asked.clear()
        await reader.look_again()
        assert [path.partition("?")[0].rpartition("/")[2] for path in reader.world.asked] == ["job", "memory"]

    read(story)


def test_top_does_not_refresh_a_hidden_screen() -> None:
    async def story(reader: Reader) -> None:
        below = reader.app.screen
        await reader.press("enter")
        reader.world.asked.clear()
        below.look()  # type: ignore[attr-defined]
        await reader.settle()
        assert reader.world.asked == []

    read(story)


def test_a_job_that_is_forgotten_says_so() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter", "enter")
        reader.world.elapsed_s += 10_000.0
        for node in range(8):
            reader.world.report_one(node_id=f"{node:02d}")
        reader.world.elapsed_s += 200.0
        await reader.look_again()
        assert "job '48211', attempt 0, is not watched" in reader.screen()[1]

    read(story, size=(120, 30))


def test_top_shows_a_hostile_job_name_without_markup_or_escape_sequences() -> None:
    world = World(())
    name = "[red]x[/red][link=file:///etc]\x1b]0;owned\x07\n\u202e"
    world.report_one(
        rank_summary(0, identity=identity(0, job_id=JobId(name), job_name=name), user_name="[b]u[/b]", verdict=LEAK),
        node_id="00",
    )

    async def story(reader: Reader) -> None:
        assert reader.screen()[4].startswith("\u25b8leak !!!   [red]x[/red][link=file:///etc]?")
        await reader.press("enter")
        assert "job [red]x[/red][link=file:///etc]?]0;owned???" in reader.screen()[0]
        await reader.press("enter")
        assert "rank 0 leaks" in reader.text()
        assert all(line.isprintable() for line in reader.screen())

    read(story, world, size=(200, 24))


def test_top_opens_with_the_requested_job_and_selection() -> None:
    async def story(reader: Reader) -> None:
        assert "job 48219" in reader.screen()[0]
        assert "by name" in reader.text()
        await reader.press("escape")
        assert reader.jobs() == ["48219", "raysubmit_Xq3c9mKc2bZ"]

    read(story, choice=Selection(Sort.NAME, user="grace"), job=JobKey("48219", 0, 1002))


def test_a_terminal_that_changes_its_size_is_filled_again() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("end")
        for width, height in ((130, 40), (80, 24), (40, 10), (20, 5), (80, 24)):
            await reader.pilot.resize_terminal(width, height)
            await reader.settle()
            assert len(reader.screen()) == height
            assert max(map(len, reader.screen())) <= width
        assert "state" in reader.text()
        await reader.press("enter", "enter")
        await reader.pilot.resize_terminal(130, 40)
        await reader.settle()
        assert max(map(len, reader.screen())) > 100

    read(story)


def test_a_table_longer_than_the_screen_scrolls_with_the_cursor_below_its_header() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter")
        await reader.press("n")
        await reader.press(*["down"] * 15)
        shown = [line for line in reader.screen() if "gpu-node" in line]
        assert any(line.startswith("\u25b8") and line.split()[1] == "15" for line in shown)
        assert reader.screen()[3].split()[:2] == ["state", "rank"]
        await reader.press("pageup", "home")
        assert any(line.startswith("\u25b8") and line.split()[1] == "0" for line in reader.screen())

    read(story, size=(80, 16))


def test_a_row_is_chosen_and_opened_by_the_mouse() -> None:
    async def story(reader: Reader) -> None:
        await reader.pilot.click("#rows", offset=(20, 3))
        await reader.settle()
        assert reader.chosen() == "48219"
        await reader.pilot.click("#rows", offset=(20, 3), times=2)
        await reader.settle()
        assert "job 48219" in reader.screen()[0]

    read(story)


def test_the_keys_are_explained_and_an_empty_cluster_says_how_to_begin() -> None:
    async def story(reader: Reader) -> None:
        assert "no jobs watched; start one with `tidegauge run -- CMD`" in reader.text()
        await reader.press("enter", "r", "down")
        await reader.press("question_mark")
        assert "open the job, rank or incident under the cursor" in reader.text()
        await reader.press("escape")
        assert "no jobs watched" in reader.text()

    read(story, World(()))


def test_q_ends_it() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("enter", "q")
        assert not reader.app.is_running

    read(story)


def test_an_address_that_cannot_be_found_is_no_end() -> None:
    async def story(reader: Reader) -> None:
        def away() -> str:
            raise CommandError("no service of yours is running here")

        reader.app.source._address = away
        await reader.press("r")
        assert reader.screen()[-1] == " no service of yours is running here"
        assert reader.app.addresses == []

    read(story)


def test_a_look_draws_the_lines_that_are_seen_however_many_jobs_there_are() -> None:
    world = World(tuple(replace(job, job_id=f"{n}") for n, job in enumerate(World().jobs * 12))).live(reports=1)

    async def story(reader: Reader) -> None:
        table = reader.app.screen.query_one("#rows", RowTable)
        drawn: list[int] = []
        draw = table.render_line

        def counted(y: int) -> object:
            drawn.append(y)
            return draw(y)

        table.render_line = counted  # type: ignore[method-assign, assignment]
        await reader.look_again()
        assert len(reader.jobs()) == 96
        assert 0 < len(drawn) <= 3 * 24

    read(story, world)


def test_a_rank_is_asked_for_evidence_by_a_key_and_what_is_known_is_on_its_page() -> None:
    world = World().live(reports=20).tell_incidents()
    (change,) = [one for one in world.store.incidents.story if one.incident.number == 12][-1:]
    piece = news(11, job=change.incident.key.job)
    world.store.incidents.story.append(change._replace(incident=with_evidence(change.incident, [piece])))

    async def story(reader: Reader) -> None:
        await reader.press("enter", "enter")
        assert "rank 11" in reader.screen()[0]
        assert "train.py:41 in step" in reader.text()
        assert "s ask" in reader.screen()[-1]
        await reader.press("s")
        assert world.wishes == [], "it asks first"
        await reader.press("e")
        ((job, rank, request),) = world.wishes
        assert (job.job_id, rank, request["command"], request["reason"]) == ("48211", 11, "evidence", "asked")
        assert "collecting evidence on rank 11" in reader.screen()[-1]

    read(story, world, size=(120, 36))


def test_the_rank_to_look_at_first_of_an_incident_is_asked_and_a_refusal_is_said() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("i", "enter")
        assert "incident 12" in reader.screen()[0]
        await reader.press("s", "e")
        assert [(job.job_id, rank) for job, rank, _ in reader.world.wishes] == [("48211", 11)]
        reader.world.problem = "to reach ranks on other hosts, run this on the service's head"
        await reader.press("s", "e")
        assert "run this on the service's head" in reader.screen()[-1]

    read(story)
