"""Starts a decoder process, exchanges messages with it, and ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from model_store.errors import ImageError
from model_store.gallery import Thumbnail
from model_store.images import Preprocessing
from model_store.images.quality import MEASURES
from model_store.memory import malloc_environment
from service.processes.shared_pixels import SharedPixels

from .decoder import Prepared
from .worker import PREFIX

_ERRORS = {error.__name__: error for error in ImageError.__subclasses__()}


@lru_cache(maxsize=8)
def request_message(
    preprocessing: Preprocessing, *, measured: bool, thumbnail: bool, preview_side: int | None
) -> bytes:
    """Return the header of a request to a decoder."""
    header = {
        "preprocessing": asdict(preprocessing),
        "measured": measured,
        "thumbnail": thumbnail,
        "preview_side": preview_side,
    }
    return json.dumps(header).encode()


_ONE_EACH = Field(min_length=len(MEASURES), max_length=len(MEASURES))
_Side = Annotated[int, Field(gt=0, lt=2**31)]


class _Reply(BaseModel):
    """A decoder's reply, validated strictly: a malicious file may control the decoder."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Refused(_Reply):
    error: str
    detail: str


class _Decoded(_Reply):
    format: str
    width: _Side
    height: _Side
    warnings: tuple[str, ...]
    measures: Annotated[list[float], _ONE_EACH] | None = None
    thumbnail: Base64Bytes | None = None
    preview: Base64Bytes = b""


class _Started(_Reply):
    sandbox: list[Literal["seccomp", "landlock"]]


_ANSWER: TypeAdapter[_Decoded | _Refused] = TypeAdapter(_Decoded | _Refused)


def read_started(message: bytes) -> tuple[str, ...]:
    """Read the first message of a decoder: the parts of the sandbox that are in force.

    Raises
    ------
    EOFError : the message is not valid.
    """
    try:
        return tuple(_Started.model_validate_json(message).sandbox)
    except ValidationError as error:
        raise EOFError("a decoder sent a malformed answer") from error


def read_reply(
    message: bytes, pictures: SharedPixels, preprocessing: Preprocessing
) -> Prepared | ImageError:
    """Read a decoder's reply.

    The reply is validated strictly: the process parses hostile files and may have been compromised.

    Raises
    ------
    EOFError : the reply is not valid.
    """
    try:
        answer = _ANSWER.validate_json(message)
        if isinstance(answer, _Refused):
            return _ERRORS[answer.error](answer.detail)
    except (ValidationError, KeyError) as error:
        raise EOFError("a decoder sent a malformed answer") from error
    return Prepared(
        pictures.read((preprocessing.height, preprocessing.width, 3)),
        answer.format,
        answer.width,
        answer.height,
        answer.warnings,
        None if answer.measures is None else np.array(answer.measures),
        None if answer.thumbnail is None else _thumbnail(answer.thumbnail),
        answer.preview,
    )


def _thumbnail(data: bytes) -> Thumbnail:
    """Return a thumbnail; its media type follows from its bytes, and is never sent by a decoder."""
    return Thumbnail(data, "image/png" if data.startswith(b"\x89PNG") else "image/jpeg")


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
