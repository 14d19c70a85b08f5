"""How the tables came about: Alembic runs ``versions`` in their order when a store is opened."""
