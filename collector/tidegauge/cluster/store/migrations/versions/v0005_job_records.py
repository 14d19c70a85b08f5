"""Records of jobs, which stay when the jobs have ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_records",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("attempt", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("uid", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("started_s", sa.Double(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double()),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index("job_records_by_tenant", "job_records", ["tenant", "updated_s"])
    op.create_index("job_records_by_user", "job_records", ["user_name", "ended_s"])
    op.create_index("job_records_by_end", "job_records", ["ended_s"])
