"""A decoder: a process that turns image files into prepared pictures, and does nothing else.

Image files come from strangers, and their parsers are the likeliest part of the service to crash,
to hang or to eat memory. So they run here, one file at a time, in a process that can be lost.
`service.decoding` starts these processes and talks to them over a socket pair, in messages of JSON
and bytes: nothing of a message is ever executed, whatever became of the process at the other end.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from model_store.errors import ImageError, ImageTooCostly
from model_store.images import (
    FORMATS,
    TOO_MUCH_MEMORY,
    ImageLimits,
    Preprocessing,
    decode_image,
    encode_thumbnail,
)
from model_store.quality import quality_measures

PREFIX = struct.Struct("!II")
"""Before every message: how many bytes of JSON follow, and how many bytes after that."""


_MAPPED = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class DecodingBudget:
    """What the decoding of one image may cost.

    Attributes
    ----------
    cpu_s : seconds of computing. Not seconds on the clock, which on a busy machine would condemn
        images for the company they are in.
    memory_bytes : beyond what an idle decoder has mapped.
    clock_s : seconds on the clock. Only a decoder that is stopped, or starved, takes so many.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 2**30
    clock_s: float = 60.0


def main() -> None:
    """Answer requests on the socket whose file number is the first argument, until it closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the service says when it is over
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would keep somebody's picture
    _silence_libraries()
    channel = socket.socket(fileno=int(sys.argv[1]))
    fields, _ = _receive(channel)
    limits, budget = ImageLimits(**fields["limits"]), DecodingBudget(**fields["budget"])
    _warm_up(limits)
    _send(channel, {})
    while True:
        fields, data = _receive(channel)
        fields, picture = _within(budget, data, fields, limits)
        _send(channel, fields, picture)


def _within(
    budget: DecodingBudget, data: bytes, asked: dict[str, Any], limits: ImageLimits
) -> tuple[dict[str, Any], bytes]:
    """The answer to a request, unless its decoding ends this process.

    The kernel keeps the time: no parser can hold it up, and SIGPROF ends the process.
    """
    signal.setitimer(signal.ITIMER_PROF, budget.cpu_s)
    _limit_memory(budget.memory_bytes)
    try:
        return _answer(
            data, Preprocessing(**asked["preprocessing"]), limits, thumbnail=asked["thumbnail"]
        )
    except ImageError as error:
        return {"error": type(error).__name__, "detail": str(error)}, b""
    finally:
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(
    data: bytes, preprocessing: Preprocessing, limits: ImageLimits, *, thumbnail: bool
) -> tuple[dict[str, Any], bytes]:
    decoded = decode_image(data, limits)
    small = None
    try:
        picture = preprocessing(decoded.pixels).tobytes()
        measures = quality_measures(decoded.pixels)
        if thumbnail:
            small, _ = encode_thumbnail(decoded.pixels)
    except MemoryError as error:
        raise ImageTooCostly(TOO_MUCH_MEMORY) from error
    fields = {
        "measures": measures.tolist(),
        "format": decoded.format,
        "width": decoded.width,
        "height": decoded.height,
        "warnings": decoded.warnings,
    }
    if small is not None:
        fields["thumbnail"] = b64encode(small).decode()
    return fields, picture


def _limit_memory(spare_bytes: int | None) -> None:
    """Let this process map so much more than it has now; None for as much as it likes.

    Only Linux says what is mapped; elsewhere the limits on bytes and pixels have to do.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if spare_bytes is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    elif _MAPPED.exists():
        pages = int(_MAPPED.read_text(encoding="ascii").split()[0])
        soft = pages * resource.getpagesize() + spare_bytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _silence_libraries() -> None:
    """Keep what C libraries print about damaged files out of the log; our own errors go there."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _warm_up(limits: ImageLimits) -> None:
    """Let Pillow load what it loads at the first use of a format."""
    preprocessing = Preprocessing(8, 8)
    for name in FORMATS:
        file = BytesIO()
        Image.new("RGB", (16, 16)).save(file, name)
        _answer(file.getvalue(), preprocessing, limits, thumbnail=True)


def _send(channel: socket.socket, fields: dict[str, Any], data: bytes = b"") -> None:
    header = json.dumps(fields).encode()
    channel.sendall(b"".join([PREFIX.pack(len(header), len(data)), header, data]))


def _receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message; ends the process when there is none, because the service has ended."""
    n_header, n_data = PREFIX.unpack(_exactly(channel, PREFIX.size))
    return json.loads(_exactly(channel, n_header)), _exactly(channel, n_data)


def _exactly(channel: socket.socket, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    view = memoryview(data)
    while view:
        n_received = channel.recv_into(view)
        if n_received == 0:
            sys.exit(0)
        view = view[n_received:]
    return bytes(data)


if __name__ == "__main__":
    main()
