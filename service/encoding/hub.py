"""The encoders of a service of several processes: each runs once, whichever of them asks.

The hub is in the parent of these processes. Each of them has a socket to it, over which it hands
the files of a line to an encoder; when it dies, its lines close, and the others notice nothing.
"""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any, cast

from model_store.encoder.contract import Embeddings, Encoder, Inputs
from model_store.encoder.forwarding import EncoderFacts
from model_store.errors import EncoderError, EncoderStopped, VouchError
from model_store.processors import ProviderChoice
from service.encoding.hub_encoder import ASKS
from service.encoding.joined import JoinedEncoder
from service.encoding.queues import BatchLimits, measured
from service.encoding.shared import FindFile, OpenFound, SharedEncoders
from service.processes.shared_pixels import SharedPixels


class EncoderHub:
    """Opens encoders for the processes of a service, and joins what they ask of each.

    Parameters
    ----------
    open_encoder : opens one that nobody has yet.
    limits : on what is encoded at once, whoever asks.
    """

    def __init__(self, open_encoder: OpenFound, limits: BatchLimits) -> None:
        self._limits = limits
        self._encoders = SharedEncoders(self._joined(open_encoder))

    def line(self) -> socket.socket:
        """Return the socket of one more process; its end here closes with the other."""
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._hear, args=(ours,), daemon=True, name="hub").start()
        return theirs

    def _joined(self, open_encoder: OpenFound) -> OpenFound:
        def open_joined(find: FindFile, provider: ProviderChoice, threads: int) -> JoinedEncoder:
            encoder = open_encoder(find, provider, threads)
            try:
                batches = measured(encoder, self._limits)
            except BaseException:
                encoder.close()
                raise
            return JoinedEncoder(encoder, batches, padded=self._limits.padded)

        return open_joined

    def _hear(self, asked: socket.socket) -> None:
        """Take in lines until the process has ended."""
        with asked, suppress(OSError):
            while True:
                data, numbers, _, _ = socket.recv_fds(asked, len(ASKS), 2)
                if not data:
                    return
                line = Connection(numbers[0]), SharedPixels(numbers[1])
                threading.Thread(target=self._answer, args=line, daemon=True, name="line").start()

    def _answer(self, connection: Connection[Any, Any], images: SharedPixels) -> None:
        """Answer what comes over a line, until it closes."""
        with connection, closing(images), suppress(EOFError, OSError):
            path, provider, threads = connection.recv()
            try:
                encoder = self._encoders.open(path, provider, threads)
            except (VouchError, OSError) as error:  # such as no memory for a process
                known = isinstance(error, VouchError)
                connection.send(error if known else EncoderError(f"It does not start: {error}"))
                return
            with closing(encoder):
                joined = cast("JoinedEncoder", encoder.real)
                connection.send((EncoderFacts.of(joined), joined.batches))
                while True:
                    shape, dtype, at_once = connection.recv()
                    connection.send(_outcome(joined, images.read(shape, dtype), at_once))


def _outcome(
    encoder: Encoder, images: Inputs, at_once: int | None
) -> Embeddings | EncoderStopped | str:
    """Return the embeddings of ``images``, or why there are none."""
    try:
        return encoder.encode(images, at_once)
    except EncoderStopped as error:
        return error
    except Exception as error:
        return str(error)
