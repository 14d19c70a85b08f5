"""The pages of the web UI over HTTP: what each says first, what it links to, and that names of jobs stay text."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from html_text import Page
from tidegauge.cluster.api.http_api import NotFoundError, Request
from tidegauge.cluster.api.overview import Overview
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.views import NodeHealth
from tidegauge.cluster.web.job_page import MAX_ROWS
from tidegauge.cluster.web.jobs_page import JobsAsked, JobsShown, jobs_page
from tidegauge.cluster.web.nodes_page import nodes_page, tenancies
from tidegauge.cluster.web.policy_page import policy_page
from tidegauge.cluster.web.routes import PAGES
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.http.access import Viewer
from tidegauge_exporter.reports.html_page import section, table
from waiting import PATIENCE_S
from web_world import HOSTILE, LEAKY, ODD_RANK, web_service

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
EVERY = [*PAGES.values(), f"job?job_id={LEAKY}", "job?job_id=6000", "report?incident=1", "job?job_id=4711"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorService]:
    with web_service(tmp_path_factory.mktemp("web"), nodes=4) as service:
        yield service


def ask(
    service: CoordinatorService, path: str, headers: Mapping[str, str] = BROWSER
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(service.url).port or 0, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/{path}", headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def text(service: CoordinatorService, path: str) -> str:
    return " ".join(Page(ask(service, path)[2]).text.split())


# In five seconds: is any job in danger, and which one?
def test_the_page_of_jobs_says_how_many_leak_and_which_comes_first(service: CoordinatorService) -> None:
    status, _, html = ask(service, "")
    assert status == 200
    assert "2 jobs are leaking, and will run out of memory." in Page(html).text
    rows = re.findall(r'<a class="named" href="job\?job_id=(\w+)', html)
    assert rows[:2] == ["4711", LEAKY]
    assert "leak !!!" in html


# In five seconds: which rank, how fast, and how long has it got?
def test_the_page_of_a_job_says_which_rank_leaks_how_fast_and_until_when(service: CoordinatorService) -> None:
    words = text(service, f"job?job_id={LEAKY}")
    assert f"Rank {ODD_RANK} leaks 12.0 MiB per step since step 40; at this rate it runs out of memory in" in words
    assert "GPU memory of rank 13 (gpu-a-001, GPU 6)" in words


def test_the_page_of_a_job_shows_the_rank_that_was_chosen(service: CoordinatorService) -> None:
    assert "GPU memory of rank 3 (gpu-a-000, GPU 3)" in text(service, f"job?job_id={LEAKY}&rank=3")


def test_a_rank_that_the_job_does_not_have_is_told_and_not_another_one_in_its_place(
    service: CoordinatorService,
) -> None:
    assert "Rank 99 is not known of this job" in text(service, f"job?job_id={LEAKY}&rank=99")
    assert "is not known of this job" not in text(service, f"job?job_id={LEAKY}&rank=3")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [({}, "No node has reported yet: which jobs run is not known."), ({"ok": 2}, "No job is running.")],
)
def test_before_any_node_has_reported_no_page_says_that_no_job_runs(nodes: Mapping[str, int], told: str) -> None:
    """As after a restart of the head."""
    overview = Overview("lab", "1", 0.0, nodes, 0, None, None, LoopStatus("act", None), ())
    assert told in "".join(jobs_page(JobsShown(overview, {}, ()), JobsAsked("", "alarm")))


def test_what_a_silent_node_told_last_is_called_old(service: CoordinatorService) -> None:
    """Job 4711 leaked when its node was heard of last."""
    html = ask(service, "job?job_id=4711&attempt=0")[2]
    assert "2 ranks on nodes that are not reporting: old figures." in Page(html).text
    assert "old figures" not in text(service, f"job?job_id={LEAKY}")


def test_a_job_of_many_ranks_shows_some_and_finds_the_others(tmp_path: Path) -> None:
    with web_service(tmp_path, nodes=20) as service:
        page = ask(service, f"job?job_id={LEAKY}")[2]
        assert page.count("&amp;rank=") + page.count("&rank=") <= MAX_ROWS + 1
        assert "40 more ranks" in text(service, f"job?job_id={LEAKY}")
        assert "GPU memory of rank 139 (gpu-a-019, GPU 6)" in text(service, f"job?job_id={LEAKY}&rank=139")
        assert ">139</a>" in ask(service, f"job?job_id={LEAKY}&words=139")[2]


# In five seconds: how did it end, and how full was it?
def test_the_page_of_a_job_that_ended_says_how_and_how_full_it_was(service: CoordinatorService) -> None:
    words = text(service, "history")
    assert "by itself" in words
    assert "22.0 GiB" in words


# In five seconds: what is open, and how bad is it?
def test_the_page_of_incidents_lists_open_ones_with_their_sentence(service: CoordinatorService) -> None:
    words = text(service, "incidents")
    assert "1 incident open." in words
    assert "runs out of memory in" in words


# In five seconds: which node is silent, which GPU is full, whose is it?
def test_the_page_of_nodes_says_who_is_silent_who_is_where_and_what_nobody_accounts_for(
    service: CoordinatorService,
) -> None:
    words = text(service, "nodes")
    assert "2 of 6 nodes not reporting." in words
    assert "moe-pretrain rank 13" in words
    assert "unattributed 3.0 GiB !" in words
    assert "held by nobody 2.0 GiB !" in words


def test_a_viewer_sees_that_ranks_of_others_are_there_and_not_whose(service: CoordinatorService) -> None:
    jobs = service.coordinator.jobs()
    own = [job for job in jobs if job.job_id == LEAKY]
    html = "".join(nodes_page(service.coordinator.nodes(), tenancies(own, jobs), words="", show=""))
    assert "1 rank of others" in html
    assert "moe-pretrain" in html
    assert "vit-sweep" not in html
    assert "vit-sweep" not in "".join(nodes_page(service.coordinator.nodes(), tenancies((), jobs), words="", show=""))


def test_nodes_are_found_by_host_user_job_and_trouble(service: CoordinatorService) -> None:
    assert re.findall(r"<h3>([\w-]+)</h3>", ask(service, "nodes?words=vit-sweep-3")[2]) == ["gpu-a-003"]
    assert re.findall(r"<h3>([\w-]+)</h3>", ask(service, "nodes?show=unknown")[2]) == ["gpu-a-002"]
    assert re.findall(r"<h3>([\w-]+)</h3>", ask(service, "nodes?show=problem")[2]) == ["node0", "node1"]


def test_a_node_whose_report_is_not_understood_says_why_and_its_words_stay_text(service: CoordinatorService) -> None:
    first, *others = service.coordinator.nodes()
    told = replace(first, health=NodeHealth.OK, problem="its report was refused: <b>too old</b>")
    html = "".join(nodes_page([told, *others], {}, words="", show="problem"))
    assert "its report was refused: &lt;b&gt;too old&lt;/b&gt;" in html


# In five seconds: does Tidegauge act, and what is it holding back?
def test_the_page_of_the_policy_says_the_mode_and_what_is_wrong(service: CoordinatorService) -> None:
    words = text(service, "policy")
    assert "Mode act: the actions of the rules are taken, within the brakes." in words
    assert "away !" in words, "a scheduler that does not answer"


def test_jobs_are_filtered_by_all_words_and_sorted(service: CoordinatorService) -> None:
    def found(query: str) -> list[str]:
        return re.findall(
            r'<a class="named" href="job\?job_id=(\w+)', ask(service, f"jobs?{query}")[2].split("Ended")[0]
        )

    assert found("words=SWEEP-2+ada") == ["6002"]
    assert found("words=nobody") == []
    assert found("sort=size")[0] == LEAKY


@pytest.mark.parametrize("path", EVERY)
def test_no_page_takes_what_a_job_chose_for_markup(service: CoordinatorService, path: str) -> None:
    html = ask(service, path)[2]
    assert HOSTILE not in html
    assert "<script>document" not in html
    assert [tag for tag in _scripts(html) if not tag.startswith("ui/site.js?v=") and tag != "json"] == []


@pytest.mark.parametrize("path", EVERY)
def test_every_page_runs_and_fetches_nothing_but_what_the_service_serves(
    service: CoordinatorService, path: str
) -> None:
    status, headers, html = ask(service, path)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\bstyle=|<style|\bon\w+=", html)


@pytest.mark.parametrize("path", EVERY)
def test_every_table_has_a_name_for_screen_readers(service: CoordinatorService, path: str) -> None:
    """They list a page's tables by name: "table, 5 columns" tells nobody which one to enter."""
    html = ask(service, path)[2]
    tables = re.findall(r"<table[^>]*>", html)
    named = re.findall(r'<table[^>]* aria-label="[^"]+"', html)
    assert len(named) == len(tables)


def test_the_name_of_a_table_is_text() -> None:
    """Headings have names of hosts in them."""
    assert r'aria-label="rank 1 (\1\g&lt;9&gt;&quot;)"' in section('rank 1 (\\1\\g<9>")', table(("a",), [("b",)]))


@pytest.mark.parametrize("path", EVERY)
def test_every_link_of_a_page_leads_to_a_page(service: CoordinatorService, path: str) -> None:
    for link in {*Page(ask(service, path)[2]).links}:
        if not link.startswith(("http", "#")):
            assert ask(service, link)[0] == 200, link


def test_a_browser_is_shown_an_error_as_a_page_and_a_script_as_json(service: CoordinatorService) -> None:
    status, headers, html = ask(service, "report?incident=99")
    assert (status, headers.get_content_type()) == (404, "text/html")
    assert "No incident 99" in Page(html).text
    status, headers, _ = ask(service, "report?incident=99", {"Accept": "*/*"})
    assert (status, headers.get_content_type()) == (404, "application/json")


@pytest.mark.parametrize(
    ("path", "status"), [("nowhere", 404), ("a/b/nowhere", 404), ("ui/", 404), ("report?incident=x", 400)]
)
def test_a_path_that_is_no_page_is_a_page_for_a_browser(service: CoordinatorService, path: str, status: int) -> None:
    answered, headers, html = ask(service, path)
    assert (answered, headers.get_content_type()) == (status, "text/html")
    assert "style-src 'self'" in headers["Content-Security-Policy"]
    links = re.findall(r'href="([^"#:]+)"', html)
    assert len(links) > len(PAGES)
    for link in links:
        assert ask(service, urljoin(f"/{path}", link).lstrip("/"))[0] == 200, link
    assert ask(service, path, {})[1].get_content_type() == "application/json"


@pytest.mark.parametrize("path", ["api/v1/nowhere", "api/v1/job?job_id=no&attempt=x"])
def test_the_api_answers_a_browser_with_json_as_it_does_scripts(service: CoordinatorService, path: str) -> None:
    assert ask(service, path)[1].get_content_type() == "application/json"


def test_a_report_without_a_number_says_that_the_number_is_missing(service: CoordinatorService) -> None:
    status, _, html = ask(service, "report")
    assert (status, "The address names no incident" in Page(html).text) == (400, True)


def test_a_name_of_another_site_learns_nothing_from_the_page_that_refuses_it(service: CoordinatorService) -> None:
    status, _, html = ask(service, "jobs", {**BROWSER, "Host": "attacker.example"})
    assert (status, "set public_url" in Page(html).text) == (421, True)
    assert '<span class="cluster"></span>' in html


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (LoopStatus("act", None), "the actions of the rules are taken, within the brakes."),
        (LoopStatus("act", None, paused="by ada", breaker="3 of 4"),
         "within the brakes. Needs attention: actions paused, circuit breaker open."),
        (LoopStatus("act", None, policy_problem="unreadable", scheduler_problems={"slurm": "away"}),
         "within the brakes. Needs attention: Policy file problem, slurm problem."),
    ],
)  # fmt: skip
def test_the_page_of_the_policy_says_first_why_it_needs_attention(status: LoopStatus, told: str) -> None:
    first = policy_page(status, (), left_out=0)[0]
    assert told in first
    assert ("tone-warning" in first) is ("Needs attention" in told)


def test_the_map_of_ranks_tells_a_last_word_from_a_present_one(service: CoordinatorService) -> None:
    def stale(job: str) -> set[bool]:
        rows = json.loads(ask(service, f"api/v1/heat-map?job_id={job}&attempt=0")[2])["rows"]
        return {row["stale"] for row in rows}

    assert (stale("4711"), stale(LEAKY)) == ({True}, {False})


def test_style_sheet_and_script_are_kept_by_browsers_until_they_change(service: CoordinatorService) -> None:
    html = ask(service, "jobs")[2]
    for path in re.findall(r'(?:href|src)="(ui/site\.\w+\?v=\w{12})"', html):
        status, headers, _ = ask(service, path)
        assert (status, "immutable" in headers["Cache-Control"]) == (200, True)


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        about = dict(attributes)
        if tag == "script":
            self.found.append("json" if about.get("type") == "application/json" else about.get("src") or "inline")


def _scripts(html: str) -> list[str]:
    """Where each script of a page comes from."""
    parser = _Scripts()
    parser.feed(html)
    return parser.found


def test_pages_are_the_same_below_a_path(service: CoordinatorService) -> None:
    """Behind a proxy that serves them at https://site/tidegauge/: nothing is addressed from the root."""
    for path in EVERY:
        assert not re.search(r'(?:href|src|action)="/', ask(service, path)[2]), path


def test_a_page_of_a_job_that_is_kept_is_shown_to_nobody_who_may_not_see_the_job(service: CoordinatorService) -> None:
    job = service.routes()["/job"]

    def seen_by(viewer: Viewer) -> str:
        return job(Request({"job_id": LEAKY}, None, viewer)).body.decode()

    admin = Viewer("root", sees_all=True, reads_metrics=True)
    assert f"Rank {ODD_RANK} leaks" in seen_by(admin)
    with pytest.raises(NotFoundError):
        seen_by(Viewer("mallory", sees_all=False, reads_metrics=False))
    with pytest.raises(NotFoundError):
        seen_by(Viewer(None, sees_all=False, reads_metrics=False))
    assert "admin2" in seen_by(replace(admin, name="admin2")), "the page says who looks at it"
    assert "admin2" not in seen_by(admin)


def test_the_service_says_why_there_are_no_records_and_shows_the_rest(
    service: CoordinatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._actions, "_opened", None)
    monkeypatch.setattr(service._actions, "_problem", "the disk is full")
    for path in ("jobs", f"job?job_id={LEAKY}&rank=7"):  # no page that may be kept from another test
        status, _, html = ask(service, path)
        assert status == 200
        assert LEAKY in html
        assert "Not known: the database of incidents and actions is unavailable: the disk is full" in html
    assert ask(service, "incidents")[0] == 503
