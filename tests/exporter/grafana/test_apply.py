"""Putting dashboards into Grafana: once, again, over changes, and never over what is not ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.fake_grafana import TOKEN, FakeGrafana, Reply, grafana_server
from tidegauge_exporter.grafana.apply import ApplyStep, Change, Wanted, carry_out, differences, look, plan
from tidegauge_exporter.grafana.client import GrafanaClient
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

URL = "http://prometheus:9090"


def model(name: str) -> dict[str, Any]:
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}
    return {
        "uid": f"tidegauge-{name}",
        "title": f"Tidegauge / {name}",
        "tags": ["tidegauge"],
        "schemaVersion": 42,
        "panels": [{"id": 1, "title": "Memory", "type": "stat"}],
        "templating": {"list": [variable, {"name": "cluster", "type": "query"}]},
    }


FLEET, JOB = model("fleet"), model("job")
WANTED = Wanted((FLEET, JOB), prometheus_url=URL)


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with grafana_server() as server:
        yield server


@pytest.fixture
def client(grafana: FakeGrafana) -> Iterator[GrafanaClient]:
    client = GrafanaClient(grafana.url, token=TOKEN)
    yield client
    client.close()


def apply(client: GrafanaClient, wanted: Wanted = WANTED) -> list[ApplyStep]:
    return list(carry_out(client, plan(wanted, look(client, wanted)), message="tidegauge 1"))


def changes(steps: list[ApplyStep]) -> dict[str, Change]:
    return {step.uid: step.change for step in steps}


def stored(grafana: FakeGrafana, uid: str) -> dict[str, Any]:
    dashboard: dict[str, Any] = grafana.dashboards[uid]["dashboard"]
    return dashboard


def test_an_empty_grafana_gets_everything(client: GrafanaClient, grafana: FakeGrafana) -> None:
    assert set(changes(apply(client)).values()) == {Change.CREATE}
    assert grafana.folders["tidegauge"]["title"] == "Tidegauge"
    assert grafana.sources["tidegauge-prometheus"]["url"] == URL
    assert {entry["meta"]["folderUid"] for entry in grafana.dashboards.values()} == {"tidegauge"}
    choice = {"selected": False, "text": "Tidegauge Prometheus", "value": "tidegauge-prometheus"}
    assert stored(grafana, "tidegauge-job")["templating"]["list"][0]["current"] == choice
    assert model("fleet") == FLEET, "what is given is left alone"


def test_a_second_time_changes_nothing(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    grafana.requests.clear()
    assert set(changes(apply(client)).values()) == {Change.NONE}
    assert grafana.writes == []


def test_a_changed_dashboard_is_put_right_and_says_where(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    stored(grafana, "tidegauge-job")["panels"][0]["title"] = "mine"
    stored(grafana, "tidegauge-job")["refresh"] = "5s"
    steps = {step.uid: step for step in apply(client)}
    assert steps["tidegauge-job"].change is Change.UPDATE
    assert steps["tidegauge-job"].why == "differs in panels[0].title, refresh"
    assert stored(grafana, "tidegauge-job")["panels"][0]["title"] == "Memory"
    assert stored(grafana, "tidegauge-job")["version"] == 2
    assert steps["tidegauge-fleet"].change is Change.NONE


def test_apply_is_idempotent_on_a_grafana_that_raises_the_schema_version(
    client: GrafanaClient, grafana: FakeGrafana
) -> None:
    grafana.schema_version = 43
    apply(client)
    assert stored(grafana, "tidegauge-fleet")["schemaVersion"] == 43
    grafana.requests.clear()
    assert set(changes(apply(client)).values()) == {Change.NONE}
    assert grafana.writes == []


def test_apply_updates_a_dashboard_of_an_older_schema(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    stored(grafana, "tidegauge-fleet")["schemaVersion"] = 41
    steps = {step.uid: step for step in apply(client)}
    assert (steps["tidegauge-fleet"].change, steps["tidegauge-fleet"].why) == (
        Change.UPDATE, "differs in schemaVersion",
    )  # fmt: skip


def test_apply_writes_nothing_to_a_server_that_is_not_grafana(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.instead = lambda _: Reply(404, "404 page not found")  # as Prometheus answers at Grafana's paths
    with pytest.raises(RefusedError, match=r"/api/health with 404.*is this Grafana's address"):
        apply(client)
    grafana.instead = lambda _: Reply(200, {"status": "success"})
    with pytest.raises(RefusedError, match="does not answer as Grafana does"):
        apply(client)
    assert set(grafana.requests) == {"GET /api/health"}


def test_apply_works_with_a_grafana_that_hides_its_version(client: GrafanaClient, grafana: FakeGrafana) -> None:
    hidden = Reply(200, {"database": "ok"})
    grafana.instead = lambda request: hidden if request == "GET /api/health" else None
    assert set(changes(apply(client)).values()) == {Change.CREATE}


def test_a_plan_alone_changes_nothing(client: GrafanaClient, grafana: FakeGrafana) -> None:
    steps = plan(WANTED, look(client, WANTED))
    assert changes(list(steps))["tidegauge-fleet"] is Change.CREATE
    assert grafana.writes == []


def test_a_foreign_dashboard_with_our_uid_is_left_alone(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.add_dashboard({**FLEET, "title": "Boats", "tags": []})
    steps = {step.uid: step for step in apply(client)}
    assert steps["tidegauge-fleet"].change is Change.REFUSED
    assert "'Boats' has this uid and is not ours" in steps["tidegauge-fleet"].why
    assert stored(grafana, "tidegauge-fleet")["title"] == "Boats"
    assert steps["tidegauge-job"].change is Change.CREATE


def test_a_foreign_dashboard_with_our_title_is_left_alone(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.folders["tidegauge"] = {"uid": "tidegauge", "title": "Tidegauge"}
    grafana.add_dashboard({"uid": "boats", "title": FLEET["title"]}, folder_uid="tidegauge")
    steps = {step.uid: step for step in apply(client)}
    assert steps["tidegauge-fleet"].change is Change.REFUSED
    assert "same name" in steps["tidegauge-fleet"].why
    assert set(grafana.dashboards) == {"boats", "tidegauge-job"}


def test_a_dashboard_that_appeared_meanwhile_is_left_alone(client: GrafanaClient, grafana: FakeGrafana) -> None:
    steps = plan(WANTED, look(client, WANTED))
    grafana.add_dashboard({**FLEET, "title": "Boats", "tags": []})
    done = changes(list(carry_out(client, steps, message="")))
    assert (done["tidegauge-fleet"], done["tidegauge-job"]) == (Change.REFUSED, Change.CREATE)
    assert stored(grafana, "tidegauge-fleet")["title"] == "Boats"


def test_a_dashboard_out_of_a_file_is_left_alone(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.add_dashboard(FLEET, provisioned=True)
    wanted = Wanted((FLEET,))
    assert changes(apply(client, wanted))["tidegauge-fleet"] is Change.NONE
    stored(grafana, "tidegauge-fleet")["title"] = "older"
    (*_, fleet) = apply(client, wanted)
    assert (fleet.change, fleet.why) == (
        Change.REFUSED, "differs in title, and comes from a file: change that file",
    )  # fmt: skip


def test_a_dashboard_that_was_moved_stays_where_it_is(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.folders["team"] = {"uid": "team", "title": "Team"}
    grafana.add_dashboard({**FLEET, "panels": []}, folder_uid="team")
    apply(client)
    assert grafana.dashboards["tidegauge-fleet"]["meta"]["folderUid"] == "team"
    assert stored(grafana, "tidegauge-fleet")["panels"]


def test_prometheus_may_move(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    steps = apply(client, Wanted(WANTED.dashboards, prometheus_url="http://new:9090"))
    assert changes(steps)["tidegauge-prometheus"] is Change.UPDATE
    assert grafana.sources["tidegauge-prometheus"]["url"] == "http://new:9090"
    assert changes(steps)["tidegauge-fleet"] is Change.NONE


def test_a_data_source_out_of_a_file_is_left_alone(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    grafana.sources["tidegauge-prometheus"].update(readOnly=True, url="http://old:9090")
    steps = {step.uid: step for step in apply(client)}
    assert steps["tidegauge-prometheus"].change is Change.REFUSED
    assert "it comes from a file, which says http://old:9090" in steps["tidegauge-prometheus"].why


@pytest.mark.parametrize("name", ["prom", "The Prometheus"])
def test_an_existing_data_source_is_used(client: GrafanaClient, grafana: FakeGrafana, name: str) -> None:
    grafana.sources["prom"] = {"uid": "prom", "name": "The Prometheus", "type": "prometheus", "url": URL}
    apply(client, Wanted((FLEET,), data_source=name))
    assert "POST /api/datasources" not in grafana.requests
    assert stored(grafana, "tidegauge-fleet")["templating"]["list"][0]["current"]["value"] == "prom"


def test_an_editor_may_name_a_data_source_that_it_cannot_look_at(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.role = "Editor"
    apply(client, Wanted((FLEET,), data_source="prom"))
    assert stored(grafana, "tidegauge-fleet")["templating"]["list"][0]["current"]["value"] == "prom"


def test_a_data_source_that_is_not_there_is_an_error(client: GrafanaClient, grafana: FakeGrafana) -> None:
    with pytest.raises(RefusedError, match="no data source with the uid or name 'loki'"):
        apply(client, Wanted((FLEET,), data_source="loki"))
    grafana.sources["loki"] = {"uid": "loki", "name": "Loki", "type": "loki", "url": URL}
    with pytest.raises(RefusedError, match="is of the type loki"):
        apply(client, Wanted((FLEET,), data_source="loki"))
    assert grafana.writes == []


def test_without_a_data_source_the_choice_made_before_stays(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client)
    steps = apply(client, Wanted(WANTED.dashboards))
    assert set(changes(steps).values()) == {Change.NONE}
    assert steps[1].why == "none named: the dashboards keep Tidegauge Prometheus"


def test_apply_without_any_data_source_names_the_default_of_grafana(client: GrafanaClient) -> None:
    assert (
        apply(client, Wanted(WANTED.dashboards))[1].why == "none named: the dashboards use Grafana's default Prometheus"
    )


def test_a_new_dashboard_takes_the_data_source_of_the_others(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client, Wanted((FLEET,), prometheus_url=URL))
    apply(client, Wanted(WANTED.dashboards))
    assert stored(grafana, "tidegauge-job")["templating"]["list"][0]["current"]["value"] == "tidegauge-prometheus"


def test_a_new_dashboard_takes_no_side_where_the_others_differ(client: GrafanaClient, grafana: FakeGrafana) -> None:
    apply(client, Wanted((FLEET, JOB), prometheus_url=URL))
    mine = {"selected": False, "text": "Mine", "value": "mine"}
    stored(grafana, "tidegauge-job")["templating"]["list"][0]["current"] = mine
    steps = apply(client, Wanted((FLEET, JOB, model("node"))))
    assert steps[1].why == "none named: the dashboards keep Mine, Tidegauge Prometheus"
    assert stored(grafana, "tidegauge-node")["templating"]["list"][0]["current"] == {}


def test_an_editor_cannot_make_data_sources_and_hears_what_to_do(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.role = "Editor"
    with pytest.raises(RefusedError, match="name an existing one by --data-source"):
        apply(client)
    assert grafana.writes == []


def test_a_run_that_broke_off_is_finished_by_the_next(client: GrafanaClient, grafana: FakeGrafana) -> None:
    saves = iter([None, Reply(503, "")])
    grafana.instead = lambda request: next(saves, None) if request.endswith("/db") else None
    with pytest.raises(RetryLaterError):
        apply(client)
    assert changes(apply(client)) == {
        "tidegauge": Change.NONE,
        "tidegauge-prometheus": Change.NONE,
        "tidegauge-fleet": Change.NONE,
        "tidegauge-job": Change.CREATE,
    }


def test_differences_are_named_by_their_path() -> None:
    theirs = copy.deepcopy(FLEET)
    assert differences(FLEET, theirs) == []
    theirs["panels"].append({})
    theirs["templating"]["list"][1]["name"] = "other"
    theirs["extra"] = None
    assert differences(FLEET, theirs) == ["panels", "templating.list[1].name"]
