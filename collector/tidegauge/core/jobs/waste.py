"""Whose jobs left so much GPU memory unused that they are told of it by mail. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegauge.core.jobs.right_size import LeftOut, SizedUsage

HOUR_S = 3600.0
_KINDS = {"user": "users", "account": "accounts", "partition": "partitions", "namespace": "namespaces", "name": "names"}
"""Words of ``parse_left_out``, and the fields of ``LeftOut``."""


def parse_left_out(text: str) -> LeftOut:
    """What ``user=ada,name=jupyter*`` leaves out. Raises ``ValueError``."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        kind, _, name = (part.strip() for part in entry.partition("="))
        if kind not in _KINDS or not name:
            raise ValueError(f"{entry!r} is none of {', '.join(f'{one}=NAME' for one in _KINDS)}")
        found[_KINDS[kind]] = (*found.get(_KINDS[kind], ()), name)
    return LeftOut(**found)


class WasteRules(NamedTuple):
    """When a user is told; the settings ``efficiency_mail_*`` of these names."""

    min_gpu_hours: float
    max_used_share: float
    min_runs: int


class UserWaste(NamedTuple):
    """Jobs of one user that could have asked for less, those that left most unused first."""

    user_name: str
    jobs: tuple[SizedUsage, ...]

    @property
    def gpu_seconds(self) -> float:
        return sum(job.usage.gpu_seconds for job in self.jobs)

    @property
    def unused_byte_seconds(self) -> float:
        return sum(job.usage.unused_byte_seconds for job in self.jobs)

    @property
    def used_share(self) -> float:
        had = sum(job.usage.had_byte_seconds for job in self.jobs)
        return sum(job.usage.needed_byte_seconds for job in self.jobs) / had if had else 1.0


def wasteful(jobs: Iterable[SizedUsage], rules: WasteRules) -> Sequence[UserWaste]:
    """Users to tell, those who left most unused first. ``jobs``: sums by job. Only jobs whose next run could ask for
    something else count: there is nothing to tell of others."""
    of_user: dict[str, list[SizedUsage]] = {}
    for job in jobs:
        usage = job.usage
        share = usage.needed_byte_seconds / usage.had_byte_seconds if usage.had_byte_seconds else 1.0
        if job.advice is not None and usage.runs >= rules.min_runs and share <= rules.max_used_share:
            of_user.setdefault(usage.user_name, []).append(job)
    users = [UserWaste(name, tuple(sorted(some, key=_most_unused))) for name, some in of_user.items()]
    told = [user for user in users if user.gpu_seconds >= rules.min_gpu_hours * HOUR_S]
    return sorted(told, key=lambda user: (-user.unused_byte_seconds, user.user_name))


def _most_unused(job: SizedUsage) -> tuple[float, str]:
    return -job.usage.unused_byte_seconds, job.usage.name
