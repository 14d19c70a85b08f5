"""Variables at the top of a dashboard. In addresses each is ``var-NAME``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidegauge_exporter.dashboards.model.fields import Json
from tidegauge_exporter.dashboards.model.queries import PROMETHEUS

_ALL: Final = "$__all"


@dataclass(frozen=True)
class Variable:
    """A variable of a dashboard."""

    name: str
    label: str
    description: str

    def to_json(self) -> Json:
        """The entry of ``templating.list``."""
        return {"name": self.name, "label": self.label, "description": self.description, "hide": 0}


@dataclass(frozen=True)
class DataSourceVariable(Variable):
    """The choice of a Prometheus."""

    def to_json(self) -> Json:
        return {
            **super().to_json(),
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
            "regex": "",
            "includeAll": False,
            "multi": False,
            "options": [],
        }


@dataclass(frozen=True)
class LabelValues(Variable):
    """The choice of a label's value; the values follow the time range."""

    selector: str
    value_of: str
    numeric: bool = False
    with_all: bool = False
    """True if several values, or all, can be chosen; all are then the default."""
    may_be_absent: bool = False
    """True if all values include series without the label."""

    def to_json(self) -> Json:
        told: Json = {
            **super().to_json(),
            "type": "query",
            "datasource": PROMETHEUS,
            "query": {
                "qryType": 1,
                "query": f"label_values({self.selector},{self.value_of})",
                "refId": "PrometheusVariableQueryEditor-VariableQuery",
            },
            "refresh": 2,
            "regex": "",
            # Numbers by value (10 comes after 9), words by letter.
            "sort": 3 if self.numeric else 1,
            "includeAll": self.with_all,
            "multi": self.with_all,
            "options": [],
        }
        if self.with_all:
            told["current"] = {"selected": True, "text": ["All"], "value": [_ALL]}
            # One short pattern in place of a list of all values.
            told["allValue"] = ".*" if self.may_be_absent else ".+"
        return told


@dataclass(frozen=True)
class JobVariable(Variable):
    """The choice of a job by id, name and owner; the newest first."""

    expression: str
    """Its series have the labels ``job_id`` and ``shown`` and no others."""

    pattern: ClassVar[str] = r"/^\{job_id=\"(?<value>.+?)\",shown=\"(?<text>.*?) *\"\} /"
    """Of a series as Grafana writes it. What a job calls itself is in ``shown`` and cannot become the value."""

    def to_json(self) -> Json:
        return {
            **super().to_json(),
            "type": "query",
            "datasource": PROMETHEUS,
            "query": {
                "qryType": 3,
                "query": f"query_result({self.expression})",
                "refId": "PrometheusVariableQueryEditor-VariableQuery",
            },
            "refresh": 2,
            "regex": self.pattern,
            "sort": 4,
            "includeAll": False,
            "multi": False,
            "options": [],
        }


@dataclass(frozen=True)
class VariableChoice(Variable):
    """The choice of one of some fixed values; the first is the default."""

    options: tuple[tuple[str, str], ...]
    """Shown texts and their values."""

    def to_json(self) -> Json:
        listed = [
            {"selected": index == 0, "text": text, "value": value} for index, (text, value) in enumerate(self.options)
        ]
        return {
            **super().to_json(),
            "type": "custom",
            "query": ", ".join(f"{text} : {value}" for text, value in self.options),
            "includeAll": False,
            "multi": False,
            "options": listed,
            "current": listed[0],
        }


DATA_SOURCE: Final = DataSourceVariable("datasource", "Data source", "The Prometheus that scrapes Tidegauge.")
CLUSTERS: Final = LabelValues("cluster", "Cluster", "Clusters to look at.", "tidegauge_nodes", "cluster", with_all=True)
CLUSTER: Final = LabelValues("cluster", "Cluster", "The cluster of the job.", "tidegauge_nodes", "cluster")
NODE: Final = LabelValues("node", "Node", "The node.", 'tidegauge_gpu_total_bytes{cluster=~"$cluster"}', "hostname")
NODES: Final = LabelValues(
    "node", "Node", "Jobs with a rank on these nodes.", 'tidegauge_gpu_total_bytes{cluster=~"$cluster"}', "hostname",
    with_all=True,
)  # fmt: skip
_JOB_INFO: Final = 'tidegauge_job_info{cluster=~"$cluster"}'
USER: Final = LabelValues(
    "user", "User", "Owners of jobs.", _JOB_INFO, "user_name", with_all=True, may_be_absent=True
)  # fmt: skip
ACCOUNT: Final = LabelValues(
    "account", "Account", "Slurm accounts of jobs.", _JOB_INFO, "slurm_account", with_all=True, may_be_absent=True
)
PARTITION: Final = LabelValues(
    "partition", "Partition", "Slurm partitions of jobs.", _JOB_INFO, "slurm_partition", with_all=True,
    may_be_absent=True,
)  # fmt: skip
NAMESPACE: Final = LabelValues(
    "namespace", "Namespace", "Kubernetes namespaces of the ranks' pods.",
    'tidegauge_rank_info{cluster=~"$cluster"}', "namespace", with_all=True, may_be_absent=True,
)  # fmt: skip
OWNER_OF_ENDED: Final = LabelValues(
    "user", "User", "Owners of ended jobs.", 'tidegauge_ended_runs{cluster=~"$cluster", by="job"}', "user_name",
    with_all=True, may_be_absent=True,
)  # fmt: skip
_OWNER: Final = f'label_replace(last_over_time({_JOB_INFO}[$__range]), "owner", "($1)", "user_name", "(.+)")'
JOB_ID: Final = JobVariable(
    "job_id", "Job", "Jobs watched in the time range.",
    f'max by (job_id, shown) (label_join({_OWNER}, "shown", " ", "job_id", "job_name", "owner"))',
)  # fmt: skip
ATTEMPT: Final = LabelValues(
    "attempt",
    "Attempt",
    "A job that was requeued has several; all of them follow each other in one curve.",
    'tidegauge_job_info{cluster=~"$cluster", job_id="$job_id"}',
    "attempt",
    numeric=True,
    with_all=True,
)
GROUP: Final = LabelValues(
    "group",
    "Group of ranks",
    "Launches that run side by side in one job. A job with one group has nothing to choose here.",
    'tidegauge_rank_allocated_bytes{cluster=~"$cluster", job_id="$job_id", attempt=~"$attempt"}',
    "group",
    with_all=True,
    may_be_absent=True,
)
RANK: Final = LabelValues(
    "rank",
    "Rank",
    "The global rank.",
    'tidegauge_rank_allocated_bytes{cluster=~"$cluster", job_id="$job_id", attempt=~"$attempt", group=~"$group"}',
    "rank",
    numeric=True,
)
HORIZON: Final = VariableChoice(
    "horizon",
    "Look ahead",
    "How far the forecast goes.",
    (("1 hour", "3600"), ("15 minutes", "900"), ("4 hours", "14400"), ("12 hours", "43200")),
)
