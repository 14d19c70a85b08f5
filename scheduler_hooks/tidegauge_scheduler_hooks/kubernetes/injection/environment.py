"""The environment of a watched container: the owner's variables, and those that the probe needs. Pure.

The owner's values stay. Two exceptions: the probe's folder goes in front of ``PYTHONPATH``, and a policy's changes for
this attempt (``CHANGES``) replace the owner's values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from tidegauge.core.alloc_conf import ALLOCATOR_VARIABLES
from tidegauge.core.jobs.kubernetes import CHANGES
from tidegauge.core.jobs.settings import MAX_FILE_BYTES, JobSettings, changes, decode
from tidegauge_scheduler_hooks.kubernetes.injection.names import OWN_PYTHONPATH, PYTHONPATH_ENTRY

Variable = Mapping[str, Any]
"""``EnvVar`` of the API: ``name`` and ``value`` or ``valueFrom``."""


class Environment(NamedTuple):
    """All variables of the container, and warnings for its owner."""

    variables: list[Variable]
    warnings: tuple[str, ...] = ()


def settings_in(text: str | None, job_id: str) -> JobSettings | None:
    """The annotation ``CHANGES``. ``None`` without one; raises ``ValueError`` for an invalid text, or settings that are
    not allowed."""
    if text is None:
        return None
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"longer than {MAX_FILE_BYTES} characters")
    try:
        raw = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    given = {name: raw.get(name) for name in ("environ", "alloc_conf", "torch_version")}
    whole = {"version": 1, "job_id": job_id, "uid": 0, "from_restart": 0, **given}
    return decode(json.dumps(whole).encode())


def watched_environment(
    container: Mapping[str, Any], additions: Sequence[Variable], *, image_pythonpath: str, settings: JobSettings | None
) -> Environment:
    """The container's environment. ``additions`` come last, and only those whose name the owner does not use.
    ``image_pythonpath`` counts where the owner sets no ``PYTHONPATH``."""
    given: list[Variable] = list(container.get("env") or [])
    names = {variable["name"] for variable in given}
    found = [*given, *(variable for variable in additions if variable["name"] not in names)]
    changed, warnings = _changes(found, settings)
    found = [variable for variable in found if variable["name"] not in changed]
    found += [{"name": name, "value": value} for name, value in sorted(changed.items())]
    if "PYTHONPATH" not in names and container.get("envFrom") and not image_pythonpath:
        warnings = (*warnings, "a PYTHONPATH from envFrom is overridden: set it in env")
    return Environment(_with_probe(found, image_pythonpath), warnings)


def _changes(variables: Sequence[Variable], settings: JobSettings | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that ``settings`` set in a process that is started with ``variables``."""
    if settings is None:
        return {}, ()
    known = {variable["name"]: variable.get("value", "") for variable in variables if not variable.get("valueFrom")}
    unread = {variable["name"] for variable in variables if variable.get("valueFrom")}
    hidden = sorted(unread.intersection(ALLOCATOR_VARIABLES))
    if hidden and settings.alloc_conf:
        # To set the variable would throw away what is in it, which nobody here can read.
        warning = f"annotation {CHANGES}: allocator settings are left out because {hidden[0]} is set by valueFrom"
        return changes(replace(settings, alloc_conf={}), known), (warning,)
    return changes(settings, known), ()


def _with_probe(variables: Sequence[Variable], image_pythonpath: str) -> list[Variable]:
    """The same with the probe's folder at the front of ``PYTHONPATH``, at the place where it is set: later variables
    may refer to it. Of a name that is there twice the last counts."""
    places = [place for place, variable in enumerate(variables) if variable["name"] == "PYTHONPATH"]
    if not places:
        return [*variables, _pythonpath(image_pythonpath)]
    last = places[-1]
    theirs = variables[last]
    if theirs.get("valueFrom"):
        taken = {variable["name"] for variable in variables}
        own = next(name for n in count() if (name := f"{OWN_PYTHONPATH}_{n}" if n else OWN_PYTHONPATH) not in taken)
        ours = [{**theirs, "name": own}, _pythonpath(f"$({own})")]
    else:
        ours = [_pythonpath(theirs.get("value") or "")]
    return [*variables[:last], *ours, *variables[last + 1 :]]


def _pythonpath(rest: str) -> Variable:
    return {"name": "PYTHONPATH", "value": with_probe_first(rest)}


def with_probe_first(path: str) -> str:
    """A ``PYTHONPATH`` with the probe's folder. ``path`` stays as it is, empty parts included: to its owner they mean
    the current directory."""
    if PYTHONPATH_ENTRY in path.split(":"):
        return path
    return f"{PYTHONPATH_ENTRY}:{path}" if path else PYTHONPATH_ENTRY
