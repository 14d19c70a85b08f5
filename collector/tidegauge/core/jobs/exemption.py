"""How the owner of a running job keeps Tidegauge from acting on it. Pure."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM


class ExemptingCommand(NamedTuple):
    """A command that exempts one running job from actions, with the rights of whoever runs it."""

    words: tuple[str, ...]
    is_complete: bool
    """False: some word stands for a name that only the owner knows."""


def exempting_command(job_id: str, scheduler: Optional[str]) -> Optional[ExemptingCommand]:
    """The command; ``None`` for a job that only the site's policy can exempt while it runs."""
    if scheduler == SLURM and job_id.isascii() and job_id.isdigit():
        return ExemptingCommand(("scontrol", "update", f"JobId={job_id}", "Comment=tidegauge:keep"), True)
    if scheduler == KUBERNETES:
        words = ("kubectl", "annotate", "--overwrite", "KIND", "NAME", "tidegauge.dev/actions=keep")
        return ExemptingCommand(words, False)
    return None
