"""Brings a database's tables to what this version knows, or says that they are newer."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from tidegauge.cluster.store.database import Database, StoreError

VERSION_TABLE = "tidegauge_schema"
_UPGRADE_LOCK = 0x7469646567
"""Any number that other programs are unlikely to lock ("tideg")."""


def upgrade(database: Database) -> None:
    """All missing versions in one transaction; nothing is written if there are none. Raises ``StoreError``."""
    config = _config()
    with database.reading() as connection:
        if not _is_behind(connection, config, database):
            return
    with database.writing() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        if _is_behind(connection, config, database):  # by now another process may have done it
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "tidegauge.cluster.store:migrations")
    return config


def _is_behind(connection: Connection, config: Config, database: Database) -> bool:
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if found == newest:
        return False
    if found is None:
        return True
    try:
        scripts.get_revision(found)
    except CommandError as error:
        raise StoreError(
            f"the database {database.name} was written by a newer version of Tidegauge (schema {found}, this "
            f"version supports up to {newest}). Use that newer version, or another database_url"
        ) from error
    return True
