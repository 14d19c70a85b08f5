"""Runbooks of alerts about the service. Outputs are those of real services, with the names of a cluster ``lab``."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.runbooks.values import Logs, RunbookEntry, Step

_STATUS_NODE_DOWN: Final = Step(
    "tidegauge status",
    """head 10.0.0.1: running
engine    10.0.0.1:6380
API, /sd  http://10.0.0.1:9495
logs      /var/lib/tidegauge/logs
cluster   lab, tidegauge 0.1.0, 1 job running, 1 growing
actions   policy act, 1 incident open

node    address    agent      health  ranks  GPUs  last report  metrics
gpu-01  10.0.0.11  pid 19291  stale   2      2     29.6 s ago   http://10.0.0.11:9494/metrics

not healthy: some nodes have no agent that reports""",
)
_POLICY_STATUS: Final = "tidegauge policy status"
_RESUME: Final = Step(
    "tidegauge policy resume",
    """Actions are no longer paused, and the circuit breakers are reset: only new events open them again.
The policy decides which actions are taken: none on jobs in the modes observe and warn.
In force within a second: the switch is read every second, and again right before each action.""",
)

SERVICE_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        "Watchdog",
        means="Nothing is wrong while this alert fires: it always does. A dead man's switch outside the cluster gets "
        "it every minute and notifies you when it stops: Prometheus or Alertmanager is down, or cannot reach the "
        "switch.",
        affects="Nobody yet. But no alert of this cluster, about jobs or about Tidegauge, reaches anybody.",
        first_look="Which of the two does not answer? If both do, does Prometheus have the alert, and does "
        "Alertmanager have it too? Then the way from Alertmanager to the switch is broken: its log says why.",
        steps=(
            Step("curl http://PROMETHEUS:9090/-/ready", "Prometheus Server is Ready."),
            Step("curl http://ALERTMANAGER:9093/-/ready", "OK"),
            Step(
                "amtool --alertmanager.url=http://ALERTMANAGER:9093 alert query alertname=Watchdog",
                """Alertname  Starts At                Summary                        State
Watchdog   2026-11-30 03:17:31 UTC  Alerts about Tidegauge arrive  active""",
            ),
        ),
        what_to_do="Start what is down, and read its log for the reason (disk full, out of memory, a configuration "
        "that does not load). Until it is up, look at `tidegauge status` and `tidegauge incidents` by hand.",
        logs=Logs.PROMETHEUS,
        escalate="To whoever runs Prometheus and Alertmanager, at once.",
        when_to_silence="Pause the switch, not the alert, while Prometheus or Alertmanager is being upgraded.",
        silence_by=None,
    ),
    RunbookEntry(
        "TidegaugeAgentDown",
        means="Prometheus cannot scrape the agent of a node, or the node left the cluster while ranks ran on it.",
        affects="Jobs on that node: they keep running if the node is healthy, but nobody watches them.",
        first_look="Is the agent reporting to the coordinator (`health` is `ok`)? If so, Prometheus cannot reach it "
        "(port 9494, firewall, `listen_host`). If it is `stale` or `gone`, the node or the agent is down.",
        steps=(
            _STATUS_NODE_DOWN,
            Step("ping -c 3 HOST"),
            Step(
                "curl http://HOST:9494/healthz",
                "curl: (7) Failed to connect to gpu-01 port 9494 after 0 ms: Couldn't connect to server",
            ),
        ),
        what_to_do="Agents restart by themselves. If one does not come back: is the node up? Then read its log, and "
        "restart it with `ssh HOST systemctl restart tidegauge-agent`, on Kubernetes `kubectl -n NAMESPACE delete pod "
        "POD` (more: [logs and restarts](#logs-and-restarts)). `curl` answers `ok` when it is back, and the alert ends "
        "within a minute.",
        logs=Logs.NODE,
        escalate="The node does not answer `ping` or `ssh`: to the node admins. Several agents at once: check network "
        "and head first.",
        when_to_silence="For nodes in maintenance.",
        silence_by=("hostname",),
    ),
    RunbookEntry(
        "TidegaugeNodeStale",
        means="The agents of some nodes have not reported to the coordinator for ten minutes, or never have. What it "
        "knows of their ranks is stale.",
        affects="Jobs on these nodes: their incidents are frozen, and Tidegauge takes no action on them.",
        first_look="Which nodes are not `ok`?",
        steps=(_STATUS_NODE_DOWN,),
        what_to_do="As for [TidegaugeAgentDown](#tidegaugeagentdown). If Prometheus reaches the agent and the "
        "coordinator does not hear from it, check the network between the node and the head.",
        logs=Logs.NODE,
        escalate="As for [TidegaugeAgentDown](#tidegaugeagentdown).",
        when_to_silence="While nodes are in maintenance. The alert counts nodes: you cannot silence it for one of "
        "them.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeCoordinatorDown",
        means="Prometheus cannot scrape the coordinator, or has no target for it.",
        affects="The whole cluster: no incidents, no messages, no actions. Jobs run on; agents, their metrics and the "
        "alerts about ranks continue, without owners' names.",
        first_look="On the head: is the service running at all, and does the coordinator answer?",
        steps=(
            Step(
                "tidegauge status",
                "tidegauge status: no service of yours is running here. Use your cluster's with --api "
                "http://HEAD:9495, or start one with `tidegauge up`",
            ),
            Step(
                "curl http://HEAD:9495/healthz",
                "curl: (7) Failed to connect to head port 9495 after 0 ms: Couldn't connect to server",
            ),
            Step("systemctl status tidegauge-head"),
            Step("kubectl -n NAMESPACE get pods -o wide"),
        ),
        what_to_do="The coordinator restarts by itself. If it does not come back: read `coordinator.log` and "
        "`supervisor.log`, then restart the head with `systemctl restart tidegauge-head`, on Kubernetes `kubectl -n "
        "NAMESPACE rollout restart statefulset/tidegauge-head` (more: [logs and restarts](#logs-and-restarts)). It is "
        "back when `curl` answers `ok`, within a minute. Open incidents are in the database and keep their numbers. If "
        "`curl` answers and Prometheus does not reach it: network, or `listen_host`.",
        logs=Logs.HEAD,
        escalate="Down for 30 minutes, or it restarts again and again: to whoever runs Tidegauge, with both logs.",
        when_to_silence="During an upgrade.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeDetectorSilent",
        means="Ranks on a node run steps, but the leak detector has judged no reading for at least five minutes.",
        affects="Jobs on that node: a leak goes unnoticed.",
        first_look="Are readings thrown away (`tidegauge_records_refused_total`, `tidegauge_rings_skipped_total`), and "
        "why? Does `tidegauge_detector_points_total` stand still?",
        steps=(
            Step(
                "curl -s http://HOST:9494/metrics | grep -E '^tidegauge_(records|rings|detector)_'",
                "tidegauge_records_lost_total 18.0\ntidegauge_records_refused_total 0.0\n"
                "tidegauge_detector_points_total 13852.0",
            ),
        ),
        what_to_do="Save the node's `agent.log`, then restart the agent (`ssh HOST systemctl restart "
        "tidegauge-agent`); jobs do not notice ([logs and restarts](#logs-and-restarts)).",
        logs=Logs.NODE,
        escalate="Always: this is a bug in Tidegauge. Report it with the log.",
        when_to_silence="Never, except while you wait for a fix.",
        silence_by=("hostname",),
    ),
    RunbookEntry(
        "TidegaugeActionsFailing",
        means="Two or more actions of one kind did not succeed within an hour: the scheduler or the job refused, "
        "nothing changed, or a checkpoint was not proven.",
        affects="Jobs with incidents: Tidegauge cannot checkpoint or requeue them before they run out of memory.",
        first_look="What did the scheduler or the job answer? The column `outcome` has it.",
        steps=(
            Step("tidegauge policy log --since 1d"),
            Step(
                "tidegauge policy pause --reason 'actions fail'",
                """Actions are paused: no action on any job until `tidegauge policy resume`. Incidents are still \
recorded.
In force within a second: the switch is read every second, and again right before each action.
Actions already handed to a scheduler cannot be undone; `tidegauge policy status` lists them.""",
            ),
        ),
        what_to_do="`no_proof`: the job's checkpoint callback takes longer than `grace`, or fails. `failed`: "
        "permissions or address of the scheduler. If it looks wrong, pause all actions first; `tidegauge policy "
        "resume` allows them again.",
        logs=Logs.HEAD,
        escalate="The scheduler refuses Tidegauge: to the scheduler's admins.",
        when_to_silence="While you are working on it.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeBreakerOpen",
        means="The policy would have acted on more jobs within a short time than its circuit breaker allows. All "
        "actions are stopped until a person resets it.",
        affects="All jobs with incidents: they run out of memory without a checkpoint by Tidegauge.",
        first_look="What do the jobs have in common: one account, a new library version, one rack? Or is the policy "
        "too eager?",
        steps=(
            Step(
                _POLICY_STATUS,
                """mode       act: the actions of the rules are taken, within the brakes
policy     /etc/tidegauge/policy.yaml
actions    not paused
breaker    OPEN: the circuit breaker opened: 6 jobs would have been acted on within 60 min, the limit is 4 of 40 \
running (one user counts for at most 3), at 2027-01-15 08:00 UTC; `tidegauge policy resume` resets it
database   ok
records    ok
incidents  6 open""",
            ),
            Step("tidegauge incidents"),
            _RESUME,
        ),
        what_to_do="Find out what the jobs have in common. Then allow actions again (`resume` resets the breakers), or "
        "leave it open.",
        logs=Logs.HEAD,
        escalate="If jobs of many users leak since a change of image, driver or library: to whoever made the change.",
        when_to_silence="While it stays open on purpose.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeUserBreakerOpen",
        means="The policy would have acted on more jobs of one user within a short time than its circuit breaker "
        "allows. Tidegauge takes no action on this user's jobs until a person resets it.",
        affects="This user's jobs only. If one account owns all jobs, that is all of them.",
        first_look="`tidegauge policy status` names the user; `tidegauge incidents` lists their jobs.",
        steps=(
            Step(
                _POLICY_STATUS,
                """mode       act: the actions of the rules are taken, within the brakes
policy     /etc/tidegauge/policy.yaml
actions    not paused
breaker    closed
breaker    OPEN: the circuit breaker of eve opened: 7 of their jobs would have been acted on within 60 min, the limit \
is 6 of 40 running, at 2027-01-15 08:00 UTC; `tidegauge policy resume` resets it
database   ok
records    ok
incidents  6 open""",
            ),
            Step("tidegauge incidents"),
            _RESUME,
        ),
        what_to_do="Ask them what their jobs have in common: often one script, many times. Then allow actions again "
        "(`resume` resets all breakers), or leave it open.",
        logs=Logs.HEAD,
        escalate="To the user.",
        when_to_silence="While it stays open on purpose.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeStoreDown",
        means="The coordinator's database is locked, full, read-only or unreachable. Tidegauge keeps watching, but "
        "decides and does nothing that it cannot write down.",
        affects="The whole cluster: no actions. Jobs run on.",
        first_look="What does the database say? Is its disk full?",
        steps=(
            Step(
                _POLICY_STATUS,
                """…
database   PROBLEM, no decisions: the database /var/lib/tidegauge/tidegauge.db could not be written: database is \
locked; another process held it for too long""",
            ),
            Step("df -h /var/lib/tidegauge"),
        ),
        what_to_do="Check disk space, the PostgreSQL server, and the file's permissions. No restart is needed "
        "afterwards, unless the SQLite file was deleted: `database` says `ok` again by itself.",
        logs=Logs.HEAD,
        escalate="To the database's admins.",
        when_to_silence="While the database is being moved.",
        silence_by=("cluster",),
    ),
    RunbookEntry(
        "TidegaugeSeriesDropped",
        means="Scrapes of a node have dropped series for 15 minutes: `duplicate`, two ranks claim the same job, "
        "attempt and rank; `budget`, there are more ranks than a target may export.",
        affects="Dashboards and alerts of the dropped ranks. Incidents and actions are not affected.",
        first_look="Are there unknown jobs, or two with one id?",
        steps=(Step("tidegauge jobs"), Step("curl -s http://HOST:9494/metrics | grep ^tidegauge_series_dropped")),
        what_to_do="Duplicates come from jobs started side by side with the same made-up job id: give each its own "
        "(`tidegauge run` does). The rank that the driver lists on its GPU is exported, else the older process; "
        "`tidegauge jobs` has both users' jobs.",
        logs=Logs.NODE,
        escalate="If one user's job claims the id of another user's: to both.",
        when_to_silence="When the owner knows.",
        silence_by=("hostname",),
    ),
    RunbookEntry(
        "TidegaugeNotificationsFailing",
        means="A receiver of notifications (Slack, mail, Grafana, Alertmanager) fails or refuses, or something has "
        'waited for it for 15 minutes; or (label `scope="notifier"`) the notifier does not answer, and nobody is '
        "notified.",
        affects="Whoever is notified by that receiver: operators, or owners of jobs. Incidents and actions go on. An "
        "action that needs a delivered warning waits for it.",
        first_look="What does the line `notifiers` say of the receiver? `no report for …` means that the notifier "
        "hangs or is down: read its log.",
        steps=(Step("tidegauge status"), Step("tail -n 50 STATE_DIR/logs/notifier.log"), Step("tidegauge notify")),
        what_to_do="Correct the token, scope, password or address that it names. A corrected file is used within 10 s, "
        "without a restart; a changed setting takes one. A notifier that dies starts again by itself; restart the "
        "head of one that hangs ([logs and restarts](#logs-and-restarts)). What was not sent waits and is sent then.",
        logs=Logs.HEAD,
        escalate="To the admins of the Slack workspace, the mail server or Grafana.",
        when_to_silence="While the receiver is under maintenance.",
        silence_by=("cluster", "sink"),
    ),
)
