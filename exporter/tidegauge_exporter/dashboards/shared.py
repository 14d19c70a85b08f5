"""Expressions, links, marks and panels that several dashboards share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegauge_exporter.dashboards.model.fields import (
    BAD,
    COUNT,
    HOUR_S,
    HOURS,
    HOURS_LEFT,
    PERCENT,
    PLAIN,
    QUIET,
    WATTS,
    Field,
    PanelLink,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import BarGauge, Panel, Stat, StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.links import JOB, NODE, RANK

NO_GROWTH: Final = "absent while nothing grows"
NOTHING_HAPPENED: Final = "nothing of the kind happened in the range"
NONE_OPEN: Final = "no incident is open"
NO_NVML: Final = "NVML does not work on this node"
NO_DCGM: Final = "dcgm-exporter does not run, or another Prometheus scrapes it"
"""Reasons why a query may have no result (``Query.may_be_empty``)."""

FLEET: Final = 'cluster=~"$cluster"'
"""Every selector of Tidegauge's own series carries at least this."""
ONE_JOB: Final = f'{FLEET}, job_id="$job_id", attempt=~"$attempt", group=~"$group"'
ONE_RANK: Final = f'{ONE_JOB}, rank="$rank"'
ONE_NODE: Final = f'{FLEET}, hostname="$node"'
_OWNED: Final = 'user_name=~"$user", slurm_account=~"$account", slurm_partition=~"$partition"'

BY_JOB: Final = "cluster, job_id, attempt, group"
"""Labels that name one group of ranks in one attempt of a job: those of every job-level series and join."""
BY_INCIDENT: Final = f"{BY_JOB}, cause"


def fleet(metric: str) -> str:
    """The metric in the chosen clusters."""
    return f"{metric}{{{FLEET}}}"


def total(metric: str) -> str:
    return f"sum({fleet(metric)})"


def job(metric: str) -> str:
    """The metric of the chosen job, all ranks."""
    return f"{metric}{{{ONE_JOB}}}"


def rank(metric: str) -> str:
    return f"{metric}{{{ONE_RANK}}}"


def node(metric: str) -> str:
    return f"{metric}{{{ONE_NODE}}}"


def of_jobs(expression: str, chosen: str) -> str:
    """The expression limited to the jobs of ``chosen``: one ``topk`` decides the rows of all columns of a table."""
    return f"{expression} and on ({BY_JOB}) {chosen}"


def of_owners(expression: str, *, over: str = "1h") -> str:
    """The expression without jobs of users, accounts and partitions that the reader has not chosen.

    A job that the coordinator has not named within ``over`` stays: a fleet whose coordinator is away must not look
    like one without jobs at risk.
    """
    known, chosen = (
        f"last_over_time(tidegauge_job_info{{{selector}}}[{over}])" for selector in (FLEET, f"{FLEET}, {_OWNED}")
    )
    return f"(({expression}) unless on ({BY_JOB}) ({known} unless {chosen}))"


def of_chosen_jobs(expression: str) -> str:
    """Living jobs of the chosen owners that have a rank on the chosen nodes, in the chosen namespaces."""
    somewhere = f'tidegauge_rank_info{{{FLEET}, hostname=~"$node", namespace=~"$namespace"}}'
    return f"({of_owners(expression)} and on ({BY_JOB}) {somewhere})"


def with_names(values: str, *, by: str = BY_JOB, over: str | None = None) -> str:
    """The values with ``user_name`` and ``job_name``, where these are known.

    ``values`` have the labels ``by`` and no others. ``over``: also names of jobs that ended within it. One info per job
    is taken (``topk``), for a job that changes its name within an attempt would break the join.
    """
    info = fleet("tidegauge_job_info")
    if over:
        info = f"last_over_time({info}[{over}])"
    names = f"topk by ({BY_JOB}) (1, {info})"
    return f"({values}) * on ({BY_JOB}) group_left (user_name, job_name) {names} or on ({by}) ({values})"


def used(selector: str) -> str:
    """Memory that each rank holds on its GPU, in bytes; without NVML, the memory that its allocator holds."""
    reserved = f"tidegauge_rank_reserved_bytes{{{selector}}}"
    return f"({reserved} + tidegauge_rank_nontorch_bytes{{{selector}}} or {reserved})"


def used_share(selector: str) -> str:
    """Memory that each rank holds, as a share of its limit."""
    return f"({used(selector)} / tidegauge_rank_limit_bytes{{{selector}}})"


def own_card(metric: str) -> str:
    """A series of the GPU of the chosen rank."""
    return f"max({fleet(metric)} and on (cluster, UUID) {rank('tidegauge_rank_reserved_bytes')})"


def by_card_in_order(expression: str) -> str:
    """One series a GPU of the chosen node with the label ``row``: its number in two digits, and of a MIG instance, of
    which a GPU has several, the beginning of its name."""
    named = f"max by (gpu, UUID) ({expression})"
    padded = f'label_replace({named}, "row", "0$1", "gpu", "(.*)")'
    number = f'label_replace({padded}, "row", "$1", "row", ".*(.{{2}})")'
    instance = f'label_replace({number}, "instance", "$1", "UUID", "(MIG-.{{8}}).*")'
    joined = f'label_join({instance}, "row", " ", "row", "instance")'
    return f'max by (row) (label_replace({joined}, "row", "$1", "row", "(.*?) ?"))'


def unattributed(by: str, selector: str) -> str:
    """Memory in use on GPUs that neither a watched rank nor a process outside Tidegauge accounts for."""
    used_bytes = f"sum by ({by}) (tidegauge_gpu_used_bytes{{{selector}}})"
    parts = (
        f"(sum by ({by}) ({metric}{{{selector}}}) or 0 * {used_bytes})"
        for metric in (
            "tidegauge_rank_reserved_bytes", "tidegauge_rank_nontorch_bytes", "tidegauge_gpu_other_processes_bytes",
        )
    )  # fmt: skip
    return f"clamp_min({used_bytes} - {' - '.join(parts)}, 0)"


def by_rank_in_order(expression: str) -> str:
    """One series a rank with the label ``row``: the rank in five digits, for Prometheus and Grafana sort by letter,
    after its group of ranks, where the job has several."""
    padded = f'label_replace(max by (group, rank) ({expression}), "row", "0000$1", "rank", "(.*)")'
    number = f'label_replace({padded}, "row", "$1", "row", ".*(.{{5}})")'
    return (
        f'max by (row) (label_replace(label_join({number}, "row", " ", "group", "row"), "row", "$1", "row", " ?(.*)"))'
    )


def standing_out(expression: str, measure: str, count: int) -> str:
    """``expression`` of the ``count`` ranks with the most of ``measure`` at the end of the range.

    A ``topk`` over a range chooses anew at every step and draws many more curves than it says; ``measure`` is
    therefore written with ``@ end()`` and chooses once.
    """
    return f"{expression} and on (group, rank) topk({count}, max by (group, rank) ({measure}))"


_KEPT: Final = "${datasource:queryparam}&${__url_time_range}"


THIS_CLUSTER: Final = "${cluster:queryparam}"
"""The cluster of a link, where a dashboard is of one."""


def cluster_of(source: str) -> str:
    """The cluster of a link, where a dashboard is of several: that of the row or the series."""
    return f"var-cluster=${{{source}.cluster:percentencode}}"


def _job_link(source: str = "__data.fields", *, cluster: str | None = None) -> PanelLink:
    """The link to the Job dashboard."""
    return PanelLink(
        "Job: all ranks",
        f"/d/{JOB}?{_KEPT}&{cluster or cluster_of(source)}"
        f"&var-job_id=${{{source}.job_id:percentencode}}&var-attempt=${{{source}.attempt:percentencode}}"
        "&var-group=$__all",
    )


def rank_link(source: str = "__data.fields") -> PanelLink:
    """The link to the Rank dashboard, from a row or a series with the label ``rank`` of the shown job."""
    return PanelLink(
        "Rank: one rank's memory",
        f"/d/{RANK}?{_KEPT}&${{cluster:queryparam}}&${{job_id:queryparam}}&${{attempt:queryparam}}"
        f"&${{group:queryparam}}&var-rank=${{{source}.rank:percentencode}}",
    )


def rank_of_a_job_link() -> PanelLink:
    """The link to the Rank dashboard from a row that has the labels of a job and a rank.

    Without a group in the row Grafana hands over no known one, and the Rank dashboard takes all.
    """
    labels = ("job_id", "attempt", "group", "rank")
    values = "&".join(f"var-{label}=${{__data.fields.{label}:percentencode}}" for label in labels)
    return PanelLink("Rank: one rank's memory", f"/d/{RANK}?{_KEPT}&{THIS_CLUSTER}&{values}")


def node_link(source: str = "__data.fields", *, cluster: str = THIS_CLUSTER) -> PanelLink:
    """The link to the Node dashboard, from a row or a series with the label ``hostname``."""
    return PanelLink(
        "Node: its GPUs and who is on them",
        f"/d/{NODE}?{_KEPT}&{cluster}&var-node=${{{source}.hostname:percentencode}}",
    )


def dashboard_link(title: str, uid: str, *variables: str) -> PanelLink:
    """The link to another dashboard with these variables of this one."""
    return PanelLink(title, f"/d/{uid}?{_KEPT}&" + "&".join(f"${{{name}:queryparam}}" for name in variables))


def _page_links(service_url: str | None, title: str, address: str) -> tuple[PanelLink, ...]:
    """The link to a page of the coordinator, if ``service_url`` is known.

    The address is written into the dashboard, not a variable of it: the sender of a link to a dashboard chooses its
    variables, and would choose the target of this link.
    """
    return (PanelLink(title, f"{service_url.rstrip('/')}/{address}", new_tab=True),) if service_url else ()


def report_links(service_url: str | None) -> tuple[PanelLink, ...]:
    """The link from the number of an incident to its report."""
    return _page_links(service_url, "Report", "report?incident=${__value.numeric}")


def job_page_links(
    service_url: str | None, source: str = "__data.fields", *, job: str | None = None
) -> tuple[PanelLink, ...]:
    """The link to the web page of an attempt with all its groups of ranks, from a row or a series that has its number;
    ``job``: the variable with the job's id, where the row has none."""
    job_id, attempt = (f"${{{name}:percentencode}}" for name in (job or f"{source}.job_id", f"{source}.attempt"))
    return _page_links(service_url, "Web page of the job", f"job?job_id={job_id}&attempt={attempt}")


def job_links(
    service_url: str | None, source: str = "__data.fields", *, cluster: str | None = None
) -> tuple[PanelLink, ...]:
    """Links to the Job dashboard and to the web page, from a row with the labels of a job (or a series:
    ``__field.labels``)."""
    return (_job_link(source, cluster=cluster), *job_page_links(service_url, source))


def node_links(
    service_url: str | None, source: str = "__data.fields", *, cluster: str = THIS_CLUSTER
) -> tuple[PanelLink, ...]:
    """Links to the Node dashboard and to the web page, as ``node_link``."""
    found = f"nodes?words=${{{source}.hostname:percentencode}}"
    return (node_link(source, cluster=cluster), *_page_links(service_url, "Web page of the node", found))


def time_to_oom(title: str, description: str, size: tuple[int, int], query: Query, *links: PanelLink) -> TimeSeries:
    """The panel with forecasts over time. ``query`` is in seconds; a day and more is drawn as a day."""
    hours = f"clamp_max({query.expression}, {24 * HOUR_S}) / {HOUR_S}"
    return TimeSeries(
        title,
        f"{description} Orange: below four hours; red: below half an hour. 24 h is a day or more.",
        size,
        (Query(hours, query.legend, query.line, query.may_be_empty),),
        Field(HOURS, "No growth towards a limit in the time range.", HOURS_LEFT, decimals=1, least=0, links=links),
        bands=True,
    )


NO_DCGM_HERE: Final = (
    "No series of dcgm-exporter for these GPUs. Scrape dcgm-exporter (port 9400) with this Prometheus and keep its "
    "label UUID."
)


def by_dcgm(chosen: str, *, label: str) -> tuple[Panel, ...]:
    """Panels about the GPUs that the series ``chosen`` has UUIDs of. ``label``: name of a GPU's curve."""

    def of_dcgm(metric: str) -> str:
        # A second target of dcgm-exporter (a restarted pod) must not break the join.
        return f"max by (UUID, gpu) (max by (UUID) ({metric}) * on (UUID) group_right () ({chosen}))"

    return (
        TimeSeries(
            "GPU utilization",
            "Share of time with a running kernel. A full GPU at 0 % does nothing: a hung job, or a debugger.",
            (8, 7),
            (Query(of_dcgm("DCGM_FI_DEV_GPU_UTIL"), label, may_be_empty=NO_DCGM),),
            Field(PERCENT, NO_DCGM_HERE, least=0, most=100, decimals=0),
            legend_calculations=("mean", "max"),
        ),
        TimeSeries(
            "Power",
            "Power draw of the card. Near idle power at full utilization: kernels wait for memory or for other ranks.",
            (8, 7),
            (Query(of_dcgm("DCGM_FI_DEV_POWER_USAGE"), label, may_be_empty=NO_DCGM),),
            Field(WATTS, NO_DCGM_HERE, least=0, decimals=0),
            legend_calculations=("mean", "max"),
        ),
        StateTimeline(
            "XID errors",
            "The number of the last XID error that the driver reported; none is good. 48, 63, 64, 94 and 95 are ECC "
            "errors, 79 a card that fell off the bus, 31 and 43 mostly the job's own fault. `dmesg` has the time.",
            (8, 7),
            (Query(of_dcgm("DCGM_FI_DEV_XID_ERRORS"), label, may_be_empty=NO_DCGM),),
            Field(COUNT, NO_DCGM_HERE, ThresholdSteps(QUIET, ((1, BAD),)), {0: ("none", QUIET)}, decimals=0),
        ),
    )


def open_by_cause(description: str, size: tuple[int, int]) -> TimeSeries:
    return TimeSeries(
        "Open incidents by cause",
        description,
        size,
        (Query(f"sum by (cause) ({fleet('tidegauge_incidents_open')}) > 0", "{{cause}}", may_be_empty=NONE_OPEN),),
        Field(COUNT, "No incident was open in the time range.", least=0, decimals=0),
        stacked=True,
        legend_on_the_right=True,
    )


def actions_by_outcome(description: str, size: tuple[int, int]) -> BarGauge:
    """The panel with the actions of the time range."""
    done = f"round(sum by (action, outcome) (increase({fleet('tidegauge_actions_total')}[$__range]))) > 0"
    return BarGauge(
        "Actions by outcome",
        description,
        size,
        (Query(done, "{{action}}: {{outcome}}", may_be_empty=NOTHING_HAPPENED),),
        Field(COUNT, "No action in this time range.", ThresholdSteps("blue"), decimals=0, least=0),
    )


def errors_in_the_range(chosen: Callable[[str], str]) -> Stat:
    """The panel that counts errors. ``chosen`` selects the series of a metric that the dashboard is about."""

    def counted(metric: str) -> str:
        return f"round(sum(increase({chosen(metric)}[$__range])))"

    return Stat(
        "Errors in the range",
        "Out-of-memory errors, caught ones included, and allocations that succeeded only after the cache was emptied "
        "(retries): each retry stalls the rank, and an OOM is near.",
        (4, 3),
        (
            Query(counted("tidegauge_rank_ooms_total"), "OOMs"),
            Query(counted("tidegauge_rank_alloc_retries_total"), "retries"),
        ),
        Field(COUNT, "not watched", ThresholdSteps(PLAIN, ((1, "orange"),)), decimals=0),
        instant=True,
        named=True,
    )


def job_marks() -> tuple[Marks, ...]:
    """Events of the chosen job, drawn over its curves."""
    began = job("tidegauge_job_info")
    state = job("cluster_job:tidegauge_leak_state:max")
    ooms = job("cluster_job:tidegauge_ooms:increase5m")
    opened = job("tidegauge_job_incident_opened_timestamp_seconds")
    ended = job("tidegauge_job_last_action_timestamp_seconds")
    return (
        Marks(
            "Attempts",
            # An hour back: the coordinator may have been away for a while without the job being a new one.
            Query(
                f"max by (attempt) ({began} unless last_over_time({began}[1h] offset $__interval))",
                "attempt {{attempt}} began",
                may_be_empty="it began before the range",
            ),
            "blue",
        ),
        Marks(
            "Growth established",
            Query(
                f"max by (attempt) (max_over_time({state}[$__interval]) == 2"
                f" unless max_over_time({state}[$__interval] offset $__interval) == 2)",
                "growth established (attempt {{attempt}})",
                may_be_empty=NO_GROWTH,
            ),
            "orange",
        ),
        Marks(
            "Out of memory",
            Query(
                f"max by (attempt) ({ooms}) > 0 unless max by (attempt) ({ooms} offset $__interval) > 0",
                "out of memory (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "red",
        ),
        Marks(
            "Incidents",
            Query(
                f"1000 * max by ({BY_INCIDENT}) ({opened})",
                "incident opened: {{cause}} (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "red",
            value_is_time=True,
            labels=("cause",),
        ),
        Marks(
            "Actions",
            Query(
                f"1000 * max by ({BY_JOB}, action, outcome) ({ended})",
                "{{action}}: {{outcome}} (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "purple",
            value_is_time=True,
            labels=("action", "outcome"),
        ),
    )
