"""Who is hung up on while all places are taken, by a fake clock and real pairs of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tidegauge.http.connections import Connections, ServerLimits

PATIENCE_S = 2.0
LIMITS = ServerLimits(2, ask_within_s=60.0, whole_s=300.0, patience_s=PATIENCE_S)


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.connections = Connections(LIMITS, monotonic_s=lambda: self.now_s)
        self.pairs: list[tuple[socket.socket, socket.socket]] = []

    def come(self) -> socket.socket:
        """The server's end of one more connection."""
        self.pairs.append(socket.socketpair())
        return self.pairs[-1][0]

    def enter(self) -> socket.socket:
        request = self.come()
        assert self.connections.enter(request, timeout_s=0)
        return request

    def is_cut(self, request: socket.socket) -> bool:
        request.setblocking(False)
        try:
            return request.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for pair in world.pairs:
        for end in pair:
            end.close()


def test_web_connections_cut_no_client_while_there_is_room(world: World) -> None:
    first = world.enter()
    world.now_s += 10 * PATIENCE_S
    second = world.enter()
    assert (world.is_cut(first), world.is_cut(second)) == (False, False)


def test_web_connections_cut_the_longest_silent_client_only_after_its_patience(world: World) -> None:
    first = world.enter()
    world.now_s += PATIENCE_S / 2
    second = world.enter()
    assert not world.connections.enter(world.come(), timeout_s=0)
    assert not world.is_cut(first)
    world.now_s += PATIENCE_S / 2
    assert not world.connections.enter(world.come(), timeout_s=0), "its thread has not left yet"
    assert (world.is_cut(first), world.is_cut(second)) == (True, False)
    world.connections.leave(first)
    world.enter()


def test_web_connections_cut_one_client_for_one_that_comes() -> None:
    connections = Connections(LIMITS._replace(patience_s=0.0))
    pairs = [socket.socketpair() for _ in range(3)]
    for here, _ in pairs[:2]:
        assert connections.enter(here, timeout_s=0)
    assert not connections.enter(pairs[2][0], timeout_s=0.05), "the thread of the one that was cut has not left"
    cut = [here.recv(1, socket.MSG_DONTWAIT) == b"" for here, _ in pairs[:1]]
    with pytest.raises(BlockingIOError):
        pairs[1][0].recv(1, socket.MSG_DONTWAIT)
    for pair in pairs:
        for end in pair:
            end.close()
    assert cut == [True]


def test_web_connections_never_cut_a_client_awaiting_its_answer(world: World) -> None:
    first, second = world.enter(), world.enter()
    world.connections.heard(first)
    world.now_s += 10 * PATIENCE_S
    assert not world.connections.enter(world.come(), timeout_s=0)
    assert (world.is_cut(first), world.is_cut(second)) == (False, True)


def test_web_connections_cut_the_tls_socket_that_took_over(world: World) -> None:
    first, second = world.enter(), world.enter()
    over = world.come()
    world.connections.secured(first, over)
    world.connections.heard(second)
    world.now_s += PATIENCE_S
    assert not world.connections.enter(world.come(), timeout_s=0)
    assert (world.is_cut(first), world.is_cut(over)) == (False, True)
