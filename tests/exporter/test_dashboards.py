from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tidegauge_exporter.dashboards.catalogue import dashboards, files
from tidegauge_exporter.dashboards.model.dashboard import GRID, Dashboard, Row
from tidegauge_exporter.dashboards.model.panels import Text

TESTS = Path(__file__).parents[1]
COMMITTED = TESTS.parent / "deploy/observability/grafana/dashboards"
SCHEMAS = json.loads((TESTS / "data/grafana/schemas.json").read_text(encoding="utf-8"))

Json = dict[str, Any]
BOTH = [*dashboards(), *dashboards("https://tidegauge.example.org")]
"""Without and with links to the service."""
IDS = [f"{board.uid}{suffix}" for suffix in ("", "-with-service") for board in dashboards()]


def panels_of(dashboard: Json) -> list[Json]:
    """Without rows; those in folded rows too."""
    folded = [inner for panel in dashboard["panels"] for inner in panel.get("panels", [])]
    return [panel for panel in (*dashboard["panels"], *folded) if panel["type"] != "row"]


def faults(schema: Json, value: object) -> list[str]:
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(value)
    ]


def test_the_committed_files_are_those_that_the_code_makes() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in COMMITTED.glob("*.json")}
    assert committed == files(), "run `make dashboards`"


def test_the_command_writes_the_files_into_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    subprocess.run([sys.executable, "-m", "tidegauge_exporter.dashboards", str(folder)], check=True, timeout=60)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == files()


def test_the_command_refuses_an_address_that_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidegauge_exporter.dashboards", str(tmp_path / "out"), "--service-url"]
    told = subprocess.run([*command, "javascript:alert(1)"], capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 2
    assert "javascript:alert(1)" in told.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("board", BOTH, ids=IDS)
def test_a_dashboard_has_nothing_that_grafana_does_not_know(board: Dashboard) -> None:
    assert faults(SCHEMAS["dashboard"], board.to_json()) == []


@pytest.mark.parametrize("board", BOTH, ids=IDS)
def test_options_of_each_panel_are_those_of_its_type(board: Dashboard) -> None:
    for panel in panels_of(board.to_json()):
        assert faults(SCHEMAS["options"][panel["type"]], panel["options"]) == [], panel["title"]
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
        if custom:
            assert faults(SCHEMAS["custom"][panel["type"]], custom) == [], panel["title"]


@pytest.mark.parametrize("board", BOTH, ids=IDS)
def test_overrides_set_what_there_is_to_a_value_that_it_can_have(board: Dashboard) -> None:
    for panel in panels_of(board.to_json()):
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            for entry in override["properties"]:
                scope, _, name = entry["id"].rpartition(".")
                schema = SCHEMAS["custom"][panel["type"]] if scope == "custom" else SCHEMAS["dashboard"]
                definition = schema["definitions"]["FieldConfig"]
                assert name in definition["properties"], (panel["title"], entry["id"])
                narrowed = {**definition["properties"][name], "definitions": schema["definitions"]}
                assert faults(narrowed, entry["value"]) == [], (panel["title"], entry)


def test_the_schema_is_strict_enough_to_find_a_misspelt_key() -> None:
    told = dashboards()[0].to_json()
    told["panels"][1]["fieldConfig"]["defaults"]["noValues"] = "none"
    assert faults(SCHEMAS["dashboard"], told)


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: board.uid)
def test_panels_fill_the_grid_without_holes_or_overlaps(board: Dashboard) -> None:
    told = board.to_json()
    places = [panel["gridPos"] for panel in told["panels"]]
    taken = [
        (place["x"] + across, place["y"] + down)
        for place in places
        for across in range(place["w"])
        for down in range(place["h"])
    ]
    assert len(taken) == len(set(taken)), "overlap"
    assert set(taken) == {(x, y) for x in range(GRID) for y in range(max(y for _, y in taken) + 1)}, "hole"


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: board.uid)
def test_ids_are_unique_also_in_folded_rows(board: Dashboard) -> None:
    told = board.to_json()
    ids = [panel["id"] for panel in (*told["panels"], *panels_of(told)) if panel["type"] == "row"]
    ids += [panel["id"] for panel in panels_of(told)]
    assert len(ids) == len(set(ids))
    assert min(ids) == 1


def _text(title: str, width: int, height: int = 4) -> Text:
    return Text(title, "for a test", (width, height), "words")


@pytest.mark.parametrize(
    ("panels", "told"),
    [
        ((_text("lonely", 12),), "nothing stands beside 'lonely'"),
        ((_text("a", 12), _text("too wide", 13)), "'too wide' leaves a hole"),
        ((_text("a", 12), _text("too high", 12, 5)), "'too high' leaves a hole"),
    ],
)
def test_a_layout_with_a_hole_is_refused(panels: tuple[Text, ...], told: str) -> None:
    board = Dashboard("uid", "title", "description", (), (Row("row", panels),))
    with pytest.raises(ValueError, match=told):
        board.to_json()


def test_a_folded_row_holds_its_panels() -> None:
    board = Dashboard("uid", "title", "", (), (Row("row", (_text("inside", 24),), folded=True),))
    told = board.to_json()
    assert [panel["type"] for panel in told["panels"]] == ["row"]
    assert [panel["title"] for panel in panels_of(told)] == ["inside"]
    assert faults(SCHEMAS["dashboard"], told) == []


def test_web_pages_are_linked_only_where_the_service_is_known() -> None:
    known = files("https://tidegauge.example.org/")

    def linked(page: str) -> set[str]:
        return {name.removeprefix("tidegauge-").removesuffix(".json") for name, text in known.items() if page in text}

    assert linked("https://tidegauge.example.org/report?incident=${__value.numeric}") == {"incidents", "job"}
    row = "${__data.fields.job_id:percentencode}"
    assert linked(f"https://tidegauge.example.org/job?job_id={row}&attempt=$") == {"fleet", "incidents", "node"}
    assert linked("https://tidegauge.example.org/job?job_id=${job_id:percentencode}&attempt=$") == {"job"}
    assert linked("https://tidegauge.example.org/nodes?words=${__data.fields.hostname:percentencode}") == {"fleet"}
    assert not any(page in text for text in files().values() for page in ("/report?", "/job?", "/nodes?"))
