# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import os
import tempfile
import unittest

from open_files import open_below
from tidegauge.core.ids import ProcessId
from tidegauge.probe.process_facts import is_alive, process_id, read_process_facts
from tidegauge.probe.run_files.run_folder import LEFTOVER_AGE_S, RunFolder, UnsafeFolderError, open_run_folder

UID = os.geteuid()


class FolderTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = os.path.join(scratch.name, "run")

    def open(self) -> RunFolder:
        folder = open_run_folder(self.run_dir, uid=UID)
        self.addCleanup(folder.close)
        return folder


class OpeningTheFolder(FolderTestCase):
    def test_run_folder_is_created_for_the_user_only(self) -> None:
        folder = self.open()
        self.assertEqual(folder.path, os.path.join(self.run_dir, str(UID)))
        self.assertEqual(os.stat(folder.path).st_mode & 0o777, 0o700)

    def test_run_folder_that_others_can_read_is_closed_to_them(self) -> None:
        os.makedirs(os.path.join(self.run_dir, str(UID)), 0o755)
        self.assertEqual(os.stat(self.open().path).st_mode & 0o777, 0o700)

    def test_a_link_in_its_place_is_refused(self) -> None:
        elsewhere = self.run_dir + "-elsewhere"
        os.makedirs(elsewhere)
        os.makedirs(self.run_dir)
        os.symlink(elsewhere, os.path.join(self.run_dir, str(UID)))
        with self.assertRaises(OSError):
            open_run_folder(self.run_dir, uid=UID)
        self.assertEqual(os.listdir(elsewhere), [])

    def test_a_link_for_the_run_directory_is_refused(self) -> None:
        elsewhere = self.run_dir + "-elsewhere"
        os.makedirs(elsewhere)
        os.symlink(elsewhere, self.run_dir)
        with self.assertRaises(OSError):
            open_run_folder(self.run_dir, uid=UID)
        self.assertEqual(os.listdir(elsewhere), [])

    def test_a_run_directory_in_which_anybody_may_rename_is_refused(self) -> None:
        os.makedirs(self.run_dir)
        os.chmod(self.run_dir, 0o777)
        with self.assertRaises(UnsafeFolderError):
            open_run_folder(self.run_dir, uid=UID)

    def test_a_sticky_shared_run_directory_is_fine(self) -> None:
        os.makedirs(self.run_dir)
        os.chmod(self.run_dir, 0o1777)
        self.open()

    @unittest.skipUnless(UID == 0, "only root can give a folder away")
    def test_somebody_elses_folder_is_refused(self) -> None:
        mine = os.path.join(self.run_dir, str(UID))
        os.makedirs(mine)
        os.chown(mine, 12345, -1)
        with self.assertRaises(UnsafeFolderError):
            open_run_folder(self.run_dir, uid=UID)

    def test_no_descriptor_is_left_open_by_a_refusal(self) -> None:
        os.makedirs(self.run_dir)
        os.chmod(self.run_dir, 0o777)
        with self.assertRaises(UnsafeFolderError):
            open_run_folder(self.run_dir, uid=UID)
        self.assertEqual(open_below(self.run_dir), [])

    def test_a_link_is_replaced_by_the_file_not_followed(self) -> None:
        folder = self.open()
        victim = self.run_dir + "-victim"
        with open(victim, "w") as file:
            file.write("precious")
        os.symlink(victim, os.path.join(folder.path, "1-2.ring"))
        os.close(folder.create("1-2.ring"))
        with open(victim) as file:
            self.assertEqual(file.read(), "precious")
        self.assertFalse(os.path.islink(os.path.join(folder.path, "1-2.ring")))


class RemovingLeftovers(FolderTestCase):
    def files(self, *names: str) -> RunFolder:
        folder = self.open()
        for name in names:
            os.close(folder.create(name))
            os.utime(os.path.join(folder.path, name), (1000, 1000))
        return folder

    def remaining(self, folder: RunFolder, *, now_s: float, alive: frozenset[ProcessId] = frozenset()) -> list[str]:
        folder.remove_leftovers(now_s=lambda: now_s, alive=lambda process: process in alive)
        return sorted(os.listdir(folder.path))

    def test_old_rings_and_sockets_of_the_dead_go(self) -> None:
        folder = self.files("1-2.ring", "1-2.sock")
        self.assertEqual(self.remaining(folder, now_s=1001 + LEFTOVER_AGE_S), [])

    def test_those_of_the_living_stay_whatever_their_age(self) -> None:
        folder = self.files("1-2.ring")
        self.assertEqual(self.remaining(folder, now_s=1e9, alive=frozenset({ProcessId(1, 2)})), ["1-2.ring"])

    def test_recent_ones_stay_for_the_agent_to_read(self) -> None:
        folder = self.files("1-2.ring")
        self.assertEqual(self.remaining(folder, now_s=1000 + LEFTOVER_AGE_S), ["1-2.ring"])

    def test_other_files_are_left_alone(self) -> None:
        folder = self.files("notes.txt", "1-x.ring")
        self.assertEqual(self.remaining(folder, now_s=1e9), ["1-x.ring", "notes.txt"])


class FactsOfTheProcess(unittest.TestCase):
    def test_the_process_knows_itself_and_its_parent(self) -> None:
        facts = read_process_facts()
        self.assertEqual(facts.process, process_id(os.getpid()))
        self.assertEqual(facts.parent, process_id(os.getppid()))
        self.assertIsNone(facts.spawned_by)

    def test_a_pid_that_was_used_again_is_another_process(self) -> None:
        own = read_process_facts().process
        self.assertTrue(is_alive(own))
        self.assertFalse(is_alive(own._replace(start_ticks=own.start_ticks + 1)))


if __name__ == "__main__":
    unittest.main()
