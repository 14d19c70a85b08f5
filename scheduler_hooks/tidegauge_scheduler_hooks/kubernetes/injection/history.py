"""What earlier runs of jobs needed: a sentence for who submits the next, from the file that Slurm's job_submit.lua
reads as well (``tidegauge efficiency --for-submission``). Read in the background, looked up in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, controller_of
from tidegauge_scheduler_hooks.lines_of_jobs import read_lines

log = logging.getLogger(__name__)

MAX_SENTENCE_CHARS = 220


class SubmissionHistory:
    """Sentences by user (a namespace, on Kubernetes) and job name. ``refresh`` and ``sentence`` may be called in
    different threads."""

    def __init__(self, file: Path | None) -> None:
        """``None``: nothing is ever said."""
        self._file = file
        self._sentences: Mapping[tuple[str, str], str] = {}
        self._problem: str | None = None

    def refresh(self) -> None:
        """Read the file; one that is not there, or cannot be read, says nothing."""
        if self._file is None:
            return
        problem: str | None = None
        try:
            self._sentences = read_lines(self._file, lambda said: one_line(said, MAX_SENTENCE_CHARS) or None)
        except OSError as error:
            self._sentences, problem = {}, str(error)
        if problem is not None and problem != self._problem:
            log.warning("nothing is said about earlier runs: %s", problem)
        self._problem = problem

    def sentence(self, namespace: str, name: str) -> str | None:
        """What earlier runs of a job needed. From memory."""
        return self._sentences.get((namespace, name))


def submitted_name(request: Mapping[str, Any]) -> str | None:
    """The name of the job that somebody submits by this request; ``None``: it makes no workload, or a controller makes
    it, whose warnings nobody reads."""
    resource, obj = request.get("resource") or {}, request.get("object") or {}
    asked = (resource.get("group"), resource.get("resource"))
    if request.get("operation") != "CREATE" or asked not in _SUBMITTED or not obj.get("metadata"):
        return None
    name = obj["metadata"].get("name")
    return name if isinstance(name, str) and controller_of(obj) is None else None


_SUBMITTED = {(kind.resource.group, kind.resource.plural) for kind in KINDS.values()} | {("", "pods")}
