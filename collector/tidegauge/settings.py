"""Every setting of the service, in one table: ``tidegauge config show --all`` and the reference page have it.

Precedence: flag > environment ``TIDEGAUGE_<NAME>`` > file > default. Unknown keys are errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/tidegauge")
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "tidegauge"


class Settings(BaseModel):
    """What an admin may set. Nothing needs to be set before Tidegauge is useful."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    cluster: str = Field(default="default", min_length=1, max_length=100)
    """Name of this cluster: the ``cluster`` label of every series."""
    run_dir: Path | None = None
    """Folder with the ranks' rings. Default: /run/tidegauge and /dev/shm/tidegauge, both are watched."""
    state_dir: Path = Field(default_factory=_default_state_dir)
    """Folder for what must survive a restart (incidents, service record, engine files). Default: /var/lib/tidegauge for
    root, else ~/.local/state/tidegauge."""
    database_url: str | None = None
    """Where the coordinator keeps incidents and the audit of actions. Default: sqlite:///STATE_DIR/tidegauge.db, for
    which the head needs a local disk. PostgreSQL: postgresql+psycopg://USER@HOST/NAME, which needs
    tidegauge[postgresql]; put the password into ~/.pgpass (for one that stands here ``tidegauge config show``
    prints ``***``)."""
    keep_incidents_days: float = Field(default=90.0, ge=30, le=3650)
    """Days for which closed incidents, their history and the decisions about them are kept; open ones always are. 90:
    a quarter to look back on; 30 at least, because limits of a policy may reach back that far. Totals in the metrics do
    not shrink."""
    snapshot_store: str | None = None
    """Where nodes keep the snapshots of GPU memory that evidence was made of (docs/evidence_store.md): a folder of each
    node, or a URL that fsspec knows, such as s3://bucket/prefix, gs://bucket/prefix or file:///shared/folder, for which
    each node needs the driver (s3fs, gcsfs), and credentials where that driver looks for them. Default:
    STATE_DIR/snapshots of each node."""
    keep_snapshots_days: float = Field(default=14.0, ge=0.01, le=3650)
    """Days for which a node keeps a snapshot. 14: a leak is looked at within two weeks or not at all. Those that an
    open incident points to stay longer."""
    keep_snapshots_gib: float = Field(default=10.0, ge=0.01, le=1 << 20)
    """GiB that the snapshots of one node may have in all, wherever they are kept; the oldest are deleted first. 10:
    some 5,000 snapshots of 2 MB. On Kubernetes keep it below the volume that holds STATE_DIR."""
    poll_period_s: float = Field(default=0.5, ge=0.05, le=60)
    """Seconds between two readings of rings and NVML by a node agent. 0.5: no scrape sees older figures than that."""
    report_period_s: float = Field(default=1.0, ge=0.05, le=60)
    """Seconds between two summaries of a node agent to the coordinator. On more than 160 nodes the coordinator asks for
    fewer (docs/performance.md); news is still sent at this rate."""
    linger_s: float = Field(default=120.0, ge=0, le=86400)
    """Seconds for which the last figures of an ended rank are still exported, so that the counters of a rank
    that died of an OOM are scraped at least once. 120: three scrapes at 30 s and some delay."""
    listen_host: str = "127.0.0.1"
    """Address that /metrics and the HTTP API listen on. Loopback by default: opening it up is the admin's choice."""
    metrics_port: int = Field(default=9494, ge=0, le=65535)
    """Port of /metrics on every node; 0 takes a free one (the coordinator's /sd knows it)."""
    api_port: int = Field(default=9495, ge=0, le=65535)
    """Port of the coordinator's HTTP API and /sd; 0 takes a free one."""
    web_config_file: Path | None = None
    """exporter-toolkit's web configuration file (docs/web_access.md): TLS, headers, and names with passwords for the
    API and /metrics, as Prometheus and its exporters take it. Read again when it changes. Default: none, plain HTTP."""
    api_tokens_file: Path | None = None
    """File (mode 0600) with a line for each name that may show a token to the API and /metrics, as ``tidegauge config
    token NAME`` prints it. Default: none. With neither this nor ``basic_auth_users`` nobody is asked for a name, and
    whoever reaches the API sees everybody's jobs."""
    api_admins: str | None = None
    """Names, separated by commas, that see all jobs, incidents and evidence, and whose word on whether an incident was
    a leak counts more than its owner's. Others see those of the user of the same name. Default: none; the head's own
    commands always see all."""
    metrics_readers: str | None = "prometheus"
    """Names, separated by commas, that may read /metrics and /sd, which tell of all jobs: the one that Prometheus
    scrapes with. ``api_admins`` may as well."""
    api_token_file: Path | None = None
    """For commands that ask a service elsewhere (``--api``): file (mode 0600) with your token; ``TIDEGAUGE_API_TOKEN``
    in the environment does as well. Default: none is shown."""
    api_ca_file: Path | None = None
    """For the same commands: file with the certificates that vouch for the API's. Default: those that the system
    trusts."""
    engine_port: int = Field(default=6399, ge=0, le=65535)
    """Port of the Ray head. Not Ray's default 6379, so that users' own clusters stay apart; 0 takes a free one."""
    policy_file: Path | None = None
    """YAML file that says what is done about incidents (docs/policy.md); read again whenever it changes. Default: the
    policy that comes with Tidegauge, which only observes."""
    incident_severity: Literal["critical", "warning"] = "critical"
    """Growth opens an incident, and notifies, from this severity on (docs/incidents.md). ``critical``: when it is
    dangerous. ``warning``: as soon as it is established; healthy jobs that fill a buffer reach that, too. Actions wait
    for the policy's ``min_severity`` in both cases."""
    ray_jobs_address: str | None = None
    """URL of the dashboard of users' own Ray cluster, such as http://ray-head:8265: jobs submitted there can then be
    acted on (docs/ray_jobs.md). Default: none."""
    ray_jobs_token_file: Path | None = None
    """File (mode 0600) with that cluster's token, read for every request. Default: none, the cluster wants none.
    Whoever holds the token can run code as that cluster's user."""
    ray_jobs_user: str | None = None
    """User that the processes of that cluster run as: ranks of anybody else are never taken for its jobs. Default: the
    user that the service runs as."""
    slurm: Literal["auto", "on", "off"] = "auto"
    """Whether this is a Slurm cluster: agents ask their node's slurmd which job a process belongs to, and the
    coordinator may act on jobs (docs/slurm.md). ``auto``: where ``scontrol`` is found and a slurm.conf can be read."""
    slurm_bin_dir: Path | None = None
    """Folder of scontrol, squeue and scancel. Default: found on PATH."""
    slurm_conf: Path | None = None
    """slurm.conf for these commands (their ``SLURM_CONF``). Default: Slurm's own."""
    slurm_node_name: str | None = None
    """Name of this node in Slurm, where several slurmd share a host. Default: slurmd's own."""
    slurm_requeue: Literal["asked", "all"] = "asked"
    """Which Slurm jobs may be requeued by a policy: those whose owner said so (``--comment=tidegauge:requeue``), or all
    that were not submitted with ``--no-requeue``, for sites that tell their users so."""
    hostname: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of this node: the ``hostname`` label. Default: the host's own. In a pod that is not on the host's network
    the node's name has to be given (``spec.nodeName``)."""
    kubernetes: Literal["auto", "on", "off"] = "auto"
    """Whether this is a Kubernetes cluster (docs/kubernetes.md): agents see in a process's cgroup which pod it is in,
    and the head asks the API server who that is and may act on workloads. ``auto``: for the head, where it has a
    service account or ``kubernetes_kubeconfig`` is set; for agents, where processes are in pods."""
    kubernetes_kubeconfig: Path | None = None
    """File by which the head reaches the API server. Default: the service account of its pod."""
    kubernetes_namespaces: str | None = None
    """Namespaces, separated by commas, that the head looks at and may act in. Default: all that its role allows."""
    kubernetes_kinds: str = "Job,JobSet,TrainJob,PyTorchJob,RayJob"
    """Kinds of workloads that may be acted on, separated by commas; those of other kinds are only watched."""
    kubernetes_requeue: Literal["asked", "all"] = "asked"
    """Which workloads may be started again by a policy: those whose owner said so (annotation
    ``tidegauge.dev/actions: requeue``), or all that say nothing against it."""
    kubernetes_resubmit: bool = False
    """Whether a workload whose environment has to change, and whose pods Tidegauge did not prepare, may be submitted
    again as a copy. The controller needs ``--resubmit``, and the right to create workloads."""
    kubernetes_shared_gpu_replicas: int | None = Field(default=None, ge=2, le=64)
    """How many pods share a GPU that is asked for as ``nvidia.com/gpu.shared``. Default: not known."""
    kubernetes_controller: str | None = None
    """``NAMESPACE/NAME`` of the controller's Lease. A workload is not suspended for a requeue while no controller is
    there that would start it again. Default: tidegauge-controller in the head's own namespace."""
    kubernetes_pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """The kubelet's socket that tells which container has which GPU. Where there is none nobody is asked."""
    public_url: str | None = None
    """URL at which people reach the coordinator's API, such as http://head:9495: messages and alerts link to its
    reports and runbooks, and to the question whether an incident was a leak, whose answer is taken from a page there
    behind a proxy that changes Host. Default: none, and no such links."""
    grafana_url: str | None = None
    """URL of Grafana, such as https://grafana.example: messages link to the dashboards there, ``tidegauge grafana``
    puts them there, and with a token incidents and actions are drawn as annotations. Default: none."""
    grafana_token_file: Path | None = None
    """File (mode 0600) with the token of a Grafana service account that may edit; ``TIDEGAUGE_GRAFANA_TOKEN`` in the
    environment does as well. Default: none, and no annotations."""
    alertmanager_url: str | None = None
    """URL of Alertmanager, such as http://127.0.0.1:9093. Incidents are posted there as alerts, so that it decides
    when somebody is told: grouping, silences, times of day. Default: none, and Slack hears of incidents directly."""
    notify_port: int = Field(default=9496, ge=0, le=65535)
    """Port of /alerts, where Alertmanager's webhook tells what is to be said on Slack; listens on ``listen_host``. 0
    takes a free one."""
    notify_token_file: Path | None = None
    """File (mode 0600) with a password that Alertmanager's webhook has to show (docs/notify.md);
    ``TIDEGAUGE_NOTIFY_TOKEN`` in the environment does as well. Default: none, and whoever reaches /alerts can have
    made-up alerts said on Slack: set one where other people can log in to the head."""
    slack_token_file: Path | None = None
    """File (mode 0600) with a Slack bot token (docs/slack.md); ``TIDEGAUGE_SLACK_TOKEN`` in the environment does as
    well. Default: none, and nothing is said on Slack."""
    slack_channel: str | None = None
    """Channel of those who run the cluster, such as #gpu-memory: one thread an incident. Default: none; owners still
    get their messages."""
    slack_users_file: Path | None = None
    """YAML file from user names to Slack: ``ada: U024BE7LH`` or ``ada: ada@example.org``. Default: none."""
    slack_email_domain: str | None = None
    """Domain that makes a user name an e-mail address by which Slack finds the owner of a job: example.org. Default:
    none, only users in ``slack_users_file`` get messages."""
    mail_server: str | None = None
    """``HOST`` or ``HOST:PORT`` of a mail server (SMTP): owners are then told by mail, too (docs/mail.md). Port 465 is
    TLS from the start; on others STARTTLS is used where it is offered. Default: none."""
    mail_from: str | None = None
    """Address that mails come from; needed with ``mail_server``."""
    mail_domain: str | None = None
    """Domain that makes a user name an address: example.org. Default: the mail server's own, for local users."""
    mail_user: str | None = None
    """Login at the mail server. Default: none is needed."""
    mail_password_file: Path | None = None
    """File (mode 0600) with the password of ``mail_user``; ``TIDEGAUGE_MAIL_PASSWORD`` in the environment does as
    well."""
    slack_api_url: str = "https://slack.com/api/"
    """Where Slack's API is: another one for GovSlack or behind a gateway."""
