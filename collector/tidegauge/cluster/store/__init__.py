"""The database: incidents with their history, grades and acts of people, the audit of actions, evidence, records of
jobs, and memory profiles.

SQLAlchemy and Alembic appear here only. Callers see values of ``tidegauge.core`` and ``StoreError``.
"""

from tidegauge.cluster.store.acts import ActStore
from tidegauge.cluster.store.audit import SqlAudit
from tidegauge.cluster.store.database import StoreError, sqlite_url
from tidegauge.cluster.store.evidence import EvidenceStore, KeptEvidence
from tidegauge.cluster.store.grades import GradeStore
from tidegauge.cluster.store.incidents import IncidentStore
from tidegauge.cluster.store.job_records import JobRecordStore, RecordRoom
from tidegauge.cluster.store.persons import Person, PersonStore
from tidegauge.cluster.store.profiles import ProfileStore
from tidegauge.cluster.store.store import Store, open_store

__all__ = [
    "ActStore",
    "EvidenceStore",
    "GradeStore",
    "IncidentStore",
    "JobRecordStore",
    "KeptEvidence",
    "Person",
    "PersonStore",
    "ProfileStore",
    "RecordRoom",
    "SqlAudit",
    "Store",
    "StoreError",
    "open_store",
    "sqlite_url",
]
