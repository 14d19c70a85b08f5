"""Job records that the prolog writes as root: ``<run dir>/slurm/<job id>`` (deploy/slurm/prolog.sh).

``listpids`` gives job and step only. The prolog also knows the restart count, the owner and the array task, which a
rank can only claim. So a file is read only if no user can have made it: a regular file of root (or of the agent's own
user, on a cluster of their own), writable for nobody else, in such a folder.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tidegauge.agent.opening.safe_files import DIRECTORY, opened
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import JobId
from tidegauge.core.jobs.slurm import SlurmJobRecord

_log = logging.getLogger(__name__)

FOLDER = "slurm"
"""Below a run directory."""
MAX_RECORD_BYTES = 4096

_NAMES = frozenset({"JOB_ID", "UID", "RESTART_COUNT", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "PARTITION", "ACCOUNT", "GPUS"})
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_WORD = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}")
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SlurmRecords:
    """The ``RecordSource`` of a node. Reads at each call: the prolog rewrites a requeued job's record."""

    def __init__(self, run_dirs: Sequence[Path]) -> None:
        self._folders = tuple(run_dir / FOLDER for run_dir in run_dirs)
        self._skips = SkipCounts(_log)

    def record_of(self, job_id: JobId) -> SlurmJobRecord | None:
        return next((record for folder in self._folders if (record := self._read(folder, job_id)) is not None), None)

    def _read(self, folder: Path, job_id: JobId) -> SlurmJobRecord | None:
        try:
            return parse_record(_content(folder, job_id), job_id)
        except FileNotFoundError:
            pass
        except (ValueError, OSError) as error:
            self._skips.add("record", f"{folder}/{job_id}", str(error), now_s=monotonic())
        return None


def parse_record(content: bytes, job_id: JobId) -> SlurmJobRecord:
    """The record of ``job_id``: lines of ``NAME=value``; an empty value is unknown.

    Raises ``ValueError`` for anything that the prolog does not write.
    """
    if len(content) > MAX_RECORD_BYTES:
        raise ValueError(f"longer than {MAX_RECORD_BYTES} bytes")
    if not content.endswith(b"\n"):
        raise ValueError("its last line is truncated")
    fields: dict[str, str] = {}
    for line in content.decode("ascii").split("\n")[:-1]:
        name, equals, value = line.partition("=")
        if not equals or name in fields:
            raise ValueError("a line is not NAME=value, or is duplicate")
        if name not in _NAMES:
            raise ValueError(f"the prolog does not write {name[:40]!r}")
        fields[name] = value
    if fields.get("JOB_ID") != job_id:
        raise ValueError("it is of another job")
    uid, restarts = _number(fields, "UID"), _number(fields, "RESTART_COUNT")
    if uid is None or restarts is None:
        raise ValueError("UID or RESTART_COUNT is missing")
    gpus = tuple(gpu for gpu in fields.get("GPUS", "").split(",") if gpu)
    partition, account = fields.get("PARTITION") or None, fields.get("ACCOUNT") or None
    for word in filter(None, (*gpus, partition, account)):
        if _WORD.fullmatch(word) is None:
            raise ValueError("invalid characters in PARTITION, ACCOUNT or GPUS")
    return SlurmJobRecord(
        job_id=job_id,
        uid=uid,
        restarts=restarts,
        array_job_id=_number(fields, "ARRAY_JOB_ID"),
        array_task_id=_number(fields, "ARRAY_TASK_ID"),
        partition=partition,
        gpus=gpus,
        account=account,
    )


def _number(fields: dict[str, str], name: str) -> int | None:
    value = fields.get(name, "")
    if value and _NUMBER.fullmatch(value) is None:
        raise ValueError(f"{name} is not a number")
    return int(value) if value else None


def _content(folder: Path, name: str) -> bytes:
    """Content of a file; raises ``ValueError`` for one that another user may have made, and ``OSError``."""
    with opened(str(folder), DIRECTORY) as folder_fd:
        _check_ours(os.fstat(folder_fd), "the folder")
        with opened(name, _FILE_FLAGS, dir_fd=folder_fd) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise ValueError("not a regular file with one hard link")
            _check_ours(status, "the file")
            return os.read(fd, MAX_RECORD_BYTES + 1)


def _check_ours(status: os.stat_result, what: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{what} belongs to uid {status.st_uid}, not to root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"{what} is writable by others than its owner")
