"""A workload is called ``namespace/name``: wherever a job's id stands, the slash is a part of it and leads nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from scheduler_values import JOB, incident
from tidegauge.cli.main import main
from tidegauge.core.ids import JobId
from tidegauge.core.jobs.settings import settings_name
from tidegauge_exporter.grafana.annotations import annotations_of, tag
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from top_world import World, serving_world
from waiting import PATIENCE_S

NAME = "research/ppo-4"


@pytest.fixture(scope="module")
def world() -> World:
    return World().live(reports=5)


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with serving_world(world) as url:
        yield url


def test_top_finds_it_and_shows_its_ranks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--job", NAME, "--api", url]) == 0
    assert capsys.readouterr().out.startswith(f"job {NAME}   ppo-4   4 of 4 ranks")
    assert main(["top", "--json", "--job", NAME, "--api", url]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["job"]["job_id"], len(answer["ranks"])) == (NAME, 4)


@pytest.mark.parametrize("page", ["memory", "job"])
@pytest.mark.parametrize("written", [urlencode({"job_id": NAME}), f"job_id={NAME}"])
def test_the_api_answers_about_it_however_the_slash_is_written(url: str, page: str, written: str) -> None:
    with urlopen(f"{url}/api/v1/{page}?{written}", timeout=PATIENCE_S) as answer:
        assert len(json.load(answer)["ranks"]) == 4


def test_links_to_dashboards_carry_it_whole() -> None:
    links = Links(grafana_url="https://grafana.example")
    job = JOB._replace(job_id=JobId(NAME))
    for link in (links.job("lab", job, (0, None)), links.rank("lab", job, 1, (0, None))):
        parts = urlsplit(str(link))
        assert parts.path in ("/d/tidegauge-job", "/d/tidegauge-rank")
        assert parse_qs(parts.query)["var-job_id"] == [NAME]


def test_annotations_are_found_by_it() -> None:
    story = Story(incident(job=JOB._replace(job_id=JobId(NAME))))
    assert f"job:{NAME}" == tag("job", NAME)
    [opened] = annotations_of(story, cluster="lab", links=Links())
    assert f"job:{NAME}" in opened.annotation.tags


@pytest.mark.parametrize("name", [NAME, "../../etc/passwd", "a/../b"])
def test_workload_name_of_a_setting_is_never_a_file(name: str) -> None:
    assert settings_name(name) is None
