"""The encoder's process: it receives batches and returns embeddings; see `process`."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from model_store.encoder.contract import Embeddings
from model_store.encoder.forwarding import EncoderFacts
from model_store.errors import VouchError
from service.encoding.side_by_side import side_by_side
from service.observability.logs import log_as_json
from service.processes.shared_pixels import SharedPixels


def main() -> None:
    """Run the child; the arguments are the file descriptors of its pipe and of its images."""
    # A signal that stops the service may go to its whole group; the service then drains, and needs
    # us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_as_json()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the service has ended
        _serve(Connection(int(sys.argv[1])), SharedPixels(int(sys.argv[2])))


def _serve(connection: Connection[Any, Any], images: SharedPixels) -> None:
    """Encode batches until the pipe closes."""
    path, provider, threads, cuda_graphs = connection.recv()
    try:
        encoder, encode = side_by_side(path, provider, threads, cuda_graphs=cuda_graphs)
    except VouchError as error:
        connection.send(error)
        return
    connection.send(EncoderFacts.of(encoder))
    while True:
        shape, dtype, at_once = connection.recv()
        try:
            answer: Embeddings | str = encode(images.read(shape, dtype), at_once)
        except Exception as error:
            answer = str(error)
        connection.send(answer)


if __name__ == "__main__":
    main()
