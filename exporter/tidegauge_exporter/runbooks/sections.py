"""Sections of the runbooks that are not about one alert."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.runbooks.values import Step

START_ID: Final = "before-you-start"
START_TITLE: Final = "Before you start"
START: Final = (
    "Tidegauge watches jobs and changes none of them unless its policy says so. When it is down, jobs run on, but "
    "nobody is warned of memory leaks and no job is saved before it runs out of memory.",
    "Type commands on the head, as a user of the service, and replace the names in capitals. `HOST` is the node "
    "(label `hostname` of the alert), `JOB` the job (label `job_id`), `NUMBER` the incident, `ALERTMANAGER` the host "
    "of Alertmanager. `tidegauge status` is the first command in any case: exit code 0 means that every agent reports, "
    "1 that one does not, 3 that the service is not running.",
    "On Kubernetes put `kubectl -n NAMESPACE exec tidegauge-head-0 --` before each `tidegauge` command; objects carry "
    "the name of the Helm release, which is `tidegauge` here.",
)
START_STEPS: Final = (
    Step(
        "tidegauge status",
        """head 10.0.0.1: running
engine    10.0.0.1:6380
API, /sd  http://10.0.0.1:9495
logs      /var/lib/tidegauge/logs
cluster   lab, tidegauge 0.1.0, 0 jobs running, 0 growing
actions   policy act, 0 incidents open

node    address    agent      health  ranks  GPUs  last report  metrics
gpu-01  10.0.0.11  pid 19291  ok      0      2     0.1 s ago    http://10.0.0.11:9494/metrics""",
    ),
)

LOGS_ID: Final = "logs-and-restarts"
LOGS_TITLE: Final = "Logs and restarts"
LOGS: Final[tuple[str, ...]] = (
    "Logs are in `STATE_DIR/logs`: `coordinator.log`, `notifier.log` and `supervisor.log` on the head, `agent.log` and "
    "`supervisor.log` on every node. With systemd `STATE_DIR` is `/var/lib/tidegauge` on the head (unit "
    "`tidegauge-head`) and `/var/lib/tidegauge-agent` on a node (unit `tidegauge-agent`); in pods "
    "`/var/lib/tidegauge/state`; else `/var/lib/tidegauge` for root and `~/.local/state/tidegauge` for others. "
    "`journalctl -u UNIT` has what systemd says, and why a start failed.",
    "A restart never touches jobs, and open incidents keep their numbers. Without systemd and Kubernetes: `tidegauge "
    "down`, then the `tidegauge up` command that started it.",
)
"""Paragraphs for operators."""
LOGS_STEPS: Final = (
    Step("systemctl restart tidegauge-head"),
    Step("ssh HOST systemctl restart tidegauge-agent"),
    Step("kubectl -n NAMESPACE rollout restart statefulset/tidegauge-head"),
    Step("kubectl -n NAMESPACE delete pod POD"),
)

EXEMPTION_ID: Final = "keep-my-job-running"
EXEMPTION_TITLE: Final = "Keep my job running"
EXEMPTION: Final[tuple[str, ...]] = (
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
EXEMPTION_COMMAND: Final = "tidegauge run --no-actions -- torchrun train.py"
