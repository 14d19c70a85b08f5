"""Runbooks of alerts about jobs. Outputs are those of real services, with the names of a cluster ``lab``."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.runbooks.values import Logs, RunbookEntry, Step

_INCIDENTS: Final = Step(
    "tidegauge incidents",
    """number  job       cause  severity  state  ranks   since step  per step  OOM in     opened    last action
1       pretrain  leak   warning   open   rank 1  1           4.0 MiB   29–51 min  41 s ago  notify: done""",
)
_INCIDENT: Final = Step(
    "tidegauge incidents show NUMBER",
    """incident 1: leak, warning, open
Rank 1 of job pretrain grows by 4.0 MiB per step since step 1; at this rate it runs out of memory in 29–51 min.

job         pretrain, attempt 0, 4711
owner       ada (uid 1001)
ranks       1 of 2
…
Evidence
  rank 1: Rank 1 kept 120.0 MiB (4.0 MiB a step) in 30 steps, allocated at resumable.py:31 in block, called from \
resumable.py:82 in main. …
What happens next
  The policy's rules apply (`tidegauge policy show`). The policy's mode is act: the actions of the rules are taken, \
within the brakes.""",
)
_JOBS: Final = Step(
    "tidegauge jobs",
    """job   name      user  ranks  step  allocated  reserved  state              suspects  signal     per step  OOM in
4711  pretrain  ada   2/2    483   1.9 GiB    1.9 GiB   growing (warning)  rank 1    allocated  4.0 MiB   30–53 min""",
)
_ONE_JOB: Final = ("cluster", "job_id")

JOB_RUNBOOK: tuple[RunbookEntry, ...] = (
    RunbookEntry(
        INCIDENT_ALERT,
        means="Tidegauge opened an incident about a job's memory: a leak, fragmentation, growth outside the allocator "
        "or on the host, an out-of-memory error, or an exceeded GPU share. The service posts it itself, not a rule; "
        "while it is open, rule alerts about the same attempt's memory are muted. Of an inference server, one alert is "
        "about all replicas that do it.",
        affects="One job and its owner. On a shared GPU also the other jobs there.",
        first_look="The incident's page: which ranks, since which step, the predicted OOM, and what the policy did or "
        "will do (last lines).",
        steps=(_INCIDENT,),
        what_to_do="Usually nothing: Tidegauge notifies the owner, and the policy acts as far as the site allows it. "
        "If the policy only observes, notify the owner, who knows the code.",
        logs=Logs.JOB,
        escalate="To the owner, if the predicted OOM is less than an hour away and the policy does not act.",
        when_to_silence="Silence one job whose owner knows about it. The alert ends by itself when the incident "
        "closes. A silence stops messages, not actions: to exempt a job from actions see [Keep my job running]"
        "(#keep-my-job-running).",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeLeakOomSoon",
        means="Dangerous memory growth on a rank: it has taken half of the memory that was free, and reaches the "
        "rank's limit within an hour at the current rate. Unless the growth ends by itself, as a filling buffer does, "
        "the job fails on that rank, and so as a whole.",
        affects="One job and its owner: all work since the last checkpoint.",
        first_look="Does the line on the rank's dashboard still climb, and in which signal: allocated, reserved, "
        "outside the allocator, or host memory?",
        steps=(_INCIDENTS, _INCIDENT),
        what_to_do="Checkpoint and requeue the job, through its own checkpoint or the policy. A restart gives the "
        "memory back; the leak itself is in the code (`Evidence` names the line, or usual suspects).",
        logs=Logs.JOB,
        escalate="To the owner now. If nobody can checkpoint the job, it runs until it fails.",
        when_to_silence="When the owner knows, and prefers to let it run until it fails.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeLeak",
        means="Dangerous memory growth on a rank: it has taken half of the memory that was free, and reaches the "
        "rank's limit within a week; or it grows, and the limit is unknown. Most growth that ends by itself is over "
        "before that, not all (docs/detector.md counts how often).",
        affects="One job and its owner.",
        first_look="One rank or all? Growth on all ranks alike is often a workload that grows by design, such as a "
        "curriculum or longer sequences.",
        steps=(_JOBS, _INCIDENTS),
        what_to_do="Notify the owner. No hurry while hours are left.",
        logs=Logs.JOB,
        escalate="Not needed: TidegaugeLeakOomSoon fires when an hour is left.",
        when_to_silence="When the growth is intended, for the rest of the job.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeOutOfMemory",
        means="PyTorch raised `torch.OutOfMemoryError` in a job within the last five minutes. Some jobs catch it and "
        "continue with a smaller batch; most crash.",
        affects="One job and its owner.",
        first_look="Is the job still alive (`tidegauge jobs`)? Then the incident's page: how much the allocation "
        "wanted, how much was free, and how much was lost to fragmentation.",
        steps=(_JOBS, Step("tidegauge incidents --all --since 1d"), Step("tidegauge incidents show NUMBER")),
        what_to_do="Nothing for the cluster. The incident's page tells the owner whether a retry helps, and with which "
        "allocator setting.",
        logs=Logs.JOB,
        escalate="Many jobs of different users at once: see TidegaugeUntrackedGrowth on their nodes, and suspect the "
        "driver or a new image.",
        when_to_silence="For a job that searches its batch size by running into the limit.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeFragmentation",
        means="A rank's allocator reserves 15 % of the rank's limit more than its tensors ever needed at once, and the "
        "rank is more than 90 % full: free blocks do not fit new requests, or CUDA graphs keep private pools.",
        affects="One job and its owner: it may run out of memory although enough is free.",
        first_look="The job's dashboard: does reserved climb while allocated does not? Which `alloc_conf` is in force "
        "(`tidegauge_rank_info`)?",
        steps=(_JOBS, Step("tidegauge incidents")),
        what_to_do="If there is an incident, its cause says which. The usual fix for fragmentation is "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` at the next start; the policy can requeue with it if the "
        "owner allows requeues. It does not help against `cuda_graphs`: graphs have to share a pool.",
        logs=Logs.JOB,
        escalate="To the owner. No hurry.",
        when_to_silence="When the job ends before it fills up.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeUntrackedGrowth",
        means="GPU memory outside PyTorch's allocator grew in each half of the last hour: in a job's processes, or "
        '(label `scope="node"`) on a node\'s GPUs where no watched rank accounts for it.',
        affects='One job; with `scope="node"` every job on that node\'s GPUs.',
        first_look="The rank's dashboard: non-torch memory. For a node, the processes on its GPUs: which of them "
        "belongs to no job in `tidegauge jobs`?",
        steps=(Step("tidegauge jobs"), Step("ssh HOST nvidia-smi"), Step("ssh HOST ps -o user,pid,etime,cmd -p PID")),
        what_to_do="In a job: communicators created in a loop (`new_group`), CUDA graphs, extensions that call "
        "`cudaMalloc`. On a node: a process left over from an earlier job, or a job that is not watched.",
        logs=Logs.JOB,
        escalate="A process that nobody owns, or that survives `kill -9`: drain the node, and reset the GPU or reboot.",
        when_to_silence="For nodes where people work without Tidegauge on purpose (`hostname=HOST` in place of the "
        "job).",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeGpuMemoryUnheld",
        means="Memory of a GPU has been in use for ten minutes, 1 GiB or more of it, with no process that it could "
        "belong to: one that crashed or was killed, and whose memory the driver did not take back, or one that passed "
        "it on as an open file descriptor (`cuMemExportToShareableHandle`) and ended.",
        affects="Whoever comes to that GPU next: that much is missing, up to an out-of-memory error at the start.",
        first_look="Does NVML list a process (`nvidia-smi`)? Does one keep a device of NVIDIA's open, which holds "
        "memory without being listed? What does the kernel say of the GPU (Xid)?",
        steps=(
            Step("ssh HOST nvidia-smi --query-compute-apps=pid,used_memory --format=csv"),
            Step("ssh HOST 'fuser -v /dev/nvidia*'"),
            Step("ssh HOST 'dmesg -T | grep -iE \"xid|nvrm\"'"),
        ),
        what_to_do="End processes that are left over and have such a device open; their memory goes with them. If "
        "there is none, drain the node, and reset the GPU (`nvidia-smi --gpu-reset -i INDEX`) or reboot.",
        logs=Logs.NODE,
        escalate="A GPU that comes to this again and again, or with Xids in the kernel's log: to whoever repairs it.",
        when_to_silence="While the node is drained.",
        silence_by=("hostname",),
    ),
    RunbookEntry(
        "TidegaugeMemoryNearlyFull",
        means="A rank uses more than 95 % of its limit, and device allocations need a second try after the allocator "
        "emptied its cache. That alone is slow, and the next larger batch may fail.",
        affects="One job and its owner: slower steps, and a possible OOM.",
        first_look="The job's dashboard: was it so from the start (a tight fit), or did it grow (a leak)?",
        steps=(_JOBS,),
        what_to_do="A smaller batch, activation checkpointing, or `expandable_segments:True`. A GPU that is merely "
        "full does not alert: the allocator keeps what it once had.",
        logs=Logs.JOB,
        escalate="To the owner. No hurry.",
        when_to_silence="For a job that has run like this for days.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeRankLost",
        means="A rank's process is gone while other ranks of the attempt are alive (`warning`), or fewer ranks report "
        "than the world size for ten minutes (`info`).",
        affects="One job: its other ranks hang in the next collective and keep their GPUs.",
        first_look="`ranks` counts those that report, of the world size. Why did one go: the job's own log, or the "
        "host's OOM killer in the kernel's?",
        steps=(
            Step("tidegauge jobs"),
            Step("tidegauge status"),
            Step("ssh HOST 'dmesg -T | grep -iE \"oom|xid\"'"),
        ),
        what_to_do="A job that waits for a dead rank waits until its own timeout (NCCL: ten minutes or more); end it, "
        "or let its launcher do so. If ranks run where no agent is, start one there.",
        logs=Logs.JOB,
        escalate="Ranks lost by several jobs on one node: drain it, and look for Xid errors in `dmesg`.",
        when_to_silence="For jobs whose ranks end at different times, and for jobs with some ranks unwatched.",
        silence_by=_ONE_JOB,
    ),
    RunbookEntry(
        "TidegaugeRankSilent",
        means="A rank's process is alive and has written no reading for five minutes. A healthy rank writes twice a "
        "second, even while it waits for data or for other ranks.",
        affects="One job: its other ranks wait for this one.",
        first_look="Is the process stopped (`T`), in uninterruptible sleep (`D`, often a file system), or does one "
        "thread hold Python's interpreter lock for minutes?",
        steps=(
            Step("tidegauge incidents show NUMBER"),
            Step(
                "ssh HOST ps -o pid,stat,wchan:32,cmd -p PID",
                """    PID STAT WCHAN                            CMD
  19665 Tl   do_signal_stop                   python train.py""",
            ),
        ),
        what_to_do="A node with hanging file systems or GPUs needs its admin; a process in a debugger needs nothing.",
        logs=Logs.JOB,
        escalate="State `D` for ten minutes, or several ranks on one node: to the storage or node admins.",
        when_to_silence="While somebody debugs it.",
        silence_by=_ONE_JOB,
    ),
)
