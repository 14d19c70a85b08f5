"""What people look for in records of jobs, and the memory of each rank of a job and of an incident."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MAX_NAME_CHARS = 200
"""As ``values.column_name`` had it then: a longer name is found by its id."""


def upgrade() -> None:
    for name in ("job_name", "account", "how", "partition", "namespace", "array_name"):
        op.add_column("job_records", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column("job_records", sa.Column("gpus", sa.Integer(), nullable=False, server_default="0"))
    for name in ("need_bytes", "assumed_bytes", "limit_bytes", "gpu_bytes"):
        op.add_column("job_records", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    _fill()
    op.create_index("job_records_by_name", "job_records", ["job_name", "ended_s"])
    op.create_index("job_records_by_array", "job_records", ["array_name"])
    op.create_index("incidents_by_job", "incidents", ["job_id", "attempt", "uid"])
    op.create_table(
        "job_memory",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("attempt", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("uid", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("started_s", sa.Double(), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "attempt", "uid", "started_s"],
            ["job_records.job_id", "job_records.attempt", "job_records.uid", "job_records.started_s"],
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "incident_memory",
        sa.Column("number", sa.Integer(), sa.ForeignKey("incidents.number", ondelete="CASCADE"), primary_key=True,
                  autoincrement=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )  # fmt: skip


def _fill() -> None:
    columns = ("job_id", "attempt", "uid", "started_s", "job_name", "how", "array_name")
    records = sa.table("job_records", *map(sa.column, columns))
    key = (records.c.job_id, records.c.attempt, records.c.uid, records.c.started_s)
    connection = op.get_bind()
    for *of, text in connection.execute(sa.select(*key, sa.column("value")).select_from(records)).all():
        value = json.loads(text)
        found = {
            "job_name": _name(value.get("job_name")),
            "how": value.get("end") or "",
            "array_name": _name(value.get("array")),
        }
        same = [column == part for column, part in zip(key, of)]
        connection.execute(sa.update(records).where(*same).values(found))


def _name(of: str | None) -> str:
    name = str(of or "").replace("\\", "\\\\").replace("\0", "\\0")
    return name.encode("utf-8", "backslashreplace").decode("utf-8")[:MAX_NAME_CHARS]
