# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""A job that closes all descriptors and opens its own gets the probe's numbers: the probe must leave them alone."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import unittest

from tidegauge.core.ring_layout import RingHeader
from tidegauge.probe.faults import Faults
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.own_descriptor import DescriptorLostError, OwnDescriptor
from tidegauge.probe.run_files.ring_writer import RingWriter
from tidegauge.probe.run_files.run_folder import open_run_folder
from tidegauge.probe.session.helper import Helper
from waiting import eventually

PRECIOUS = b"precious"


def open_descriptors() -> set[tuple[int, int, int]]:
    """Each with the file that it is: another thread of the tests may close one, and its number be ours then."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    found = set()
    for number in numbers:
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            status = os.fstat(number)
            found.add((number, status.st_dev, status.st_ino))
    return found


class LosingDescriptors(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(dir="/tmp")  # a socket's path has 107 bytes (unix(7))
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        # Descriptors of other tests' garbage must not be closed between here and there.
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.before = open_descriptors()

    def take_over(self) -> dict[int, int]:
        """Give every number that was opened meanwhile to a pipe with something in it; the writing ends of each."""
        writers = {}
        for number, _, _ in open_descriptors() - self.before:
            reader, writer = os.pipe()
            os.dup2(reader, number)  # closes what the number was: atomically, unlike closerange and open
            os.close(reader)
            os.write(writer, PRECIOUS)
            writers[number] = writer
            self.addCleanup(os.close, number)
            self.addCleanup(os.close, writer)
        return writers

    def assert_untouched(self, numbers: dict[int, int]) -> None:
        self.assertTrue(numbers)
        for number in numbers:
            self.assertEqual(os.read(number, 100), PRECIOUS)

    def test_a_number_that_names_another_file_is_neither_used_nor_closed(self) -> None:
        own = OwnDescriptor(os.open(os.devnull, os.O_RDONLY))
        self.assertTrue(own.is_ours())
        theirs = self.take_over()
        with self.assertRaises(DescriptorLostError):
            own.number()
        own.close()
        self.assert_untouched(theirs)

    def test_closing_twice_closes_once(self) -> None:
        own = OwnDescriptor(os.open(os.devnull, os.O_RDONLY))
        own.close()
        again = os.open(os.devnull, os.O_RDONLY)  # the same file under the same number
        own.close()
        os.close(again)

    def test_ring_and_folder_leave_the_jobs_files_alone(self) -> None:
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        ring = RingWriter(folder, RingHeader(8, 1, 41, 77, 123))
        theirs = self.take_over()
        with self.assertRaises(DescriptorLostError):
            ring.touch()
        with self.assertRaises(DescriptorLostError):
            ring.reserve(0)
        with self.assertRaises(DescriptorLostError):
            folder.remove("x")
        ring.abandon()
        del ring
        folder.close()
        self.assert_untouched(theirs)

    def test_helper_reads_nothing_of_the_jobs_and_goes_on_ticking(self) -> None:
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        said: list[str] = []
        ticks: list[None] = []
        commands = CommandSocket(folder, "1-2.sock", lambda request: request, allowed_uids=frozenset({os.geteuid()}))
        helper = Helper(commands, lambda: ticks.append(None), Faults(say=said.append))
        helper.ticking = True
        theirs = self.take_over()
        helper.start()
        self.addCleanup(helper.stop)
        eventually(lambda: len(ticks) >= 2)
        helper.stop()
        self.assertEqual(len([line for line in said if "file descriptors" in line]), 1)
        self.assert_untouched(theirs)


if __name__ == "__main__":
    unittest.main()
