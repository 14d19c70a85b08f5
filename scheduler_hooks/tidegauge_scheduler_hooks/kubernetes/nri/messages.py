"""What NRI and the plugin say to each other: the fields that are needed of github.com/containerd/nri/pkg/api/api.proto
(v1alpha1), whose numbers are the same in all versions since 0.2 (containerd 1.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tidegauge.core.protobuf import field, fields, integer, messages, text, text_map, texts

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
REGISTER = "RegisterPlugin"
"""Of the runtime's service."""
CONFIGURE, SYNCHRONIZE, CREATE_CONTAINER = "Configure", "Synchronize", "CreateContainer"
"""Of the plugin's. To all others, none of which is asked for, the empty message is an answer."""

_CREATE_CONTAINER_EVENT = 4
"""Of the enumeration ``Event``; subscriptions are bits, counted from 1."""


class PodSandbox(NamedTuple):
    """The pod of a container, as the kubelet gave it to the runtime. Its namespace's labels are not known here."""

    name: str
    uid: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class RuntimeMount(NamedTuple):
    """A mount of OCI's runtime specification."""

    destination: str
    type: str
    source: str
    options: Sequence[str]


class RuntimeContainer(NamedTuple):
    """A container that is about to be made: with what image, pod, device plugins and earlier plugins put into it."""

    name: str
    environ: Mapping[str, str]
    set_twice: Collection[str]
    """Variables that image and pod set. Runtimes change the first of the two, and the second counts (``AdjustEnv`` in
    NRI's pkg/runtime-tools/generate): these cannot be changed."""
    mounts: Sequence[RuntimeMount]
    devices: Sequence[str]
    """Paths of device nodes."""
    cdi_devices: Sequence[str]
    """Names, ``vendor/class=device``; of containerd since 2.1."""


class Adjustment(NamedTuple):
    """What is put into a container."""

    environ: Mapping[str, str] = {}
    mounts: Sequence[RuntimeMount] = ()
    left_alone: str = ""
    """Why nothing is, where the pod or its namespace asks for it: for people."""


def registration(name: str, index: str) -> bytes:
    """``RegisterPluginRequest``. Plugins are asked in the order of their two digits."""
    return field(1, name) + field(2, index)


def configured() -> bytes:
    """``ConfigureResponse``: asked only about containers that are made."""
    return field(2, 1 << (_CREATE_CONTAINER_EVENT - 1))


def synchronized(request: bytes) -> bytes:
    """``SynchronizeResponse``: containers that are there already stay as they are. A runtime that has more to tell
    wants to hear that it may."""
    return field(2, 1) if integer(request, 3) else b""


def created(request: bytes) -> tuple[PodSandbox, RuntimeContainer]:
    """``CreateContainerRequest``. Raises ``ValueError``."""
    [pod], [container] = messages(request, 1), messages(request, 2)
    linux = [*messages(container, 11)]
    variables = [variable.partition("=") for variable in texts(container, 8)]
    names = Counter(name for name, _, _ in variables)
    return (
        PodSandbox(text(pod, 2), text(pod, 3), text(pod, 4), text_map(pod, 5), text_map(pod, 6)),
        RuntimeContainer(
            name=text(container, 3),
            environ={name: value for name, _, value in variables},
            set_twice=[name for name, count in names.items() if count > 1],
            mounts=[_mount(one) for one in messages(container, 9)],
            devices=[text(device, 1) for part in linux for device in messages(part, 2)],
            cdi_devices=[text(device, 1) for device in messages(container, 20)],
        ),
    )


def adjusted(adjustment: Adjustment) -> bytes:
    """``CreateContainerResponse``."""
    mounts = (
        field(1, one.destination) + field(2, one.type) + field(3, one.source) + fields(4, one.options)
        for one in adjustment.mounts
    )
    # Two plugins that set one variable make the container fail, unless the later one takes the earlier one's word away
    # first ("-NAME"). It has seen that word, and ours contains it.
    environ = adjustment.environ.items()
    variables = [*(field(1, f"-{name}") for name, _ in environ)]
    variables += [field(1, name) + field(2, value) for name, value in environ]
    return field(1, fields(3, mounts) + fields(4, variables))


def _mount(message: bytes) -> RuntimeMount:
    return RuntimeMount(text(message, 1), text(message, 2), text(message, 3), [*texts(message, 4)])
