"""The made-up fleet that dashboards, rules and benches are tried on."""

from __future__ import annotations

from pathlib import Path

from fleet_history import write_history
from fleet_story import Fleet, Plot, plot_of
from tidegauge_exporter.metrics.table import COORDINATOR_TABLE, NODE_TABLE

END_S = 1_800_000_000.0


def history(folder: Path, *, seed: int = 0) -> str:
    path = folder / "history.om"
    write_history(path, jobs=7, ranks_per_job=4, hours=1.0, period_s=300.0, end_unix_s=END_S, seed=seed)
    return path.read_text(encoding="utf-8")


def test_the_same_arguments_give_the_same_text_and_another_seed_another(tmp_path: Path) -> None:
    assert history(tmp_path) == history(tmp_path)
    assert history(tmp_path) != history(tmp_path, seed=1)


def test_every_metric_of_the_tables_is_in_it(tmp_path: Path) -> None:
    names = {line.partition("{")[0] for line in history(tmp_path).splitlines()}
    assert {metric.name for metric in (*NODE_TABLE, *COORDINATOR_TABLE)} - names == set()


def test_no_series_has_two_values_at_one_time(tmp_path: Path) -> None:
    lines = history(tmp_path).splitlines()[:-1]
    samples = [(series, stamp) for series, _, stamp in (line.rsplit(" ", 2) for line in lines)]
    assert len(set(samples)) == len(samples)


def test_fleet_history_covers_the_requested_time_in_order_as_openmetrics(tmp_path: Path) -> None:
    *lines, last = history(tmp_path).splitlines()
    stamps = [float(line.rpartition(" ")[2]) for line in lines]
    assert stamps == sorted(stamps)
    assert (stamps[0], stamps[-1], len(set(stamps)), last) == (END_S - 3600, END_S, 13, "# EOF")


def test_every_plot_has_a_job_and_one_node_stops_answering() -> None:
    assert {plot_of(job) for job in range(7)} == set(Plot)
    fleet = Fleet(7, 4, 0.0, 100.0)
    assert [node for node in range(fleet.nodes) if fleet.stale(node, fleet.moment(90.0))] == [fleet.nodes - 1]
    assert not any(fleet.stale(node, fleet.moment(50.0)) for node in range(fleet.nodes))
