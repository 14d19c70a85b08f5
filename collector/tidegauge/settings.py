"""Table of all settings of the service, from which ``tidegauge config show --all`` and docs/settings.md are made.

Precedence: flag > environment ``TIDEGAUGE_<NAME>`` > file > default. Unknown keys are errors.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidegauge.core.jobs.kubernetes import KUBELET_SOCKET
from tidegauge.core.jobs.waste import parse_left_out


def comma_separated(text: str | None) -> list[str]:
    """The entries of a setting that is a list, without empty ones."""
    return [entry for entry in (part.strip() for part in (text or "").split(",")) if entry]


RAY_WORKER_PORTS = range(10_002, 20_000)
"""Defaults of ``ray start --min-worker-port`` and ``--max-worker-port``: Ray's head cannot start on one of them."""


MIN_NODE_PORTS = 16


def port_range(text: str) -> range:
    """``6400-6431`` as a range of that many ports. Raises ``ValueError``."""
    found = re.fullmatch(r"(\d{4,5})-(\d{4,5})", text.strip(), re.ASCII)
    ports = range(0) if found is None else range(int(found[1]), int(found[2]) + 1)
    if len(ports) < MIN_NODE_PORTS or ports.start < 1024 or ports[-1] > 65535:
        raise ValueError(
            f"{text!r} is no range of {MIN_NODE_PORTS} or more ports from 1024 to 65535, such as 6400-6431 (0: any "
            "free ones)"
        )
    return ports


def is_web_address(text: str) -> bool:
    """Whether ``text`` is an HTTP URL that is safe in links, rules and dashboards, without user and password."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
    return usable and text.isprintable() and not any(mark in text for mark in " \"'<>{}|\\")


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/tidegauge")
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "tidegauge"


class Settings(BaseModel):
    """Settings of the service. All have defaults: Tidegauge is useful before anything is set."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    cluster: str = Field(default="default", min_length=1, max_length=100)
    """Name of this cluster: the ``cluster`` label of every series."""
    run_dir: Path | None = None
    """Folder with the ranks' rings. Default: both /run/tidegauge and /dev/shm/tidegauge."""
    opener_socket: Path | None = None
    """Socket of the opener on this node (tidegauge-opener.service), which opens other users' files for an agent without
    rights of its own. Unset: the agent opens them itself, and sees all ranks as root only."""
    state_dir: Path = Field(default_factory=_default_state_dir)
    """Folder for data that must survive a restart: incidents, service record, engine files. Default: /var/lib/tidegauge
    for root, else ~/.local/state/tidegauge."""
    database_url: str | None = None
    """Database of incidents and of the audit of actions. Default: sqlite:///STATE_DIR/tidegauge.db, which needs a local
    disk on the head. PostgreSQL: postgresql+psycopg://USER@HOST/NAME, with the extra ``postgresql`` installed; put the
    password into ~/.pgpass (``tidegauge config show`` prints a password in the URL as ``***``)."""
    keep_incidents_days: float = Field(default=90.0, ge=30, le=3650)
    """Days to keep closed incidents with their history and decisions; open incidents are always kept. 90 covers a
    quarter; at least 30, because policy limits may look back that far. Totals in the metrics do not shrink."""
    keep_jobs_days: float = Field(default=90.0, ge=1, le=3650)
    """Days to keep the records of ended jobs (``tidegauge history``). 90 covers a quarter. At most 20,000 records
    of a user or namespace and 100,000 in all are kept, whatever their age."""
    keep_jobs_gib: float = Field(default=0.5, ge=0.001, le=1 << 10)
    """Limit in GiB for what is kept of the memory of ranks beside those records (their peaks, and curves of the
    fullest). Beyond it that of the oldest records of the user or namespace with most is deleted; the records stay. 0.5
    holds some 80,000 jobs of 8 ranks, so the database stays below 1 GB."""
    user_pseudonyms: bool = False
    """Whether pseudonyms stand for the names of users where many people look: the label ``user_name``, the Slack
    channel, Alertmanager and Grafana (docs/privacy.md). ``tidegauge whois`` resolves them on the head."""
    snapshot_store: str | None = None
    """Where nodes keep the GPU memory snapshots behind the evidence (docs/evidence_store.md): a folder on each node, or
    an fsspec URL such as s3://bucket/prefix, gs://bucket/prefix or file:///shared/folder. A URL needs its driver (s3fs,
    gcsfs) on each node, with credentials where that driver looks for them. Default: STATE_DIR/snapshots on each
    node."""
    keep_snapshots_days: float = Field(default=14.0, ge=0.01, le=3650)
    """Days for which a node keeps a snapshot. 14: a leak is investigated within two weeks or not at all. Snapshots of
    open incidents stay longer."""
    keep_snapshots_gib: float = Field(default=10.0, ge=0.01, le=1 << 20)
    """Limit in GiB for all snapshots of one node, wherever they are stored; the oldest are deleted first. 10 holds
    about 5,000 snapshots of 2 MB. On Kubernetes keep it below the size of the volume that holds STATE_DIR."""
    poll_period_s: float = Field(default=0.5, ge=0.05, le=60)
    """Seconds between two readings of rings and NVML by a node agent; while nothing happens on the node four times as
    long, 2 s at most (docs/agent.md). With 0.5 no scrape returns figures older than 2 s."""
    report_period_s: float = Field(default=1.0, ge=0.05, le=60)
    """Seconds between two reports of a node agent to the coordinator, each after a reading. Above 160 nodes the
    coordinator asks for fewer (docs/performance.md); changes are still sent at this rate."""
    linger_s: float = Field(default=120.0, ge=0, le=86400)
    """Seconds for which /metrics still exports the last figures of an ended rank, so that the counters of a rank that
    died of an OOM are scraped at least once. 120: three scrapes at 30 s, with a margin."""
    listen_host: str = "127.0.0.1"
    """Address that /metrics and the HTTP API listen on. Default: loopback; an admin opens it to the network."""
    metrics_port: int = Field(default=9494, ge=0, le=65535)
    """Port of /metrics on every node; 0 picks a free port, which the coordinator's /sd reports."""
    api_port: int = Field(default=9495, ge=0, le=65535)
    """Port of the coordinator's HTTP API and /sd; 0 picks a free port."""
    web_config_file: Path | None = None
    """Web configuration file in exporter-toolkit's format (docs/web_access.md): TLS, headers, and users with passwords
    for the API and /metrics. Changes are picked up without a restart, except switching TLS on or off or authentication
    off. Default: none, plain HTTP."""
    api_tokens_file: Path | None = None
    """File (mode 0600) with one line per user who may present a token to the API and /metrics, as printed by
    ``tidegauge config token NAME``. Default: none. With neither this nor ``basic_auth_users`` there is no
    authentication: whoever reaches the API sees everyone's jobs."""
    api_admins: str | None = None
    """Users, separated by commas, who see all jobs, incidents and evidence, and whose answer on whether an incident was
    a leak overrides its owner's; ``group:NAME`` is a group of Kubernetes. Other users see their own. Default: none;
    commands on the head always see everything."""
    metrics_readers: str | None = "prometheus"
    """Users, separated by commas, who may read /metrics and /sd, which cover all jobs: the user that Prometheus scrapes
    with. ``api_admins`` may read them too."""
    session_hours: float = Field(default=12.0, gt=0, le=168)
    """Hours after which a browser that logged in at /login must log in again (docs/web_access.md). 12: a working
    day."""
    munge_login: bool = False
    """Whether users of the cluster may log in to the API with a MUNGE credential (``munge -n``), as Slurm's commands
    do. Needs ``unmunge`` and a running munged on the head (docs/web_access.md)."""
    munge_socket: Path | None = None
    """Socket of munged on the head. Default: munge's own."""
    kubernetes_login: bool = False
    """Whether the API accepts bearer tokens of the Kubernetes cluster, which its API server checks (TokenReview), for
    the jobs of namespaces whose jobs.batch their user may ``get`` there (SubjectAccessReview). The head's service
    account needs the right to create tokenreviews and subjectaccessreviews (docs/web_access.md)."""
    kubernetes_login_audience: str | None = Field(default=None, min_length=1, max_length=253)
    """Audience that these tokens must be made for (``kubectl create token --audience``). Default: the API server's own;
    then somebody who gets hold of one could use the API server with it too."""
    proxy_user_header: str | None = None
    """Header in which a proxy in front of the API names the user, such as X-Forwarded-User (docs/web_access.md). Only
    believed from ``trusted_proxies``. Default: none."""
    trusted_proxies: str | None = None
    """Addresses and CIDRs, separated by commas, of proxies whose ``proxy_user_header`` is believed, such as 10.0.0.7.
    Everything at these addresses can act as any user. Default: none."""
    proxy_user_domain: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]+$", max_length=253)
    """Domain of names in that header that are mail addresses: with example.org, ada@example.org is the user ada; names
    at other domains stay as they are. Default: none, names are taken as they are."""
    api_token_file: Path | None = None
    """For commands that use a service elsewhere (``--api``): file (mode 0600) with your token. The environment variable
    ``TIDEGAUGE_API_TOKEN`` works too. Default: no token."""
    api_ca_file: Path | None = None
    """For the same commands: file with the CA certificates that the API's certificate is checked against. Default: the
    system's."""
    engine_port: int = Field(default=6399, ge=0, le=65535)
    """Port of the Ray head; 0 picks a free port, and free ones for all others. Not Ray's default 6379, so that users'
    own Ray clusters stay apart."""
    engine_node_ports: str = "6400-6431"
    """Further ports that Ray listens on, on every node: a range of at least 16, for firewalls; 0 picks free ports."""

    engine_tls: bool = False
    """Encrypt what the engine's nodes send each other (TLS, both sides show a certificate); the same on all nodes.
    ``up`` makes the certificates from the token, with the extra ``tls``. Default: off."""
    engine_tls_cert_file: Path | None = None
    """With ``engine_tls``: the site's own certificate for this node (PEM), which names its address. Default: one that
    ``up`` makes."""
    engine_tls_key_file: Path | None = None
    """With ``engine_tls_cert_file``: its key (PEM, mode 0600)."""
    engine_tls_ca_file: Path | None = None
    """With ``engine_tls_cert_file``: the authorities whose certificates are taken (PEM). They should sign for this
    cluster alone."""

    @property
    def keep_snapshots_s(self) -> float:
        return self.keep_snapshots_days * 86400.0

    @field_validator("engine_port")
    @classmethod
    def _is_outside_of_worker_ports(cls, port: int) -> int:
        if port in RAY_WORKER_PORTS:
            raise ValueError(
                f"in the port range of Ray's workers ({RAY_WORKER_PORTS.start}-{RAY_WORKER_PORTS.stop - 1}); choose "
                "another port, or 0 for a free one"
            )
        return port

    @field_validator("engine_node_ports")
    @classmethod
    def _is_wide_enough(cls, ports: str) -> str:
        if ports != "0":
            port_range(ports)
        return ports

    policy_file: Path | None = None
    """YAML file with the actions to take on incidents (docs/policy.md). Changes are picked up without a restart.
    Default: the policy that comes with Tidegauge, which only observes."""
    incident_severity: Literal["critical", "warning"] = "critical"
    """Lowest severity at which growth opens an incident and notifies (docs/incidents.md). ``critical``: once it is
    dangerous. ``warning``: as soon as it is established, which healthy jobs that fill a buffer reach too. Actions wait
    for the policy's ``min_severity`` in both cases."""
    ray_jobs_address: str | None = None
    """Dashboard URL of the users' own Ray cluster, such as http://ray-head:8265, so that Tidegauge can act on jobs
    submitted there (docs/ray_jobs.md). Default: none."""
    ray_jobs_token_file: Path | None = None
    """File (mode 0600) with that cluster's token, read for every request. Default: none, for a cluster without token
    authentication. Whoever holds the token can run code as that cluster's user."""
    ray_jobs_user: str | None = None
    """User that runs the processes of that cluster: ranks of other users are never taken for its jobs. Default: the
    user that the service runs as."""
    slurm: Literal["auto", "on", "off"] = "auto"
    """Whether this is a Slurm cluster: agents ask their node's slurmd which job a process belongs to, and the
    coordinator may act on jobs (docs/slurm.md). ``auto``: yes where ``scontrol`` is found and slurm.conf is
    readable."""
    slurm_bin_dir: Path | None = None
    """Folder of scontrol, squeue and scancel. Default: found on PATH."""
    slurm_conf: Path | None = None
    """slurm.conf for these commands (``SLURM_CONF``). Default: Slurm's own."""
    slurm_node_name: str | None = None
    """Name of this node in Slurm, for hosts that run several slurmd. Default: slurmd's own."""
    slurm_requeue: Literal["asked", "all"] = "asked"
    """Slurm jobs that a policy may requeue. ``asked``: those whose owner opted in with ``--comment=tidegauge:requeue``.
    ``all``: every job not submitted with ``--no-requeue``, for sites that tell their users so."""
    hostname: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of this node: the ``hostname`` label. Default: the host's own name. Set it in a pod without host networking
    (``spec.nodeName``)."""
    kubernetes: Literal["auto", "on", "off"] = "auto"
    """Whether this is a Kubernetes cluster (docs/kubernetes.md): agents read a process's pod from its cgroup; the head
    looks the pod up at the API server and may act on workloads. ``auto``: for the head, if it has a service account or
    ``kubernetes_kubeconfig`` is set; for agents, if processes are in pods."""
    kubernetes_kubeconfig: Path | None = None
    """Kubeconfig with which the head reaches the API server. Default: the service account of its pod."""
    kubernetes_namespaces: str | None = None
    """Namespaces, separated by commas, that the head watches and may act in. Default: all that its role allows."""
    kubernetes_kinds: str = "Job,JobSet,TrainJob,PyTorchJob,RayJob"
    """Kinds of workloads that Tidegauge may act on, separated by commas; other kinds are only watched."""
    kubernetes_requeue: Literal["asked", "all"] = "asked"
    """Workloads that a policy may restart. ``asked``: those whose owner opted in with the annotation
    ``tidegauge.dev/actions: requeue``. ``all``: every workload that does not opt out."""
    kubernetes_memory_policies: bool = False
    """Whether teams may narrow what is done in their namespaces, by objects of the kind MemoryPolicy
    (docs/kubernetes_actions.md). The head needs the right to list and watch them: without it nothing is done to any
    workload. Default: no."""
    kubernetes_node_conditions: bool = False
    """Whether the head writes the condition ``GpuMemoryUnheld`` of nodes (docs/kubernetes.md). It needs the right to
    get nodes and to patch their status. Default: no."""
    kubernetes_resubmit: bool = False
    """Has no effect, and is still accepted: workloads are no longer submitted again as copies."""
    kubernetes_shared_gpu_replicas: int | None = Field(default=None, ge=2, le=64)
    """Number of pods that share a GPU requested as ``nvidia.com/gpu.shared``. Default: unknown."""
    kubernetes_controller: str | None = None
    """``NAMESPACE/NAME`` of the controller's Lease. Tidegauge suspends a workload for a requeue only while a controller
    is running that will resume it. Default: tidegauge-controller in the head's own namespace."""
    kubernetes_pod_resources: Path = Path(KUBELET_SOCKET)
    """The kubelet's pod-resources socket, which reports the GPUs of each container. Not used where the file does not
    exist. With ``opener_socket`` it is the opener's ``--kubelet`` in place of this."""
    public_url: str | None = None
    """URL at which people reach the coordinator's API, such as http://head:9495. Messages, alerts and dashboards link
    to its pages of jobs and incidents, to runbooks and to the form that asks whether an incident was a leak, which
    needs it behind a proxy that changes Host. Without authentication the API also answers at its host. ``tidegauge
    up`` refuses one that is no http:// or https:// URL. Default: none, no such links; commands name the address of the
    API."""
    contact: str = Field(default="your cluster's admins", max_length=200)
    """Whom the runbooks (``/runbooks``) say to call, such as ``GPU on-call, +49 30 1234``."""
    grafana_url: str | None = None
    """URL of Grafana, such as https://grafana.example: messages link to its dashboards, ``tidegauge grafana`` installs
    them, and with a token incidents and actions become annotations. Default: none."""
    grafana_token_file: Path | None = None
    """File (mode 0600) with the token of a Grafana service account with the Editor role. The environment variable
    ``TIDEGAUGE_GRAFANA_TOKEN`` works too. Default: none, no annotations."""
    alertmanager_url: str | None = None
    """URL of Alertmanager, such as http://127.0.0.1:9093. Incidents are posted there as alerts, and Alertmanager
    decides when to notify: grouping, silences, time intervals. Default: none; incidents go to Slack directly."""
    notify_port: int = Field(default=9496, ge=0, le=65535)
    """Port of the notifier: /alerts, the webhook that Alertmanager posts to for messages on Slack, and /metrics; it
    listens on ``listen_host``. 0 picks a free port, which /sd does not list."""
    notify_token_file: Path | None = None
    """File (mode 0600) with the password that Alertmanager's webhook must present (docs/notify.md). The environment
    variable ``TIDEGAUGE_NOTIFY_TOKEN`` works too. Default: none; then whoever reaches /alerts can post made-up alerts
    to Slack. Set it where other people can log in to the head."""
    slack_token_file: Path | None = None
    """File (mode 0600) with a Slack bot token (docs/slack.md). The environment variable ``TIDEGAUGE_SLACK_TOKEN`` works
    too. Default: none, no messages on Slack."""
    slack_app_token_file: Path | None = None
    """File (mode 0600) with a Slack app-level token (docs/slack.md): messages then have buttons to acknowledge, exempt,
    ask for evidence and grade. The environment variable ``TIDEGAUGE_SLACK_APP_TOKEN`` works too. Default: none, no
    buttons."""
    slack_channel: str | None = None
    """Slack channel of the cluster's operators, such as #gpu-memory: one thread per incident. Default: none; owners
    still get their messages."""
    slack_users_file: Path | None = None
    """YAML file that maps user names to Slack: ``ada: U024BE7LH`` or ``ada: ada@example.org``. Default: none."""
    slack_email_domain: str | None = None
    """Domain appended to a user name to find the job's owner on Slack by email address, such as example.org. Default:
    none; only users in ``slack_users_file`` get messages."""
    mail_server: str | None = None
    """``HOST`` or ``HOST:PORT`` of an SMTP server; Tidegauge then notifies owners by email too (docs/mail.md). Port 465
    uses TLS from the start; other ports use STARTTLS where the server offers it. Default: none."""
    mail_from: str | None = None
    """Sender address of emails; required with ``mail_server``."""
    mail_domain: str | None = None
    """Domain appended to a user name to make an email address, such as example.org. Default: none; the mail server
    delivers to local users."""
    mail_user: str | None = None
    """Login at the mail server. Default: none."""
    mail_password_file: Path | None = None
    """File (mode 0600) with the password of ``mail_user``. The environment variable ``TIDEGAUGE_MAIL_PASSWORD`` works
    too."""
    efficiency_mail_min_gpu_hours: float = Field(default=100.0, ge=0, le=1e9)
    """``tidegauge efficiency --mail`` (docs/mail.md) writes to users whose jobs with too much GPU memory ran
    for this many GPU-hours in all. 100: in a week, more than half of one GPU's time."""
    efficiency_mail_max_used_share: float = Field(default=0.5, ge=0, le=1)
    """Only jobs that needed at most this share of the GPU memory they had count. 0.5: half a GPU would have done."""
    efficiency_mail_min_runs: int = Field(default=3, ge=1, le=1000)
    """Only jobs with this many runs count. 3: from then on the margin is that of the job's own runs."""
    efficiency_mail_every_days: float = Field(default=6.0, ge=1, le=150)
    """Days for which a user who got a mail gets no other one. 6: a weekly timer may be early by some hours."""
    efficiency_mail_exclude: str | None = None
    """Whom and what to leave out, separated by commas: ``user=ada``, ``account=ops``, ``partition=debug``,
    ``namespace=ci``, ``name=jupyter*`` (the name of a job, with ``*`` for any characters). Default: nothing."""

    @field_validator("efficiency_mail_exclude")
    @classmethod
    def _names_what_is_left_out(cls, text: str | None) -> str | None:
        parse_left_out(text or "")
        return text

    efficiency_mail_greeting: str = Field(default="Hello {user},", max_length=200)
    """First line of each mail; ``{user}`` is the login name. Empty: none."""
    efficiency_mail_report: str | None = None
    """Addresses, separated by commas, that get a table of who got a mail and who did not, after each round in which
    there was somebody to write to. Default: none."""
    slack_api_url: str = "https://slack.com/api/"
    """Base URL of Slack's API; another one for GovSlack or a gateway."""

    @property
    def pages_url(self) -> str | None:
        """``public_url``, which nothing may link to where it is no URL: ``tidegauge up`` refuses that, but a service
        that was started before it did runs on."""
        return self.public_url if self.public_url and is_web_address(self.public_url) else None
