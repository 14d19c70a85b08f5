"""Every counter has its series at 0 before the first event: ``increase()`` does not see the first value of a series."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.metrics_core import Metric as Family

from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.incidents.loop_figures import ACTION_OUTCOMES, LoopFigures
from tidegauge.core.views import NodeView
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.coordinator_rows import LOOP_METRICS
from tidegauge_exporter.metrics.families import Metric, MetricKind
from tidegauge_exporter.metrics.notifications import NOTIFIER_TABLE, ClickFigures, NotifierCollector, NotifierFigures
from tidegauge_exporter.metrics.table import CLAIMS_OVERRULED, COORDINATOR_TABLE, NODE_TABLE, RANK_LABELS, RINGS_SKIPPED
from tidegauge_exporter.notify.deliveries import Deliveries, DeliveryOutcome
from tidegauge_exporter.notify.notifier import SinkFigures
from tidegauge_exporter.slack.actions import ASKED, ClickOutcome

AGENT = Path(__file__).parents[2] / "collector/tidegauge"


def counters(table: Iterable[Metric]) -> set[str]:
    """Names of the counters that are about no single rank: a rank's begin with the rank."""
    return {
        metric.name
        for metric in table
        if metric.kind is MetricKind.COUNTER and not set(RANK_LABELS) <= set(metric.labels)
    }


def series(families: Iterable[Family]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


def test_a_node_where_nothing_happened_has_every_counter_at_zero() -> None:
    found = series(NodeCollector(lambda: NodeView("node0", "lab", 0.0)).collect())
    for name in counters(NODE_TABLE):
        assert set(found[name]) == {0.0}, name
    for metric in NODE_TABLE:
        assert len(found.get(metric.name, ())) >= len(metric.from_start)


def test_a_value_that_a_node_has_counted_is_not_set_back() -> None:
    view = NodeView("node0", "lab", 0.0, claims_overruled={"uuid": 3, "new_claim": 1})
    found = [
        (sample.labels["claim"], sample.value)
        for family in NodeCollector(lambda: view).collect()
        for sample in family.samples
        if sample.name == CLAIMS_OVERRULED.name
    ]
    assert len(found) == len(dict(found)) == len(CLAIMS_OVERRULED.from_start) + 1
    assert {claim: value for claim, value in found if value} == {"uuid": 3.0, "new_claim": 1.0}


def test_a_coordinator_where_nothing_happened_has_every_counter_at_zero() -> None:
    empty = LoopFigures(store_works=True, acting=False, paused=False, breaker_open=False)
    known = counters(COORDINATOR_TABLE)
    sizes = {
        "tidegauge_incidents_total": len(IncidentCause),
        "tidegauge_actions_total": len(ActionKind) * len(ACTION_OUTCOMES),
    }
    assert known == sizes.keys()
    found = {row.name: row.read_all(empty) for row in LOOP_METRICS if row.name in known}
    assert {name: len(numbers) for name, numbers in found.items()} == sizes
    assert {number for numbers in found.values() for number in numbers.values()} == {0}


def test_a_notifier_that_sent_nothing_has_every_counter_at_zero() -> None:
    clicks = {(asked, outcome.value): 0 for asked in ASKED for outcome in ClickOutcome}
    figures = NotifierFigures(
        (SinkFigures("slack", None, Deliveries().figures()),), hears=True, clicks=ClickFigures(clicks, connected=False)
    )
    found = series(NotifierCollector(lambda: figures, cluster="lab").collect())
    for name in counters(NOTIFIER_TABLE):
        count = len(clicks) if name == "tidegauge_slack_actions_total" else len(DeliveryOutcome)
        assert found[name] == [0.0] * count, name


def test_every_reason_to_refuse_a_ring_is_there_from_the_start() -> None:
    folders = (AGENT / "agent/rings", AGENT / "agent/run_dirs")
    opening = [AGENT / "agent/opening" / name for name in ("safe_files.py", "remote.py")]
    files = [AGENT / "core/ring_layout.py", *opening, *(file for folder in folders for file in folder.glob("*.py"))]
    raised = re.compile(r'(?:LayoutError|UnsafeFileError)\(\s*"([a-z_]+)"')
    said = re.compile(r'(?:_say_once|_say|refuse|put_off)\([a-z.]+,(?: signature,)? "([a-z_]+)"')
    texts = [file.read_text(encoding="utf-8") for file in files if file.name != "launches.py"]  # not of rings
    reasons = {reason for text in texts for pattern in (raised, said) for reason in pattern.findall(text)}
    assert reasons == set(RINGS_SKIPPED.from_start)


def test_every_claim_that_can_be_overruled_is_there_from_the_start() -> None:
    added = re.compile(r'overruled(?:\.add\(| = \{)"([a-z_]+)"')
    files = [AGENT / "agent/attribution.py", *(AGENT / "agent/ranks").glob("*.py")]
    claims = {claim for file in files for claim in added.findall(file.read_text(encoding="utf-8"))}
    assert claims == set(CLAIMS_OVERRULED.from_start)
