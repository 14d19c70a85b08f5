"""Groups of ranks of the jobs on one node: which of its ranks were launched together, and what each group is called.

The node's own look knows only its ranks; the coordinator, which sees the whole job, has the last word on the names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.rank_groups import NameOfGroup, RankGroup, RankGroups, member_of
from tidegauge.core.views import RankView

_Job = tuple[str, int]


class GroupsOfNode:
    """Not thread-safe but for ``hear``."""

    def __init__(self) -> None:
        self._books: dict[_Job, RankGroups] = {}
        self._heard: Mapping[ProcessId, str] = {}

    def hear(self, names: Iterable[NameOfGroup]) -> None:
        """What the coordinator calls the groups that processes of this node are in (``ReportReply.group_names``)."""
        self._heard = {one.process: one.name for one in names}

    def look(self, views: Sequence[RankView]) -> dict[ProcessId, RankGroup]:
        """The group of each process, under the name that people see."""
        by_job: dict[_Job, list[RankView]] = defaultdict(list)
        for view in views:
            by_job[view.identity.job_id, view.uid].append(view)
        self._books = {job: self._books.get(job) or RankGroups() for job in by_job}
        heard, groups = self._heard, {}
        for job, members in by_job.items():
            for group in self._books[job].look(member_of(view, "", lives=view.alive) for view in members):
                told = {heard[process] for _, process in group.places if process in heard}
                usual = told.pop() if len(told) == 1 else group.name  # that of a rank that is new, too
                for _, process in group.places:
                    name = heard.get(process, usual)
                    groups[process] = group if name == group.name else group._replace(name=name)
        return groups
