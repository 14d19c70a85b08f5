# What a rank prints for its owner when the service asks it to.
# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import os
import unittest

from tidegauge.probe.requests import RequestRefusedError
from tidegauge.probe.session.commands import MAX_LINES, MAX_REMEMBERED, OwnerMessages


class NoticesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.addCleanup(os.close, self.read_end)
        self.addCleanup(os.close, write_end)
        self.notices = OwnerMessages(write_end)

    def printed(self) -> str:
        return os.read(self.read_end, 1 << 16).decode()

    def test_every_line_says_who_speaks(self) -> None:
        self.assertEqual(self.notices.tell({"id": "d-1", "text": "rank 3 leaks\nsave your work"}), {"ok": True})
        self.assertEqual(self.printed(), "tidegauge: rank 3 leaks\ntidegauge: save your work\n")

    def test_notice_sent_again_is_printed_once(self) -> None:
        for _ in range(3):
            answer = self.notices.tell({"id": "d-1", "text": "rank 3 leaks"})
        self.assertEqual(answer, {"ok": True, "already": True})
        self.assertEqual(self.printed().count("rank 3"), 1)

    def test_notice_is_stripped_of_control_characters_and_limited_in_lines(self) -> None:
        self.notices.tell({"id": "d-1", "text": "\x1b[2J\x07gone" + "\nmore" * 100})
        lines = self.printed().splitlines()
        self.assertEqual(lines[0], "tidegauge: ?[2J?gone")
        self.assertEqual(len(lines), MAX_LINES)

    def test_notices_remember_only_the_latest_ids(self) -> None:
        for number in range(MAX_REMEMBERED + 1):
            self.notices.tell({"id": f"d-{number}", "text": "."})
        self.assertEqual(self.notices.tell({"id": "d-0", "text": "."}), {"ok": True})
        latest = {"id": f"d-{MAX_REMEMBERED}", "text": "."}
        self.assertEqual(self.notices.tell(latest), {"ok": True, "already": True})

    def test_notice_without_a_valid_id_and_text_is_refused(self) -> None:
        for request in ({"text": "x"}, {"id": "d"}, {"id": "d", "text": " "}, {"id": "d", "text": 3}):
            with self.subTest(request), self.assertRaises(RequestRefusedError):
                self.notices.tell(request)

    def test_stderr_that_nobody_holds_any_more_is_said(self) -> None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        self.addCleanup(os.close, write_end)
        with self.assertRaises(BrokenPipeError):
            OwnerMessages(write_end).tell({"id": "d-1", "text": "x"})


if __name__ == "__main__":
    unittest.main()
