"""Rules that keep a dashboard usable; most are those of grafana/dashboard-linter, read and written anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tidegauge_exporter.dashboards.catalogue import dashboards
from tidegauge_exporter.dashboards.model.dashboard import Dashboard
from tidegauge_exporter.dashboards.model.fields import Field
from tidegauge_exporter.dashboards.model.panels import Heatmap, Panel, QueryPanel, Stat, TimeSeries
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.dashboards.model.tables import Table, Value
from tidegauge_exporter.dashboards.model.variables import JobVariable, LabelValues
from tidegauge_exporter.links import EFFICIENCY, FLEET, INCIDENTS, JOB, NODE, RANK

NARROWEST = 4
"""In units of the grid: 218 pixels of a laptop's 1,366."""
UNITS = {
    "bytes", "none", "percent", "percentunit", "s",
    "suffix:/s", "suffix:steps/s", "suffix:h", "watt", "string", "dateTimeAsIso", "dateTimeFromNow",
}  # fmt: skip
FOLD = 16
"""Rows of the grid that a laptop shows without scrolling: 768 pixels less 150 of Grafana's own, by 38."""
SEQUENTIAL = {"Viridis", None}
"""Schemes whose lightness alone tells the order."""
TOLD_APART = {"text", "blue", "orange", "red", "#8e8e8e", "transparent"}
"""Colours with a meaning: grey, blue and orange for every kind of colour vision; red has marks beside it."""
JOB_VARIABLES = ["datasource", "cluster", "job_id", "attempt"]
boards = pytest.mark.parametrize("board", dashboards(), ids=lambda board: board.uid)


def asking(board: Dashboard) -> Iterator[dict[str, Any]]:
    """The panels that ask something, as Grafana gets them."""
    for panel in board.panels():
        if panel.all_queries():
            yield panel.to_json()


def shown_by(panel: Panel) -> list[Field | Value]:
    """What has units, colours and words in the panel."""
    if isinstance(panel, Table):
        return [column for column in panel.columns if isinstance(column, Value)]
    return [panel.field] if isinstance(panel, QueryPanel) else []


def asked_for(shown: Field | Value, panel: Panel) -> tuple[Query, ...]:
    return (shown.query,) if isinstance(shown, Value) else panel.all_queries()


def test_there_are_six_and_their_uids_are_those_that_other_people_link_to() -> None:
    assert [board.uid for board in dashboards()] == [FLEET, JOB, RANK, NODE, INCIDENTS, EFFICIENCY]


@boards
def test_every_panel_says_what_it_is_and_what_to_do(board: Dashboard) -> None:
    titles = [panel.title for panel in board.panels()]
    assert len(titles) == len(set(titles))
    for panel in board.panels():
        assert len(panel.description) > 40, panel.title
        assert panel.description.endswith("."), panel.title
        assert panel.size[0] >= NARROWEST, panel.title


@boards
def test_every_panel_asks_the_chosen_data_source_and_has_something_to_say_to_no_data(board: Dashboard) -> None:
    for panel in asking(board):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]


@boards
def test_every_value_has_a_unit(board: Dashboard) -> None:
    for panel in asking(board):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            for entry in override["properties"]:
                assert entry["id"] != "unit" or entry["value"] in UNITS, panel["title"]


@boards
def test_queries_of_a_panel_have_letters_of_their_own_and_curves_have_names(board: Dashboard) -> None:
    for panel in asking(board):
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters)), panel["title"]
        if panel["type"] not in ("table", "stat"):
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
        if panel["type"] == "stat" and len(letters) > 1:
            assert panel["options"]["textMode"] == "value_and_name", panel["title"]


@boards
def test_rates_follow_the_zoom_and_totals_are_never_shown_bare(board: Dashboard) -> None:
    for panel in asking(board):
        for target in panel["targets"]:
            ranges = re.findall(r"\b(?:rate|irate|increase)\([^\[]+\[([^\]]+)\]", target["expr"])
            # The forecast alone asks for a fixed time, and says why. Bars stand side by side and do not overlap.
            step = "$__interval" if panel.get("interval") else "$__rate_interval"
            assert set(ranges) <= {step, "$__range", "5m"}, panel["title"]
            bare = re.findall(r"(?<!rate\()(?<!increase\()\btidegauge_\w+_total\b", target["expr"])
            assert not bare, panel["title"]


@boards
def test_dashboard_queries_replace_no_missing_series_by_zero(board: Dashboard) -> None:
    for panel in board.panels():
        for query in panel.all_queries():
            assert "vector(0)" not in query.expression, panel.title


@boards
def test_the_highest_few_are_chosen_once_and_not_at_every_step(board: Dashboard) -> None:
    for panel in asking(board):
        for target in panel["targets"]:
            if not target["instant"] and re.search("topk|bottomk", target["expr"]):
                assert "@ end()" in target["expr"], panel["title"]


@boards
def test_sort_columns_of_tables_exist(board: Dashboard) -> None:
    for panel in board.panels():
        if isinstance(panel, Table) and panel.sort_by:
            assert panel.sort_by in [column.title for column in panel.columns], panel.title


@boards
def test_an_empty_cell_does_not_say_that_the_whole_table_is_empty(board: Dashboard) -> None:
    for panel in asking(board):
        if panel["type"] == "table":
            for override in panel["fieldConfig"]["overrides"]:
                assert {"id": "noValue", "value": "-"} in override["properties"], panel["title"]


@boards
def test_heavy_panels_ask_for_few_points(board: Dashboard) -> None:
    for panel in asking(board):
        if panel["type"] in ("heatmap", "state-timeline"):
            assert panel["maxDataPoints"] <= 300, panel["title"]


@boards
def test_the_dashboard_is_kept_as_code_and_refreshes_calmly(board: Dashboard) -> None:
    told = board.to_json()
    assert told["editable"] is False
    assert told["refresh"] == "30s"
    assert told["schemaVersion"] == 42
    assert told["uid"] == board.uid
    assert len(told["uid"]) <= 40


@boards
def test_variables_follow_the_time_range_and_a_job_is_one_job(board: Dashboard) -> None:
    assert board.variables[0].to_json()["type"] == "datasource"
    for variable in board.variables:
        if isinstance(variable, (JobVariable, LabelValues)):
            assert variable.to_json()["refresh"] == 2
        told = variable.to_json()
        if variable.name in ("job_id", "rank"):
            assert not told["includeAll"]
            assert not told["multi"]


@pytest.mark.parametrize("board", [board for board in dashboards() if board.uid in (JOB, RANK)], ids=["job", "rank"])
def test_dashboards_of_one_job_have_the_variables_of_links(board: Dashboard) -> None:
    names = [variable.name for variable in board.variables]
    assert names[:4] == JOB_VARIABLES
    assert ("rank" in names) == (board.uid == RANK)


@boards
def test_the_first_curve_is_seen_without_scrolling(board: Dashboard) -> None:
    drawn = [panel for panel in board.to_json()["panels"] if panel["type"] in ("timeseries", "heatmap")]
    if board.uid == EFFICIENCY:
        assert not drawn, "it has no curve"
        return
    place = drawn[0]["gridPos"]
    assert place["y"] + place["h"] <= FOLD, drawn[0]["title"]


@boards
def test_colours_with_a_meaning_can_be_told_apart_by_everybody(board: Dashboard) -> None:
    for panel in board.panels():
        if isinstance(panel, Heatmap):
            assert panel.scheme in SEQUENTIAL, panel.title
            continue
        for shown in shown_by(panel):
            used = {shown.steps.first, *(colour for _, colour in shown.steps.limits)}
            used |= {colour for _, colour in (shown.words or {}).values()}
            assert used <= TOLD_APART, panel.title


@boards
def test_what_has_no_value_has_no_warning_colour(board: Dashboard) -> None:
    """Grafana gives "none predicted", and an empty cell, the colour below all limits."""
    for panel in board.panels():
        for shown in shown_by(panel):
            if any(query.may_be_empty for query in asked_for(shown, panel)):
                assert shown.steps.first not in ("orange", "red"), panel.title


@boards
def test_words_in_warning_colours_have_marks_as_in_tidegauge_top(board: Dashboard) -> None:
    marks = {"orange": "!!", "red": "!!!"}
    for panel in board.panels():
        for shown in shown_by(panel):
            for word, colour in (shown.words or {}).values():
                if colour in marks:
                    assert word.endswith(f" {marks[colour]}"), (panel.title, word)


@boards
def test_axes_have_no_seconds_where_times_are_hours(board: Dashboard) -> None:
    for panel in board.panels():
        if isinstance(panel, TimeSeries) and "seconds_to_oom" in repr(panel.all_queries()):
            assert panel.field.unit == "suffix:h", panel.title
            assert panel.bands, panel.title
            assert len(panel.queries) == 1, f"{panel.title}: a second axis cannot be read"


def test_every_tile_at_the_top_of_fleet_is_a_link() -> None:
    (fleet,) = (board for board in dashboards() if board.uid == FLEET)
    tiles = [panel for panel in fleet.rows[0].panels if isinstance(panel, Stat)]
    assert [tile.title for tile in tiles if not tile.field.links] == []


def test_every_dashboard_of_several_jobs_can_be_narrowed_to_owners() -> None:
    names = {board.uid: {variable.name for variable in board.variables} for board in dashboards()}
    assert {"user", "account", "partition", "namespace", "node"} <= names[FLEET]
    assert {"user", "account", "partition"} <= names[INCIDENTS]
    assert "user" in names[EFFICIENCY]
    assert {"cluster", "node"} <= names[NODE]


@boards
def test_links_at_the_top_keep_time_and_variables(board: Dashboard) -> None:
    (link,) = board.to_json()["links"]
    assert link["type"] == "dashboards"
    assert link["includeVars"]
    assert link["keepTime"]
    assert set(link["tags"]) <= set(board.to_json()["tags"])


@pytest.mark.parametrize("board", [board for board in dashboards() if board.uid in (JOB, RANK)], ids=["job", "rank"])
def test_job_dashboard_annotates_what_happened_to_the_job(board: Dashboard) -> None:
    told = {mark["name"]: mark for mark in board.to_json()["annotations"]["list"]}
    assert {"Attempts", "Growth established", "Out of memory", "Incidents", "Actions"} < set(told)
    assert told["Actions"]["useValueForTime"]
    assert told["Notes (Grafana)"]["target"]["tags"] == ["tidegauge", "job:$job_id"]
    times = [mark for mark in board.marks if isinstance(mark, Marks) and mark.value_is_time]
    assert all(mark.query.expression.startswith("1000 *") for mark in times), "Grafana wants milliseconds"
