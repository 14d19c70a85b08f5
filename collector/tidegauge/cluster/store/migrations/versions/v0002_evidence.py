"""Evidence: what ranks were seen to keep, by which line, and what holds it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evidence",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("evidence_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("kept_s", sa.Double(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index("evidence_once", "evidence", ["job_id", "attempt", "uid", "evidence_id"], unique=True)
    op.create_index("evidence_by_user", "evidence", ["uid", "seq"])
    op.create_index("evidence_by_time", "evidence", ["kept_s"])
