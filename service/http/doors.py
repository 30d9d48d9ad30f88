"""Listening sockets: several for one address, of which whoever connects is given one by its own.

An event loop accepts one connection of each socket in a turn, first come, first served. Behind a
client that connects thousands of times, everybody else would wait for all of its connections to be
made. Where Linux can, it shares clients out among sockets by their address, so that others are
accepted in the next turn.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import struct
import sys
import time
from collections.abc import Sequence

logger = logging.getLogger("service")

N_DOORS = 16
"""Sockets for each address: one client in so many stands behind another that floods."""

_ATTACH_REUSEPORT_CBPF = 51
_LOAD_WORD, _MULTIPLY, _TO_X, _XOR_X, _SHIFT, _REMAINDER, _RETURN = (
    *(0x20, 0x24, 0x07, 0xAC),
    *(0x74, 0x94, 0x16),
)
"""Instructions of the classic BPF; see ``linux/bpf_common.h``."""

_NETWORK_HEADER = 0xFFF00000
_SOURCE = {socket.AF_INET: (12,), socket.AF_INET6: (8, 12)}
"""The places of a client's address in that header; an IPv6 network counts as one client."""

_GOLDEN = 0x9E3779B1
"""Multiplied with it, neighbouring addresses differ in their upper bits (Fibonacci hashing)."""


HESITATION_S = 1e-5
"""For each connection that a process holds, before it takes another: of those that listen together
the first to wake would take a whole crowd."""

LONGEST_HESITATION_S = 5e-4
HESITATION_AT_ONCE_S = 0.02
HESITATION_SHARE = 0.1
"""The most at a time, in a crowd, and of all time: nobody waits for long because of a flood."""


class Hesitation:
    """Leaves the next connection to a process that holds fewer, by a short sleep."""

    def __init__(self) -> None:
        self._left_s, self._since = HESITATION_AT_ONCE_S, time.monotonic()

    def newcomer(self, n_held: int) -> None:
        """Note that a connection has come, and sleep longer the more of them are held."""
        now = time.monotonic()
        left_s = self._left_s + HESITATION_SHARE * (now - self._since)
        self._left_s, self._since = min(left_s, HESITATION_AT_ONCE_S), now
        nap_s = min(n_held * HESITATION_S, LONGEST_HESITATION_S)
        if nap_s <= self._left_s:
            time.sleep(nap_s)
            self._left_s -= time.monotonic() - now  # the kernel lets nobody sleep so briefly


def open_doors(host: str, port: int) -> list[socket.socket]:
    """Bind the sockets that a server is to listen on, in this order; one listens already.

    Raises
    ------
    OSError : the address is not to be had.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    doors: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            opened = _doors_of(socket.AddressFamily(family), address)
            doors += opened
            opened[0].listen()  # from now on another service is refused the address
    except OSError:
        _close(doors)
        raise
    return doors


def _doors_of(family: socket.AddressFamily, address: Sequence[object]) -> list[socket.socket]:
    alone = _bound(family, address, shared=False)  # and so nobody else listens there
    if sys.platform != "linux" or family not in _SOURCE:
        return [alone]
    address = alone.getsockname()
    alone.close()
    doors: list[socket.socket] = []
    try:
        doors += (_bound(family, address, shared=True) for _ in range(N_DOORS))
        _share_out(doors[0], _SOURCE[family])
    except OSError as error:
        logger.warning("one queue for all who connect", extra={"fields": {"why": str(error)}})
        _close(doors)
        return [_bound(family, address, shared=False)]
    return doors


def _bound(
    family: socket.AddressFamily, address: Sequence[object], *, shared: bool
) -> socket.socket:
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        door.bind(tuple(address))
    except OSError:
        door.close()
        raise
    return door


def _share_out(first: socket.socket, source: Sequence[int]) -> None:
    """Have the kernel choose among the doors by the client's address.

    Parameters
    ----------
    first : the door that is listened on first; the others join it.
    source : where the words of that address are in the network header.
    """
    program: list[tuple[int, int]] = []
    for place in source:
        program += [(_LOAD_WORD, _NETWORK_HEADER + place), (_XOR_X, 0), (_MULTIPLY, _GOLDEN)]
        program += [(_TO_X, 0)]
    program += [(_SHIFT, 16), (_REMAINDER, N_DOORS), (_RETURN, 0)]
    code = b"".join(struct.pack("=HBBI", what, 0, 0, value) for what, value in program)
    kept = ctypes.create_string_buffer(code, len(code))
    attached = struct.pack("@HP", len(program), ctypes.addressof(kept))
    first.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, attached)


def _close(doors: Sequence[socket.socket]) -> None:
    for door in doors:
        door.close()
