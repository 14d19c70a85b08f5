"""What Slurm's commands say when they did not do it, and which of our errors that is. Pure.

The texts are those of ``slurm_strerror`` (slurm_errno.c); they are the same on 22.05, 24.11 and 26.05. A return code
alone says little: scancel(1) ends with 0 for a job that nobody knows, and so did ``squeue --json`` of 22.05 without a
controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, SchedulerError, TemporaryError
from tidegauge_scheduler_hooks.slurm.bounded_run import Finished

MAX_ERROR_CHARS = 300

NO_SUCH_JOB = "Invalid job id specified"

RIGHTS = (
    "the user of this service must be the job's owner, a coordinator of its account or Operator: "
    "sacctmgr modify user USER set AdminLevel=Operator (docs/slurm_actions.md)"
)

_ERRORS: Mapping[str, tuple[Callable[[str], SchedulerError], str]] = {
    # Not the run that it was a moment ago.
    NO_SUCH_JOB: (ChangedError, ""),
    "Job/step already completing or completed": (ChangedError, ""),
    "Job has already finished": (ChangedError, ""),
    "Job is pending execution": (ChangedError, ""),
    # Never.
    "Access/permission denied": (PermanentError, RIGHTS),
    "Invalid user id": (PermanentError, RIGHTS),
    "Requested operation is presently disabled": (
        PermanentError,
        "the job was submitted with --no-requeue, or the site has JobRequeue=0; its owner may change that: "
        "scontrol update jobid=N requeue=1",
    ),
    "Only batch jobs are accepted or processed": (PermanentError, "srun and salloc jobs cannot be requeued"),
    "parameter too long": (PermanentError, ""),
    "Unable to process configuration file": (PermanentError, "set slurm_conf (docs/settings.md)"),
}
"""By a part of the text: the error, and what the reader can do. Any other text is worth another try: without slurmctld
scontrol(1) says "Unexpected message received", and the others "Unable to contact slurm controller" or "Socket timed
out"."""


def check(finished: Finished, asked: str) -> None:
    """Raise what an answer means if it is a refusal. ``asked`` tells people what was asked for: "requeue job 7"."""
    said = words(finished.stderr)
    for text, (error, advice) in _ERRORS.items():
        if text in said:
            raise error(f"Slurm: cannot {asked}: {said}" + (f"; {advice}" if advice else ""))
    if finished.returncode != 0:
        raise TemporaryError(f"Slurm: cannot {asked}: {said or f'exit status {finished.returncode}'}")


def words(output: bytes) -> str:
    """For people: on one line, short, with nothing that a terminal would take for an order."""
    text = " ".join(output.decode(errors="replace").split())
    return one_line(text, MAX_ERROR_CHARS)
