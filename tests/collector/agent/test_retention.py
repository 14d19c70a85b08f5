"""Which snapshots go: the rule for any set of them, and the shelf that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import rank_view
from tidegauge.agent.evidence.budget import PIECES_OF_TENANT, STORED_BYTES_OF_TENANT, EvidenceBudget
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive, what_to_delete
from tidegauge.agent.evidence.snapshot_store import FolderStore, SnapshotStoreError, StoredSnapshot
from tidegauge.core.evidence import SnapshotRef
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.persons.forgotten import Forgotten, folder_digest

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0

entries_of = st.lists(
    st.builds(
        StoredSnapshot,
        key=st.integers(0, 10_000).map(str),
        stored_bytes=st.integers(0, 1000),
        at_unix_s=st.floats(NOW_S - 1000, NOW_S),
    ),
    unique_by=lambda entry: entry.key,
    max_size=30,
)


def old(key: str, *, days: float, size: int = 10) -> StoredSnapshot:
    return StoredSnapshot(key, size, NOW_S - days * DAY_S)


def test_the_old_ones_go_the_oldest_first() -> None:
    entries = [old("a", days=15), old("b", days=1), old("c", days=20)]
    gone = what_to_delete(entries, now_unix_s=NOW_S, keep_s=14 * DAY_S, keep_bytes=1000, protected=())
    assert gone == ("c", "a")


def test_the_oldest_go_for_want_of_room_and_no_more_than_it_takes() -> None:
    entries = [old("a", days=3), old("b", days=2), old("c", days=1)]
    assert what_to_delete(entries, now_unix_s=NOW_S, keep_s=14 * DAY_S, keep_bytes=20, protected=()) == ("a",)


def test_retention_keeps_snapshots_referenced_by_an_incident_at_any_age() -> None:
    entries = [old("a", days=300, size=500), old("b", days=2), old("c", days=1)]
    gone = what_to_delete(entries, now_unix_s=NOW_S, keep_s=14 * DAY_S, keep_bytes=15, protected={"a"})
    assert gone == ("b", "c")


def test_retention_ignores_age_while_references_are_unknown() -> None:
    entries = [old("a", days=300), old("b", days=2)]
    assert what_to_delete(entries, now_unix_s=NOW_S, keep_s=None, keep_bytes=100, protected=()) == ()


@given(
    entries=entries_of,
    keep_s=st.none() | st.floats(0, 1000),
    keep_bytes=st.integers(0, 5000),
    wanted=st.sets(st.integers(0, 10_000).map(str)),
)
def test_for_any_snapshots_the_rule_holds(
    entries: list[StoredSnapshot], keep_s: float | None, keep_bytes: int, wanted: set[str]
) -> None:
    protected = wanted | {entry.key for entry in entries[::3]}
    gone = what_to_delete(entries, now_unix_s=NOW_S, keep_s=keep_s, keep_bytes=keep_bytes, protected=protected)
    by_key = {entry.key: entry for entry in entries}
    assert not protected & set(gone)
    assert len(set(gone)) == len(gone)
    assert [by_key[key].at_unix_s for key in gone] == sorted(by_key[key].at_unix_s for key in gone)
    left = [entry for entry in entries if entry.key not in gone]
    free = [entry for entry in left if entry.key not in protected]
    if sum(entry.stored_bytes for entry in left) > keep_bytes:
        assert free == []
    if keep_s is not None:
        assert all(NOW_S - entry.at_unix_s <= keep_s for entry in free)
    # Whoever goes for want of room is older than whoever stays, and was one too many.
    young = [by_key[key] for key in gone if keep_s is None or NOW_S - by_key[key].at_unix_s <= keep_s]
    if young:
        assert sum(entry.stored_bytes for entry in left) + young[-1].stored_bytes > keep_bytes
        assert all(young[-1].at_unix_s <= entry.at_unix_s for entry in free)


# --- the shelf


def shelf(folder: Path, *, keep_bytes: int = 1 << 20, keep_days: float = 14.0) -> SnapshotArchive:
    store = FolderStore(folder, hostname="node-a")
    return SnapshotArchive(store, Keeping(keep_days * DAY_S, keep_bytes), EvidenceBudget(), cluster="lab")


def keep(
    on: SnapshotArchive, *, step: int, at_s: float = NOW_S, protected: frozenset[str] = frozenset()
) -> SnapshotRef:
    return on.keep(
        rank_view(), b"%d columns" % step, step=step, at_unix_s=at_s, now_s=0.0, now_unix_s=at_s,
        protected=protected,
    )  # fmt: skip


def keys(folder: Path) -> set[str]:
    return {entry.key for entry in FolderStore(folder, hostname="node-a").entries()}


def test_two_snapshots_of_one_step_and_moment_are_both_kept(tmp_path: Path) -> None:
    on = shelf(tmp_path)
    refs = [keep(on, step=5) for _ in range(3)]
    assert len({ref.key for ref in refs}) == 3
    assert keys(tmp_path) == {ref.key for ref in refs}


def test_room_is_made_of_the_oldest(tmp_path: Path) -> None:
    each = keep(shelf(tmp_path / "try"), step=5).stored_bytes
    on = shelf(tmp_path / "real", keep_bytes=2 * each)
    refs = [keep(on, step=step, at_s=NOW_S + step) for step in (1, 2, 3)]
    assert keys(tmp_path / "real") == {refs[1].key, refs[2].key}


def test_room_is_never_made_of_what_is_wanted(tmp_path: Path) -> None:
    each = keep(shelf(tmp_path / "try"), step=5).stored_bytes
    on = shelf(tmp_path / "real", keep_bytes=2 * each)
    first, second = (keep(on, step=step, at_s=NOW_S + step) for step in (1, 2))
    third = keep(on, step=3, at_s=NOW_S + 3, protected=frozenset({first.key}))
    assert keys(tmp_path / "real") == {first.key, third.key}
    with pytest.raises(SnapshotStoreError, match="keep_snapshots_gib"):
        keep(on, step=4, at_s=NOW_S + 4, protected=frozenset({first.key, third.key}))
    assert keys(tmp_path / "real") == {first.key, third.key}
    assert second.key not in keys(tmp_path / "real")


def test_tidying_deletes_the_old_but_not_the_wanted(tmp_path: Path) -> None:
    on = shelf(tmp_path)
    wanted, plain = (keep(on, step=step) for step in (1, 2))
    later_s = NOW_S + 15 * DAY_S
    on.tidy(now_unix_s=later_s, wanted=None, protected=())
    assert keys(tmp_path) == {wanted.key, plain.key}
    on.tidy(now_unix_s=later_s, wanted=frozenset({wanted.key}), protected=())
    assert keys(tmp_path) == {wanted.key}


def test_evidence_budget_of_one_namespace_leaves_others_their_own() -> None:
    one, other = Tenant(None, "a"), Tenant(None, "b")
    budget = EvidenceBudget()
    assert budget.store(one, STORED_BYTES_OF_TENANT, 0.0)
    assert not budget.store(one, 1, 3599.0)
    assert budget.store(other, 1, 3599.0)
    assert budget.store(one, 1, 3600.0)


def test_four_pods_of_one_namespace_leave_the_node_its_evidence() -> None:
    budget = EvidenceBudget()
    pods = [rank_view(uid=0, pod=PodPlace(f"uid-{number}", "team-a")).tenant for number in range(4)]
    taken = [budget.take(pod, 0.0) for pod in pods for _ in range(PIECES_OF_TENANT)]
    assert sum(taken) == PIECES_OF_TENANT
    assert budget.take(rank_view(uid=0, pod=PodPlace("uid-4", "team-b")).tenant, 0.0)
    assert budget.take(rank_view(uid=0, pod=PodPlace("uid-5")).tenant, 0.0), "its namespace is not known yet"
    assert budget.take(rank_view(uid=0).tenant, 0.0), "root outside of pods"


def test_two_containers_that_run_as_root_are_two_tenants() -> None:
    one, other = (rank_view(uid=0, container_id=digit * 64).tenant for digit in "ab")
    budget = EvidenceBudget()
    assert sum(budget.take(one, 0.0) for _ in range(2 * PIECES_OF_TENANT)) == PIECES_OF_TENANT
    assert budget.take(other, 0.0)
    assert not budget.take(one, 0.0)


def test_a_store_that_cannot_be_listed_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away(FolderStore):
        def entries(self) -> tuple[StoredSnapshot, ...]:
            raise SnapshotStoreError("the bucket is away")

    on = SnapshotArchive(Away(tmp_path, hostname="node-a"), Keeping(DAY_S, 100), EvidenceBudget(), cluster="lab")
    for _ in range(3):
        on.tidy(now_unix_s=NOW_S, wanted=None, protected=())
    assert caplog.text.count("the bucket is away") == 1


def test_snapshots_of_a_forgotten_person_go_at_any_age_and_those_of_others_stay(tmp_path: Path) -> None:
    on = shelf(tmp_path)
    kept = keep(on, step=1)
    uid, job = (kept.key.split("/")[part] for part in (1, 2))
    before_s = NOW_S + 1
    for others in (
        Forgotten(before_s, (int(uid) + 1,)),
        Forgotten(NOW_S - 1, (int(uid),)),
        Forgotten(before_s, (), (folder_digest(int(uid) + 1, job),)),
    ):
        on.forget([others])
    assert keys(tmp_path) == {kept.key}
    on.forget([Forgotten(before_s, (), (folder_digest(int(uid), job),))])
    assert keys(tmp_path) == set()
    keep(on, step=2)
    on.forget([Forgotten(before_s, (int(uid),))])
    assert keys(tmp_path) == set()


def test_a_key_without_a_uid_is_nobodys(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, hostname="node-a")
    old_key = "lab/4711/0/rank-1/step-204-1800000000250.snap.zst"
    store.put(old_key, b"x", at_unix_s=NOW_S)
    on = SnapshotArchive(store, Keeping(DAY_S, 100), EvidenceBudget(), cluster="lab")
    on.forget([Forgotten(NOW_S + 1, (4711, 0))])
    assert keys(tmp_path) == {old_key}
