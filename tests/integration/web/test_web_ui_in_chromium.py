"""The web UI in a real browser: a walk through all pages with a leaking, a healthy, an ended and a hostile-named job;
live figures, filter, keyboard, colours, a phone's width, ten thousand ranks, and axe's rules for screen readers."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browser import Tab, chromium, open_tab
from integration.needs import missing
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from web_world import HOSTILE, LEAKY, ODD_RANK, fill, lengthen, web_service

AXE = Path(__file__).parents[3] / "build" / "report_page" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    "", "jobs", "incidents?show=all", "nodes", "history", "policy", "compare", f"job?job_id={LEAKY}",
    "job?job_id=6000", "job?job_id=4711&attempt=0&uid=1001", "report?incident=1",
)  # fmt: skip
SERIOUS = {"serious", "critical"}
READY = "document.documentElement.dataset.site === 'ready'"
MAP_DRAWN = "document.querySelector('canvas[data-drawn]')"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorService]:
    with web_service(tmp_path_factory.mktemp("web")) as service:
        yield service


@pytest.fixture(scope="module")
def browser_tab() -> Iterator[Tab]:
    program = chromium()
    if program is None:
        missing("no Chromium here")
    with open_tab(program) as tab:
        yield tab


@pytest.fixture
def tab(browser_tab: Tab) -> Tab:
    browser_tab.screen(width=1366, height=768)
    return browser_tab


def visit(tab: Tab, service: CoordinatorService, path: str) -> None:
    tab.open(f"{service.url}/{path}")
    tab.wait_for(READY)
    if path.startswith(f"job?job_id={LEAKY}"):
        tab.wait_for(MAP_DRAWN)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_works_without_complaint_in_both_colours_and_on_a_phone(
    tab: Tab, service: CoordinatorService, path: str
) -> None:
    for width, dark in ((1366, False), (1366, True), (390, False)):
        tab.screen(width=width, height=800, dark=dark)
        visit(tab, service, path)
        assert tab.complaints() == []
        assert tab.ask("document.documentElement.scrollWidth") <= width, "nothing is cut off beside the screen"
        assert "Tidegauge" in str(tab.ask("document.title"))
        assert tab.ask("document.title") != "pwned"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_serious_is_in_the_way_of_a_screen_reader(
    tab: Tab, service: CoordinatorService, path: str, dark: bool
) -> None:
    if not AXE.exists():
        missing("axe-core is not here: make report-packages")
    tab.screen(width=1180, height=900, dark=dark)
    visit(tab, service, path)
    # By the debugger, which the page's policy does not bind.
    tab.call("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
    found = tab.ask("axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)")
    grave = [
        (one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found if one["impact"] in SERIOUS
    ]
    assert grave == []


def test_a_row_of_the_table_of_ranks_is_two_lines_on_a_phone(tab: Tab, service: CoordinatorService) -> None:
    """Not one for each part of a host's name between hyphens."""
    tab.screen(width=390, height=800)
    visit(tab, service, f"job?job_id={LEAKY}")
    assert tab.ask("document.querySelector('a[href$=\"rank=8\"]').closest('tr').offsetHeight") < 60


def test_a_walk_by_the_links_alone_reaches_the_leaking_rank(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, "")
    tab.follow(f"[...document.querySelectorAll('a.named')].find((a) => a.textContent === '{LEAKY}').click()")
    tab.wait_for(MAP_DRAWN)
    assert f"Rank {ODD_RANK} leaks" in str(tab.ask("document.querySelector('h1').textContent"))
    tab.follow("[...document.querySelectorAll('nav a')].find((a) => a.textContent === 'Nodes').click()")
    tab.follow(f"[...document.querySelectorAll('a')].find((a) => a.href.includes('rank={ODD_RANK}')).click()")
    tab.wait_for(MAP_DRAWN)
    assert f"rank {ODD_RANK} " in str(tab.ask("document.body.textContent"))


def test_figures_follow_the_service_and_what_the_reader_holds_stays(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, "jobs")
    tab.ask("document.querySelector('input[name=words]').focus(); window.marker = 1")
    before = tab.ask("document.querySelectorAll('a.named').length")
    fill(service, nodes=10)  # two more nodes: two more jobs
    tab.wait_for(f"document.querySelectorAll('a.named').length > {before}")
    assert tab.ask("document.activeElement.name") == "words"
    assert tab.ask("window.marker") == 1, "it is the same document"


def test_the_page_of_an_open_incident_follows_and_a_zoomed_chart_stays(tab: Tab, tmp_path: Path) -> None:
    with web_service(tmp_path, nodes=0) as service:
        lengthen(service)
        visit(tab, service, "report?incident=1")
        _check_that_an_incident_follows(tab)


def _check_that_an_incident_follows(tab: Tab) -> None:
    chart = "document.querySelector('.scroll > svg')"
    assert int(str(tab.ask("document.body.dataset.refresh"))) > 0
    tab.ask("window.marker = 1")

    def asked_again() -> None:
        tab.ask("document.querySelector('h1').textContent = 'old'")
        tab.ask("document.dispatchEvent(new Event('visibilitychange'))")
        tab.wait_for("document.querySelector('h1').textContent !== 'old'")

    tab.ask(f"{chart}.first = 1")
    asked_again()
    assert tab.ask(f"{chart}.first") is None, "it is drawn anew"
    assert tab.ask("document.querySelectorAll('.tools button').length") == 1, "with its tools, once"
    tab.ask(f"{chart}.mine = 1; {chart}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))")
    zoomed = tab.ask(f"{chart}.querySelector('svg').getAttribute('viewBox')")
    asked_again()
    assert tab.ask(f"{chart}.mine") == 1, "somebody looks at it"
    assert tab.ask(f"{chart}.querySelector('svg').getAttribute('viewBox')") == zoomed
    tab.ask(f"{chart}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape'}}))")
    asked_again()
    assert tab.ask(f"{chart}.mine") is None
    assert tab.ask("window.marker") == 1, "it is the same document"
    assert tab.complaints() == []


def test_the_filter_answers_while_one_types_and_is_in_the_address(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, "jobs")
    tab.key("/", "/")
    assert tab.ask("document.activeElement.name") == "words"
    for letter in "sweep-3":
        tab.key(letter, letter)
    tab.wait_for("location.search.includes('sweep-3')")
    tab.wait_for("[...document.querySelectorAll('section')][1].querySelectorAll('a.named').length === 1")


def test_the_name_of_a_job_is_text_wherever_it_is_shown(tab: Tab, service: CoordinatorService) -> None:
    for path in ("jobs", "nodes", "job?job_id=6000"):
        visit(tab, service, path)
        assert HOSTILE[:36] in str(tab.ask("document.querySelector('main').textContent"))
        assert tab.ask("document.querySelectorAll('main script').length") == 0


def test_the_map_of_ranks_is_read_by_keys_and_opens_a_rank(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, f"job?job_id={LEAKY}")
    tab.ask("document.querySelector('canvas').focus()")
    for _ in range(ODD_RANK + 1):
        tab.key("ArrowDown")
    said = str(tab.ask("document.querySelector('.drawn .said').textContent"))
    assert f"rank {ODD_RANK} on gpu-a-001, GPU 6" in said
    assert "leak (critical)" in said
    tab.follow("document.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
    assert f"rank={ODD_RANK}" in str(tab.ask("location.search"))


def test_a_service_that_does_not_answer_is_said_and_nothing_is_taken_away(tab: Tab, tmp_path: Path) -> None:
    with web_service(tmp_path, nodes=1) as service:
        visit(tab, service, "jobs")
    assert re.search(r"No answer .*: the figures below are old, of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", told(tab))
    assert LEAKY in str(tab.ask("document.querySelector('main').textContent"))


def test_a_service_that_takes_questions_and_never_answers_is_said_too(tab: Tab, tmp_path: Path) -> None:
    """As a head that hangs, or a network that swallows."""
    with web_service(tmp_path, nodes=1) as service:
        visit(tab, service, "jobs")
        port = urlsplit(service.url).port or 0
    with socket.create_server(("127.0.0.1", port)):
        assert "the figures below are old" in told(tab)


def test_a_page_that_is_not_there_any_more_is_said_in_the_words_of_the_service(
    tab: Tab, service: CoordinatorService
) -> None:
    visit(tab, service, f"job?job_id={LEAKY}")
    tab.ask("history.replaceState(null, '', 'job?job_id=gone')")
    news = told(tab)
    assert "Job 'gone' is neither watched nor on record" in news
    assert "No answer" not in news
    assert LEAKY in str(tab.ask("document.querySelector('main').textContent"))


def told(tab: Tab) -> str:
    """The line on top, once there is one."""
    tab.wait_for("!document.getElementById('news').hidden")
    return str(tab.ask("document.getElementById('news').textContent"))


def test_ten_thousand_ranks_are_one_picture_and_a_short_page(tab: Tab, tmp_path: Path) -> None:
    with web_service(tmp_path, nodes=0) as service:
        fill(service, nodes=1430, steps=3)
        visit(tab, service, f"job?job_id={LEAKY}")
        assert tab.ask("Number(document.querySelector('canvas').dataset.drawn)") == 1430, "a row for each node"
        assert tab.ask("document.querySelectorAll('main tbody tr').length") < 300
        visit(tab, service, "nodes")
        assert "1,332 more nodes" in str(tab.ask("document.querySelector('main').textContent"))


def snapshot(*sizes: int) -> bytes:
    """As ``torch.cuda.memory._dump_snapshot`` writes it: a block for each size, allocated at a line of its own."""
    blocks = [
        {
            "size": size, "requested_size": size, "state": "active_allocated", "address": 4096 * place,
            "frames": [{"name": f"step{place}", "filename": "/home/ada/train.py", "line": 40 + place}],
        }
        for place, size in enumerate(sizes)
    ]  # fmt: skip
    segment = {"device": 0, "address": 0, "total_size": 2**30, "allocated_size": sum(sizes), "blocks": blocks}
    return pickle.dumps({"segments": [segment], "device_traces": [[]]}, protocol=2)


def drop(tab: Tab, *files: bytes) -> None:
    texts = json.dumps([list(one) for one in files])
    tab.ask(
        f"(() => {{ const made = {texts}.map((bytes, at) => new File([new Uint8Array(bytes)], `${{at}}.pickle`));"
        " const data = new DataTransfer(); made.forEach((file) => data.items.add(file));"
        " document.querySelector('[data-snapshots]').dispatchEvent("
        "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); })()"
    )
    tab.wait_for("document.querySelector('.result').dataset.ready")


def test_two_snapshots_dropped_on_the_page_are_compared_in_the_browser(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, "compare")
    asked = len([event for event in tab.events if event.get("method") == "Network.requestWillBeSent"])
    drop(tab, snapshot(1 << 20, 2 << 20), snapshot(1 << 20, 7 << 20))
    words = str(tab.ask("document.querySelector('.result').textContent"))
    assert "What grew: 5.0 MiB" in words
    assert "train.py:41 in step1" in words
    assert "+5.0 MiB" in words
    assert tab.complaints() == []
    assert len([event for event in tab.events if event.get("method") == "Network.requestWillBeSent"]) == asked


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("ran",))


NESTED = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
NO_SIZES = pickle.dumps({"segments": [{"blocks": [{"size": "x", "state": "active_allocated"}]}], "device_traces": []})
NOT_A_NUMBER = pickle.dumps({"segments": [{"total_size": float("nan"), "blocks": []}], "device_traces": [[]]})


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x02.", b"no pickle", pickle.dumps(Evil()), pickle.dumps([1, 2]), NESTED, NO_SIZES, NOT_A_NUMBER,
     pickle.dumps({"segments": [{}], "device_traces": []}), pickle.dumps({"segments": [[1]], "device_traces": []})],
    ids=range(10),
)  # fmt: skip
def test_a_file_that_is_no_snapshot_is_refused_with_a_reason(
    tab: Tab, service: CoordinatorService, data: bytes
) -> None:
    visit(tab, service, "compare")
    drop(tab, data)
    words = str(tab.ask("document.querySelector('.result').textContent"))
    assert "A snapshot is what torch.cuda.memory._dump_snapshot writes" in words
    assert "function" not in words, "what a JavaScript engine says"


def test_a_compressed_snapshot_is_read_or_told_apart(tab: Tab, service: CoordinatorService) -> None:
    visit(tab, service, "compare")
    drop(tab, gzip.compress(snapshot(1 << 20)))
    assert "What is alive: 1.0 MiB" in str(tab.ask("document.querySelector('.result').textContent"))
    visit(tab, service, "compare")
    drop(tab, b"\x28\xb5\x2f\xfd" + b"x" * 50)
    assert "tidegauge report" in str(tab.ask("document.querySelector('.result').textContent"))


def test_a_stack_of_any_depth_is_drawn(tab: Tab, service: CoordinatorService) -> None:
    """A recursion in the job, as of a tree: 100,000 frames."""
    frames = [{"name": f"f{place}", "filename": "/a.py", "line": place} for place in range(100_000)]
    block = {"size": 1 << 20, "state": "active_allocated", "address": 0, "frames": frames}
    data = {"segments": [{"device": 0, "total_size": 1 << 20, "blocks": [block]}], "device_traces": [[]]}
    visit(tab, service, "compare")
    drop(tab, pickle.dumps(data))
    assert "What is alive: 1.0 MiB" in str(tab.ask("document.querySelector('.result').textContent"))
