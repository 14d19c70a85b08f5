"""What Alembic runs around the versions: on the connection, and in the transaction, of ``store.schema``."""

from __future__ import annotations

from alembic import context

from tidegauge.cluster.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    # SQLite can, once the driver leaves transactions alone (``store.database`` sees to that).
    transactional_ddl=True,
)
context.run_migrations()
