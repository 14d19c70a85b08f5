"""A real gRPC server on a Unix socket stands in for the kubelet: its answers are heard, its absence is survived."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.needs import missing
from kubelet_answers import Container, Pod, encode
from tidegauge.agent.kubernetes import pod_resources
from tidegauge.agent.kubernetes.pod_resources import (
    LIST,
    MAX_RESPONSE_BYTES,
    KubeletError,
    PodResources,
    ask_kubelet,
    open_pod_resources,
)
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.ports import HeldBy
from tidegauge.core.ids import DeviceUuid
from tidegauge.settings import Settings

try:
    import grpc
except ImportError:
    missing("grpcio is not installed")

UUID = DeviceUuid("GPU-00000000-1111-2222-3333-444444444444")
HELD = HeldBy("team-a", "llm-0", "train")
ANSWER = encode([Pod(HELD.namespace, HELD.pod, (Container(HELD.container, {"nvidia.com/gpu": (UUID,)}),))])
WITHIN_S = 30.0


class Lister(grpc.GenericRpcHandler):  # type: ignore[misc] # SAFETY: grpc has no types
    """``PodResourcesLister`` of the kubelet, as far as ``List`` goes."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self._answer = answer
        self.asked = threading.Event()

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._list) if handler_call_details.method == LIST else None

    def _list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        self.asked.set()
        try:
            return self._answer()
        except PermissionError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise


@contextmanager
def kubelet(socket: Path, answer: Callable[[], bytes] = lambda: ANSWER) -> Iterator[Lister]:
    lister = Lister(answer)
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), handlers=(lister,), options=options)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield lister
    finally:
        server.stop(None).wait()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for some seconds makes no kubelet silent."""
    monkeypatch.setattr(pod_resources, "TIMEOUT_S", WITHIN_S)


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # a short path: 107 bytes are all that a Unix socket takes
        yield Path(folder) / "kubelet.sock"


def test_its_answer_names_the_containers_of_a_card(socket: Path) -> None:
    resources = PodResources(lambda: ask_kubelet(LOCAL, socket))
    with kubelet(socket):
        resources.look()
    assert resources.holders_of([UUID]) == {HELD}
    health = resources.health()
    assert health is not None
    assert health.success


def test_the_agent_asks_by_itself(socket: Path) -> None:
    with kubelet(socket) as lister:
        resources = open_pod_resources(Settings(kubernetes_pod_resources=socket), LOCAL)
        assert lister.asked.wait(WITHIN_S)
        resources.close()


def test_a_kubelet_that_is_restarted_is_heard_again_at_once(socket: Path) -> None:
    with kubelet(socket):
        assert ask_kubelet(LOCAL, socket) == ANSWER
    with pytest.raises(KubeletError, match=re.escape(str(socket))):
        ask_kubelet(LOCAL, socket)
    socket.unlink(missing_ok=True)
    with kubelet(socket):
        assert ask_kubelet(LOCAL, socket) == ANSWER


def test_a_question_leaves_neither_files_nor_threads(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(socket.parent))
    with kubelet(socket):
        assert ask_kubelet(LOCAL, socket) == ANSWER
        assert [path.name for path in socket.parent.iterdir()] == [socket.name]
        assert not [thread for thread in threading.enumerate() if "_relay" in thread.name or "_copy" in thread.name]


def test_kubelet_error_includes_its_reason(socket: Path) -> None:
    def refuse() -> bytes:
        raise PermissionError("rejected by rate limit")

    with kubelet(socket, refuse), pytest.raises(KubeletError, match=r"rejected by rate limit \(PERMISSION_DENIED\)"):
        ask_kubelet(LOCAL, socket)


def test_an_answer_without_measure_is_not_taken_in(socket: Path) -> None:
    with (
        kubelet(socket, lambda: b"\0" * (MAX_RESPONSE_BYTES + 1)),
        pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED"),
    ):
        ask_kubelet(LOCAL, socket)
