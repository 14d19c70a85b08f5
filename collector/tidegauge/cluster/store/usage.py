"""Sums over records of ended jobs: what they had and what they needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, Double, case, cast, func, literal, not_, select, tuple_

from tidegauge.cluster.store.database import Database
from tidegauge.cluster.store.job_records import like
from tidegauge.cluster.store.tables import incidents, is_of, job_records
from tidegauge.cluster.store.values import column_name, escaped_name
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.right_size import MIN_RUN_S, NOTHING, GpuUsage, LeftOut, UsageBy
from tidegauge.http.access import Owned

_NAMES: Mapping[UsageBy, ColumnElement[str]] = {
    UsageBy.JOB: job_records.c.job_name,
    UsageBy.USER: job_records.c.user_name,
    UsageBy.ACCOUNT: job_records.c.account,
    UsageBy.PARTITION: job_records.c.partition,
    UsageBy.NAMESPACE: job_records.c.namespace,
}
_RAN_OUT = (job_records.c.how == JobEnd.OOM.value) | tuple_(
    job_records.c.job_id, job_records.c.attempt, job_records.c.uid
).in_(
    select(incidents.c.job_id, incidents.c.attempt, incidents.c.uid).where(
        incidents.c.cause == IncidentCause.OUT_OF_MEMORY.value
    )
)


class UsageStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def usage(
        self,
        by: UsageBy,
        *,
        since_s: float,
        limit: int,
        user_name: str | None = None,
        within: Owned | None = None,
        job_name: str | None = None,
        left_out: LeftOut = NOTHING,
    ) -> Sequence[GpuUsage]:
        """Runs that ended since then, summed up, those that left most unused first. ``job_name``: ``*`` stands for any
        characters. Only an out-of-memory error and ``highest_of_all_bytes`` may be of a run that is too short
        for the sums, or of which too little is known. ``within``: only of these jobs."""
        of = job_records.c
        ran_s = of.ended_s - of.started_s
        gpu_s = ran_s * of.gpus
        had, needed = gpu_s * of.limit_bytes, gpu_s * of.need_bytes
        keys = [_NAMES[by], *([of.user_name] if by is UsageBy.JOB else [])]
        summed = (ran_s >= MIN_RUN_S) & (of.limit_bytes > 0) & (of.need_bytes > 0)
        wanted = [of.ended_s >= since_s, *([] if within is None else [is_of(job_records, within)])]
        if user_name is not None:
            wanted.append(of.user_name == column_name(user_name))
        query = (
            select(
                _NAMES[by].label("name"),
                (of.user_name if by in (UsageBy.JOB, UsageBy.USER) else literal("")).label("user_name"),
                func.count(case((summed, 1))).label("runs"),
                func.sum(case((_RAN_OUT, 1), else_=0)).label("ooms"),
                func.sum(case((summed & (of.how == JobEnd.COMPLETED.value), 1), else_=0)).label("completed"),
                func.max(case((summed, of.gpus))).label("gpus"),
                func.sum(case((summed, gpu_s))).label("gpu_seconds"),
                func.sum(case((summed, had))).label("had_byte_seconds"),
                func.sum(case((summed, needed))).label("needed_byte_seconds"),
                func.max(case((summed, of.limit_bytes))).label("limit_bytes"),
                func.max(case((summed, of.gpu_bytes))).label("gpu_bytes"),
                func.max(case((summed, of.assumed_bytes))).label("assumed_bytes"),
                func.max(case((summed, of.need_bytes))).label("highest_bytes"),
                func.max(of.need_bytes).label("highest_of_all_bytes"),
                func.avg(case((summed, cast(of.need_bytes, Double)))).label("mean_bytes"),
            )
            .where(*wanted)
            .group_by(*keys)
            .having(func.count(case((summed, 1))) > 0)
            .order_by(func.sum(case((summed, had - needed))).desc(), *keys)
            .limit(limit)
        )
        with self._database.reading() as connection:
            if job_name is not None:
                query = query.where(like(connection, of.job_name, escaped_name(job_name)))
            query = query.where(*(not_(one) for one in _of(connection, left_out)))
            return [GpuUsage(**row._mapping) for row in connection.execute(query)]

    def gpu_sizes(self, *, since_s: float) -> Sequence[int]:
        """Bytes of the GPUs of jobs that ended since then, whatever their caps, the smallest first."""
        query = select(job_records.c.gpu_bytes).where(job_records.c.ended_s >= since_s).distinct()
        with self._database.reading() as connection:
            return sorted(int(size) for size in connection.scalars(query) if size)


def _of(connection: Connection, some: LeftOut) -> Sequence[ColumnElement[bool]]:
    """For each part of ``some``, whether a run is of it."""
    of = job_records.c
    parts = (
        (of.user_name, some.users), (of.account, some.accounts), (of.partition, some.partitions),
        (of.namespace, some.namespaces),
    )  # fmt: skip
    named = [column.in_(list(map(column_name, names))) for column, names in parts if names]
    return [*named, *(like(connection, of.job_name, escaped_name(pattern)) for pattern in some.names)]
