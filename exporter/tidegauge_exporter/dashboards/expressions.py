"""Pieces of PromQL and of addresses that several dashboards use, so that labels and joins are written once."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.fields import PanelLink
from tidegauge_exporter.links import JOB, RANK

FLEET: Final = 'cluster=~"$cluster"'
"""Every selector of Tidegauge's own series carries at least this."""
ONE_JOB: Final = f'{FLEET}, job_id="$job_id", attempt=~"$attempt", group=~"$group"'
ONE_RANK: Final = f'{ONE_JOB}, rank="$rank"'

BY_JOB: Final = "cluster, job_id, attempt, group"
"""What names one group of ranks in one attempt of one job: the labels of every job-level series and of every join."""
BY_INCIDENT: Final = f"{BY_JOB}, cause"


def fleet(metric: str) -> str:
    """The metric in the chosen clusters."""
    return f"{metric}{{{FLEET}}}"


def total(metric: str) -> str:
    """The sum over the chosen clusters."""
    return f"sum({fleet(metric)})"


def job(metric: str) -> str:
    """The metric of the chosen job, all ranks."""
    return f"{metric}{{{ONE_JOB}}}"


def rank(metric: str) -> str:
    """The metric of the chosen rank."""
    return f"{metric}{{{ONE_RANK}}}"


def of_jobs(expression: str, chosen: str) -> str:
    """The jobs of ``chosen`` alone: one ``topk`` decides which rows all columns of a table have."""
    return f"{expression} and on ({BY_JOB}) {chosen}"


def with_names(values: str, *, by: str = BY_JOB, over: str | None = None) -> str:
    """The values with ``user_name`` and ``job_name``; those of jobs of which no more is known stay, without.

    ``values`` have the labels ``by`` and no others. ``over``: also names of jobs that ended within it. One info per job
    is taken (``topk``), for a job that changes its name within an attempt would break the join.
    """
    info = fleet("tidegauge_job_info")
    if over:
        info = f"last_over_time({info}[{over}])"
    names = f"topk by ({BY_JOB}) (1, {info})"
    return f"({values}) * on ({BY_JOB}) group_left (user_name, job_name) {names} or on ({by}) ({values})"


def used(selector: str) -> str:
    """What each rank holds on its card, in bytes; without NVML, what its allocator holds."""
    reserved = f"tidegauge_rank_reserved_bytes{{{selector}}}"
    return f"({reserved} + tidegauge_rank_nontorch_bytes{{{selector}}} or {reserved})"


def used_share(selector: str) -> str:
    """The same as a share of what the rank may take."""
    return f"({used(selector)} / tidegauge_rank_limit_bytes{{{selector}}})"


def own_card(metric: str) -> str:
    """A series of the card that the chosen rank is on."""
    return f"max({fleet(metric)} and on (cluster, UUID) {rank('tidegauge_rank_reserved_bytes')})"


def by_rank_in_order(expression: str) -> str:
    """One series a rank with the label ``row``: the rank in five digits, for Prometheus and Grafana sort by letter; in
    front of it the group of ranks, where the job has several."""
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


def job_link(source: str = "__data.fields") -> PanelLink:
    """To the Job dashboard, from a row with the labels of a job (or a series: ``__field.labels``)."""
    return PanelLink(
        "Job: all ranks",
        f"/d/{JOB}?{_KEPT}&var-cluster=${{{source}.cluster:percentencode}}"
        f"&var-job_id=${{{source}.job_id:percentencode}}&var-attempt=${{{source}.attempt:percentencode}}"
        "&var-group=$__all",
    )


def rank_link(source: str = "__data.fields") -> PanelLink:
    """To the Rank dashboard, from a row or a series with the label ``rank`` of the job that is shown."""
    return PanelLink(
        "Rank: one rank's memory",
        f"/d/{RANK}?{_KEPT}&${{cluster:queryparam}}&${{job_id:queryparam}}&${{attempt:queryparam}}"
        f"&${{group:queryparam}}&var-rank=${{{source}.rank:percentencode}}",
    )


def report_links(service_url: str | None) -> tuple[PanelLink, ...]:
    """From the number of an incident to its report; none where nobody said where the service is reached.

    The address is written into the dashboard, not a variable of it: whoever sends somebody a link chooses the
    variables in it, and would choose where the link leads.
    """
    if not service_url:
        return ()
    return (PanelLink("Report", f"{service_url.rstrip('/')}/report?incident=${{__value.numeric}}", new_tab=True),)
