"""Groups of ranks: an incident is about one of them, so two groups of a job may have one of the same cause each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INDEX = "incidents_one_open_per_key"


def upgrade() -> None:
    op.add_column("incidents", sa.Column("rank_group", sa.Text(), nullable=False, server_default=""))
    op.drop_index(INDEX, "incidents")
    is_open = sa.text("closed_s IS NULL")
    op.create_index(
        INDEX, "incidents", ["job_id", "attempt", "uid", "rank_group", "cause"],
        unique=True, sqlite_where=is_open, postgresql_where=is_open,
    )  # fmt: skip
