"""Incidents with their history, decisions, counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    big_key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "incidents",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("opened_s", sa.Double(), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
        sa.Column("closed_s", sa.Double()),
        sa.Column("value", sa.Text(), nullable=False),
    )
    is_open = sa.text("closed_s IS NULL")
    op.create_index(
        "incidents_one_open_per_key", "incidents", ["job_id", "attempt", "uid", "cause"],
        unique=True, sqlite_where=is_open, postgresql_where=is_open,
    )  # fmt: skip
    op.create_index("incidents_by_end", "incidents", ["closed_s"])
    op.create_table(
        "incident_changes",
        sa.Column("seq", big_key, primary_key=True),
        sa.Column("number", sa.Integer(), sa.ForeignKey("incidents.number", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index("incident_changes_by_number", "incident_changes", ["number", "seq"])
    op.create_index("incident_changes_by_time", "incident_changes", ["at_s"])
    op.create_table(
        "decisions",
        sa.Column("seq", big_key, primary_key=True),
        sa.Column("decision_id", sa.Text(), nullable=False, unique=True),
        sa.Column("incident_number", sa.Integer(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("disposition", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("decided_s", sa.Double(), nullable=False),
        sa.Column("started_s", sa.Double()),
        sa.Column("finished_s", sa.Double()),
        sa.Column("outcome", sa.Text),
        sa.Column("detail", sa.Text()),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index("decisions_by_time", "decisions", ["decided_s"])
    op.create_index("decisions_by_incident", "decisions", ["incident_number"])
    op.create_index("decisions_by_status", "decisions", ["status"])
    op.create_table(
        "counters",
        sa.Column("subject", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("outcome", sa.Text(), primary_key=True),
        sa.Column("value", sa.BigInteger(), nullable=False),
    )
