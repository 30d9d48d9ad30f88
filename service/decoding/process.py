"""Starts a decoder process, sends requests to it, and ends it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

from model_store.memory import malloc_environment
from service.decoding.worker import PREFIX
from service.processes.shared_pixels import SharedPixels

WORKER = "service.decoding.worker"

_MAX_HEADER = 2**21
"""Maximum size of the JSON in bytes. For an image of noise, the preview takes 1,060,000 bytes, and
the thumbnail takes 27,000."""

_AT_ONCE = 2**16


class DecoderProcess:
    """One decoder process, its socket, and the shared memory of its pictures."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self.pictures = SharedPixels()
        numbers = [theirs.fileno(), self.pictures.fileno()]
        with theirs:
            # multiprocessing would import the main module again, which is the whole service.
            self._process = subprocess.Popen(  # noqa: S603 # no argument comes from a request
                [
                    sys.executable,
                    "-P",
                    "-W",
                    "ignore",
                    "-m",
                    WORKER,
                    *map(str, numbers),
                ],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
            )

    @property
    def pid(self) -> int:
        """The id of the decoder's process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    async def ask(self, header: bytes, data: bytes) -> bytes:
        """Send one message and wait for its answer.

        Parameters
        ----------
        header : the request, as JSON.
        data : its binary data.

        Returns
        -------
        The reply. It is not always JSON, because an attacker may control the decoder.

        Raises
        ------
        OSError, EOFError : the process has ended, or its reply is too long.
        """
        loop = asyncio.get_running_loop()
        prefix = PREFIX.pack(len(header), len(data))
        await loop.sock_sendall(self._socket, prefix + header)
        await loop.sock_sendall(self._socket, data)  # no copy of the data
        answer = bytearray(await self._received(PREFIX.size))
        n_header, n_data = PREFIX.unpack_from(answer)
        if n_header > _MAX_HEADER or n_data:
            raise EOFError(f"a decoder announced {n_header} and {n_data} bytes")
        while len(answer) < PREFIX.size + n_header:
            answer += await self._received(1)
        return bytes(answer[PREFIX.size :])

    async def end(self) -> int:
        """Kill the process if it still runs; return its exit status."""
        self._socket.close()
        self.pictures.close()
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)

    async def _received(self, n_least: int) -> bytes:
        """Receive at least ``n_least`` bytes from the process."""
        loop = asyncio.get_running_loop()
        received = b""
        while len(received) < n_least:
            more = await loop.sock_recv(self._socket, _AT_ONCE)
            if not more:
                raise EOFError("a decoder has ended")
            received += more
        return received


def _environment() -> dict[str, str]:
    """Return a decoder's environment: its import paths, and none of the service's secrets."""
    # The same OpenBLAS core type as in the service: otherwise sums differ in the last digit.
    kept = ("LD_LIBRARY_PATH", "PYTHONHOME", "LANG", "OPENBLAS_CORETYPE")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",  # more threads would only use memory
        **malloc_environment(),  # halves the decoding time
    }
