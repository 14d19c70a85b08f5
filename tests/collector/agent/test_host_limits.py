"""What a cgroup and a node have left, from files as kernels write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.agent.processes.host_limits import CgroupRooms, read_node_memory
from tidegauge.core.host_memory import NodeMemory

GIB = 1 << 30
SLURM = "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n"
JOB = "system.slice/slurmstepd.scope/job_9"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def stat(**fields: int) -> str:
    return "\n".join(f"{name} {number}" for name, number in {"anon": 1, **fields}.items())


@pytest.mark.parametrize("below", ["", "/step_0/user"])
def test_the_nearest_limit_counts_wherever_it_is(tmp_path: Path, below: str) -> None:
    write(tmp_path / "system.slice", memory__max=64 * GIB, memory__current=8 * GIB)
    write(tmp_path / f"{JOB}{below}", memory__max=32 * GIB, memory__current=8 * GIB)
    write(tmp_path / f"{JOB}/step_0/user/task_0", memory__max="max", memory__current=8 * GIB)
    assert CgroupRooms(tmp_path).left(SLURM) == 24 * GIB


def test_pages_of_files_are_free(tmp_path: Path) -> None:
    files = stat(inactive_file=3 * GIB, active_file=2 * GIB, shmem=GIB)
    write(tmp_path / JOB, memory__max=10 * GIB, memory__current=10 * GIB, memory__stat=files)
    assert CgroupRooms(tmp_path).left(SLURM) == 5 * GIB


def test_version_1_has_a_hierarchy_for_memory(tmp_path: Path) -> None:
    cgroup = "9:name=systemd:/x\n4:memory:/slurm/uid_1000/job_9\n0::/elsewhere\n"
    write(tmp_path / "memory/slurm/uid_1000", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=GIB)
    write(
        tmp_path / "memory/slurm/uid_1000/job_9",
        memory__limit_in_bytes=4 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat=stat(total_inactive_file=GIB),
    )
    assert CgroupRooms(tmp_path).left(cgroup) == 2 * GIB


def test_without_a_limit_nothing_is_known(tmp_path: Path) -> None:
    write(tmp_path / JOB, memory__max="max", memory__current=GIB)
    assert CgroupRooms(tmp_path).left(SLURM) is None
    assert CgroupRooms(tmp_path).left("") is None


def test_cgroups_of_another_namespace_are_not_looked_for(tmp_path: Path) -> None:
    write(tmp_path, memory__max=GIB, memory__current=0)
    assert CgroupRooms(tmp_path / "a/b").left("0::/../../kubepods.slice/pod1\n") is None


def test_a_cgroup_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    write(tmp_path / JOB, memory__max=GIB, memory__current=GIB + 4096)
    assert CgroupRooms(tmp_path).left(SLURM) == 0


def test_each_level_is_read_once_until_it_is_to_be_read_again(tmp_path: Path) -> None:
    write(tmp_path / JOB, memory__max=2 * GIB, memory__current=GIB)
    rooms = CgroupRooms(tmp_path)
    assert rooms.left(SLURM) == GIB
    write(tmp_path / JOB, memory__current=0)
    assert rooms.left(SLURM) == GIB
    rooms.forget()
    assert rooms.left(SLURM) == 2 * GIB


def test_a_node_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       24684092 kB\nMemFree:  5 kB\nMemAvailable:   24184092 kB\n")
    memory = read_node_memory(tmp_path, tmp_path)
    assert (memory.total_bytes, memory.available_bytes) == (24684092 * 1024, 24184092 * 1024)
    assert memory.shm_total_bytes is not None
    assert memory.shm_used_bytes is not None
    assert 0 < memory.shm_used_bytes < memory.shm_total_bytes


def test_read_node_memory_leaves_missing_values_unknown(tmp_path: Path) -> None:
    assert read_node_memory(tmp_path, tmp_path / "nowhere") == NodeMemory()


def test_this_machine_has_memory_and_knows_of_its_own_cgroup() -> None:
    memory = read_node_memory()
    assert memory.available_bytes is not None
    assert memory.total_bytes is not None
    assert 0 < memory.available_bytes < memory.total_bytes
    left = CgroupRooms().left(Path("/proc/self/cgroup").read_text())
    assert left is None or left >= 0
