"""The decoder process, which only turns image files into prepared pictures.

Image files are not trusted. Image parsers may crash, hang or use too much memory. The parsers
therefore run here, one file at a time, in a process that the service can kill and replace.
`service.decoding.decoder` starts the decoder processes, and exchanges messages with them over a
socket pair. A message consists of JSON and bytes; the service never executes any part of a message.
Prepared pictures are in a memory file that the service and the decoder share.
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
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from model_store.errors import ImageError, ImageTooCostly
from model_store.images import (
    FORMATS,
    TOO_MUCH_MEMORY,
    ImageLimits,
    Preprocessing,
    decode_image,
    encode_preview,
    encode_thumbnail,
)
from model_store.images.decode import DecodingBudget, spending
from model_store.images.quality import quality_measures
from service.decoding import sandbox
from service.shared_pixels import SharedPixels

PREFIX = struct.Struct("!II")
"""Prefix of every message: the bytes of the JSON, then the bytes of the data after the JSON."""


NICE = 5
"""Niceness of decoder processes, so that answering and encoding have priority if there are few
cores. Costly images of one caller can occupy all decoders except one."""


def main() -> None:
    """Serve requests until the socket closes.

    The arguments are the file descriptors of the socket and of the shared picture file.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the service ends this process
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would contain a user's picture
    _silence_libraries()
    channel, pictures = socket.socket(fileno=int(sys.argv[1])), SharedPixels(int(sys.argv[2]))
    fields, _ = _receive(channel)
    limits, budget = ImageLimits(**fields["limits"]), DecodingBudget(**fields["budget"])
    _warm_up(limits)
    with spending(budget):  # which opens what it reads
        pass
    _send(channel, {"sandbox": sandbox.enter(fields["sandbox"])})
    with suppress(ConnectionError):  # the service has been killed
        while True:
            fields, data = _receive(channel)
            fields, picture = _within(budget, data, fields, limits)
            if picture is not None:
                pictures.write(picture)
            _send(channel, fields)


def _within(
    budget: DecodingBudget, data: bytes, options: dict[str, Any], limits: ImageLimits
) -> tuple[dict[str, Any], NDArray[np.uint8] | None]:
    """Return the answer to a request; decoding may end this process."""
    with spending(budget):
        try:
            preprocessing = Preprocessing(**options.pop("preprocessing"))
            return _answer(data, preprocessing, limits, **options)
        except ImageError as error:
            return {"error": type(error).__name__, "detail": str(error)}, None


def _answer(
    data: bytes,
    preprocessing: Preprocessing,
    limits: ImageLimits,
    *,
    measured: bool,
    thumbnail: bool,
    preview_side: int | None,
) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    decoded = decode_image(data, limits, preprocessing.smallest_side)
    fields: dict[str, Any] = {
        "format": decoded.format,
        "width": decoded.width,
        "height": decoded.height,
        "warnings": decoded.warnings,
    }
    try:
        picture = preprocessing(decoded.pixels)
        if measured:
            size = decoded.width, decoded.height
            fields["measures"] = quality_measures(decoded.pixels, size).tolist()
        if thumbnail:
            small, _ = encode_thumbnail(decoded.pixels)
            fields["thumbnail"] = b64encode(small).decode()
        large = encode_preview(
            decoded.pixels, preview_side, lambda side: decode_image(data, limits, side).pixels
        )
        fields["preview"] = b64encode(large).decode()
    except MemoryError as error:
        raise ImageTooCostly(TOO_MUCH_MEMORY) from error
    return fields, picture


def _silence_libraries() -> None:
    """Discard what C libraries print about damaged files; Python's errors still reach the log."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _warm_up(limits: ImageLimits) -> None:
    """Load Pillow's plugins now; otherwise the first image of each format would be slow."""
    preprocessing = Preprocessing(8, 8)
    kinds: list[tuple[str, str, dict[str, str]]] = [(name, "RGB", {}) for name in FORMATS]
    # Pillow reads TIFF files with floating-point pixels with a different library.
    kinds += [("TIFF", "F", {}), ("TIFF", "F", {"compression": "tiff_adobe_deflate"})]
    for name, mode, options in kinds:
        file = BytesIO()
        Image.new(mode, (16, 16)).save(file, name, **options)
        _answer(
            file.getvalue(), preprocessing, limits, measured=True, thumbnail=True, preview_side=8
        )


def _send(channel: socket.socket, fields: dict[str, Any]) -> None:
    header = json.dumps(fields).encode()
    channel.sendall(PREFIX.pack(len(header), 0) + header)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next message; exit if the socket is closed, because the service has ended."""
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
