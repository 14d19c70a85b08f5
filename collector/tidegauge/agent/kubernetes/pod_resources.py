"""GPUs of each container: asks the kubelet's pod-resources socket, in a thread of its own.

A second source while the head is silent. It knows names but no pod uid, so it is queried by the GPUs
that the driver lists a process on. kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins.
The answer is ``ListPodResourcesResponse`` of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import logging
import re
import socket as sockets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.remote import OpenerAwayError
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.ports import HeldBy, HolderSource, NoHolders, SourceHealth
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.protobuf import messages, text, texts

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

REFRESH_S = 10.0
"""Between two questions. A pod keeps its devices for as long as it lives."""
TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 16 << 20
"""As kubelets limit their own clients; a node with 250 pods has some 100 KB."""
LIST = "/v1.PodResourcesLister/List"

POD_RESOURCES = 1
"""Of the response."""
POD_NAME, POD_NAMESPACE, CONTAINERS = 1, 2, 3
"""Of a pod."""
CONTAINER_NAME, DEVICES, DYNAMIC_RESOURCES = 1, 2, 5
"""Of a container."""
DEVICE_IDS = 2
"""Of the devices of one resource (``nvidia.com/gpu``): ``GPU-…``, ``MIG-…``, of a time slice ``GPU-…::3``."""
CLAIM_RESOURCES = 4
"""Of a dynamic resource (DRA)."""
CDI_DEVICES, DEVICE_NAME = 1, 4
"""Of a claim: the driver's names of its devices, which are understood if they contain the UUID."""
CDI_NAME = 1

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"(?<![0-9A-Za-z])(?:MIG-GPU-{_UUID}/[0-9]{{1,3}}/[0-9]{{1,3}}|(?:GPU|MIG)-{_UUID})")
"""As NVML writes them, ``MIG-GPU-…/1/0`` before driver 470."""


class KubeletError(Exception):
    """The kubelet does not answer now: it is restarting, or refuses access. Ask again later."""


class NoKubeletError(KubeletError):
    """It cannot be asked from here: there is none, the opener is away, or this user has no right to."""


def ask_kubelet(opener: Opener, socket: Path) -> bytes:
    """Its answer, a ``ListPodResourcesResponse``. Raises ``NoKubeletError`` and, within ``TIMEOUT_S``,
    ``KubeletError``."""
    try:
        connection = opener.kubelet(socket)
    except (FileNotFoundError, PermissionError, OpenerAwayError) as error:
        raise NoKubeletError(f"{socket}: {error.strerror}") from error
    except (OSError, UnsafeFileError) as error:
        raise KubeletError(f"{socket}: {error}") from error
    with connection:
        connection.setblocking(True)
        return _list(connection, socket)


def _list(connection: sockets.socket, socket: Path) -> bytes:
    try:
        grpc = import_module("grpc")  # of the extra [kubernetes]; here and nowhere else
    except ImportError:
        raise KubeletError("grpcio is missing: pip install 'tidegauge[kubernetes]'") from None
    options = [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.default_authority", "localhost"),  # servers in Go refuse the socket's path, which is the default
        ("grpc.use_local_subchannel_pool", 1),  # a connection of this question's own: no back-off of the last one
    ]
    try:
        with reached(connection) as path, grpc.insecure_channel(f"unix:{path}", options=options) as channel:
            response = channel.unary_unary(LIST)(b"", timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise KubeletError(f"{socket}: {error.details()} ({error.code().name})") from error
    assert isinstance(response, bytes)
    return response


@contextmanager
def reached(connection: sockets.socket) -> Iterator[Path]:
    """A path by which gRPC reaches what ``connection`` is connected to, once: it takes no descriptor."""
    with TemporaryDirectory(prefix="tidegauge-") as folder, sockets.socket(sockets.AF_UNIX) as listener:
        path = Path(folder) / "kubelet"
        listener.bind(str(path))
        listener.listen(1)
        relay = threading.Thread(target=_relay, args=(listener, connection), daemon=True)
        relay.start()
        try:
            yield path
        finally:
            _end(listener, connection)
            relay.join()


def _relay(listener: sockets.socket, connection: sockets.socket) -> None:
    try:
        client, _ = listener.accept()
    except OSError:  # nobody came
        return
    with client:
        answers = threading.Thread(target=_copy, args=(connection, client), daemon=True)
        answers.start()
        _copy(client, connection)
        answers.join()


def _copy(source: sockets.socket, sink: sockets.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _end(source, sink)


def _end(*connections: sockets.socket) -> None:
    for one in connections:
        with suppress(OSError):
            one.shutdown(sockets.SHUT_RDWR)


class PodResources:
    """The ``HolderSource`` of a node with a kubelet. Thread-safe; ``start`` begins the thread that asks.

    ``ask`` returns the kubelet's answer or raises ``KubeletError``. While none has answered, a ``NoKubeletError`` is
    no failure: most nodes have none.
    """

    def __init__(self, ask: Callable[[], bytes], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._holders: Mapping[DeviceUuid, frozenset[HeldBy]] = {}
        self._health: SourceHealth | None = None
        self._has_answered = False
        self._closing = threading.Event()

    def holders_of(self, uuids: Collection[DeviceUuid]) -> frozenset[HeldBy]:
        holders = self._holders
        return frozenset.intersection(*(holders.get(uuid, frozenset()) for uuid in uuids)) if uuids else frozenset()

    def health(self) -> SourceHealth | None:
        return self._health

    def start(self) -> None:
        """Begin to ask, in a daemon thread. Once."""
        threading.Thread(target=self._run, name="tidegauge-pod-resources", daemon=True).start()

    def close(self) -> None:
        """Ends the thread after the question that is under way, for which it does not wait."""
        self._closing.set()

    def look(self) -> None:
        """Ask once; the last answer stays while the kubelet gives none."""
        began_s = self._monotonic_s()
        failed = self._health is not None and not self._health.success
        try:
            self._holders = holders_by_device(self._ask())
        except Exception as error:
            success = False
            if isinstance(error, NoKubeletError) and not self._has_answered:
                self._health = None
                return
            if not failed:
                slip = not isinstance(error, (KubeletError, ValueError))
                _log.warning("the kubelet does not report which pods have which GPUs: %s", error, exc_info=slip)
        else:
            success = self._has_answered = True
            if failed:
                _log.info("the kubelet reports again which pods have which GPUs")
        self._health = SourceHealth(success, self._monotonic_s() - began_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(REFRESH_S)


def open_pod_resources(settings: Settings, opener: Opener) -> HolderSource:
    """The kubelet of this node, if there is one, asked from now on; ``NoHolders`` if Kubernetes is switched off."""
    if settings.kubernetes == "off":
        return NoHolders()
    resources = PodResources(lambda: ask_kubelet(opener, settings.kubernetes_pod_resources))
    resources.start()
    return resources


def holders_by_device(response: bytes) -> Mapping[DeviceUuid, frozenset[HeldBy]]:
    """The containers that each GPU or MIG instance was given to: several where it is shared. Raises ``ValueError`` for
    bytes that are no such response."""
    found: dict[DeviceUuid, set[HeldBy]] = {}
    for pod in messages(response, POD_RESOURCES):
        name, namespace = text(pod, POD_NAME), text(pod, POD_NAMESPACE)
        for container in messages(pod, CONTAINERS):
            held = HeldBy(namespace, name, text(container, CONTAINER_NAME))
            for device in _device_names(container):
                for uuid in _DEVICE.findall(device):
                    found.setdefault(DeviceUuid(uuid), set()).add(held)
    return {uuid: frozenset(holders) for uuid, holders in found.items()}


def _device_names(container: bytes) -> Iterator[str]:
    for devices in messages(container, DEVICES):
        yield from texts(devices, DEVICE_IDS)
    for resource in messages(container, DYNAMIC_RESOURCES):
        for claim in messages(resource, CLAIM_RESOURCES):
            yield from texts(claim, DEVICE_NAME)
            for device in messages(claim, CDI_DEVICES):
                yield from texts(device, CDI_NAME)
