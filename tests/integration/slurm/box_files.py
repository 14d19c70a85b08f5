"""What stands in the files of a Slurm box: texts made from its shape, without touching anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONTROLLER = "ctl"
CONTROLLER_ADDRESS = "10.77.0.1"
ACCOUNT = "lab"
"""The account of every user in a box with accounting."""


@dataclass(frozen=True)
class Shape:
    """What a box consists of. Several boxes have the same addresses: each has its own network.

    ``shards_per_gpu`` and ``mps_per_gpu`` are counts of ``gres/shard`` and ``gres/mps``; 0 leaves them out (Slurm 22.05
    gets both wrong when it has both).
    """

    nodes: int = 3
    gpus: int = 2
    cpus: int = 4
    memory_mib: int = 4000
    shards_per_gpu: int = 0
    mps_per_gpu: int = 0
    accounting: bool = False
    cgroup: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    def address(self, host: str) -> str:
        """Of a node, or of the controller's host. Raises ``ValueError`` for a name that the box does not have."""
        if host == CONTROLLER:
            return CONTROLLER_ADDRESS
        if host not in self.node_names:
            raise ValueError(f"the box has no host {host!r}; it has {CONTROLLER}, {', '.join(self.node_names)}")
        return f"10.77.0.{10 + int(host[1:])}"


def slurm_conf(shape: Shape, log_folder: str, extra: str) -> str:
    """``slurm.conf``, with the lines of ``extra`` in the place of the box's own that set the same."""
    gres_types = [name for name, count in _gres(shape) if count]
    lines = [
        "ClusterName=tide",
        f"SlurmctldHost={CONTROLLER}({CONTROLLER_ADDRESS})",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # A requeued job waits for its credential to expire: 121 s by default, and this is the least that Slurm takes.
        "AuthInfo=cred_expire=5",
        "StateSaveLocation=/var/spool/slurm/controller",
        "SlurmdSpoolDir=/var/spool/slurm/%n",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd.pid",
        f"SlurmctldLogFile={log_folder}/slurmctld.log",
        f"SlurmdLogFile={log_folder}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "MailProg=/bin/true",
        "MpiDefault=none",
        f"ProctrackType=proctrack/{'cgroup' if shape.cgroup else 'linuxproc'}",
        f"TaskPlugin=task/{'cgroup' if shape.cgroup else 'none'}",
        "JobAcctGatherType=jobacct_gather/linux",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerNode=100",
        # Tests wait for each of these; a site would never want them as short.
        "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0",
        "KillWait=2",
        "CompleteWait=0",
        "SlurmdTimeout=30",
        "SlurmctldTimeout=30",
        "MinJobAge=300",  # tests ask about ended jobs
        "InactiveLimit=0",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",  # the nodes may have more CPUs than the machine
    ]
    if gres_types:
        lines.append(f"GresTypes={','.join(gres_types)}")
    if shape.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={CONTROLLER}",
            "AccountingStorageTRES=gres/gpu",
            "AccountingStoreFlags=job_comment,job_env,job_script",
        ]
    gres = ",".join(f"{name}:fake:{count}" for name, count in _gres(shape) if count)
    for name in shape.node_names:
        node = f"NodeName={name} NodeAddr={shape.address(name)} CPUs={shape.cpus} RealMemory={shape.memory_mib}"
        lines.append(f"{node} Gres={gres}" if gres else node)
    lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    # Slurm takes the last of two, but every command of it complains.
    replaced = {_setting(line) for line in extra.splitlines()} - {"nodename", "partitionname"}
    return "\n".join([*(line for line in lines if _setting(line) not in replaced), extra.strip()]) + "\n"


def _setting(line: str) -> str:
    """The name that a line of ``slurm.conf`` begins with; Slurm takes it in any case."""
    return line.partition("=")[0].strip().lower()


def _gres(shape: Shape) -> list[tuple[str, int]]:
    return [
        ("gpu", shape.gpus),
        ("shard", shape.gpus * shape.shards_per_gpu),
        ("mps", shape.gpus * shape.mps_per_gpu),
    ]


def gres_conf(shape: Shape) -> str:
    """``gres.conf``: Slurm wants a device behind each GPU, and ``boot.sh`` makes one that nothing drives."""
    lines = [f"Name=gpu Type=fake File=/dev/nvidia{number}" for number in range(shape.gpus)]
    lines += [f"Name={name} Count={count}" for name, count in _gres(shape)[1:] if count]
    return "\n".join(lines) + "\n"


def cgroup_conf(shape: Shape) -> str:
    """``cgroup.conf``: with ``cgroup`` a job sees its own GPUs only, numbered from 0."""
    constrain_devices = "yes" if shape.cgroup else "no"
    return (
        "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n"
        f"ConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices={constrain_devices}\n"
    )


def slurmdbd_conf(log_folder: str) -> str:
    """``slurmdbd.conf``: the database is reached by its socket, where MariaDB knows who asks."""
    return (
        f"AuthType=auth/munge\nDbdHost={CONTROLLER}\nSlurmUser=slurm\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\nStorageLoc=slurm_acct_db\n"
        f"LogFile={log_folder}/slurmdbd.log\nPidFile=/run/slurm/slurmdbd.pid\nDebugLevel=info\n"
    )


def associations(users: Mapping[str, int]) -> str:
    """A file for ``sacctmgr load``, which takes as long as one ``sacctmgr add`` would: about a second."""
    lines = ["Cluster - 'tide'", "Parent - 'root'", f"Account - '{ACCOUNT}'", f"Parent - '{ACCOUNT}'"]
    lines += [f"User - '{name}':DefaultAccount='{ACCOUNT}'" for name in users]
    return "\n".join(lines) + "\n"


def hosts(shape: Shape) -> str:
    """``/etc/hosts``: there is no other source of names in the box."""
    named = [f"{shape.address(name)} {name}" for name in (CONTROLLER, *shape.node_names)]
    return "\n".join(["127.0.0.1 localhost", *named]) + "\n"


def passwd(base: str, users: Mapping[str, int], homes: str) -> str:
    """``/etc/passwd`` with the users added.

    The password field is ``*``: with ``x``, a look into /etc/shadow, the ``su`` that Slurm runs for ``--export=NONE``
    fails.
    """
    return base + "".join(f"{name}:*:{uid}:{uid}::{homes}/{name}:/bin/bash\n" for name, uid in users.items())


def group(base: str, users: Mapping[str, int]) -> str:
    """``/etc/group`` with a group for each user, numbered like the user."""
    return base + "".join(f"{name}:x:{uid}:\n" for name, uid in users.items())
