"""Limits on rows that jobs fill, per job, per tenant and in all, so that nobody can fill the disk.

``keep_shares`` is for tables whose rows have ``seq``, ``job_id`` and ``uid``: evidence, and memory profiles.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from tidegauge.core.ids import JobKey
from tidegauge.core.jobs.tenants import Tenant, tenant_of

MAX_ROWS_PER_DELETE = 500
"""Rows in one statement: databases bound the number of values."""


class Room(NamedTuple):
    """Maximum numbers of rows; the oldest beyond them are deleted."""

    of_job: int
    of_tenant: int
    """A user, or on Kubernetes, where people share uids, a namespace."""
    in_all: int
    """Beyond it the oldest of the tenant who has most goes: nobody pushes out another's."""


def keep_shares(connection: Connection, table: Table, room: Room) -> None:
    """Delete the oldest rows beyond each limit: of the tenants above theirs, then of the tenant with the most."""
    kept: dict[Tenant, deque[int]] = defaultdict(deque)
    for seq, job_id, uid in connection.execute(select(table.c.seq, table.c.job_id, table.c.uid).order_by(table.c.seq)):
        kept[tenant_of(JobKey(job_id, 0, uid))].append(seq)
    gone = [seqs.popleft() for seqs in kept.values() for _ in range(len(seqs) - room.of_tenant)]
    too_many = sum(map(len, kept.values())) - room.in_all
    gone += [max(kept.values(), key=lambda seqs: (len(seqs), -seqs[0])).popleft() for _ in range(too_many)]
    for at in range(0, len(gone), MAX_ROWS_PER_DELETE):
        connection.execute(delete(table).where(table.c.seq.in_(gone[at : at + MAX_ROWS_PER_DELETE])))


def delete_beyond(
    connection: Connection, table: Table, most: int, *where: ColumnElement[bool], spare: Sequence[int] = ()
) -> None:
    """Delete the oldest rows beyond ``most`` of those that ``where`` names, but none whose ``seq`` is in ``spare``."""
    oldest_kept = select(table.c.seq).where(*where).order_by(table.c.seq.desc()).offset(most - 1).limit(1)
    seq = connection.scalar(oldest_kept)
    if seq is not None:
        connection.execute(delete(table).where(table.c.seq < seq, table.c.seq.not_in(spare), *where))
