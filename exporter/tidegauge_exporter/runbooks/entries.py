"""What a person does about each alert: the table that docs/alerts.md and the coordinator's /runbooks are made from.

Texts are plain, with code between backquotes. Commands are meant for a shell on the head, with names in capitals to
fill in.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegauge_exporter.messages.values import INCIDENT_ALERT


@dataclass(frozen=True)
class RunbookEntry:
    """What a person does about an alert."""

    alert: str
    means: str
    first_look: str
    what_to_do: str
    when_to_silence: str
    commands: tuple[str, ...] = ()
    """To copy into a terminal."""


JOB_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        INCIDENT_ALERT,
        means="Tidegauge opened an incident about a job's memory: a leak, fragmentation, growth outside the allocator "
        "or on the host, an out-of-memory, a share that is exceeded. It is posted by the service itself, not by a "
        "rule; while it is open, the rule alerts about the same attempt's memory are muted.",
        first_look="The incident's page: which ranks, since which step, when it runs out, and what the policy has done "
        "or will do.",
        what_to_do="Usually nothing: the owner is told, and the policy acts as far as the site allows it. Where the "
        "policy only observes, tell the owner, who knows the code.",
        when_to_silence="Silence one job (`cluster`, `job_id`) whose owner knows about it. It ends by itself when the "
        "incident is closed. It stops messages, not actions: what keeps Tidegauge from acting on the job is told under "
        "[Keep my job running](#keep-my-job-running).",
        commands=("tidegauge incidents show NUMBER",),
    ),
    RunbookEntry(
        "TidegaugeLeakOomSoon",
        means="Dangerous growth of a rank's memory: it has taken half of the memory that was free, and at the present "
        "rate it meets the rank's limit within an hour. Unless it ends by itself, as a buffer that fills does, the "
        "job fails on that rank, and so as a whole.",
        first_look="The rank's dashboard: does the line still climb, and in which signal: allocated, reserved, "
        "outside the allocator or on the host?",
        what_to_do="Have the job save its state and start again: by its own checkpoint, or by the policy. A restart "
        "gives the memory back; the leak itself is in the code (`tidegauge incidents show` names the usual places).",
        when_to_silence="When the owner knows, and prefers to let it run until it fails.",
        commands=("tidegauge incidents", "tidegauge incidents show NUMBER"),
    ),
    RunbookEntry(
        "TidegaugeLeak",
        means="Dangerous growth of a rank's memory: it has taken half of the memory that was free, and meets the "
        "rank's limit within a week; or it grows, and nobody knows the limit. Most growth that ends by itself is over "
        "before that, not all ([how often](detector.md#dangerous-or-only-growing)).",
        first_look="`tidegauge jobs` and the job's dashboard: one rank or all? All ranks alike is often a workload "
        "that grows by design, such as a curriculum or longer sequences.",
        what_to_do="Tell the owner. No hurry while there are hours left.",
        when_to_silence="When the growth is meant, for the rest of the job: `cluster`, `job_id`.",
        commands=("tidegauge jobs", "tidegauge incidents"),
    ),
    RunbookEntry(
        "TidegaugeOutOfMemory",
        means="PyTorch raised `torch.OutOfMemoryError` in a job within the last five minutes. Some jobs catch it and "
        "go on with a smaller batch; most end.",
        first_look="Is the job still alive? Then the incident's page: how much was asked for, how much was free, and "
        "how much was lost to fragmentation.",
        what_to_do="Nothing for the cluster. The owner finds on the incident's page whether trying again makes sense, "
        "and with which allocator setting.",
        when_to_silence="For a job that searches its batch size by running into the limit.",
        commands=("tidegauge incidents --all --since 1d", "tidegauge incidents show NUMBER"),
    ),
    RunbookEntry(
        "TidegaugeFragmentation",
        means="A rank's allocator holds 15 % of the rank's limit more than its tensors ever needed at one time, and "
        "the rank is more than 90 % full: free pieces do not fit what is asked for, or CUDA graphs keep private pools.",
        first_look="The job's dashboard: does reserved climb while allocated does not? Which `alloc_conf` is in force "
        "(`tidegauge_rank_info`)?",
        what_to_do="If there is an incident, its cause says which. Against fragmentation the usual cure is "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` at the next start; the policy can requeue with it where "
        "the owner allows requeues. Against `cuda_graphs` it does not help: graphs have to share a pool.",
        when_to_silence="When the job ends before it fills up.",
        commands=("tidegauge incidents",),
    ),
    RunbookEntry(
        "TidegaugeUntrackedGrowth",
        means="Device memory that PyTorch's allocator does not know of has grown in each half of the last hour: in a "
        "job's processes, or (label `scope=\"node\"`) on a node's GPUs where no watched rank accounts for it.",
        first_look="The rank's dashboard: non-torch memory. For a node: `nvidia-smi` there, which lists processes.",
        what_to_do="In a job: communicators made in a loop (`new_group`), CUDA graphs, extensions that call "
        "`cudaMalloc`. On a node: a process left over from an earlier job, or a job that is not watched.",
        when_to_silence="For nodes where people work without Tidegauge on purpose.",
        commands=("tidegauge jobs",),
    ),
    RunbookEntry(
        "TidegaugeMemoryNearlyFull",
        means="A rank uses more than 95 % of what it may take, and device allocations have to be tried a second time, "
        "after the allocator emptied its cache. That alone is slow, and the next larger batch may fail.",
        first_look="The job's dashboard: was it so from the start (a tight fit) or did it grow (a leak)?",
        what_to_do="A smaller batch, activation checkpointing, or `expandable_segments:True`. A card that is merely "
        "full is not told of: the allocator keeps what it once had.",
        when_to_silence="For a job that has run like this for days.",
        commands=("tidegauge jobs",),
    ),
    RunbookEntry(
        "TidegaugeRankLost",
        means="A rank's process is gone while other ranks of the attempt are alive (`warning`), or fewer ranks report "
        "than the world size says for ten minutes (`info`).",
        first_look="The job's log on that host, and the kernel's: an out-of-memory kill on the host shows in `dmesg`.",
        what_to_do="A job that waits for a dead rank waits until its own timeout (NCCL: ten minutes or more); end it, "
        "or let its launcher do so. If ranks run where no agent is, start one there.",
        when_to_silence="For jobs that let their ranks end at different times, and for those of which only some ranks "
        "are watched.",
        commands=("tidegauge jobs", "tidegauge status"),
    ),
    RunbookEntry(
        "TidegaugeRankSilent",
        means="A rank's process is alive and has written no reading for five minutes. A healthy one writes twice a "
        "second, also while it waits for data or for other ranks.",
        first_look="On the host: is the process stopped (`T`), in uninterruptible sleep (`D`, often a file system), or "
        "is one thread keeping Python's interpreter lock for minutes?",
        what_to_do="The others of its job wait for it. A node with hanging file systems or GPUs needs its admin; a "
        "process in a debugger needs nothing.",
        when_to_silence="While somebody debugs it.",
        commands=("ps -o pid,stat,wchan:32,cmd -p PID", "tidegauge status"),
    ),
)

SERVICE_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        "TidegaugeAgentDown",
        means="Prometheus cannot scrape the agent of a node, or the node left the cluster while ranks ran on it. If it "
        "is well, jobs there run on; nobody watches them through Prometheus.",
        first_look="`tidegauge status`: does the agent report to the coordinator? Then it is a matter of Prometheus' "
        "way to it (port 9494, firewall, `listen_host`). Else the node or the agent is down.",
        what_to_do="Agents are restarted by themselves. If one does not come back, look at the node, then at the Ray "
        "log of the agent there.",
        when_to_silence="For nodes in maintenance: `hostname`.",
        commands=("tidegauge status", "curl http://HOST:9494/healthz"),
    ),
    RunbookEntry(
        "TidegaugeNodeStale",
        means="The coordinator has not heard from the agents of some nodes for ten minutes, or never has. What it "
        "knows of their ranks is old: their incidents stand still and nothing is done about them.",
        first_look="`tidegauge status` names the nodes.",
        what_to_do="As for TidegaugeAgentDown. If Prometheus reaches the agent and the coordinator does not hear of "
        "it, look at the network between the node and the head.",
        when_to_silence="While nodes are in maintenance. The alert counts nodes: it cannot be silenced for one of "
        "them.",
        commands=("tidegauge status",),
    ),
    RunbookEntry(
        "TidegaugeCoordinatorDown",
        means="Prometheus cannot scrape the coordinator, or was never told of one. No incidents are opened, nobody is "
        "told, nothing is done. Agents, their metrics and the alerts about ranks go on, without owners' names.",
        first_look="`tidegauge status` on the head. The coordinator's Ray actor is restarted by itself.",
        what_to_do="If it does not come back: its log, then `tidegauge up` again. Open incidents are in the database "
        "and go on with their numbers.",
        when_to_silence="While it is being upgraded.",
        commands=("tidegauge status", "curl http://HEAD:9495/metrics"),
    ),
    RunbookEntry(
        "TidegaugeDetectorSilent",
        means="Ranks on a node make steps, and the leak detector has judged no reading for five minutes or more. A "
        "leak there would not be noticed.",
        first_look="The agent's metrics: `tidegauge_records_refused_total` and `tidegauge_rings_skipped_total` say "
        "whether readings are thrown away, and why.",
        what_to_do="Read the agent's log, restart the agent (jobs do not notice), and report it with the log: this is "
        "a fault in Tidegauge.",
        when_to_silence="Not at all.",
        commands=("curl -s http://HOST:9494/metrics | grep -E 'records|rings|detector'",),
    ),
    RunbookEntry(
        "TidegaugeActionsFailing",
        means="Two or more actions of one kind did not end well within an hour: the scheduler or the job refused, "
        "nothing changed, or a checkpoint was not proven.",
        first_look="`tidegauge policy log` says for each what the scheduler or the job answered.",
        what_to_do="`no_proof`: the job's checkpoint callback takes longer than `grace`, or fails. `failed`: rights or "
        "address of the scheduler. If it looks wrong, pause all actions first.",
        when_to_silence="While you are working on it.",
        commands=("tidegauge policy log --since 1d", "tidegauge policy pause --reason 'actions fail'"),
    ),
    RunbookEntry(
        "TidegaugeBreakerOpen",
        means="More jobs would have been acted on within a short time than the policy's circuit breaker lets pass. All "
        "actions are stopped until a person resets it.",
        first_look="`tidegauge incidents`: are they of one account, of a new library version, in one rack? Or is the "
        "policy too eager?",
        what_to_do="Find out what the jobs have in common. Then either let actions go on (`resume` resets the "
        "breakers), or leave it open.",
        when_to_silence="While it is left open on purpose.",
        commands=("tidegauge incidents", "tidegauge policy status", "tidegauge policy resume"),
    ),
    RunbookEntry(
        "TidegaugeUserBreakerOpen",
        means="More jobs of one user would have been acted on within a short time than the policy's circuit breaker "
        "lets pass. Nothing is done to this user's jobs until a person resets it; other users' are acted on. Where one "
        "account owns all jobs, that is all of them.",
        first_look="`tidegauge policy status` names the user; `tidegauge incidents` has their jobs.",
        what_to_do="Ask them what their jobs have in common: often one script, many times. Then let actions go on "
        "(`resume` resets all breakers), or leave it open.",
        when_to_silence="While it is left open on purpose.",
        commands=("tidegauge policy status", "tidegauge incidents", "tidegauge policy resume"),
    ),
    RunbookEntry(
        "TidegaugeStoreDown",
        means="The coordinator's database is locked, full, read-only or not reachable. Watching goes on; what cannot "
        "be written down is not decided and not done.",
        first_look="`tidegauge policy status` says what the database says.",
        what_to_do="Space on the disk, the PostgreSQL server, rights of the file. Nothing has to be restarted "
        "afterwards, unless the SQLite file was deleted.",
        when_to_silence="While the database is being moved.",
        commands=("tidegauge policy status", "df -h STATE_DIR"),
    ),
    RunbookEntry(
        "TidegaugeSeriesDropped",
        means="For a quarter of an hour scrapes of a node have left out series: `duplicate`, two ranks claim the same "
        "job, attempt and rank; `budget`, there are more ranks than a target may hand out.",
        first_look="`tidegauge jobs`: are there jobs that nobody knows, or two with one id?",
        what_to_do="Duplicates come from jobs started side by side with the same made-up job id: give each its own "
        "(`tidegauge run` does). The rank that the driver lists on its GPU is exported, else the older process; "
        "`tidegauge jobs` has both users' jobs.",
        when_to_silence="When the owner knows.",
        commands=("tidegauge jobs",),
    ),
)

RUNBOOK: tuple[RunbookEntry, ...] = (*JOB_RUNBOOK, *SERVICE_RUNBOOK)

EXEMPTION_ID = "keep-my-job-running"
EXEMPTION_TITLE = "Keep my job running"
EXEMPTION: tuple[str, ...] = (
    "Tidegauge told you about your job, and you want it left alone: then say so when you start it.",
    "Jobs that you start by `tidegauge run`: add `--no-actions`. For Ray Jobs: the metadata `tidegauge.actions: off`. "
    "On Slurm: `sbatch --comment=tidegauge:keep`. On Kubernetes: the annotation `tidegauge.dev/actions: keep` on the "
    "workload or its pods.",
    "A Slurm job that runs already: `scontrol update JobId=ID Comment=tidegauge:keep`, which replaces its comment. A "
    "workload on Kubernetes: `kubectl annotate --overwrite KIND NAME tidegauge.dev/actions=keep`. "
    "Other jobs that run already cannot be changed by you in this way. Ask an admin: a pattern under `brakes.exempt` "
    "in the policy (by user, account, partition, namespace, QOS or job name) is in force within seconds and without a "
    "restart, and `tidegauge policy pause` stops all actions at once.",
    "An exempt job is never capped, saved, requeued, held or cancelled. You still get messages, and if the memory runs "
    "out, the job fails by itself.",
    "A checkpoint callback (`tidegauge.on_checkpoint_request`) is often the better answer: the job is then saved "
    "before it is started again, and goes on where it was.",
)
"""For the owner of a job. Paragraphs."""
EXEMPTION_COMMAND = "tidegauge run --no-actions -- torchrun train.py"
