"""What must survive everything: incidents with their history, the audit of actions, and evidence, in SQL.

SQLAlchemy and Alembic appear here and nowhere else. Callers see values of ``tidegauge.core`` and ``StoreError``.
"""

from tidegauge.cluster.store.audit import SqlAudit
from tidegauge.cluster.store.database import StoreError, sqlite_url
from tidegauge.cluster.store.evidence import EvidenceStore, KeptEvidence
from tidegauge.cluster.store.incidents import IncidentStore
from tidegauge.cluster.store.store import Store, open_store

__all__ = [
    "EvidenceStore",
    "IncidentStore",
    "KeptEvidence",
    "SqlAudit",
    "Store",
    "StoreError",
    "open_store",
    "sqlite_url",
]
