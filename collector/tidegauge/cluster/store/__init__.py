"""What must survive everything: incidents with their history, and the audit of actions, in SQL.

SQLAlchemy and Alembic appear here and nowhere else. Callers see values of ``tidegauge.core`` and ``StoreError``.
"""

from tidegauge.cluster.store.audit import SqlAudit
from tidegauge.cluster.store.database import StoreError, sqlite_url
from tidegauge.cluster.store.incidents import IncidentStore
from tidegauge.cluster.store.store import Store, open_store

__all__ = ["IncidentStore", "SqlAudit", "Store", "StoreError", "open_store", "sqlite_url"]
