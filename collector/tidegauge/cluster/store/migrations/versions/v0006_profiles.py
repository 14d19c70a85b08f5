"""Memory profiles of ranks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("rank_group", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("kept_s", sa.Double(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_index(
        "profiles_one_per_rank", "profiles", ["job_id", "attempt", "uid", "rank_group", "rank"], unique=True
    )
    op.create_index("profiles_by_user", "profiles", ["uid", "seq"])
    op.create_index("profiles_by_time", "profiles", ["kept_s"])
