"""Alembic's environment: runs the versions on the connection, and in the transaction, of ``store.store``."""

from __future__ import annotations

from alembic import context

from tidegauge.cluster.store.store import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    # SQLite can, once the driver leaves transactions alone (``store.database`` sees to that).
    transactional_ddl=True,
)
context.run_migrations()
