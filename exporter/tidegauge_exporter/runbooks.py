"""Runbooks: the texts of docs/alerts.md and of the coordinator's ``/runbooks``, and that page as HTML.

Texts are plain, with code between backquotes. Commands are for a shell on the head, with names in capitals to fill in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.reports.html_page import page, style_sheet


@dataclass(frozen=True)
class RunbookEntry:
    """The meaning of one alert, and the advice for the person who gets it."""

    alert: str
    means: str
    affects: str
    first_look: str
    what_to_do: str
    escalate: str
    when_to_silence: str
    commands: tuple[str, ...] = ()
    """Lines to copy into a terminal."""

    def advice(self) -> tuple[tuple[str, str], ...]:
        """Headings and their texts."""
        return (
            ("Who is affected", self.affects),
            ("First look", self.first_look),
            ("What to do", self.what_to_do),
            ("When to escalate", self.escalate),
            ("When to silence", self.when_to_silence),
        )


JOB_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        INCIDENT_ALERT,
        means="Tidegauge opened an incident about a job's memory: a leak, fragmentation, growth outside the allocator "
        "or on the host, an out-of-memory error, or an exceeded GPU share. The service posts it itself, not a rule; "
        "while it is open, rule alerts about the same attempt's memory are muted.",
        affects="One job and its owner. On a shared GPU also the other jobs there.",
        first_look="The incident's page: which ranks, since which step, the predicted OOM, and what the policy did or "
        "will do.",
        what_to_do="Usually nothing: Tidegauge notifies the owner, and the policy acts as far as the site allows it. "
        "If the policy only observes, notify the owner, who knows the code.",
        escalate="To the owner, if the predicted OOM is less than an hour away and the policy does not act.",
        when_to_silence="Silence one job (`cluster`, `job_id`) whose owner knows about it. The alert ends by itself "
        "when the incident closes. A silence stops messages, not actions: to exempt a job from actions see "
        "[Keep my job running](#keep-my-job-running).",
        commands=("tidegauge incidents show NUMBER",),
    ),
    RunbookEntry(
        "TidegaugeLeakOomSoon",
        means="Dangerous memory growth on a rank: it has taken half of the memory that was free, and reaches the "
        "rank's limit within an hour at the current rate. Unless the growth ends by itself, as a filling buffer does, "
        "the job fails on that rank, and so as a whole.",
        affects="One job and its owner: all work since the last checkpoint.",
        first_look="The rank's dashboard: does the line still climb, and in which signal: allocated, reserved, "
        "outside the allocator, or host memory?",
        what_to_do="Checkpoint and requeue the job, through its own checkpoint or the policy. A restart gives the "
        "memory back; the leak itself is in the code (`tidegauge incidents show` names the line, or usual suspects).",
        escalate="To the owner now. If nobody can checkpoint the job, it runs until it fails.",
        when_to_silence="When the owner knows, and prefers to let it run until it fails.",
        commands=("tidegauge incidents", "tidegauge incidents show NUMBER"),
    ),
    RunbookEntry(
        "TidegaugeLeak",
        means="Dangerous memory growth on a rank: it has taken half of the memory that was free, and reaches the "
        "rank's limit within a week; or it grows, and the limit is unknown. Most growth that ends by itself is over "
        "before that, not all (docs/detector.md counts how often).",
        affects="One job and its owner.",
        first_look="`tidegauge jobs` and the job's dashboard: one rank or all? Growth on all ranks alike is often a "
        "workload that grows by design, such as a curriculum or longer sequences.",
        what_to_do="Notify the owner. No hurry while hours are left.",
        escalate="Not needed: TidegaugeLeakOomSoon fires when an hour is left.",
        when_to_silence="When the growth is intended, for the rest of the job: `cluster`, `job_id`.",
        commands=("tidegauge jobs", "tidegauge incidents"),
    ),
    RunbookEntry(
        "TidegaugeOutOfMemory",
        means="PyTorch raised `torch.OutOfMemoryError` in a job within the last five minutes. Some jobs catch it and "
        "continue with a smaller batch; most crash.",
        affects="One job and its owner.",
        first_look="Is the job still alive? Then the incident's page: how much the allocation wanted, how much was "
        "free, and how much was lost to fragmentation.",
        what_to_do="Nothing for the cluster. The incident's page tells the owner whether a retry helps, and with which "
        "allocator setting.",
        escalate="Many jobs of different users at once: see TidegaugeUntrackedGrowth on their nodes, and suspect the "
        "driver or a new image.",
        when_to_silence="For a job that searches its batch size by running into the limit.",
        commands=("tidegauge incidents --all --since 1d", "tidegauge incidents show NUMBER"),
    ),
    RunbookEntry(
        "TidegaugeFragmentation",
        means="A rank's allocator reserves 15 % of the rank's limit more than its tensors ever needed at once, and the "
        "rank is more than 90 % full: free blocks do not fit new requests, or CUDA graphs keep private pools.",
        affects="One job and its owner: it may run out of memory although enough is free.",
        first_look="The job's dashboard: does reserved climb while allocated does not? Which `alloc_conf` is in force "
        "(`tidegauge_rank_info`)?",
        what_to_do="If there is an incident, its cause says which. The usual fix for fragmentation is "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` at the next start; the policy can requeue with it if the "
        "owner allows requeues. It does not help against `cuda_graphs`: graphs have to share a pool.",
        escalate="To the owner. No hurry.",
        when_to_silence="When the job ends before it fills up.",
        commands=("tidegauge incidents",),
    ),
    RunbookEntry(
        "TidegaugeUntrackedGrowth",
        means="GPU memory outside PyTorch's allocator grew in each half of the last hour: in a job's processes, or "
        '(label `scope="node"`) on a node\'s GPUs where no watched rank accounts for it.',
        affects='One job; with `scope="node"` every job on that node\'s GPUs.',
        first_look="The rank's dashboard: non-torch memory. For a node: `nvidia-smi` there lists the processes.",
        what_to_do="In a job: communicators created in a loop (`new_group`), CUDA graphs, extensions that call "
        "`cudaMalloc`. On a node: a process left over from an earlier job, or a job that is not watched.",
        escalate="A process that nobody owns, or that survives `kill -9`: drain the node, and reset the GPU or reboot.",
        when_to_silence="For nodes where people work without Tidegauge on purpose.",
        commands=("tidegauge jobs", "ssh HOST nvidia-smi"),
    ),
    RunbookEntry(
        "TidegaugeMemoryNearlyFull",
        means="A rank uses more than 95 % of its limit, and device allocations need a second try after the allocator "
        "emptied its cache. That alone is slow, and the next larger batch may fail.",
        affects="One job and its owner: slower steps, and a possible OOM.",
        first_look="The job's dashboard: was it so from the start (a tight fit), or did it grow (a leak)?",
        what_to_do="A smaller batch, activation checkpointing, or `expandable_segments:True`. A GPU that is merely "
        "full does not alert: the allocator keeps what it once had.",
        escalate="To the owner. No hurry.",
        when_to_silence="For a job that has run like this for days.",
        commands=("tidegauge jobs",),
    ),
    RunbookEntry(
        "TidegaugeRankLost",
        means="A rank's process is gone while other ranks of the attempt are alive (`warning`), or fewer ranks report "
        "than the world size for ten minutes (`info`).",
        affects="One job: its other ranks hang in the next collective and keep their GPUs.",
        first_look="The job's log on that host, and the kernel's: `dmesg` shows a kill by the host's OOM killer.",
        what_to_do="A job that waits for a dead rank waits until its own timeout (NCCL: ten minutes or more); end it, "
        "or let its launcher do so. If ranks run where no agent is, start one there.",
        escalate="Ranks lost by several jobs on one node: drain it, and look for Xid errors in `dmesg`.",
        when_to_silence="For jobs whose ranks end at different times, and for jobs with some ranks unwatched.",
        commands=("tidegauge jobs", "tidegauge status", "ssh HOST 'dmesg -T | grep -iE \"oom|xid\"'"),
    ),
    RunbookEntry(
        "TidegaugeRankSilent",
        means="A rank's process is alive and has written no reading for five minutes. A healthy rank writes twice a "
        "second, even while it waits for data or for other ranks.",
        affects="One job: its other ranks wait for this one.",
        first_look="On the host: is the process stopped (`T`), in uninterruptible sleep (`D`, often a file system), or "
        "does one thread hold Python's interpreter lock for minutes?",
        what_to_do="A node with hanging file systems or GPUs needs its admin; a process in a debugger needs nothing.",
        escalate="State `D` for ten minutes, or several ranks on one node: to the storage or node admins.",
        when_to_silence="While somebody debugs it.",
        commands=("ssh HOST ps -o pid,stat,wchan:32,cmd -p PID", "tidegauge status"),
    ),
)

SERVICE_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        "TidegaugeAgentDown",
        means="Prometheus cannot scrape the agent of a node, or the node left the cluster while ranks ran on it.",
        affects="Jobs on that node: they keep running if the node is healthy, but nobody watches them.",
        first_look="`tidegauge status`: is the agent reporting to the coordinator? If so, Prometheus cannot reach it "
        "(port 9494, firewall, `listen_host`). If not, the node or the agent is down.",
        what_to_do="Agents restart by themselves. If one does not come back, check the node, then `logs/agent.log` on "
        "it, then restart it ([logs and restarts](#logs-and-restarts)).",
        escalate="The node does not answer `ping` or `ssh`: to the node admins. Several agents at once: check network "
        "and head first.",
        when_to_silence="For nodes in maintenance: `hostname`.",
        commands=("tidegauge status", "curl http://HOST:9494/healthz", "ssh HOST systemctl restart tidegauge-agent"),
    ),
    RunbookEntry(
        "TidegaugeNodeStale",
        means="The agents of some nodes have not reported to the coordinator for ten minutes, or never have. What it "
        "knows of their ranks is stale.",
        affects="Jobs on these nodes: their incidents are frozen, and Tidegauge takes no action on them.",
        first_look="`tidegauge status` names the nodes.",
        what_to_do="As for TidegaugeAgentDown. If Prometheus reaches the agent and the coordinator does not hear from "
        "it, check the network between the node and the head.",
        escalate="As for TidegaugeAgentDown.",
        when_to_silence="While nodes are in maintenance. The alert counts nodes: you cannot silence it for one of "
        "them.",
        commands=("tidegauge status",),
    ),
    RunbookEntry(
        "TidegaugeCoordinatorDown",
        means="Prometheus cannot scrape the coordinator, or has no target for it.",
        affects="The whole cluster: no incidents, no messages, no actions. Jobs run on; agents, their metrics and the "
        "alerts about ranks continue, without owners' names.",
        first_look="`tidegauge status` on the head. The coordinator restarts by itself.",
        what_to_do="If it does not come back: read `logs/coordinator.log` and `logs/supervisor.log`, then restart the "
        "head ([logs and restarts](#logs-and-restarts)). Open incidents are in the database and keep their numbers.",
        escalate="Down for 30 minutes, or it restarts again and again: to whoever runs Tidegauge, with both logs.",
        when_to_silence="During an upgrade.",
        commands=(
            "tidegauge status",
            "curl http://HEAD:9495/metrics",
            "journalctl -u tidegauge-head --since -1h",
            "systemctl restart tidegauge-head",
        ),
    ),
    RunbookEntry(
        "TidegaugeDetectorSilent",
        means="Ranks on a node run steps, but the leak detector has judged no reading for at least five minutes.",
        affects="Jobs on that node: a leak goes unnoticed.",
        first_look="The agent's metrics: `tidegauge_records_refused_total` and `tidegauge_rings_skipped_total` show "
        "whether readings are thrown away, and why.",
        what_to_do="Save the node's `logs/agent.log`, then restart the agent; jobs do not notice ([logs and restarts]"
        "(#logs-and-restarts)).",
        escalate="Always: this is a bug in Tidegauge. Report it with the log.",
        when_to_silence="Never.",
        commands=(
            "curl -s http://HOST:9494/metrics | grep -E 'records|rings|detector'",
            "ssh HOST systemctl restart tidegauge-agent",
        ),
    ),
    RunbookEntry(
        "TidegaugeActionsFailing",
        means="Two or more actions of one kind did not succeed within an hour: the scheduler or the job refused, "
        "nothing changed, or a checkpoint was not proven.",
        affects="Jobs with incidents: Tidegauge cannot checkpoint or requeue them before they run out of memory.",
        first_look="`tidegauge policy log` shows for each what the scheduler or the job answered.",
        what_to_do="`no_proof`: the job's checkpoint callback takes longer than `grace`, or fails. `failed`: "
        "permissions or address of the scheduler. If it looks wrong, pause all actions first.",
        escalate="The scheduler refuses Tidegauge: to the scheduler's admins.",
        when_to_silence="While you are working on it.",
        commands=("tidegauge policy log --since 1d", "tidegauge policy pause --reason 'actions fail'"),
    ),
    RunbookEntry(
        "TidegaugeBreakerOpen",
        means="The policy would have acted on more jobs within a short time than its circuit breaker allows. All "
        "actions are stopped until a person resets it.",
        affects="All jobs with incidents: they run out of memory without a checkpoint by Tidegauge.",
        first_look="`tidegauge incidents`: one account, a new library version, one rack? Or is the policy too eager?",
        what_to_do="Find out what the jobs have in common. Then allow actions again (`resume` resets the breakers), or "
        "leave it open.",
        escalate="If jobs of many users leak since a change of image, driver or library: to whoever made the change.",
        when_to_silence="While it stays open on purpose.",
        commands=("tidegauge incidents", "tidegauge policy status", "tidegauge policy resume"),
    ),
    RunbookEntry(
        "TidegaugeUserBreakerOpen",
        means="The policy would have acted on more jobs of one user within a short time than its circuit breaker "
        "allows. Tidegauge takes no action on this user's jobs until a person resets it.",
        affects="This user's jobs only. If one account owns all jobs, that is all of them.",
        first_look="`tidegauge policy status` names the user; `tidegauge incidents` lists their jobs.",
        what_to_do="Ask them what their jobs have in common: often one script, many times. Then allow actions again "
        "(`resume` resets all breakers), or leave it open.",
        escalate="To the user.",
        when_to_silence="While it stays open on purpose.",
        commands=("tidegauge policy status", "tidegauge incidents", "tidegauge policy resume"),
    ),
    RunbookEntry(
        "TidegaugeStoreDown",
        means="The coordinator's database is locked, full, read-only or unreachable. Tidegauge keeps watching, but "
        "decides and does nothing that it cannot write down.",
        affects="The whole cluster: no actions. Jobs run on.",
        first_look="`tidegauge policy status` shows the database's error.",
        what_to_do="Check disk space, the PostgreSQL server, and the file's permissions. No restart is needed "
        "afterwards, unless the SQLite file was deleted.",
        escalate="To the database's admins.",
        when_to_silence="While the database is being moved.",
        commands=("tidegauge policy status", "df -h STATE_DIR", "tail -n 50 STATE_DIR/logs/coordinator.log"),
    ),
    RunbookEntry(
        "TidegaugeSeriesDropped",
        means="Scrapes of a node have dropped series for 15 minutes: `duplicate`, two ranks claim the same job, "
        "attempt and rank; `budget`, there are more ranks than a target may export.",
        affects="Dashboards and alerts of the dropped ranks. Incidents and actions are not affected.",
        first_look="`tidegauge jobs`: are there unknown jobs, or two with one id?",
        what_to_do="Duplicates come from jobs started side by side with the same made-up job id: give each its own "
        "(`tidegauge run` does). The rank that the driver lists on its GPU is exported, else the older process; "
        "`tidegauge jobs` has both users' jobs.",
        escalate="If one user's job claims the id of another user's: to both.",
        when_to_silence="When the owner knows.",
        commands=("tidegauge jobs",),
    ),
    RunbookEntry(
        "TidegaugeNotificationsFailing",
        means="A receiver of notifications (Slack, mail, Grafana, Alertmanager) fails or refuses, or something has "
        "waited for it for 15 minutes; or the notifier is down.",
        affects="Whoever is notified by that receiver: operators, or owners of jobs. Incidents and actions go on. An "
        "action that needs a delivered warning waits for it.",
        first_look="`tidegauge status`, line `notifiers`: the receiver's problem and what to do.",
        what_to_do="Correct the token, scope, password or address that it names. A corrected file is used within 10 s, "
        "without a restart; a changed setting takes one. What was not sent waits and is sent then.",
        escalate="To the admins of the Slack workspace, the mail server or Grafana.",
        when_to_silence="While the receiver is under maintenance.",
        commands=("tidegauge status", "tail -n 50 STATE_DIR/logs/notifier.log", "tidegauge notify"),
    ),
)

RUNBOOK: tuple[RunbookEntry, ...] = (*JOB_RUNBOOK, *SERVICE_RUNBOOK)

LOGS_ID = "logs-and-restarts"
LOGS_TITLE = "Logs and restarts"
LOGS: tuple[str, ...] = (
    "`tidegauge status` shows the service and every node: exit code 0 if every agent reports, 1 if one does not, 3 if "
    "the service is not running.",
    "Logs are in `STATE_DIR/logs`: `coordinator.log`, `notifier.log` and `supervisor.log` on the head, `agent.log` and "
    "`supervisor.log` on every node. With systemd `STATE_DIR` is `/var/lib/tidegauge` on the head (unit "
    "`tidegauge-head`) and `/var/lib/tidegauge-agent` on a node (unit `tidegauge-agent`); in pods "
    "`/var/lib/tidegauge/state`; else `/var/lib/tidegauge` for root and `~/.local/state/tidegauge` for others. "
    "`journalctl -u UNIT` has what systemd says, and why a start failed.",
    "A restart never touches jobs, and open incidents keep their numbers. With systemd: `systemctl restart "
    "tidegauge-agent` on the node, `systemctl restart tidegauge-head` on the head. On Kubernetes, where objects carry "
    "the name of the Helm release: `kubectl -n NAMESPACE delete pod POD` for one agent, `kubectl -n NAMESPACE rollout "
    "restart statefulset/tidegauge-head` for the head. Without either: `tidegauge down`, then the `tidegauge up` "
    "command that started it.",
)
"""Paragraphs for operators."""
LOGS_COMMANDS: tuple[str, ...] = (
    "tidegauge status",
    "tail -n 50 STATE_DIR/logs/coordinator.log",
    "journalctl -u tidegauge-head --since -1h",
    "ssh HOST tail -n 50 /var/lib/tidegauge-agent/logs/agent.log",
    "ssh HOST journalctl -u tidegauge-agent --since -1h",
    "kubectl -n NAMESPACE get pods -o wide",
    "kubectl -n NAMESPACE exec tidegauge-head-0 -- tail -n 50 /var/lib/tidegauge/state/logs/coordinator.log",
)

EXEMPTION_ID = "keep-my-job-running"
EXEMPTION_TITLE = "Keep my job running"
EXEMPTION: tuple[str, ...] = (
    "For the owner of a job: Tidegauge notified you about your job, and you want it left alone.",
    "When you start it: `tidegauge run --no-actions`. For Ray Jobs: the metadata `tidegauge.actions: off`. "
    "On Slurm: `sbatch --comment=tidegauge:keep`. On Kubernetes: the annotation `tidegauge.dev/actions: keep` on the "
    "workload or its pods.",
    "While it runs, on Slurm: `scontrol update JobId=ID Comment=tidegauge:keep`, which replaces its comment. On "
    "Kubernetes: `kubectl annotate --overwrite KIND NAME tidegauge.dev/actions=keep`. You cannot exempt other running "
    "jobs yourself. Ask an admin: a pattern under `brakes.exempt` in the policy (by user, account, partition, "
    "namespace, QOS or job name) takes effect within seconds and without a restart, and `tidegauge policy pause` stops "
    "all actions at once.",
    "Tidegauge never caps, checkpoints, requeues, holds or cancels an exempt job. You still get messages, and the job "
    "fails by itself if memory runs out.",
    "A checkpoint callback (`tidegauge.on_checkpoint_request`) is often the better answer: Tidegauge checkpoints the "
    "job before it requeues it, and it resumes where it was.",
)
"""Paragraphs for the owner of a job."""
EXEMPTION_COMMAND = "tidegauge run --no-actions -- torchrun train.py"

_TITLE = "Tidegauge runbooks"


def runbooks_html() -> str:
    """The page, which needs no other file. The id of a section is the alert's name in lower case."""
    return page(
        _TITLE,
        [
            f"<h1>{_TITLE}</h1>",
            "<p class=muted>For operators: what each alert means and what to do, and "
            f'<a href="#{LOGS_ID}">{LOGS_TITLE.lower()}</a>. For owners of a job: '
            f'<a href="#{EXEMPTION_ID}">{EXEMPTION_TITLE}</a>.</p>',
            _contents("About a job", JOB_RUNBOOK),
            _contents("About the service", SERVICE_RUNBOOK),
            *(_entry(entry) for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK)),
            _section(LOGS_ID, LOGS_TITLE, LOGS, LOGS_COMMANDS),
            _section(EXEMPTION_ID, EXEMPTION_TITLE, EXEMPTION, (EXEMPTION_COMMAND,)),
        ],
        style=style_sheet() + _STYLE,
    )


_STYLE = """code { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 10px 14px; border: 1px solid var(--rule); border-radius: 6px; }
a { color: var(--calm); }
section:target { border-color: var(--calm); border-width: 2px; }
dt { font-weight: 600; margin-top: 8px; } dd { margin: 0; max-width: 75ch; }
"""


def _contents(title: str, entries: Iterable[RunbookEntry]) -> str:
    links = ", ".join(f'<a href="#{entry.alert.lower()}">{entry.alert}</a>' for entry in entries)
    return f"<p><b>{title}</b>: {links}</p>"


def _entry(entry: RunbookEntry) -> str:
    facts = (("What it means", entry.means), *entry.advice())
    told = "".join(f"<dt>{name}</dt><dd>{_inline(text)}</dd>" for name, text in facts)
    return (
        f'<section id="{entry.alert.lower()}">\n<h2>{entry.alert}</h2>\n<dl>{told}</dl>\n'
        f"{_commands(entry.commands)}</section>"
    )


def _section(section_id: str, title: str, texts: Iterable[str], commands: Iterable[str]) -> str:
    paragraphs = "\n".join(f"<p>{_inline(text)}</p>" for text in texts)
    return f'<section id="{section_id}">\n<h2>{title}</h2>\n{paragraphs}\n{_commands(commands)}</section>'


def _commands(commands: Iterable[str]) -> str:
    lines = "\n".join(map(escape, commands))
    return f"<pre><code>{lines}</code></pre>\n" if lines else ""


def _inline(text: str) -> str:
    """Markup: code between backquotes, and links as in Markdown."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\[([^]]+)\]\((#[a-z-]+)\)", r'<a href="\2">\1</a>', marked)
