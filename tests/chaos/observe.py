"""Whether the service is whole: what must be true at once for that, and since when it stayed true."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from chaos.nodes import number_inside
from tidegauge.cluster.api import client

if TYPE_CHECKING:
    from chaos.site import ChaosSite

STAYS_S = 10.0
"""The service is whole when it stays so for this long: parts that are dead are listed as alive for a while. Longer than
what the cluster needs to notice the slowest of them, a link that is cut (9 s)."""
LOOK_EVERY_S = 0.5
NEW_S = 5.0
"""Without any trouble a rank is known so long after it began to train: a poll, a report, a busy machine."""
OPENER_WORKS = 'tidegauge_collect_success{source="opener"} 1.0'
Lacked = list[tuple[float, str]]
"""From when on what was missing, in seconds; empty: nothing from then on."""


def problem_of_service(site: ChaosSite) -> str | None:
    """What is missing right now, or ``None`` when there is nothing:

    the API answers; every node has its supervisor, and its agent is the one on that node and reports; every rank that
    has trained for ``NEW_S`` is known; each node's /metrics answers, and Prometheus has it; incidents are kept and the
    policy is in force; the notifier says that Alertmanager takes what it says.
    """
    try:
        return _problem(site)
    except (client.ApiError, OSError, AssertionError, KeyError) as error:  # OSError: Prometheus does not answer
        return f"{type(error).__name__}: {error}"


def full_service(site: ChaosSite, *, within_s: float, since_s: float | None, lacked: Lacked | None) -> float:
    """See ``ChaosSite.wait_full_service``."""
    since_s = time.monotonic() if since_s is None else since_s
    whole_since_s: float | None = None
    missing = "never looked at"
    lacked = [] if lacked is None else lacked
    while True:
        looked_s = time.monotonic()
        problem = problem_of_service(site)
        if not lacked or lacked[-1][1] != (problem or ""):
            lacked.append((round(looked_s - since_s, 1), problem or ""))
        if problem is None:
            whole_since_s = whole_since_s if whole_since_s is not None else looked_s
            if time.monotonic() - max(whole_since_s, since_s) > STAYS_S:
                return max(whole_since_s - since_s, 0.0)
        else:
            whole_since_s, missing = None, problem
        if whole_since_s is None and looked_s - since_s > within_s:
            raise AssertionError(f"no full service {within_s:.0f} s later: {missing}")
        time.sleep(LOOK_EVERY_S)


def _problem(site: ChaosSite) -> str | None:
    if site.text(site.api_url, "/healthz") != "ok\n":
        return "/healthz is not ok"
    return _of_nodes(site) or _of_ranks(site) or _of_metrics(site) or _of_policy(site)


def _of_nodes(site: ChaosSite) -> str | None:
    status = site.api("/api/v1/status")
    if not status["healthy"]:
        told = [(node["address"], node["health"]) for node in status["nodes"]]
        return f"the status is not healthy: {told}"
    there = {node["address"]: node["agent_pid"] for node in status["nodes"] if node["health"] == "ok"}
    for node in site.nodes:
        if len(node.pids("supervisor")) != 1:
            return f"{node.name} has no supervisor"
        agents = [number_inside(pid) for pid in node.pids("agent")]
        if agents != [there.get(node.address)]:
            return f"{node.name} has the agents {agents}, and {there.get(node.address)} reports"
    return None


def _of_ranks(site: ChaosSite) -> str | None:
    jobs: list[dict[str, Any]] = site.api("/api/v1/jobs")["jobs"]
    known = {(job["job_name"], rank["process"]["pid"]) for job in jobs for rank in job["ranks"] if not job["stale"]}
    for job in site.jobs.values():
        if job.is_running():
            training = {(job.name, pid) for pid in job.training_pids(NEW_S)}
            if not training <= known:
                return f"the ranks {sorted(training - known)} of {job.name} are not known"
    return None


def _of_metrics(site: ChaosSite) -> str | None:
    for node in site.nodes:
        page = site.text(node.metrics_url, "/metrics")
        if "tidegauge_rank_steps_total{" not in page:
            return f"/metrics of {node.name} tells of no rank"
        if OPENER_WORKS not in page:
            return f"the opener of {node.name} is missed"
    up = {line["metric"]["instance"]: line["value"][1] for line in site.prometheus.query("up")}
    wanted = {url.removeprefix("http://") for url in [site.api_url, *(node.metrics_url for node in site.nodes)]}
    down = sorted(wanted - {instance for instance, value in up.items() if value == "1"})
    return f"Prometheus does not have {', '.join(down)}" if down else None


def _of_policy(site: ChaosSite) -> str | None:
    policy = site.api("/api/v1/policy")
    if policy["store_problem"] or policy["policy_problem"]:
        return f"the policy's loop: {policy['store_problem'] or policy['policy_problem']}"
    return _of_telling(site, policy["telling"])


def _of_telling(site: ChaosSite, telling: dict[str, str]) -> str | None:
    notifiers = site.head.pids("notifier")
    if len(notifiers) != 1 or telling.get("alertmanager") != "ok":
        return f"notifiers are {notifiers}, and say {telling}"
    return None
