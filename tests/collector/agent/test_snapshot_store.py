"""Stores of snapshots: one contract for a node's folder, URLs and what is waited for; then each by itself."""

from __future__ import annotations

import itertools
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.evidence.remote_store import PatientStore, RemoteStore, open_store, public_name
from tidegauge.agent.evidence.snapshot_store import (
    FolderStore,
    KeyTakenError,
    SnapshotStore,
    SnapshotStoreError,
    StoredSnapshot,
    check_key,
    snapshot_key,
)
from tidegauge.core.ids import JobKey
from tidegauge.settings import Settings

JOB = JobKey("team-a/llm", 2, 1001)
NOW_S = 1_700_000_000.25
_buckets = itertools.count()


def key(step: int = 7, rank: int = 3) -> str:
    return snapshot_key(cluster="lab", job=JOB, rank=rank, step=step, at_unix_s=NOW_S)


def in_folder(scratch: Path) -> SnapshotStore:
    return FolderStore(scratch / "snapshots", hostname="node-a")


def in_memory(scratch: Path) -> SnapshotStore:
    return RemoteStore(f"memory://bucket-{next(_buckets)}/prefix", scratch / "evidence")


def in_shared_folder(scratch: Path) -> SnapshotStore:
    return RemoteStore(f"file://{scratch}/shared", scratch / "evidence")


def waited_for(scratch: Path) -> SnapshotStore:
    return PatientStore(in_folder(scratch))


@pytest.fixture(params=[in_folder, in_memory, in_shared_folder, waited_for])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    make: Callable[[Path], SnapshotStore] = request.param
    return make(tmp_path)


def test_snapshot_store_returns_the_bytes_put(store: SnapshotStore) -> None:
    store.put(key(), b"columns", at_unix_s=NOW_S)
    assert store.get(key(), most_bytes=100) == b"columns"


def test_snapshot_store_lists_its_entries(store: SnapshotStore) -> None:
    assert store.entries() == ()
    store.put(key(7), b"columns", at_unix_s=NOW_S)
    store.put(key(8), b"more columns", at_unix_s=NOW_S + 1)
    assert sorted(store.entries()) == [StoredSnapshot(key(7), 7, NOW_S), StoredSnapshot(key(8), 12, NOW_S + 1)]


def test_snapshot_store_remove_deletes_an_entry_and_is_idempotent(store: SnapshotStore) -> None:
    store.put(key(7), b"columns", at_unix_s=NOW_S)
    store.put(key(8), b"columns", at_unix_s=NOW_S)
    store.remove(key(7))
    store.remove(key(7))
    assert [entry.key for entry in store.entries()] == [key(8)]
    with pytest.raises(SnapshotStoreError):
        store.get(key(7), most_bytes=100)


def test_a_key_that_is_taken_stays_as_it_is(store: SnapshotStore) -> None:
    store.put(key(), b"columns", at_unix_s=NOW_S)
    with pytest.raises(KeyTakenError):
        store.put(key(), b"others", at_unix_s=NOW_S)
    assert store.get(key(), most_bytes=100) == b"columns"


def test_no_more_is_read_than_was_allowed(store: SnapshotStore) -> None:
    store.put(key(), b"x" * 100, at_unix_s=NOW_S)
    with pytest.raises(SnapshotStoreError, match="larger than 99 B"):
        store.get(key(), most_bytes=99)


@pytest.mark.parametrize("bad", ["../../etc/passwd", "/etc/passwd", "a/b/0/rank-0/step-1-1.snap.zst/..", "a", ""])
def test_snapshot_store_refuses_an_invalid_key(bad: str, store: SnapshotStore) -> None:
    for call in (
        lambda: store.put(bad, b"", at_unix_s=NOW_S),
        lambda: store.get(bad, most_bytes=1),
        lambda: store.remove(bad),
    ):
        with pytest.raises(SnapshotStoreError, match="not a snapshot key"):
            call()


# --- keys


def test_a_key_can_be_read_by_people() -> None:
    plain = JobKey("4711", 0, 1001)
    made = snapshot_key(cluster="lab", job=plain, rank=17, step=1200, at_unix_s=NOW_S)
    assert made == "lab/1001/4711/0/rank-17/step-1200-1700000000250.snap.zst"


def test_jobs_with_names_that_look_alike_have_folders_of_their_own() -> None:
    folders = {
        snapshot_key(cluster="lab", job=JobKey(name, 0, 1), rank=0, step=1, at_unix_s=0).split("/")[2]
        for name in ("team-a/llm", "team-a_llm", "team-a:llm", "team-a\nllm")
    }
    assert len(folders) == 4


def test_users_whose_jobs_have_one_name_have_folders_of_their_own() -> None:
    mine, theirs = (
        snapshot_key(cluster="lab", job=JobKey("llm", 0, uid), rank=0, step=1, at_unix_s=0) for uid in (1001, 1002)
    )
    assert mine.split("/")[:3] != theirs.split("/")[:3]


def test_a_store_from_before_keys_had_a_uid_is_still_read_and_cleared(tmp_path: Path) -> None:
    old = "lab/llm/0/rank-3/step-7-1700000000250.snap.zst"
    store = in_folder(tmp_path)
    store.put(old, b"columns", at_unix_s=NOW_S)
    assert [entry.key for entry in store.entries()] == [old]
    assert store.get(old, most_bytes=100) == b"columns"
    store.remove(old)
    assert store.entries() == ()


@given(cluster=st.text(min_size=1, max_size=300), job_id=st.text(max_size=300))
def test_any_name_makes_a_key_that_stays_in_the_store(cluster: str, job_id: str) -> None:
    made = snapshot_key(cluster=cluster, job=JobKey(job_id, 0, 0), rank=0, step=0, at_unix_s=0.0)
    check_key(made)
    parts = made.split("/")
    assert len(parts) == 6
    assert not {"..", ".", ""} & set(parts)
    assert max(map(len, parts)) <= 120


# --- a folder


def test_a_folder_is_made_by_the_first_snapshot_for_its_owner_alone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "state" / "snapshots", hostname="node-a")
    assert store.entries() == ()
    assert not (tmp_path / "state").exists()
    store.put(key(), b"columns", at_unix_s=NOW_S)
    assert stat.S_IMODE((tmp_path / "state" / "snapshots").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "snapshots" / key()).stat().st_mode) == 0o600


def test_empty_folders_go_with_the_last_snapshot(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, hostname="node-a")
    store.put(key(), b"columns", at_unix_s=NOW_S)
    store.remove(key())
    assert [path.name for path in tmp_path.iterdir()] == [".drafts"]


def test_folder_store_ignores_and_deletes_drafts_left_by_a_crash(tmp_path: Path) -> None:
    (tmp_path / ".drafts").mkdir()
    (tmp_path / ".drafts" / "half").write_bytes(b"colu")
    store = FolderStore(tmp_path, hostname="node-a")
    assert store.entries() == ()
    store.put(key(), b"columns", at_unix_s=NOW_S)
    assert list((tmp_path / ".drafts").iterdir()) == []


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("ours")
    store = FolderStore(tmp_path, hostname="node-a")
    assert store.entries() == ()


def test_a_disk_that_is_nearly_full_is_not_filled(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    store = FolderStore(tmp_path, hostname="node-a")
    too_much = bytearray(1)

    class Huge(bytes):
        def __len__(self) -> int:
            return room.f_bavail * room.f_frsize

    with pytest.raises(SnapshotStoreError, match=r"reserved for other uses"):
        store.put(key(), Huge(too_much), at_unix_s=NOW_S)
    assert store.entries() == ()


# --- a URL


def test_each_node_lists_and_deletes_its_own_only(tmp_path: Path) -> None:
    url = f"memory://bucket-{next(_buckets)}"
    here, there = RemoteStore(url, tmp_path / "here"), RemoteStore(url, tmp_path / "there")
    here.put(key(rank=1), b"columns", at_unix_s=NOW_S)
    there.put(key(rank=2), b"columns", at_unix_s=NOW_S)
    assert [entry.key for entry in here.entries()] == [key(rank=1)]
    assert there.get(key(rank=1), most_bytes=100) == b"columns"


def test_remote_store_knows_its_entries_after_a_restart(tmp_path: Path) -> None:
    url = f"memory://bucket-{next(_buckets)}"
    RemoteStore(url, tmp_path).put(key(), b"columns", at_unix_s=NOW_S)
    again = RemoteStore(url, tmp_path)
    assert again.entries() == (StoredSnapshot(key(), 7, NOW_S),)
    again.remove(key())
    assert RemoteStore(url, tmp_path).entries() == ()
    with pytest.raises(SnapshotStoreError, match="FileNotFoundError"):
        again.get(key(), most_bytes=100)


def test_a_damaged_index_is_an_empty_one(tmp_path: Path) -> None:
    url = f"memory://bucket-{next(_buckets)}"
    RemoteStore(url, tmp_path).put(key(), b"columns", at_unix_s=NOW_S)
    [index] = tmp_path.iterdir()
    index.write_bytes(b'[["a"]]')
    assert RemoteStore(url, tmp_path).entries() == ()


def test_remote_store_leaves_no_partial_file_under_the_final_name(tmp_path: Path) -> None:
    store = in_shared_folder(tmp_path)
    store.put(key(), b"columns", at_unix_s=NOW_S)
    files = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    assert files == [tmp_path / "shared" / key()]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/prefix", "needs the Python package s3fs"),
        ("gs://bucket", "needs the Python package gcsfs"),
        ("nosuch://bucket", "fsspec does not support nosuch://"),
    ],
)
def test_a_driver_that_is_missing_is_named(url: str, said: str, tmp_path: Path) -> None:
    settings = Settings(snapshot_store=url, state_dir=tmp_path)
    with pytest.raises(SnapshotStoreError, match=said):
        open_store(settings, hostname="node-a")


class Talkative(fsspec.AbstractFileSystem):  # type: ignore[misc] # SAFETY: fsspec has no types
    """A driver that quotes what it was given."""

    protocol = "talkative"

    def __init__(self, **options: object) -> None:
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def exists(self, path: str, **options: object) -> bool:
        raise PermissionError(f"403 for {path} with secret hunter2 and token=abc123")


def test_secrets_of_a_url_are_never_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    store = RemoteStore("talkative://ada:hunter2@host/prefix?token=abc123", tmp_path)
    with caplog.at_level(logging.DEBUG), pytest.raises(SnapshotStoreError) as caught:
        store.put(key(), b"columns", at_unix_s=NOW_S)
    assert store.name == "talkative://host/prefix"
    for text in (str(caught.value), caplog.text):
        assert "hunter2" not in text
        assert "abc123" not in text
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("sftp://ada:pw@host:22/srv", "sftp://host:22/srv"),
        ("s3://bucket?key=AKIA", "s3://bucket"),
    ],
)
def test_a_store_is_called_by_its_url_without_secrets(url: str, name: str) -> None:
    assert public_name(url) == name


# --- a store that is waited for


class Hanging(FolderStore):
    """Does not come back from listing until it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, hostname="node-a")
        self.let = threading.Event()

    def entries(self) -> tuple[StoredSnapshot, ...]:
        self.let.wait(60)
        return super().entries()


def test_a_store_that_hangs_is_given_up_on_and_not_asked_again_meanwhile(tmp_path: Path) -> None:
    hanging = Hanging(tmp_path)
    store = PatientStore(hanging, patience_s=0.01)
    with pytest.raises(SnapshotStoreError, match="did not answer within"):
        store.entries()
    with pytest.raises(SnapshotStoreError, match="does not answer"):
        store.put(key(), b"columns", at_unix_s=NOW_S)
    hanging.let.set()


def test_patient_store_passes_errors_of_its_store_on(tmp_path: Path) -> None:
    store = PatientStore(FolderStore(tmp_path, hostname="node-a"))
    with pytest.raises(SnapshotStoreError, match="cannot be read"):
        store.get(key(), most_bytes=1)


# --- by the settings


def test_by_default_it_is_a_folder_of_the_state_directory(tmp_path: Path) -> None:
    assert open_store(Settings(state_dir=tmp_path), hostname="node-a").name == f"node-a:{tmp_path}/snapshots"


def test_open_store_accepts_a_folder_or_a_url(tmp_path: Path) -> None:
    elsewhere = Settings(state_dir=tmp_path, snapshot_store=str(tmp_path / "elsewhere"))
    assert open_store(elsewhere, hostname="node-a").name == f"node-a:{tmp_path}/elsewhere"
    at_url = Settings(state_dir=tmp_path, snapshot_store="memory://bucket")
    assert open_store(at_url, hostname="node-a").name == "memory://bucket"
