"""Settings for a job's next attempt: the service writes them on every node, the probe reads them.

A scheduler keeps a job's environment as its owner submitted it. So what a policy wants changed (a memory fraction, an
allocator setting) waits in ``<run dir>/jobs/<job id>.json`` and is put into the environment by the probe, before torch
reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from tidegauge.core.alloc_conf import ALLOCATOR_VARIABLES, is_one_setting, merge_alloc_conf
from tidegauge.core.jobs.variables import FRACTION_VARIABLE, parse_fraction
from tidegauge.core.run_dir_names import SETTINGS_FOLDER

FOLDER = SETTINGS_FOLDER
MAX_FILE_BYTES = 16384
MAX_VALUE_CHARS = 2048
_NAME = re.compile(r"TIDEGAUGE_[A-Z][A-Z0-9_]{0,60}")
_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class JobSettings:
    """Settings of one job of one user. They apply from the attempt with ``from_restart`` restarts on."""

    job_id: str
    uid: int
    from_restart: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables to set. Only such as ``may_set`` allows."""
    alloc_conf: Mapping[str, str] = field(default_factory=dict)
    """Allocator settings to merge into those of the job."""
    torch_version: Optional[str] = None
    """The job's, as its last attempt had it: it decides which variable carries ``alloc_conf``."""


def may_set(name: str) -> bool:
    """Whether the service may set this variable in a job: its own and PyTorch's allocator's, nothing else."""
    return name in ALLOCATOR_VARIABLES or _NAME.fullmatch(name) is not None


def settings_name(job_id: str) -> Optional[str]:
    """File name for a job; ``None`` for an id that cannot be one."""
    return f"{job_id}.json" if _JOB_ID.fullmatch(job_id) and job_id.strip(".") else None


def changes(settings: JobSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in a process that was started with ``environ``. With them set, it gives the same again.

    Of two memory fractions, the owner's and this one, the smaller counts.
    """
    ours = {name: value for name, value in settings.environ.items() if may_set(name)}
    given = parse_fraction(environ.get(FRACTION_VARIABLE, ""))
    wanted = parse_fraction(ours.get(FRACTION_VARIABLE, ""))
    if wanted is None or (given is not None and given <= wanted):
        ours.pop(FRACTION_VARIABLE, None)
    return {**ours, **merge_alloc_conf({**environ, **ours}, settings.alloc_conf, torch_version=settings.torch_version)}


def encode(settings: JobSettings) -> bytes:
    """The file's content."""
    raw = {
        "version": 1,
        "job_id": settings.job_id,
        "uid": settings.uid,
        "from_restart": settings.from_restart,
        "environ": dict(settings.environ),
        "alloc_conf": dict(settings.alloc_conf),
        "torch_version": settings.torch_version,
    }
    return json.dumps(raw, sort_keys=True).encode() + b"\n"


def decode(content: bytes) -> JobSettings:
    """Raises ``ValueError`` for anything that ``encode`` does not write."""
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"longer than {MAX_FILE_BYTES} bytes")
    try:
        raw = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise ValueError("not the settings of a job, or of another version of Tidegauge")
    torch_version = raw.get("torch_version")
    if not (torch_version is None or isinstance(torch_version, str)):
        raise ValueError("torch_version is no text")
    settings_environ, alloc_conf = _texts(raw, "environ"), _texts(raw, "alloc_conf")
    refused = [name for name in settings_environ if not may_set(name)]
    if refused:
        raise ValueError(f"it would set {refused[0][:60]}")
    odd = [name for name, value in alloc_conf.items() if not is_one_setting(name, value)]
    if odd:
        raise ValueError(f"{odd[0][:60]!r} with its value is no allocator setting")
    if not isinstance(raw.get("job_id"), str):
        raise ValueError("job_id is no text")
    return JobSettings(
        raw["job_id"], _count(raw, "uid"), _count(raw, "from_restart"), settings_environ, alloc_conf, torch_version
    )


def digest(all_settings: Iterable[JobSettings]) -> str:
    """A short word for a whole set of settings: nodes say it to tell which set they have written."""
    content = sorted(encode(settings) for settings in all_settings)
    return hashlib.sha256(b"".join(content)).hexdigest()[:16]


def _texts(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    found = raw.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no object")
    for key, value in found.items():
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS or "\0" in value + key:
            raise ValueError(f"a value of {name} is no usable text")
    return found


def _count(raw: Mapping[str, Any], name: str) -> int:
    found = raw.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"{name} is not a count")
    return found
