"""Whose a job is, for those who may see their own alone: by what kernel and scheduler say, never by a claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegauge.core.ids import JobKey
from tidegauge.core.views import JobView
from tidegauge.web.access import Viewer


class IncidentOwners(Protocol):
    """``store.IncidentStore`` as far as it is asked here. Raises ``AuditError``."""

    def has_owner(self, job: JobKey, user_name: str, /) -> bool:
        """Whether there is an incident of this attempt of a job, and it is this user's."""


Owns = Callable[[Viewer, JobKey], bool]
"""Whether what is known of a job is a viewer's to see."""


def may_see(viewer: Viewer, job: JobView) -> bool:
    """Every rank has to be theirs: one that only claims to belong to the job must not open it to its owner."""
    if viewer.sees_all:
        return True
    # A node that does not know the name of the job's uid tells the uid instead.
    return viewer.sees(job.user_name) and all(
        viewer.sees(rank.user_name) or rank.user_name == str(rank.uid) for rank in job.ranks
    )


def seen_by(viewer: Viewer, jobs: Sequence[JobView]) -> tuple[JobView, ...]:
    """Those that are theirs to see, in the same order."""
    return tuple(jobs) if viewer.sees_all else tuple(job for job in jobs if may_see(viewer, job))


class Ownership:
    """Of jobs that are watched, and of those that there is an incident of. Raises ``AuditError``."""

    def __init__(self, jobs: Callable[[], Sequence[JobView]], incidents: Callable[[], IncidentOwners]) -> None:
        self._jobs = jobs
        self._incidents = incidents

    def owns(self, viewer: Viewer, key: JobKey) -> bool:
        if viewer.sees_all:
            return True
        for job in self._jobs():
            if job.ranks and job.key == key:
                return may_see(viewer, job)
        return viewer.name is not None and self._incidents().has_owner(key, viewer.name)
