"""``tidegauge status`` shows whether the service is up and every node agent reports."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegauge.agent.run_dirs.folders import chosen_run_dirs
from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT, FINE, CommandError
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.policy.status import in_one_line
from tidegauge.cli.service.opener import OpenerLook, in_words, look_at_opener
from tidegauge.cli.service_api import NO_URL, add_api_arguments, ask, local_service, not_running, read, web_pages
from tidegauge.cluster.api.client import TIMEOUT_S
from tidegauge.cluster.views import ProfileProblem
from tidegauge.core.detector.unheld import is_unheld
from tidegauge.core.ids import job_name
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.incidents.wording import list_ranks
from tidegauge.core.units import format_bytes, format_count, format_duration
from tidegauge.files import why_unwritable
from tidegauge.http.access import LoginMethod, split_scheme

HELP = "show service status and check that every node agent is reporting"
METHOD_WORDS = {
    LoginMethod.TOKEN: "API token", LoginMethod.PASSWORD: "password", LoginMethod.MUNGE: "MUNGE",
    LoginMethod.KUBERNETES: "Kubernetes token", LoginMethod.PROXY: "proxy header",
}  # fmt: skip
MAX_PROBLEMS = 8
"""With memory profiles, that are printed."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)


def run(args: argparse.Namespace) -> int:
    local = None if args.api else _local(args)
    running = local is None or local["running"]
    service = actions = profiles = None
    if local is None or local.get("role") == "head":
        service = _ask(args, "/api/v1/status", needed=bool(args.api))
        healthy = bool(service and service["healthy"])
        actions = service and _ask(args, "/api/v1/policy", needed=False)
        profiles = service and _ask(args, "/api/v1/profiled-jobs?limit=1", needed=False)
    else:
        healthy = local.get("phase") == "running" and local["metrics_address"] is not None
    answer = {
        "running": running,
        "healthy": healthy,
        "local": local,
        "service": service,
        "actions": actions,
        "url": web_pages(args).page(""),
        "profile_problems": profiles and profiles.get("problems"),  # an older service reports none
    }
    if args.json:
        print_json(answer)
    else:
        _print(answer)
    if not running:
        return ENVIRONMENT
    return FINE if healthy else BAD_NEWS


def _local(args: argparse.Namespace) -> dict[str, Any]:
    """The content of the service's files on this node. Raises ``CommandError`` if none runs, but for ``--json``."""
    from tidegauge.cluster.ray_service.agent_place import why_not_ours
    from tidegauge.cluster.service_record import read_address

    files, record = local_service(args)
    if record is None and not args.json:
        raise CommandError(not_running(files))
    if record is None:
        return {"running": False, "state_dir": str(files.root)}
    metrics, state_problem = read_address(files.agent), _state_problem(files.root)
    agent_problem = None
    if metrics is None and state_problem is None and record.phase == "running":
        agent_problem = why_not_ours(files.agent_place, record.supervisor.pid)
    return {
        "running": True,
        "role": "head" if record.spec.is_head else "node",
        "phase": record.phase,
        "detail": record.detail,
        "supervisor_pid": record.supervisor.pid,
        "head_address": record.spec.head_address,
        "node_address": record.spec.node_address,
        "api_url": read_address(files.api),
        "metrics_address": metrics,
        "state_problem": state_problem,
        "agent_problem": agent_problem,
        "links_problem": _links_problem(record.spec.settings.get("public_url")),
        "opener": _opener(record.spec.settings, files.root),
        "token_file": record.spec.token_file,
        "state_dir": str(files.root),
        "logs": str(files.logs),
        "started_unix_s": record.started_unix_s,
    }


def _state_problem(folder: Path) -> str | None:
    """Why the service cannot write its state, and what to do; ``None``: it can."""
    if (why := why_unwritable(folder)) is None:
        return None
    return (
        f"{folder} cannot be written: {why}. Parts of the service may run that are not shown here, and what is shown "
        "may be old. Free space there, or make it writable: the service goes on by itself"
    )


def _opener(settings: Mapping[str, Any], state_dir: Path) -> Mapping[str, Any] | None:
    """An ``OpenerLook``; ``None`` where the agent opens files itself. The agent's user owns ``state_dir``."""
    if not (socket := settings.get("opener_socket")):
        return None
    run_dirs = tuple(map(str, chosen_run_dirs(settings.get("run_dir"))))
    return look_at_opener(Path(str(socket)), state_dir.stat().st_uid, run_dirs)._asdict()


def _links_problem(public_url: object) -> str | None:
    """Why a service that was started with this setting links to none of its pages."""
    from tidegauge.settings import is_web_address

    if not public_url or is_web_address(str(public_url)):
        return None
    return f"none to pages, in messages and alerts: public_url: {str(public_url)!r} is {NO_URL}"


def _ask(args: argparse.Namespace, path: str, *, needed: bool) -> dict[str, Any] | None:
    """The coordinator's answer; ``None`` if there is none (while it restarts) and it is not ``needed``."""
    try:
        return ask(args, path, timeout_s=TIMEOUT_S)
    except CommandError:
        if needed:
            raise
        return None


def _print(answer: Mapping[str, Any]) -> None:
    local, service = answer["local"], answer["service"]
    if local is not None:
        print(f"{local['role']} {local['node_address']}: {local['phase']}", end="")
        print("" if local["phase"] == "running" else f" ({local['detail']})")
        if local["role"] == "node":
            print(f"head      {local['head_address']}  (for the whole cluster: ask there, or use --api URL)")
            print(f"metrics   {_url(local['metrics_address']) or _not_yet(local, 'no agent yet')}")
        else:
            print(f"engine    {local['head_address']}")
            print(f"API, /sd  {local['api_url'] or _not_yet(local, 'coordinator not running')}")
        if local["agent_problem"]:
            print_wrapped("agent     ", local["agent_problem"])
        if local["state_problem"]:
            print_wrapped("state     ", local["state_problem"])
        if local["opener"] is not None:
            for number, line in enumerate(in_words(OpenerLook(**local["opener"]))):
                print_wrapped(" " * 10 if number else "opener    ", line)
        print(f"logs      {local['logs']}")
        if local["links_problem"]:
            print_wrapped("links     ", local["links_problem"])
    if answer["url"] is not None:
        print(f"web page  {answer['url']}")
    if service is not None:
        print(f"cluster   {service['cluster']}, tidegauge {service['version']}, ", end="")
        print(f"{format_count(service['jobs_running'], 'job')} running, {service['jobs_leaking']} growing")
        if answer["actions"] is not None:
            loop = read(LoopStatus, answer["actions"])
            print(f"actions   {in_one_line(loop)}")
            if loop.telling:
                print(f"notifiers {', '.join(f'{who}: {how}' for who, how in loop.telling.items())}")
        _print_profile_problems(answer["profile_problems"] or ())
        if service.get("login_methods"):  # an older service tells none
            print(f"logins    {', '.join(METHOD_WORDS.get(one, one) for one in service['login_methods'])}")
        _print_web_access(service.get("web_access_problem"))
        print()
        header = ("node", "address", "agent", "health", "ranks", "GPUs", "last report", "metrics")
        print_table(header, [_row(node) for node in service["nodes"]], gives_way=("metrics", "address", "agent"))
        _print_node_problems(service["nodes"])
        _print_unheld_memory(service["nodes"])
    if not answer["healthy"]:
        print("\nnot healthy: some nodes have no agent that reports")


def _not_yet(local: Mapping[str, Any], otherwise: str) -> str:
    """Why an address is not known."""
    return "not known: its address cannot be written" if local["state_problem"] else otherwise


def _print_node_problems(nodes: Sequence[Mapping[str, Any]]) -> None:
    """Print which nodes' reports cannot be understood, and why; an older service does not say."""
    wrong = [(node["hostname"], node["problem"]) for node in nodes if node.get("problem")]
    for hostname, problem in wrong[:MAX_PROBLEMS]:
        print()
        print_wrapped("", f"{hostname}: {problem}")
    if len(wrong) > MAX_PROBLEMS:
        print(f"\nand {format_count(len(wrong) - MAX_PROBLEMS, 'more node')}; --json has them")


def _print_unheld_memory(nodes: Sequence[Mapping[str, Any]]) -> None:
    """Print which GPUs have memory that no process holds; an older service does not say."""
    found = [(node["hostname"], gpu) for node in nodes for gpu in node["gpus"] if is_unheld(gpu.get("unheld_for_s"))]
    for hostname, gpu in found[:MAX_PROBLEMS]:
        print()
        left, for_s = format_bytes(gpu["unheld_bytes"]), format_duration(gpu["unheld_for_s"])
        print_wrapped("", f"{hostname}: {left} of GPU {gpu['gpu']} ({gpu['uuid']}) held by no process for {for_s}")
    if len(found) > MAX_PROBLEMS:
        print(f"\nand {format_count(len(found) - MAX_PROBLEMS, 'more GPU')} with such memory; --json has them")


def _print_profile_problems(raw: Sequence[Mapping[str, Any]]) -> None:
    """Print why ranks of running jobs have no new memory profile."""
    start = "profiles  "
    for one in (read(ProfileProblem, each) for each in raw[:MAX_PROBLEMS]):
        name = job_name(one.job.job_id, one.job.attempt, group=one.job.group)
        print_wrapped(start, f"job {name}, {list_ranks(one.ranks, common=False)}: {one.problem}")
        start = " " * len(start)
    if len(raw) > MAX_PROBLEMS:
        print(f"{start}and {len(raw) - MAX_PROBLEMS} more; --json has them")


def _print_web_access(problem: Mapping[str, Any] | None) -> None:
    """Print a ``DoorProblem``; an older service reports none."""
    if problem is None:
        return
    if problem["closed"]:
        print("access    CLOSED: the API port answers nobody; commands on this node still work")
    else:
        print("access    unchanged: the current files are invalid, their last valid state stays in force")
    print_wrapped("          ", problem["text"])
    print_wrapped("          ", f"next: {problem['advice']}")


def _row(node: Mapping[str, Any]) -> Sequence[str]:
    age_s = node["last_report_age_s"]
    return (
        node["hostname"],
        node["address"] or "-",
        "-" if node["agent_pid"] is None else f"pid {node['agent_pid']}",
        node["health"],
        str(node["ranks"]),
        str(len(node["gpus"])),
        "never" if age_s is None else f"{age_s:.1f} s ago",
        _url(node["metrics_address"]) or "-",
    )


def _url(metrics_address: str | None) -> str | None:
    if not metrics_address:
        return None
    scheme, address = split_scheme(metrics_address)
    return f"{scheme}://{address}/metrics"
