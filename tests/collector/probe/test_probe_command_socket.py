# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import json
import os
import socket
import tempfile
import unittest
from collections.abc import Mapping
from typing import Any

from tidegauge.probe.run_files.command_socket import (
    IDLE_S,
    MAX_CLIENTS,
    MAX_LINE_BYTES,
    MAX_REPLY_BYTES,
    CommandSocket,
)
from tidegauge.probe.run_files.run_folder import open_run_folder
from waiting import PATIENCE_S


def echo(request: dict[str, Any]) -> Mapping[str, Any]:
    if request == {"command": "long"}:
        return {"ok": True, "text": "x" * (MAX_REPLY_BYTES - 100)}
    return {"ok": True, "got": request}


class Commands(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = open_run_folder(scratch.name, uid=os.geteuid())
        self.addCleanup(self.folder.close)
        self.server = self.serve(frozenset({os.geteuid()}))

    def serve(self, uids: frozenset[int], name: str = "1-2.sock") -> CommandSocket:
        server = CommandSocket(self.folder, name, echo, allowed_uids=uids)
        self.addCleanup(server.close, unlink=True)
        return server

    def connect(self, server: CommandSocket) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.settimeout(PATIENCE_S)
        client.connect(server.path)
        self.turn(server)
        return client

    def turn(self, server: CommandSocket, now_s: float = 0.0) -> None:
        """What the helper does when everything is readable."""
        for descriptor in server.descriptors():
            server.serve(descriptor, now_s=now_s)

    def ask(self, client: socket.socket, line: bytes) -> Any:
        client.sendall(line)
        self.turn(self.server)
        return json.loads(client.recv(65536))

    def test_command_socket_sends_one_reply_per_line(self) -> None:
        self.assertEqual(self.ask(self.connect(self.server), b'{"command": "ping"}\n')["got"], {"command": "ping"})

    def test_a_connection_may_ask_again(self) -> None:
        client = self.connect(self.server)
        self.ask(client, b'{"command": "ping"}\n')
        self.assertEqual(self.ask(client, b'{"n": 2}\n')["got"], {"n": 2})

    def test_a_line_may_arrive_in_pieces(self) -> None:
        client = self.connect(self.server)
        client.sendall(b'{"command": ')
        self.turn(self.server)
        self.assertEqual(self.ask(client, b'"ping"}\n')["got"], {"command": "ping"})

    def test_command_socket_answers_a_malformed_request_with_the_expected_format(self) -> None:
        for line in (b"hello\n", b"[1]\n", b"\xff\xfe\n", b"[" * 4000 + b"\n", b"\n"):
            with self.subTest(line[:10]):
                self.assertIn("one JSON object a line", self.ask(self.connect(self.server), line)["error"])

    def test_an_endless_line_ends_the_connection(self) -> None:
        client = self.connect(self.server)
        client.sendall(b"x" * (MAX_LINE_BYTES + 10))
        self.turn(self.server)
        self.turn(self.server)
        self.assertIn("at most", json.loads(client.recv(65536))["error"])
        self.assertEqual(len(self.server.descriptors()), 1)

    def test_others_than_root_and_the_user_are_turned_away(self) -> None:
        server = self.serve(frozenset({os.geteuid() + 1}), "3-4.sock")
        self.assertEqual(self.connect(server).recv(10), b"")

    def test_too_many_clients_are_turned_away_until_the_idle_ones_are_dropped(self) -> None:
        for _ in range(MAX_CLIENTS):
            self.connect(self.server)
        self.assertEqual(self.connect(self.server).recv(10), b"")
        self.server.drop_idle(now_s=IDLE_S + 1)
        self.assertEqual(self.ask(self.connect(self.server), b"{}\n")["got"], {})

    def test_the_longest_reply_arrives_whole_though_nobody_reads_yet(self) -> None:
        client = self.connect(self.server)
        client.sendall(b'{"command": "long"}\n')
        self.turn(self.server)
        with client.makefile() as replies:
            self.assertEqual(len(json.loads(replies.readline())["text"]), MAX_REPLY_BYTES - 100)

    def test_a_client_that_does_not_read_is_dropped_and_nobody_waits(self) -> None:
        client = self.connect(self.server)
        for _ in range(3000):
            if len(self.server.descriptors()) == 1:
                break
            client.sendall(b'{"fill": "' + b"x" * 4000 + b'"}\n')
            self.turn(self.server)
        self.assertEqual(len(self.server.descriptors()), 1)

    def test_the_socket_is_the_users_alone_and_goes_when_it_is_closed(self) -> None:
        self.assertEqual(os.stat(self.server.path).st_mode & 0o777, 0o600)
        self.server.close(unlink=True)
        self.assertFalse(os.path.exists(self.server.path))

    def test_a_forked_child_closes_it_without_taking_it_away(self) -> None:
        self.server.close(unlink=False)
        self.assertTrue(os.path.exists(self.server.path))

    def test_a_long_run_directory_is_no_obstacle(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            deep = os.path.join(scratch, "d" * 120)
            folder = open_run_folder(deep, uid=os.geteuid())
            server = CommandSocket(folder, "5-6.sock", echo, allowed_uids=frozenset({os.geteuid()}))
            self.assertTrue(os.path.exists(os.path.join(folder.path, "5-6.sock")))
            server.close(unlink=True)
            folder.close()


if __name__ == "__main__":
    unittest.main()
