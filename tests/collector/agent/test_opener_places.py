"""Who has the places for connections of the opener, and who gives way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tidegauge.opener.places import MAX_CONNECTIONS, MAX_OF_A_PROCESS, ConnectionPlaces, ServedConnection


class Crowd:
    """Places, and a thread for each connection that leaves when its connection is ended."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.places = ConnectionPlaces(monotonic_s=lambda: self.now_s)
        self.taken: list[ServedConnection] = []
        self._clients: list[socket.socket] = []

    def take(self, pid: int) -> ServedConnection | None:
        self.now_s += 1.0
        served, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._clients.append(client)
        place = self.places.take(served, pid)
        if place is None:
            served.close()
            return None
        self.taken.append(place)
        threading.Thread(target=self._serve, args=(place,), daemon=True).start()
        return place

    def has_ended(self, place: ServedConnection) -> bool:
        return self._clients[self.taken.index(place)].recv(1) == b""

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _serve(self, place: ServedConnection) -> None:
        with place.connection, suppress(OSError):
            place.connection.recv(1)
        self.places.give_back(place)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    one = Crowd()
    yield one
    one.close()


def test_the_connection_of_a_full_process_that_waited_longest_gives_way_to_its_next(crowd: Crowd) -> None:
    other = crowd.take(7)
    places = [crowd.take(8) for _ in range(MAX_OF_A_PROCESS)]
    assert None not in places
    assert places[0] is not None
    crowd.places.now(places[0], is_busy=True)
    assert crowd.take(8) is not None
    assert places[1] is not None
    assert crowd.has_ended(places[1]), "the first carries out a request, and 7 has room"
    assert other is not None
    assert crowd.places.longest_act_s(besides=other) == 1.0


def test_where_all_places_are_taken_one_of_the_process_with_most_gives_way(crowd: Crowd) -> None:
    few = [crowd.take(7) for _ in range(MAX_CONNECTIONS // 2 - 1)]
    most = [crowd.take(8) for _ in range(MAX_CONNECTIONS // 2)]
    assert crowd.take(9) is not None
    assert crowd.take(9) is not None
    assert None not in few
    assert most[0] is not None
    assert crowd.has_ended(most[0])


def test_a_process_whose_connections_are_all_busy_or_unread_gets_no_more_and_others_do(crowd: Crowd) -> None:
    places = [crowd.take(8) for _ in range(MAX_OF_A_PROCESS)]
    for number, place in enumerate(places):
        assert place is not None
        if number % 2:
            crowd.places.now(place, is_busy=True)
        else:
            place.connection.send(b"an answer that nobody reads")
    assert crowd.take(8) is None
    assert crowd.take(9) is not None
