"""Pods by the cgroups of their processes: as kubelets and runtimes name them, and as a process would like to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.kubernetes.cgroup import container_of, pod_cgroup_of
from tidegauge.core.jobs.kubernetes import PodCgroup

UID = "8a1c4f3e-09b2-4d5e-8f10-1234567890ab"
UID_ = UID.replace("-", "_")
OTHER = "11111111-2222-4333-8444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"
ID = "7f3a" * 16
OTHER_ID = "ab12" * 16
HERE = PodCgroup(UID, ID)

PATHS = {
    "cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs, best effort": f"/kubepods/besteffort/pod{UID}/{ID}",
    "cgroupfs, guaranteed": f"/kubepods/pod{UID}/{ID}",
    "systemd": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "systemd, guaranteed": f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "cri-o": f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{ID}.scope/container",
    "docker": f"/kubepods.slice/kubepods-pod{UID_}.slice/docker-{ID}.scope",
    "containerd by cgroupfs under a kubelet by systemd":
        f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
    "k3s": f"/system.slice/k3s.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
    "kind": "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "kind, seen from its host": f"/docker/{OTHER_ID}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "another class, from a pod's own namespace":
        f"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "the same class": f"/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
    "the same class, cgroupfs": f"/../../pod{UID}/{ID}",
    "another class, cgroupfs": f"/../../../besteffort/pod{UID}/{ID}",
    "its own cgroups below": f"/kubepods/pod{UID}/{ID}/init/worker.slice",
}  # fmt: skip


@pytest.mark.parametrize("layout", PATHS)
@pytest.mark.parametrize("line", ["0::{}", "4:memory:{}", "1:name=systemd:{}", "3:cpu,cpuacct:{}"])
def test_every_layout_names_pod_and_container(layout: str, line: str) -> None:
    assert pod_cgroup_of(line.format(PATHS[layout]) + "\n") == HERE


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/kubepods/burstable/pod{UID}", PodCgroup(UID, None)),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{ID}.scope", PodCgroup(UID, None)),
        (f"/kubepods/pod{UID}/not-a-container", PodCgroup(UID, None)),
        (f"/kubepods/burstable/pod{STATIC}/{ID}", PodCgroup(STATIC, ID)),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope",
         PodCgroup(STATIC, ID)),
    ],
)  # fmt: skip
def test_pods_without_a_known_container_and_static_ones(path: str, found: PodCgroup) -> None:
    assert pod_cgroup_of(f"0::{path}\n") == found


def test_all_hierarchies_of_version_1_say_the_same() -> None:
    text = f"9:name=systemd:/system.slice\n8:pids:{PATHS['cgroupfs']}\n7:blkio:{PATHS['cgroupfs']}\n6:rdma:/\n0::/\n"
    assert pod_cgroup_of(text) == HERE


def test_pod_cgroup_drops_values_on_which_hierarchies_disagree() -> None:
    text = f"2:pids:/kubepods/pod{UID}/{ID}\n1:memory:/kubepods/pod{OTHER}/{OTHER_ID}\n"
    assert pod_cgroup_of(text) is None
    text = f"2:pids:/kubepods/pod{UID}/{ID}\n1:memory:/kubepods/pod{UID}/{OTHER_ID}\n"
    assert pod_cgroup_of(text) == PodCgroup(UID, None)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "/user.slice/user-1000.slice/session-3.scope",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods-pod{UID_}.slice/crio-{ID}.scope",
        f"/system.slice/jupyter@ada.service/kubepods-pod{UID_}.slice:cri-containerd:{ID}",
        f"/system.slice/notebook.service/kubepods/pod{UID}/{ID}",
        f"/machine.slice/libpod-{ID}.scope/kubepods/pod{UID}/{ID}",
        f"/lxc.payload.box/kubepods/pod{UID}/{ID}",
        f"/../../../user.slice/user@1000.service/kubepods/pod{UID}/{ID}",
        f"/made-up/pod{UID}/{ID}",
        f"/burstable/pod{UID}/{ID}",
        f"/pod{UID}/{ID}",
        f"/kubepods/mine/pod{UID}/{ID}",
        f"/kubepods/pod{UID[:-1]}/{ID}",
        f"/kubepods/pod{UID.upper()}/{ID}",
        f"/kubepods/pod{UID}x/{ID}",
        f"/kubepods-pod{UID}.slice.d/{ID}",
    ],
)
def test_pod_cgroup_ignores_paths_not_made_by_a_kubelet(path: str) -> None:
    assert pod_cgroup_of(f"0::{path}\n") is None


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_a_name_with_a_line_end_of_another_kind_is_one_name(separator: str) -> None:
    """The kernel refuses line feeds in names, and nothing else."""
    text = f"0::/user.slice/user@1000.service/x{separator}0::/kubepods/pod{UID}/{ID}\n"
    assert pod_cgroup_of(text) is None


NAMES = st.sampled_from(
    [f"kubepods-pod{OTHER.replace('-', '_')}.slice", "kubepods", "burstable", f"pod{OTHER}", OTHER_ID, "..",
     f"crio-{OTHER_ID}.scope", f"x:y:/kubepods/pod{OTHER}", f"kubepods-pod{OTHER}.slice:cri-containerd:{OTHER_ID}"]
)  # fmt: skip


@given(st.sampled_from(sorted(PATHS)), st.lists(NAMES | st.text("abc:./-\r\v", min_size=1), max_size=6))
def test_no_name_below_a_container_changes_whose_it_is(layout: str, names: list[str]) -> None:
    assert pod_cgroup_of("0::" + "/".join([PATHS[layout], *names]) + "\n") == HERE


@given(st.text(st.characters(exclude_characters="\n")))
def test_any_text_is_read_without_a_failure(text: str) -> None:
    assert pod_cgroup_of(f"0::/kubepods{text}") in (None, pod_cgroup_of(f"0::/kubepods{text}\n"))


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/docker-{ID}.scope",
        f"/docker/{ID}",
        f"/machine.slice/libpod-{ID}.scope/container",
        f"/libpod_parent/libpod-{ID}",
        f"/system.slice/nerdctl-{ID}.scope",
        f"/default/{ID}",
        f"/team.slice/team-a.slice/docker-{ID}.scope",
        f"/docker/{ID}/docker/{OTHER_ID}",
        f"/system.slice/docker-{ID}.scope/machine.slice/libpod-{OTHER_ID}.scope",
    ],
)
def test_an_engine_of_roots_names_the_container(path: str) -> None:
    assert container_of(f"0::{path}\n") == ID


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/user.slice/user-1000.slice/session-3.scope",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        f"/user.slice/user-1000.slice/docker-{ID}.scope",
        f"/system.slice/jupyter@ada.service/docker-{ID}.scope",
        f"/system.slice/condor.service/docker/{ID}",
        f"/htcondor/slot1/docker/{ID}",
        f"/htcondor/x.slice/docker-{ID}.scope",
        f"/machine.slice/libpod-conmon-{ID}.scope",
        f"/system.slice/docker-{ID[1:]}.scope",
        f"/docker/{ID}x",
    ],
)
def test_container_of_ignores_cgroups_that_a_user_can_create(path: str) -> None:
    assert container_of(f"0::{path}\n") is None


def test_hierarchies_that_name_two_containers_name_none() -> None:
    assert container_of(f"2:pids:/docker/{ID}\n1:memory:/docker/{OTHER_ID}\n") is None
    assert container_of(f"2:pids:/docker/{ID}\n1:memory:/docker/{ID}\n0::/\n") == ID
