"""Grades: what people say of an incident, a leak or not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "grades",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("number", sa.Integer(), sa.ForeignKey("incidents.number", ondelete="CASCADE"), nullable=False),
        sa.Column("by_name", sa.Text(), nullable=False),
        sa.Column("as_admin", sa.Boolean(), nullable=False),
        sa.Column("grade", sa.Text(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("comment", sa.Text()),
    )
    op.create_index("grades_by_number", "grades", ["number", "seq"])
    op.create_index("grades_by_time", "grades", ["at_s"])
