from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text, text_of
from sample_views import COMPOSITION, GIB, LEAK, NOW_S, gpu_view, identity, node_view, rank_view, uuid_of
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound, bounded_verdict
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.verdicts import Band, LeakState, Verdict
from tidegauge.core.views import NodeView
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import MAX_LABEL_CHARS, exposition
from tidegauge_exporter.metrics.table import NODE_TABLE, RANK_LABELS, RANK_METRICS, SAMPLES_PER_TARGET

DATA = Path(__file__).parent / "data"


class FixedClock:
    """Two milliseconds pass between any two looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.002
        return self.now_s


def scrape(view: NodeView) -> list[Sample]:
    return samples_of(NodeCollector(lambda: view))


def samples_of(collector: NodeCollector) -> list[Sample]:
    return [sample for family in parse_text(text_of(collector)) for sample in family.samples]


def values(samples: list[Sample], name: str, **labels: str) -> list[float]:
    return [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]


def test_the_text_of_a_small_node_is_exactly_this() -> None:
    text = text_of(NodeCollector(node_view, clock=FixedClock()))
    assert text == (DATA / "node.prom").read_text(encoding="utf-8")


def test_the_openmetrics_text_of_a_small_node_is_exactly_this() -> None:
    text = text_of(NodeCollector(node_view, clock=FixedClock()), accept=OPENMETRICS)
    assert text == (DATA / "node.openmetrics").read_text(encoding="utf-8")


def test_the_composition_of_a_rank_that_ended_is_not_told() -> None:
    ended = rank_view(0, profile_bytes=COMPOSITION, alive=False)
    samples = scrape(node_view(ranks=(ended, rank_view(1, profile_bytes=COMPOSITION))))
    assert {s.labels["rank"] for s in samples if s.name == "tidegauge_rank_profile_bytes"} == {"1"}
    assert values(samples, "tidegauge_rank_profile_bytes", rank="1", category="optimizer state") == [12 * GIB]
    assert sum(values(samples, "tidegauge_rank_profile_bytes", rank="1")) == 20 * GIB


def test_openmetrics_is_accepted_by_the_strict_parser_and_says_the_units() -> None:
    text = text_of(NodeCollector(node_view), accept=OPENMETRICS)
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["tidegauge_rank_allocated_bytes"].unit == "bytes"
    assert families["tidegauge_rank_last_sample_timestamp_seconds"].unit == "seconds"
    assert families["tidegauge_rank"].type == "info"
    assert families["tidegauge_rank_steps"].type == "counter"


def test_no_sample_has_a_timestamp_and_nothing_is_called_created() -> None:
    for text in (
        text_of(NodeCollector(node_view)),
        text_of(NodeCollector(node_view), accept=OPENMETRICS),
    ):
        assert "_created" not in text
        for line in text.splitlines():
            if not line.startswith("#"):
                assert len(line.rpartition("}")[2].split()) <= 2


def test_the_labels_of_a_rank_are_the_contract_and_no_others() -> None:
    names = {metric.name for metric in RANK_METRICS}
    seen = [sample for sample in scrape(node_view()) if sample.name in names]
    assert seen
    assert {tuple(sorted(sample.labels)) for sample in seen} == {tuple(sorted(RANK_LABELS))}


PLACE = PodPlace("8a1c4f3e", "team-a", "llm-0", "train", job_known=True)


@pytest.mark.parametrize("container", ["train", None])
def test_a_rank_in_a_pod_has_its_pods_labels_too_and_no_other_rank_has_them(container: str | None) -> None:
    place = PLACE._replace(container=container)
    own = {"namespace": "team-a", "pod": "llm-0", "container": container or ""}
    samples = scrape(node_view(ranks=(rank_view(0, pod=place), rank_view(1))))
    of_rank = {rank: [one.labels for one in samples if one.labels.get("rank") == rank] for rank in ("0", "1")}
    assert len(of_rank["0"]) == len(of_rank["1"]) > 15
    assert all(own.items() <= labels.items() for labels in of_rank["0"])
    assert not any(own.keys() & labels.keys() for labels in of_rank["1"])
    [info] = [one.labels for one in samples if one.name == "tidegauge_rank_info" and one.labels["rank"] == "0"]
    assert (info["pid"], info["node"], info["profile"]) == ("1000", "node7", "stats")


def test_a_rank_in_a_pod_that_nobody_has_named_has_the_labels_of_any_other() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, pod=PodPlace("8a1c4f3e")),)))
    assert {tuple(sorted(s.labels)) for s in samples if s.name == "tidegauge_rank_steps_total"} == {
        tuple(sorted(RANK_LABELS))
    }


def test_openmetrics_takes_ranks_with_and_without_a_pod_in_one_family() -> None:
    view = node_view(ranks=(rank_view(0, pod=PLACE), rank_view(1)))
    text = text_of(NodeCollector(lambda: view), accept=OPENMETRICS)
    families = {family.name: family for family in parse_openmetrics(text)}
    assert [s.labels.get("pod") for s in families["tidegauge_rank_steps"].samples] == ["llm-0", None]


def test_a_rank_has_at_most_twenty_numeric_series() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, verdict=LEAK),)))
    assert len([s for s in samples if s.labels.get("rank") == "0" and s.name != "tidegauge_rank_info"]) == 17 <= 20


def test_every_name_that_is_scraped_is_in_the_table() -> None:
    assert {sample.name for sample in scrape(node_view())} <= {metric.name for metric in NODE_TABLE}


def test_the_hostname_is_the_nodes_own_whatever_the_job_claims() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, identity=identity(0, hostname="someone-elses-node")),)))
    assert {s.labels["hostname"] for s in samples if "hostname" in s.labels} == {"node7"}


def test_an_unknown_reading_is_an_absent_sample() -> None:
    samples = scrape(
        node_view(
            ranks=(rank_view(0, nontorch_bytes=None, limit_bytes=None, alloc_retries=None, inactive_split_bytes=None),),
            gpus=(gpu_view(0, used_bytes=None),),
        )
    )
    for name in ("nontorch_bytes", "limit_bytes", "alloc_retries_total", "inactive_split_bytes"):
        assert values(samples, f"tidegauge_rank_{name}") == []
    assert values(samples, "tidegauge_gpu_used_bytes") == []
    assert values(samples, "tidegauge_rank_allocated_bytes") == [10 * GIB]
    assert values(samples, "tidegauge_gpu_total_bytes") == [80 * GIB]


def test_zero_is_a_reading() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, nontorch_bytes=0, ooms=0),)))
    assert values(samples, "tidegauge_rank_nontorch_bytes") == [0]
    assert values(samples, "tidegauge_rank_ooms_total") == [0]


def test_a_rank_whose_gpu_is_unknown_has_empty_gpu_labels() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, gpu=None, uuid=None),)))
    assert values(samples, "tidegauge_rank_allocated_bytes", gpu="", UUID="") == [10 * GIB]


def test_a_healthy_rank_has_a_state_but_no_slope_and_no_time_to_oom() -> None:
    samples = scrape(node_view())
    assert values(samples, "tidegauge_rank_leak_state") == [0, 2]
    assert values(samples, "tidegauge_rank_leak_bytes_per_step", rank="0") == []
    assert values(samples, "tidegauge_rank_leak_bytes_per_step", rank="1") == [12 * 1024**2]
    assert values(samples, "tidegauge_rank_leak_seconds_to_oom", rank="1") == [1080]


def test_the_share_of_the_head_room_that_a_leak_has_taken_is_a_metric_of_its_own() -> None:
    leak = Verdict(LeakState.LEAK, headroom_eaten=0.625)
    samples = scrape(node_view(ranks=(rank_view(0, verdict=leak),)))
    assert values(samples, "tidegauge_rank_leak_headroom_eaten_ratio") == [0.625]


def test_a_leak_that_never_reaches_the_limit_has_no_time_to_oom() -> None:
    never = Verdict(LeakState.SUSPECTED, seconds_to_oom=Band(1e9, float("inf"), float("inf")))
    samples = scrape(node_view(ranks=(rank_view(0, verdict=never),)))
    assert values(samples, "tidegauge_rank_leak_seconds_to_oom") == []
    assert values(samples, "tidegauge_rank_leak_state") == [1]


@pytest.mark.parametrize(("state", "told"), [(BoundState.HOLDS, [math.inf]), (BoundState.TOO_LARGE, [1080.0])])
def test_growth_that_ends_before_memory_does_never_runs_out_of_it(state: BoundState, told: list[float]) -> None:
    fills = GrowthBound("`window` (deque)", "deque", 4, 9, 200, GIB, Band(GIB, GIB, GIB), state)
    samples = scrape(node_view(ranks=(rank_view(1, verdict=bounded_verdict(LEAK, fills), bound=fills),)))
    assert values(samples, "tidegauge_rank_leak_seconds_to_oom") == told


def test_an_ended_rank_keeps_counters_peaks_and_verdict_but_nothing_that_is_now() -> None:
    samples = scrape(node_view(ranks=(rank_view(0, alive=False, verdict=LEAK, ooms=1),)))
    kept = {sample.name for sample in samples if "rank" in sample.labels}
    assert kept == {
        "tidegauge_rank_alloc_retries_total",
        "tidegauge_rank_ooms_total",
        "tidegauge_rank_steps_total",
        "tidegauge_rank_allocated_peak_bytes",
        "tidegauge_rank_reserved_peak_bytes",
        "tidegauge_rank_last_sample_timestamp_seconds",
        "tidegauge_rank_leak_state",
        "tidegauge_rank_info",
    }


def test_of_two_ranks_with_the_same_labels_the_first_stays_and_the_other_is_counted() -> None:
    forged = rank_view(0, allocated_bytes=1)
    collector = NodeCollector(lambda: node_view(ranks=(rank_view(0), forged)))
    samples = samples_of(collector)
    assert values(samples, "tidegauge_rank_allocated_bytes", rank="0") == [10 * GIB]
    dropped_once = values(samples, "tidegauge_series_dropped_total", reason="duplicate")
    assert dropped_once == [16]  # 15 numbers (no leak) and the info
    assert values(samples_of(collector), "tidegauge_series_dropped_total", reason="duplicate") == [32]


OLDER, OWNER, YOUNGER = ProcessId(9, 1), ProcessId(8, 5), ProcessId(9, 9)


@pytest.mark.parametrize(
    ("of_thief", "of_owner"),
    [
        ({"process": OLDER, "nontorch_bytes": None}, {}),  # the driver lists its owner alone
        ({"process": OLDER, "alive": False}, {}),  # it was listed until it ended
        ({"process": YOUNGER, "nontorch_bytes": None}, {"nontorch_bytes": None}),  # nobody is listed
        ({"process": YOUNGER}, {}),  # both are
    ],
)
@pytest.mark.parametrize("thief_first", [True, False])
def test_of_two_users_ranks_of_one_name_the_one_that_the_driver_lists_is_shown_then_the_older(
    of_thief: dict[str, Any], of_owner: dict[str, Any], thief_first: bool
) -> None:
    thief = rank_view(0, uid=4321, allocated_bytes=1, **of_thief)
    owner = rank_view(0, process=OWNER, **of_owner)
    samples = scrape(node_view(ranks=(thief, owner) if thief_first else (owner, thief)))
    assert values(samples, "tidegauge_rank_allocated_bytes", rank="0") == [10 * GIB]
    [dropped] = values(samples, "tidegauge_series_dropped_total", reason="duplicate")
    assert dropped > 0


@pytest.mark.slow
def test_a_name_that_was_not_shown_takes_nothing_of_the_budget() -> None:
    fitting = SAMPLES_PER_TARGET // 16
    twins = [rank_view(rank, gpu=0, uuid=None, uid=uid) for rank in range(fitting) for uid in (4321, 1001)]
    samples = scrape(node_view(ranks=tuple(twins)))
    assert len(values(samples, "tidegauge_rank_allocated_bytes")) == fitting
    assert values(samples, "tidegauge_series_dropped_total", reason="budget") == [0]


def test_node_collector_exports_one_series_per_gpu_of_a_rank() -> None:
    samples = scrape(node_view(ranks=(rank_view(0), rank_view(0, gpu=1, uuid=uuid_of(1)))))
    assert len(values(samples, "tidegauge_rank_allocated_bytes", rank="0")) == 2
    assert values(samples, "tidegauge_series_dropped_total", reason="duplicate") == [0]


def test_a_gpu_that_is_listed_twice_is_exported_once() -> None:
    samples = scrape(node_view(gpus=(gpu_view(0), gpu_view(0, used_bytes=1))))
    assert values(samples, "tidegauge_gpu_used_bytes") == [13 * GIB]
    assert values(samples, "tidegauge_series_dropped_total", reason="duplicate") == [3]


def test_ranks_beyond_the_budget_are_left_out_whole_and_counted() -> None:
    per_rank = 16
    fitting = SAMPLES_PER_TARGET // per_rank
    ranks = tuple(rank_view(rank, gpu=0, uuid=None) for rank in range(fitting + 10))
    lines = text_of(NodeCollector(lambda: node_view(ranks=ranks))).splitlines()
    for name in ("tidegauge_rank_allocated_bytes", "tidegauge_rank_info"):
        assert sum(line.startswith(f"{name}{{") for line in lines) == fitting
    assert 'tidegauge_series_dropped_total{reason="duplicate"} 0.0' in lines
    assert f'tidegauge_series_dropped_total{{reason="budget"}} {10 * per_rank}.0' in lines


def test_node_collector_exports_series_dropped_by_the_agent() -> None:
    samples = scrape(node_view(series_dropped={"ended": 7, "duplicate": 2}))
    assert values(samples, "tidegauge_series_dropped_total", reason="ended") == [7]
    assert values(samples, "tidegauge_series_dropped_total", reason="duplicate") == [2]


def test_a_view_that_raises_is_a_scrape_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def view() -> NodeView:
        if broken:
            raise OSError("no such device")
        return node_view()

    collector = NodeCollector(view)
    with caplog.at_level(logging.INFO, logger="tidegauge_exporter.metrics.collector"):
        for _ in range(3):
            samples = samples_of(collector)
            assert values(samples, "tidegauge_collect_success") == [0]
            assert {s.name for s in samples} == {"tidegauge_collect_success", "tidegauge_collect_duration_seconds"}
        broken = False
        assert values(samples_of(collector), "tidegauge_collect_success", source="view") == [1]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_node_collector_alone_sets_the_success_of_the_view() -> None:
    samples = scrape(node_view(collect_success={"view": False, "rings": True}, collect_duration_s={"view": 9.0}))
    assert values(samples, "tidegauge_collect_success", source="view") == [1]
    assert len(values(samples, "tidegauge_collect_duration_seconds", source="view")) == 1


def test_a_node_without_ranks_and_gpus_still_says_how_it_is() -> None:
    samples = scrape(NodeView(hostname="node7", cluster="lab", now_unix_s=NOW_S))
    assert {sample.name for sample in samples} == {
        "tidegauge_collect_success",
        "tidegauge_collect_duration_seconds",
        "tidegauge_series_dropped_total",
        "tidegauge_rings_skipped_total",
        "tidegauge_records_lost_total",
        "tidegauge_poll_deferred_total",
        "tidegauge_records_refused_total",
        "tidegauge_detector_points_total",
        "tidegauge_claims_overruled_total",
    }


def test_node_collector_restricted_scrape_exports_one_family_and_counts_all_drops() -> None:
    collector = NodeCollector(lambda: node_view(ranks=(rank_view(0), rank_view(0))))
    registry = CollectorRegistry()
    registry.register(collector)
    some = registry.restricted_registry(["tidegauge_rank_leak_state"])
    asked = exposition(some.collect(), None).body.decode()
    assert {family.name for family in parse_text(asked)} == {"tidegauge_rank_leak_state"}
    assert values(samples_of(collector), "tidegauge_series_dropped_total", reason="duplicate") == [32]


@given(st.text(st.characters(codec=None), max_size=300), st.text(st.characters(codec=None), max_size=300))
def test_whatever_a_job_calls_itself_the_page_parses_and_stays_short(job: str, conf: str) -> None:
    rank = rank_view(0, identity=identity(0, job_id=JobId(job), alloc_conf=conf))
    collector = NodeCollector(lambda: replace(node_view(), ranks=(rank,)))
    text = text_of(collector, accept=OPENMETRICS)
    labels = [
        s.labels for family in parse_openmetrics(text) for s in family.samples if s.name.startswith("tidegauge_rank")
    ]
    assert len(labels) == 16
    assert all(len(value) <= MAX_LABEL_CHARS and value.isprintable() for each in labels for value in each.values())


def test_ranks_of_two_groups_of_a_job_are_told_apart_by_their_group() -> None:
    """Two launches in one job: each has a rank 0."""
    first, second = (
        rank_view(0, group="step 0"),
        rank_view(0, group="step 1", process=ProcessId(7, 7), allocated_bytes=GIB),
    )
    samples = scrape(node_view(ranks=(first, second)))
    assert values(samples, "tidegauge_rank_allocated_bytes", group="step 1") == [GIB]
    assert len(values(samples, "tidegauge_rank_info", group="step 0")) == 1
    assert len(values(samples, "tidegauge_rank_allocated_bytes")) == 2
    assert values(samples, "tidegauge_series_dropped_total", reason="duplicate") == [0]


def test_a_rank_of_a_job_with_one_group_has_no_such_label() -> None:
    assert not any("group" in sample.labels for sample in scrape(node_view()))
