"""Whoever connects does not wait behind the connections of another address."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from service.http import doors
from service.http.doors import (
    HESITATION_AT_ONCE_S,
    HESITATION_S,
    HESITATION_SHARE,
    LONGEST_HESITATION_S,
    N_DOORS,
    Hesitation,
    open_doors,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel shares out by BPF")


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    """Doors that are listened on."""
    with ExitStack() as stack:
        opened = open_doors("127.0.0.1", 0)
        for door in opened:
            stack.enter_context(door)
            door.listen()
        yield opened


def door_of(address: str, listening: list[socket.socket], n: int = 1) -> int:
    """Connect from an address; returns the one door at which all its connections wait."""
    with ExitStack() as stack:
        for _ in range(n):
            where = listening[0].getsockname()[:2]
            stack.enter_context(socket.create_connection(where, source_address=(address, 0)))
        [reached] = select.select(listening, [], [], 5)[0]
        for _ in range(n):
            accepted, who = reached.accept()
            accepted.close()
            assert who[0] == address
        return listening.index(reached)


@linux
def test_all_connections_of_an_address_wait_at_one_door(listening: list[socket.socket]) -> None:
    assert len(listening) == N_DOORS
    for address in ("127.0.0.1", "127.0.0.2", "127.1.2.3"):
        assert door_of(address, listening, 20) == door_of(address, listening)


@linux
def test_addresses_are_shared_out(listening: list[socket.socket]) -> None:
    reached = [door_of(f"127.0.{n // 32}.{1 + n % 32}", listening) for n in range(128)]
    assert set(reached) == set(range(N_DOORS))
    assert max(map(reached.count, reached)) <= 128 / N_DOORS * 3


@linux
def test_an_ipv6_network_is_one_client() -> None:
    try:
        opened = open_doors("::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    with ExitStack() as stack:
        for door in opened:
            stack.enter_context(door)
            door.listen()
        assert len(opened) == N_DOORS
        assert door_of("::1", opened, 5) == door_of("::1", opened)


def test_an_address_that_is_taken_is_refused() -> None:
    """Two services would share what comes, and nobody would notice."""
    with ExitStack() as stack:
        opened = [stack.enter_context(door) for door in open_doors("127.0.0.1", 0)]
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            open_doors(*opened[0].getsockname()[:2])


def test_where_the_kernel_cannot_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_ATTACH_REUSEPORT_CBPF", 10_000)  # an option of no kernel
    [only] = open_doors("127.0.0.1", 0)
    with only:
        only.listen()
        assert door_of("127.0.0.1", [only]) == 0


class Clock:
    """A clock that passes by sleeping, a little longer than was asked for."""

    def __init__(self) -> None:
        self.now, self.naps = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds + 5e-5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(doors, "time", clock)
    return clock


def test_a_process_hesitates_the_longer_the_more_connections_it_holds(clock: Clock) -> None:
    hesitation = Hesitation()
    for n_held in (1, 2, 10, 1_000):
        hesitation.newcomer(n_held)
    expected = [HESITATION_S, 2 * HESITATION_S, 10 * HESITATION_S, LONGEST_HESITATION_S]
    assert clock.naps == pytest.approx(expected)


def test_a_flood_delays_nobody_for_long_and_is_forgotten(clock: Clock) -> None:
    hesitation, started = Hesitation(), clock.now
    awake_s = 0.0
    while clock.now < started + 10:
        hesitation.newcomer(20)
        clock.now += 1e-4
        awake_s += 1e-4
    allowed_s = HESITATION_AT_ONCE_S + 10 * HESITATION_SHARE
    assert 0.9 * allowed_s < clock.now - started - awake_s < allowed_s + LONGEST_HESITATION_S
    clock.naps.clear()
    clock.now += 60
    for _ in range(1_000):  # all of them at the same moment
        hesitation.newcomer(20)
    assert sum(clock.naps) < HESITATION_AT_ONCE_S
    assert len(clock.naps) > 32
