"""Acts: what people asked for about an incident, and what became of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "acts",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("request_id", sa.Text(), nullable=False, unique=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("by_name", sa.Text()),
        sa.Column("as_admin", sa.Boolean(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("way", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text()),
        sa.Column("until_s", sa.Double()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text()),
    )
    op.create_index("acts_by_number", "acts", ["number", "seq"])
    op.create_index("acts_by_time", "acts", ["at_s"])
    op.create_index("acts_by_end", "acts", ["until_s"])
