"""The tables after the newest migration (a test compares the two). Times are seconds of the policy clock."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    not_,
    or_,
    true,
)
from sqlalchemy.sql import text
from sqlalchemy.sql.elements import ColumnElement

from tidegauge.cluster.store.values import column_name
from tidegauge.core.jobs.kubernetes import NamespaceScope
from tidegauge.http.access import Owned

metadata = MetaData()

incidents = Table(
    "incidents",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("job_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("rank_group", Text, nullable=False, server_default=""),
    Column("cause", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("opened_s", Double, nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("closed_s", Double),
    Column("value", Text, nullable=False),
    Index(
        "incidents_one_open_per_key", "job_id", "attempt", "uid", "rank_group", "cause",
        unique=True, sqlite_where=text("closed_s IS NULL"), postgresql_where=text("closed_s IS NULL"),
    ),
    Index("incidents_by_end", "closed_s"),
    Index("incidents_by_job", "job_id", "attempt", "uid"),
)  # fmt: skip
"""One row per incident as it is now; ``value`` is all of it, the other columns are what is searched for."""

incident_changes = Table(
    "incident_changes",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("number", Integer, ForeignKey("incidents.number", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("value", Text, nullable=False),
    Index("incident_changes_by_number", "number", "seq"),
    Index("incident_changes_by_time", "at_s"),
)
"""The history: each change with the incident after it, of ``MAX_FINDINGS`` ranks (of all ranks in older versions)."""

decisions = Table(
    "decisions",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("decision_id", Text, nullable=False, unique=True),
    Column("incident_number", Integer, nullable=False),
    Column("action", Text, nullable=False),
    Column("disposition", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("decided_s", Double, nullable=False),
    Column("started_s", Double),
    Column("finished_s", Double),
    Column("outcome", Text),
    Column("detail", Text),
    Column("starts", Integer, nullable=False),
    Column("value", Text, nullable=False),
    Index("decisions_by_time", "decided_s"),
    Index("decisions_by_incident", "incident_number"),
    Index("decisions_by_status", "status"),
)
"""The audit. No foreign key: a decision is written down even if its incident, for whatever reason, is not."""

counters = Table(
    "counters",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("outcome", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Totals that outlive the rows that they counted."""

evidence = Table(
    "evidence",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("evidence_id", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("rank", BigInteger, nullable=False),
    Column("kept_s", Double, nullable=False),
    Column("value", Text, nullable=False),
    Index("evidence_once", "job_id", "attempt", "uid", "evidence_id", unique=True),
    Index("evidence_by_user", "uid", "seq"),
    Index("evidence_by_time", "kept_s"),
)
"""Pieces of evidence. A rank chooses the id, so it counts within its job only. No column says which incident a piece
belongs to: ``core.incidents.evidence`` decides that, also for later incidents."""

profiles = Table(
    "profiles",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("rank_group", Text, nullable=False),
    Column("rank", BigInteger, nullable=False),
    Column("kept_s", Double, nullable=False),
    Column("value", Text, nullable=False),
    Index("profiles_one_per_rank", "job_id", "attempt", "uid", "rank_group", "rank", unique=True),
    Index("profiles_by_user", "uid", "seq"),
    Index("profiles_by_time", "kept_s"),
)
"""The latest memory profile of each rank of a job."""

grades = Table(
    "grades",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("number", Integer, ForeignKey("incidents.number", ondelete="CASCADE"), nullable=False),
    Column("by_name", Text, nullable=False),
    Column("as_admin", Boolean, nullable=False),
    Column("grade", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("comment", Text),
    Index("grades_by_number", "number", "seq"),
    Index("grades_by_time", "at_s"),
)
"""What people said of an incident, a row for each answer: of a person the latest counts, the others are the record."""

acts = Table(
    "acts",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("number", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("by_name", Text),
    Column("as_admin", Boolean, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("way", Text, nullable=False),
    Column("sender", Text),
    Column("until_s", Double),
    Column("outcome", Text, nullable=False),
    Column("detail", Text),
    Index("acts_by_number", "number", "seq"),
    Index("acts_by_time", "at_s"),
    Index("acts_by_end", "until_s"),
)
"""What people asked for about an incident, a row for each request. No foreign key: who asks about an incident that
does not exist is refused, and that is written down too."""

job_records = Table(
    "job_records",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", BigInteger, primary_key=True, autoincrement=False),
    Column("started_s", Double, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("updated_s", Double, nullable=False),
    Column("ended_s", Double),
    Column("value", Text, nullable=False),
    Column("job_name", Text, nullable=False, server_default=""),
    Column("account", Text, nullable=False, server_default=""),
    Column("how", Text, nullable=False, server_default=""),
    Column("partition", Text, nullable=False, server_default=""),
    Column("namespace", Text, nullable=False, server_default=""),
    Column("gpus", Integer, nullable=False, server_default="0"),
    Column("need_bytes", BigInteger, nullable=False, server_default="0"),
    Column("assumed_bytes", BigInteger, nullable=False, server_default="0"),
    Column("limit_bytes", BigInteger, nullable=False, server_default="0"),
    Column("gpu_bytes", BigInteger, nullable=False, server_default="0"),
    Column("array_name", Text, nullable=False, server_default=""),
    Index("job_records_by_name", "job_name", "ended_s"),
    Index("job_records_by_array", "array_name"),
    Index("job_records_by_tenant", "tenant", "updated_s"),
    Index("job_records_by_user", "user_name", "ended_s"),
    Index("job_records_by_end", "ended_s"),
)
"""One row per attempt of a job, healthy ones too. Not unique without its start: a user may give a job id twice. ``how``
is ``JobRecord.end``, ``array_name`` is ``JobRecord.array``; ``gpus`` and the bytes are for sums
(``core.jobs.right_size``), 0 where they are unknown."""

job_memory = Table(
    "job_memory",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", BigInteger, primary_key=True, autoincrement=False),
    Column("started_s", Double, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["job_id", "attempt", "uid", "started_s"],
        [job_records.c.job_id, job_records.c.attempt, job_records.c.uid, job_records.c.started_s],
        ondelete="CASCADE",
    ),
)
"""The peaks of each rank of a recorded job, and how the memory of the fullest ranks went."""

incident_memory = Table(
    "incident_memory",
    metadata,
    Column("number", Integer, ForeignKey("incidents.number", ondelete="CASCADE"), primary_key=True,
           autoincrement=False),
    Column("value", LargeBinary, nullable=False),
)  # fmt: skip
"""How the memory of an incident's ranks went, for its page."""


def namespace_of(table: Table) -> ColumnElement[str]:
    """Of the job of a row, with a slash; empty: it is in none. All that is no slash is cut off from the end, in SQL
    that each database has."""
    return func.rtrim(table.c.job_id, func.replace(table.c.job_id, "/", ""))


def is_of(table: Table, whose: Owned | None) -> ColumnElement[bool]:
    """Whether a row of ``incidents`` or ``job_records`` is of these jobs; ``None``: of all."""
    if whose is None:
        return true()
    if not isinstance(whose, NamespaceScope):
        return table.c.user_name == column_name(whose)
    own = table.c.user_name == column_name(whose.user_name)
    namespace = namespace_of(table)
    return or_(
        own & not_(namespace == f"{column_name(whose.user_name)}/"),
        namespace.in_([f"{one}/" for one in sorted(whose.namespaces)]),
    )
