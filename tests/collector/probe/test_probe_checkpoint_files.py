# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""What counts as proof of a checkpoint, in real folders. Time is the test's; the files' own times are the kernel's."""

from __future__ import annotations

import json
import os
import tempfile
import unittest

from tidegauge.probe.checkpoint import files as checkpoint_files
from tidegauge.probe.checkpoint.files import (
    SETTLED_S,
    FileName,
    FileState,
    FreshFiles,
    Proof,
    UnreadableError,
    declared_paths,
    is_temporary,
    list_files,
)


class FolderTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "checkpoints")
        os.mkdir(self.folder)

    def write(self, name: str, text: str = "state", *, mtime_s: int = 1000) -> str:
        """A file whose time is given, because two writes in one tick of the clock would have the same."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.utime(path, (mtime_s, mtime_s))
        return path


class Freshness(FolderTestCase):
    def begin(self, *paths: str) -> None:
        self.paths = paths or (self.folder,)
        self.files = FreshFiles(list_files(self.paths))
        self.now_s = 0.0

    def look(self, after_s: float = SETTLED_S) -> Proof:
        self.now_s += after_s
        return self.files.look(list_files(self.paths), now_s=self.now_s)

    def proven(self) -> bool:
        """After everything had time to settle."""
        self.look()
        return self.look().proven

    def test_a_new_file_is_proof_when_it_has_not_changed_for_a_while(self) -> None:
        self.begin()
        self.assertEqual(self.look().detail, "no new file yet")
        self.write("step-7.pt")
        first = self.look()
        self.assertEqual((first.proven, first.names, first.moving), (False, ("step-7.pt",), "step-7.pt"))
        self.assertFalse(self.look(SETTLED_S - 0.1).proven)
        self.assertTrue(self.look(0.1).proven)

    def test_a_file_that_still_grows_is_not(self) -> None:
        self.begin()
        for length in range(1, 5):
            self.write("step-7.pt", "x" * length)
            self.assertFalse(self.look().proven)
        self.assertTrue(self.look().proven)

    def test_checkpoint_files_that_existed_before_are_no_proof_at_any_mtime(self) -> None:
        self.write("step-6.pt", mtime_s=4_000_000_000)
        self.begin()
        self.assertFalse(self.proven())

    def test_a_clock_that_is_behind_does_not_matter(self) -> None:
        self.write("step-6.pt", mtime_s=2_000_000_000)
        self.begin()
        self.write("step-7.pt", mtime_s=1)
        self.assertTrue(self.proven())

    def test_a_file_that_was_written_over_is_proof(self) -> None:
        self.write("last.pt", mtime_s=1000)
        self.begin()
        self.write("last.pt", mtime_s=1001)
        self.assertTrue(self.proven())

    def test_a_file_that_replaced_one_of_the_same_size_and_time_is_proof(self) -> None:
        path = self.write("last.pt")
        self.begin()
        os.rename(self.write("other.bin"), path)
        self.assertTrue(self.proven())

    def test_an_old_checkpoint_under_a_new_name_is_not(self) -> None:
        path = self.write("last.pt")
        self.begin()
        os.rename(path, os.path.join(self.folder, "last-1.pt"))
        self.assertFalse(self.proven())
        self.write("last.pt", mtime_s=1001)
        self.assertTrue(self.proven())

    def test_temporary_and_empty_files_are_not_until_they_have_their_name(self) -> None:
        self.begin()
        self.write("empty.pt", "")
        temporary = self.write("step-7.tmp/model.pt")
        self.assertFalse(self.proven())
        self.assertIn("only temporary or empty files", self.look().detail)
        os.rename(os.path.dirname(temporary), os.path.join(self.folder, "step-7"))
        self.assertTrue(self.proven())
        self.assertEqual(self.look().names, ("step-7/model.pt",))

    def test_a_checkpoint_in_parts_waits_for_the_last_part(self) -> None:
        self.begin()
        self.write("step-7/rank0.pt")
        self.look()
        self.write("step-7/rank1.pt.tmp")
        self.assertFalse(self.look().proven)
        self.write("step-7/rank1.pt.tmp", "longer")
        self.assertEqual(self.look().moving, "step-7/rank1.pt.tmp")

    def test_logs_neither_prove_nor_hinder(self) -> None:
        self.begin()
        self.write("train.log", "1")
        self.write("runs/events.out.tfevents.1.node", "1")
        self.assertFalse(self.proven())
        self.write("step-7.pt")
        self.look()
        self.write("train.log", "12")
        self.assertTrue(self.look().proven)

    def test_a_declared_file_and_one_that_does_not_exist_yet(self) -> None:
        path = os.path.join(self.folder, "later", ".state")
        self.begin(path)
        self.assertFalse(self.proven())
        self.write("later/.state")
        self.assertTrue(self.proven())
        self.assertEqual(self.look().names, (".state",))

    def test_a_declared_link_is_followed_and_links_inside_are_not(self) -> None:
        link = os.path.join(os.path.dirname(self.folder), "link")
        os.symlink(self.folder, link)
        self.begin(link)
        outside = os.path.join(os.path.dirname(self.folder), "outside.pt")
        with open(outside, "w") as file:
            file.write("state")
        os.symlink(outside, os.path.join(self.folder, "latest.pt"))
        self.assertFalse(self.proven())
        self.write("step-7.pt")
        self.assertTrue(self.proven())

    def test_names_are_cut_so_that_a_reply_stays_small(self) -> None:
        self.begin()
        for number in range(20):
            self.write(f"{number:02}" + "\U0001f600" * 60, "x" * (number + 1))
        self.write("odd\nname")
        proof = self.look()
        self.assertTrue(proof.names[0].startswith("19") or proof.names[0].startswith("..."))
        self.assertLess(len(json.dumps([*proof.names, proof.detail, proof.moving])), 7000)
        self.assertIn("more are new", proof.detail)
        self.assertEqual(str(FileName("/c", "odd\nname\udcff")), "odd?name?")


class Listing(FolderTestCase):
    def test_checkpoint_files_below_the_depth_limit_are_not_listed(self) -> None:
        self.write("1/2/3/seen")
        self.write("1/2/3/4/unseen")
        self.assertEqual([name.below for name in list_files([self.folder])], ["1/2/3/seen"])

    def test_too_many_entries_are_refused_for_a_part_of_them_would_prove_nothing(self) -> None:
        bound = checkpoint_files.MAX_ENTRIES
        self.addCleanup(setattr, checkpoint_files, "MAX_ENTRIES", bound)
        checkpoint_files.MAX_ENTRIES = 3
        for name in "abc":
            self.write(name)
        self.assertEqual(len(list_files([self.folder])), 3)
        self.write("d")
        with self.assertRaisesRegex(UnreadableError, "only checkpoints"):
            list_files([self.folder])

    def test_a_path_that_cannot_be_read_is_refused_with_the_reason(self) -> None:
        path = os.path.join(self.write("file"), "below")
        with self.assertRaisesRegex(UnreadableError, "file/below cannot be read: Not a directory"):
            list_files([path])

    def test_several_paths_are_absolute_and_empty_ones_left_out(self) -> None:
        paths = declared_paths(os.pathsep.join(["", "/scratch/a", "b", ""]))
        self.assertEqual(paths, ("/scratch/a", os.path.join(os.getcwd(), "b")))
        self.assertEqual(declared_paths(""), ())

    def test_pipes_and_devices_are_no_files(self) -> None:
        os.mkfifo(os.path.join(self.folder, "pipe"))
        self.assertEqual(list_files([self.folder, "/dev/null"]), {})


class Names(unittest.TestCase):
    def test_names_that_are_used_until_a_file_is_complete(self) -> None:
        for name in ("a.tmp", "a.PART", "a~", ".a", "tmp-checkpoint-5/a", "x/.b/c", "a.partial", "a.incomplete"):
            self.assertTrue(is_temporary(name), name)
        for name in ("a.pt", "step-5/model.safetensors", "attempt/a", "a.tmp.pt", ""):
            self.assertFalse(is_temporary(name), name)

    def test_an_old_state_is_known_by_all_four_of_its_numbers(self) -> None:
        old = FileState(10, 20, 30, 40)
        files = FreshFiles({FileName("/c", "a"): old})
        for change in ({"size_bytes": 11}, {"mtime_ns": 21}, {"inode": 31}, {"device": 41}):
            self.assertEqual(files.look({FileName("/c", "b"): old._replace(**change)}, now_s=0.0).names, ("b",))
        self.assertEqual(files.look({FileName("/c", "b"): old}, now_s=0.0).names, ())


if __name__ == "__main__":
    unittest.main()
