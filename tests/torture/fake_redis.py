"""Servers that are taken for Redis, and answer what no Redis answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import numpy as np

NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "an empty line": b"\r\n",
    "no reply type": b"hello\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "TLS": b"\x15\x03\x03\x00\x02\x02\x46",
    "NULs": b"\0" * 100,
    "random": np.random.default_rng(0).bytes(300),
    "not UTF-8": b"+\xff\xfe\r\n",
    "OK": b"+OK\r\n",
    "an error": b"-ERR no\r\n",
    "an error of 1 MB": b"-ERR " + b"x" * 2**20 + b"\r\n",
    "loading": b"-LOADING Redis is loading\r\n",
    "moved": b"-MOVED 1 127.0.0.1:1\r\n",
    "no password": b"-NOAUTH Authentication required.\r\n",
    "an integer": b":7\r\n",
    "a negative integer": b":-7\r\n",
    "a huge integer": b":" + b"9" * 5_000 + b"\r\n",
    "no integer": b":abc\r\n",
    "text": b"$5\r\nhello\r\n",
    "nil": b"$-1\r\n",
    "a negative length": b"$-5\r\nhello\r\n",
    "no length": b"$abc\r\nhello\r\n",
    "a huge length": b"$99999999999999999999\r\nhello\r\n",
    "a length that lies": b"$3\r\nhello\r\n",
    "an array": b"*2\r\n:1\r\n:2\r\n",
    "a nil array": b"*-1\r\n",
    "a huge array": b"*999999999\r\n:1\r\n",
    "a deep array": b"*1\r\n" * 5_000 + b":1\r\n",
    "a map": b"%1\r\n+a\r\n:1\r\n",
    "a double": b",inf\r\n",
    "a boolean": b"#t\r\n",
    "a big number": b"(" + b"9" * 5_000 + b"\r\n",
    "a push": b">2\r\n+message\r\n+x\r\n",
    "an endless line": b"+" + b"x" * 2**22,
    "many replies": b":1\r\n" * 10_000,
}


class NoRedis:
    """A server that says the same to every command, beyond a polite greeting if ``greets``.

    Attributes
    ----------
    n_said : how often it has said it.
    """

    def __init__(self, said: bytes, *, greets: bool) -> None:
        self._said, self._greets = said, greets
        self._open: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        self.n_said = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def say(self, said: bytes, *, greets: bool) -> None:
        """Say something else from now on; whoever is connected has to connect anew."""
        self._said, self._greets, self.n_said = said, greets, 0
        for connection in self._open.copy():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._open.add(connection)
            while heard := connection.recv(2**16):
                greeting = b"HELLO" in heard or b"CLIENT" in heard or b"SELECT" in heard
                if self._greets and greeting:
                    hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"
                    n_ok = heard.count(b"SETINFO") + heard.count(b"MAINT")
                    connection.sendall(hello * (b"HELLO" in heard) + b"+OK\r\n" * n_ok)
                else:
                    self.n_said += 1
                    connection.sendall(self._said)
        self._open.discard(connection)

    def close(self) -> None:
        """Stop; whoever is connected finds nobody."""
        self._server.close()


class LyingRedis:
    """A way to a real Redis on which replies are damaged, each with the same probability.

    Attributes
    ----------
    n_damaged : replies so far.
    """

    def __init__(self, port: int, seed: int, share: float) -> None:
        self._port, self._share = port, share
        self._rng = np.random.default_rng(seed)
        self._nonsense = list(NONSENSE.values())
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        self.n_damaged = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop; whoever is connected finds nobody."""
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                redis = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((client, redis, False), (redis, client, True)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, damaged: bool) -> None:
        with suppress(OSError), source, target:
            while heard := source.recv(2**16):
                hits = damaged and self._rng.uniform() < self._share
                target.sendall(self._damage(heard) if hits else heard)

    def _damage(self, reply: bytes) -> bytes:
        self.n_damaged += 1
        kind, at = self._rng.integers(5), int(self._rng.integers(len(reply)))
        if kind == 0:
            return self._nonsense[self._rng.integers(len(self._nonsense))]
        if kind == 1:
            return reply[:at]
        if kind == 2:
            return reply + reply
        if kind == 3:
            return self._rng.bytes(1 + at)
        return reply[:at] + self._rng.bytes(1) + reply[at + 1 :]
