"""The kubelet's pod-resources socket of a stand-in node: ``v1.PodResourcesLister/List`` with the GPUs of its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from kube_standins.devices import RESOURCE, Holding

SERVICE = "v1.PodResourcesLister"


def serve_pod_resources(socket: Path, holdings: Callable[[], Iterable[Holding]]) -> Callable[[], None]:
    """Serves until the function that is returned is called."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    # The request has no field; messages are made and read by hand, so that nothing is generated.
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: list_response(holdings()))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": handler}),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()

    def end() -> None:
        server.stop(grace=None).wait()

    return end


def list_response(holdings: Iterable[Holding]) -> bytes:
    """``ListPodResourcesResponse`` (k8s.io/kubelet, pkg/apis/podresources/v1/api.proto) in protobuf's wire format."""
    pods: dict[tuple[str, str], list[Holding]] = {}
    for holding in holdings:
        pods.setdefault((holding.namespace, holding.pod), []).append(holding)
    response = b""
    for (namespace, pod), containers in pods.items():
        message = _field(1, pod.encode()) + _field(2, namespace.encode())
        for each in containers:
            devices = _field(1, RESOURCE.encode()) + b"".join(_field(2, one.encode()) for one in each.device_ids)
            message += _field(3, _field(1, each.container.encode()) + _field(2, devices))
        response += _field(1, message)
    return response


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field (wire type 2)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
