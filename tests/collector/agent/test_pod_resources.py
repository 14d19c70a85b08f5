"""The kubelet's word on devices: its bytes, encoded by protobuf itself, and the asking, by a kubelet that is told what
to say."""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import UUID0, UUID1, FakeClock
from kubelet_answers import Claim, Container, Pod, encode
from tidegauge.agent.kubernetes.pod_resources import (
    KubeletError,
    NoKubeletError,
    PodResources,
    ask_kubelet,
    holders_by_device,
    open_pod_resources,
)
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.remote import OpenerAwayError
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.ports import HeldBy, NoHolders, SourceHealth
from tidegauge.core.ids import DeviceUuid
from tidegauge.settings import Settings

if TYPE_CHECKING:
    from tidegauge.agent.opening.port import Opener

MIG = "MIG-22222222-2222-2222-2222-222222222222"
TRAIN = HeldBy("team-a", "llm-0", "train")
NOTEBOOK = HeldBy("team-b", "notebook", "jupyter")


def pod(held: HeldBy, *device_ids: str, resource: str = "nvidia.com/gpu") -> Pod:
    return Pod(held.namespace, held.pod, (Container(held.container, {resource: device_ids}),))


# --- bytes


def test_cards_and_instances_are_told_by_container() -> None:
    found = holders_by_device(encode([pod(TRAIN, UUID0, UUID1), pod(NOTEBOOK, MIG, resource="nvidia.com/mig-1g.10gb")]))
    assert found == {UUID0: {TRAIN}, UUID1: {TRAIN}, MIG: {NOTEBOOK}}


def test_a_card_that_is_shared_by_time_slices_has_several_holders() -> None:
    found = holders_by_device(encode([pod(TRAIN, f"{UUID0}::0", f"{UUID0}::3"), pod(NOTEBOOK, f"{UUID0}::1")]))
    assert found == {UUID0: {TRAIN, NOTEBOOK}}


def test_two_containers_of_a_pod_are_told_apart() -> None:
    side = Container("side", {"nvidia.com/gpu": (UUID1,)})
    both = Pod("team-a", "llm-0", (Container("train", {"nvidia.com/gpu": (UUID0,)}), side, Container("proxy")))
    assert holders_by_device(encode([both])) == {UUID0: {TRAIN}, UUID1: {TRAIN._replace(container="side")}}


def test_claims_count_as_far_as_their_drivers_name_uuids() -> None:
    by_name = Container("train", claims=(Claim("gpu.nvidia.com", "gpu-0", (f"k8s.gpu.nvidia.com/device={UUID0}",)),))
    by_number = Container("eval", claims=(Claim("gpu.nvidia.com", "gpu-1", ("k8s.gpu.nvidia.com/device=gpu-1",)),))
    assert holders_by_device(encode([Pod("team-a", "llm-0", (by_name, by_number))])) == {UUID0: {TRAIN}}


def test_instances_of_old_drivers_are_not_taken_for_their_card() -> None:
    old = f"MIG-{UUID0}/1/0"
    assert holders_by_device(encode([pod(TRAIN, old)])) == {old: {TRAIN}}


@pytest.mark.parametrize("device", ["0", "nvidia0", "nvidia0/gi1", "xGPU-1", f"X{UUID0}", "GPU-not-a-uuid", ""])
def test_devices_without_a_uuid_are_nobodys(device: str) -> None:
    assert holders_by_device(encode([pod(TRAIN, device)])) == {}


def test_pod_resources_are_empty_on_an_idle_node() -> None:
    assert holders_by_device(b"") == {}


@pytest.mark.parametrize(
    "garbage",
    [b"\x0a\xff\x01", b"\x0a", b"\xff" * 11, b"\x0b\x01", b"\x0a\x02\x0a\x05", b"\x0a\x03\x0a\x01\xff", b"\x09\x01"],
)
def test_pod_resources_refuse_a_malformed_answer(garbage: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it is
        holders_by_device(garbage)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(garbage: bytes) -> None:
    try:
        found = holders_by_device(garbage)
    except ValueError:
        return
    assert isinstance(found, dict)


texts = st.text("abcdefghij-0123", min_size=1, max_size=20)
pods = st.builds(
    lambda namespace, name, containers: Pod(namespace, name, tuple(containers)),
    texts, texts,
    st.lists(st.builds(
        Container, texts, st.dictionaries(texts, st.lists(st.sampled_from([UUID0, UUID1, MIG, "0"])), max_size=2),
    ), max_size=3),
)  # fmt: skip


@given(st.lists(pods, max_size=4))
def test_pod_resources_parse_what_protobuf_encodes(all_pods: list[Pod]) -> None:
    expected: dict[str, set[HeldBy]] = {}
    for one in all_pods:
        for container in one.containers:
            for device in (device for devices in container.devices.values() for device in devices if device != "0"):
                expected.setdefault(device, set()).add(HeldBy(one.namespace, one.name, container.name))
    assert holders_by_device(encode(all_pods)) == expected


# --- asking


class Kubelet:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = encode([pod(TRAIN, UUID0, UUID1), pod(NOTEBOOK, UUID1)])

    def __call__(self) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def resources(kubelet: Kubelet) -> PodResources:
    return PodResources(kubelet, monotonic_s=FakeClock().monotonic_s)


def test_a_process_on_several_cards_is_in_a_container_that_has_them_all() -> None:
    found = resources(Kubelet())
    found.look()
    assert found.holders_of([UUID0]) == {TRAIN}
    assert found.holders_of([UUID1]) == {TRAIN, NOTEBOOK}
    assert found.holders_of([UUID1, UUID0]) == {TRAIN}
    assert found.holders_of([DeviceUuid(MIG)]) == frozenset()
    assert found.holders_of([]) == frozenset()


def test_pod_resources_are_unknown_before_the_first_answer() -> None:
    found = resources(Kubelet())
    assert (found.holders_of([UUID0]), found.health()) == (frozenset(), None)


@pytest.mark.parametrize("problem", [KubeletError("away"), b"\xff", OSError("a slip of ours")])
def test_pod_resources_keep_the_last_answer_while_the_kubelet_fails(problem: bytes | Exception) -> None:
    kubelet = Kubelet()
    found = resources(kubelet)
    found.look()
    assert found.health() == SourceHealth(True, 0.0)
    kubelet.answer = problem
    found.look()
    assert found.health() == SourceHealth(False, 0.0)
    assert found.holders_of([UUID0]) == {TRAIN}


def test_a_kubelet_that_is_away_is_said_once_and_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    kubelet = Kubelet()
    kubelet.answer = KubeletError("kubelet.sock: no such file")
    found = resources(kubelet)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            found.look()
        kubelet.answer = b""
        for _ in range(3):
            found.look()
    assert [record.getMessage() for record in caplog.records] == [
        "the kubelet does not report which pods have which GPUs: kubelet.sock: no such file",
        "the kubelet reports again which pods have which GPUs",
    ]


def test_pod_resources_of_a_node_without_a_kubelet_are_no_failure_until_one_has_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kubelet = Kubelet()
    answer, kubelet.answer = kubelet.answer, NoKubeletError("kubelet.sock: No such file or directory")
    found = resources(kubelet)
    found.look()
    assert (found.health(), caplog.messages) == (None, [])
    kubelet.answer = answer
    found.look()
    kubelet.answer = NoKubeletError("kubelet.sock: No such file or directory")
    found.look()
    assert found.health() == SourceHealth(False, 0.0)


def test_pod_resources_opener_that_was_away_leaves_no_failure_on_a_node_without_a_kubelet() -> None:
    kubelet = Kubelet()
    kubelet.answer = KubeletError("it listens and says nothing")
    found = resources(kubelet)
    found.look()
    kubelet.answer = NoKubeletError("kubelet.sock: No such file or directory")
    found.look()
    assert found.health() is None


class NoWay:
    """An opener that has none to the kubelet."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def kubelet(self, path: Path) -> socket.socket:
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), NoKubeletError),
        (PermissionError(errno.EACCES, "Permission denied"), NoKubeletError),
        (OpenerAwayError("Connection refused"), NoKubeletError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), KubeletError),
        (UnsafeFileError("socket", "it is not a socket of root's"), KubeletError),
    ],
)
def test_pod_resources_errors_of_the_way_to_the_kubelet_are_its_own(
    error: Exception, raised: type[KubeletError]
) -> None:
    with pytest.raises(KubeletError, match=r"kubelet\.sock: ") as refused:
        ask_kubelet(cast("Opener", NoWay(error)), Path("kubelet.sock"))
    assert type(refused.value) is raised


def test_local_opener_connects_to_no_file_in_place_of_the_kubelets_socket(tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").touch()
    with pytest.raises(UnsafeFileError):
        LOCAL.kubelet(tmp_path / "kubelet.sock")


def test_pod_resources_query_nothing_if_kubernetes_is_off(tmp_path: Path) -> None:
    settings = Settings(kubernetes="off", kubernetes_pod_resources=tmp_path / "kubelet.sock")
    assert isinstance(open_pod_resources(settings, LOCAL), NoHolders)
