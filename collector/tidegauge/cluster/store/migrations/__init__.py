"""The history of the tables: Alembic runs ``versions`` in order when a store is opened."""
