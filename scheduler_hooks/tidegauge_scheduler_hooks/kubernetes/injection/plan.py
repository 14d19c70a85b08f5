"""Plans the injection into a pod: a pure function of the pod as it is about to be created, and of its namespace.

A pod is never refused for our sake, and nothing is injected that could make it fail: parts that do not fit are left
out, with a warning (which kubectl prints). Where the namespace alone asks, nobody has looked at the pod: only its
containers with a GPU are watched, and only those whose own ``PYTHONPATH`` is known. Whoever asks, one from an optional
key is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tidegauge.core.jobs.checkpoint_signal import ALLOWED, SIGNAL_VARIABLE, parse_signal
from tidegauge.core.jobs.fraction import start_fraction
from tidegauge.core.jobs.kubernetes import (
    ATTEMPT,
    CHANGES,
    CHECKPOINT_PATH,
    CHECKPOINT_SIGNAL,
    CONTAINERS,
    FRACTION,
    IMAGE_PYTHONPATH,
    INJECTED,
    PROFILE_LABEL,
    UNREAD,
    job_id,
)
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE, FRACTION_VARIABLE, SHARE_VARIABLE, parse_fraction
from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.kubernetes.injection.environment import Variable, settings_in, watched_environment
from tidegauge_scheduler_hooks.kubernetes.injection.names import (
    BARE_LEVEL,
    CONTAINER_VARIABLE,
    LEVELS,
    PROBE_FOLDER,
    VERSION,
    VOLUME,
)
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import PodSettings, own_settings
from tidegauge_scheduler_hooks.kubernetes.injection.shares import gpu_share, with_gpus
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import (
    InjectionOptions,
    free_name,
    mounts,
    probe_container,
    volume,
)
from tidegauge_scheduler_hooks.kubernetes.replicas import replica_of
from tidegauge_scheduler_hooks.kubernetes.workloads import restart_label

# Which job a pod says that it belongs to, by what its controllers wrote on it, where no workload was read. Pure.
# A claim: what counts is what the head finds by the chain of owners (``PodFacts``). Ranks go by this until they are
# told.

_NAME_LABELS = (
    "ray.io/originated-from-cr-name",  # the RayJob; ray.io/cluster is then a name with a random end
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",  # a TrainJob's JobSet has its name
    "volcano.sh/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""From the topmost owner down."""


def claimed_name(metadata: Mapping[str, Any]) -> str:
    """The name of the job. ``metadata`` is a pod's when it is created: its name may be missing."""
    replica = replica_of(metadata)
    if replica is not None:
        return replica.server
    labels = metadata.get("labels") or {}
    for label in _NAME_LABELS:
        if labels.get(label):
            return str(labels[label])
    owners = metadata.get("ownerReferences") or []
    controller = next((owner["name"] for owner in owners if owner.get("controller")), None)
    return str(controller or metadata.get("name") or str(metadata.get("generateName") or "pod").rstrip("-"))


MAX_WATCHED = 32
"""Containers of a pod. Each gets some kilobytes, and an object of more than 1.5 MiB would be refused by etcd."""
MAX_TEXT_CHARS = 2048
"""Of an annotation that becomes a variable."""
MAX_WHY_CHARS = 300
"""Of ``UNREAD``: an API server's words may be long."""


class Injection(NamedTuple):
    """A JSON patch (RFC 6902) for the pod."""

    operations: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]
    reason: str = ""
    """``owner_unread``: without the settings of its workload."""


class Skipped(NamedTuple):
    """Nothing is injected. ``reason`` is one of a few stable words."""

    reason: str
    warnings: tuple[str, ...] = ()


IMAGE_UNKNOWN = "image_unknown"
"""Reason: what the pod's images set is not known, and counts."""
MARKED_BEFORE = "marked_before"
"""Reason: the pod says itself that it was injected."""
FOR_OWNERS = frozenset({IMAGE_UNKNOWN, MARKED_BEFORE})
"""Reasons that owners are told by an Event: only they can say more, or less, on their pods."""
_MARKED = (
    f"the pod is not watched: it has the annotation {INJECTED}, which Tidegauge writes, and nothing at {PROBE_FOLDER}. "
    "Remove the annotation from its template"
)


def plan_injection(
    pod: Mapping[str, Any],
    *,
    namespace: str,
    namespace_metadata: Mapping[str, Any],
    options: InjectionOptions,
    settings_of: Callable[[Mapping[str, Any], str], PodSettings] = own_settings,
) -> Injection | Skipped:
    """Plan for one pod. ``namespace`` is the request's: the pod's own is empty while it is created, and
    ``namespace_metadata`` has its labels and annotations. ``settings_of`` (metadata, namespace) is asked only for a pod
    that is injected."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    labels, told_namespace = metadata.get("labels") or {}, namespace_metadata.get("annotations") or {}
    level, complaint = asked_level(labels, namespace_metadata.get("labels") or {})
    if complaint is not None:
        return Skipped("bad_level", (complaint,))
    if level is None or level == "off":
        return Skipped("not_asked" if level is None else "off")
    if INJECTED in annotations:
        return Skipped("injected_before") if _has_probe(spec) else Skipped(MARKED_BEFORE, (_MARKED,))
    unfit = _unfit(annotations, spec)
    if unfit is not None:
        return Skipped(unfit)
    volume_name = free_name(VOLUME, [one.get("name") for one in spec.get("volumes") or []])
    by_namespace = PROFILE_LABEL not in labels
    chosen, warnings = _chosen(spec, annotations, gpu_only=by_namespace)
    image_pythonpath, unread = _text({**told_namespace, **annotations}, IMAGE_PYTHONPATH)
    if by_namespace and not chosen:
        return Skipped("no_gpu", tuple(warnings))
    declared = image_pythonpath is not None
    by_owner = not by_namespace or (declared and IMAGE_PYTHONPATH in annotations)
    known, unknown = _with_known_path(chosen, declared=declared, by_owner=by_owner)
    if unknown and not known:
        return Skipped(IMAGE_UNKNOWN, (*unknown, *warnings, *unread))
    chosen, warnings = known, warnings + unknown
    told = settings_of(metadata, namespace)
    common, complaints = common_variables(metadata, namespace, level, told)
    settings, refused = _settings(told.changes, job_id(namespace, _job_name(metadata, told)))
    warnings += complaints + unread + refused
    warnings += [] if told.unread is None else [f"its workload could not be read, so it has no attempt: {told.unread}"]
    operations: list[Mapping[str, Any]] = []
    watched: list[Mapping[str, Any]] = []
    for path, container in chosen:
        new_mounts, left_out = mounts(container, volume_name, spec.get("volumes") or [])
        warnings += left_out
        if not new_mounts:
            continue
        watched.append(container)
        own, doubts = own_variables(container, annotations, options)
        environment = watched_environment(
            container, [*common, *own], image_pythonpath=image_pythonpath or "", settings=settings
        )
        warnings += [f"container {container['name']}: {text}" for text in (*doubts, *environment.warnings)]
        operations.append({"op": "add", "path": f"{path}/env", "value": environment.variables})
        operations += _added(f"{path}/volumeMounts", container.get("volumeMounts"), new_mounts)
    if not watched:
        warnings += [] if chosen else ["no container of the pod is watched"]
        return Skipped("nothing_to_watch", tuple(dict.fromkeys(warnings)))
    operations += _added("/spec/volumes", spec.get("volumes"), [volume(volume_name)])
    operations.append(_init_container(spec, probe_container(spec, watched, volume_name, options)))
    operations += _marks(metadata, level, told)
    reason = "" if told.unread is None else "owner_unread"
    return Injection(tuple(operations), tuple(dict.fromkeys(warnings)), reason)


def asked_level(labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The requested level, and an error in it."""
    for whose, found in (("label", labels), ("the namespace's label", namespace_labels)):
        if PROFILE_LABEL in found:
            word = found[PROFILE_LABEL].strip().lower()
            level = BARE_LEVEL if word in ("", "true") else word
            if level in LEVELS:
                return level, None
            known = ", ".join(LEVELS)
            return None, f"{whose} {PROFILE_LABEL}={word[:40]!r} is not a level ({known}): the pod is not watched"
    return None, None


def _has_probe(spec: Mapping[str, Any]) -> bool:
    """Whether a container has something where the injection mounts the probe."""
    containers = [one for part in ("initContainers", "containers") for one in spec.get(part) or []]
    return any(mount["mountPath"] == PROBE_FOLDER for one in containers for mount in one.get("volumeMounts") or [])


def _unfit(annotations: Mapping[str, str], spec: Mapping[str, Any]) -> str | None:
    """Why nothing can be injected into such a pod."""
    system = (spec.get("os") or {}).get("name") or (spec.get("nodeSelector") or {}).get("kubernetes.io/os")
    if system == "windows":
        return "windows"
    if "kubernetes.io/config.mirror" in annotations:
        return "mirror_pod"  # the kubelet started it from a file already
    return None if spec.get("containers") else "nothing_to_watch"


_Placed = tuple[str, Mapping[str, Any]]
"""A container, and the path to it in the pod (RFC 6901)."""


def _chosen(
    spec: Mapping[str, Any], annotations: Mapping[str, str], *, gpu_only: bool
) -> tuple[list[_Placed], list[str]]:
    """The containers to watch, and warnings. Native sidecars are among those that may be watched: they run beside the
    others, and may have the GPU."""
    regular: list[_Placed] = [(f"/spec/containers/{at}", one) for at, one in enumerate(spec["containers"])]
    before = enumerate(spec.get("initContainers") or [])
    beside = [*regular]
    beside += [(f"/spec/initContainers/{at}", one) for at, one in before if one.get("restartPolicy") == "Always"]
    warnings = []
    if CONTAINERS in annotations:
        wanted = {name.strip() for name in annotations[CONTAINERS].split(",")} - {""}
        chosen = [(path, one) for path, one in beside if one["name"] in wanted]
        unknown = sorted(wanted - {one["name"] for _, one in chosen})
        names = ", ".join(one["name"] for _, one in beside[:MAX_WATCHED])
        warnings = [f"annotation {CONTAINERS}: no container is named {unknown[0][:63]} ({names})"] if unknown else []
        warnings += [] if wanted else [f"annotation {CONTAINERS} names no container ({names})"]
    else:
        with_gpu = [beside[place] for place in with_gpus([one for _, one in beside])]
        chosen = with_gpu if with_gpu or gpu_only else regular
    if len(chosen) > MAX_WATCHED:
        warnings.append(f"only the first {MAX_WATCHED} of {len(chosen)} containers are watched")
    return chosen[:MAX_WATCHED], warnings


def _with_known_path(chosen: Sequence[_Placed], *, declared: bool, by_owner: bool) -> tuple[list[_Placed], list[str]]:
    """Those of which it is known what their ``PYTHONPATH`` is without us, and warnings about the others: the webhook
    cannot see what an image sets, nor what ``envFrom`` brings, and a variable of the pod hides both.

    ``declared``: whether the annotation ``IMAGE_PYTHONPATH`` says it; ``by_owner``: the pod's owner answers for image
    and ``envFrom``, by that annotation or by asking, and not the namespace, which knows the images but no pod."""
    known, warnings = [], []
    for path, container in chosen:
        theirs = [one for one in container.get("env") or [] if one["name"] == "PYTHONPATH"]
        if theirs and _is_optional(theirs[-1]):
            warnings.append(
                f"container {container['name']} is not watched: its PYTHONPATH is from an optional key; where that is "
                "missing, its image's counts. Set it without `optional`"
            )
        elif theirs or by_owner or (declared and not container.get("envFrom")):
            known.append((path, container))
        else:
            whose = "its envFrom may set" if declared else "its image may set"
            warnings.append(
                f"container {container['name']} is not watched for its namespace's sake: {whose} PYTHONPATH. "
                f'Say which, or "" for none, by the annotation {IMAGE_PYTHONPATH}'
            )
    return known, warnings


def _is_optional(variable: Mapping[str, Any]) -> bool:
    """Whether it may not be set in the end: its ConfigMap's or Secret's key may be missing."""
    return any((source or {}).get("optional") for source in (variable.get("valueFrom") or {}).values())


def common_variables(
    metadata: Mapping[str, Any], namespace: str, level: str, told: PodSettings
) -> tuple[list[Variable], list[str]]:
    """The variables that are the same in all watched containers, and warnings."""
    annotations = metadata.get("annotations") or {}
    name = _job_name(metadata, told)
    found: list[Variable] = [
        _variable("TIDEGAUGE_PROFILE", level),
        _variable("TIDEGAUGE_JOB_ID", job_id(namespace, name)),
        _variable("TIDEGAUGE_JOB_NAME", name),
        _field("TIDEGAUGE_POD_NAMESPACE", "metadata.namespace"),
        _field("TIDEGAUGE_POD", "metadata.name"),
        _field("TIDEGAUGE_POD_UID", "metadata.uid"),
    ]
    if told.attempt is not None:  # with the restarts by its own controller
        found.append(_variable(ATTEMPT_VARIABLE, str(told.attempt + restart_label({"metadata": metadata}))))
    warnings: list[str] = []
    for variable, annotation in ((SIGNAL_VARIABLE, CHECKPOINT_SIGNAL), ("TIDEGAUGE_CHECKPOINT_PATH", CHECKPOINT_PATH)):
        text, complaints = _text(annotations, annotation)
        warnings += complaints
        found += [] if text is None else [_variable(variable, text)]
        if variable == SIGNAL_VARIABLE and text is not None and parse_signal(text) is None:
            warnings.append(
                f"annotation {annotation}={text[:40]!r} is not {ALLOWED}: no signal is sent for a checkpoint"
            )
    return found, warnings


def _job_name(metadata: Mapping[str, Any], told: PodSettings) -> str:
    return told.job_name or claimed_name(metadata)


def own_variables(
    container: Mapping[str, Any], annotations: Mapping[str, str], options: InjectionOptions
) -> tuple[list[Variable], list[str]]:
    """The variables of one container, and warnings."""
    share, fraction, doubts = _fraction(container, annotations, options)
    own = [_variable(CONTAINER_VARIABLE, container["name"])]
    own += [] if share is None else [_variable(SHARE_VARIABLE, f"{share:.6g}")]
    own += [] if fraction is None else [_variable(FRACTION_VARIABLE, f"{fraction:.6g}")]
    return own, doubts


def _fraction(
    container: Mapping[str, Any], annotations: Mapping[str, str], options: InjectionOptions
) -> tuple[float | None, float | None, list[str]]:
    """The share of each GPU that the container requested, the initial fraction, and warnings."""
    share = gpu_share(container, annotations, shared_gpu_replicas=options.shared_gpu_replicas)
    asked = annotations.get(FRACTION)
    if asked is None:
        return share, None if share is None or share == 1 else start_fraction(share), []
    fraction = parse_fraction(asked)
    if fraction is None:
        return share, None, [f"annotation {FRACTION}={asked[:40]!r} is not above 0 and at most 1: no fraction is set"]
    return share, fraction, []


def _settings(text: str | None, job: str) -> tuple[JobSettings | None, list[str]]:
    try:
        return settings_in(text, job), []
    except ValueError as error:
        return None, [f"annotation {CHANGES} is ignored: {str(error)[:200]}"]


def _text(annotations: Mapping[str, str], name: str) -> tuple[str | None, list[str]]:
    """An annotation that becomes a variable, and a warning if it cannot be one."""
    text = annotations.get(name)
    if text is None or (len(text) <= MAX_TEXT_CHARS and text.isprintable()):
        return text, []
    return None, [f"annotation {name} is ignored: longer than {MAX_TEXT_CHARS} characters, or not printable"]


def _variable(name: str, value: str) -> Variable:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _added(path: str, there: Sequence[Any] | None, new: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Operations that append to a list, which may be missing."""
    if not there:
        return [{"op": "add", "path": path, "value": list(new)}]
    return [{"op": "add", "path": f"{path}/-", "value": one} for one in new]


def _init_container(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first of all: other init containers may be watched processes already, and must find the probe."""
    if spec.get("initContainers"):
        return {"op": "add", "path": "/spec/initContainers/0", "value": container}
    return {"op": "add", "path": "/spec/initContainers", "value": [container]}


def _marks(metadata: Mapping[str, Any], level: str, told: PodSettings) -> list[Mapping[str, Any]]:
    """Mark the pod as injected, and with what its workload says; without a label of its own it gets the one by which
    the head finds pods."""
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    marked = {**annotations, INJECTED: VERSION}
    if told.is_owners:  # a template's words do not count beside it
        marked = {name: text for name, text in marked.items() if name not in (ATTEMPT, CHANGES, UNREAD)}
        marked |= (
            {ATTEMPT: str(told.attempt)} if told.unread is None else {UNREAD: one_line(told.unread, MAX_WHY_CHARS)}
        )
    return [
        {"op": "add", "path": f"/metadata/{part}", "value": after}
        for part, before, after in (
            ("annotations", annotations, marked),
            ("labels", labels, {PROFILE_LABEL: level, **labels}),
        )
        if after != before
    ]
