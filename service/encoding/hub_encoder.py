"""An encoder that a process of the service shares with its siblings; `hub` has the other end."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from model_store.encoder.contract import Embeddings, Inputs
from model_store.encoder.forwarding import EncoderProxy
from model_store.errors import EncoderError, EncoderStopped, EncodingFailed, VouchError
from model_store.processors import ProviderChoice
from service.encoding.batch_size import Batches
from service.encoding.shared import FindFile
from service.processes.shared_pixels import SharedPixels

ASKS = b"e"
"""Sent to the hub together with the two files of a line to one of its encoders."""


class HubEncoder(EncoderProxy):
    """An `Encoder` that the hub runs, in this service's parent; safe to share by threads.

    Whatever it waits for ends with the hub: all its lines are closed then.

    Parameters
    ----------
    hub : the socket that lines to encoders are asked for by.
    find : finds the encoder's file, each time that the hub has to start it again.
    provider, threads : as for `OnnxEncoder`.

    Attributes
    ----------
    batches : measured by the hub, once for all.

    Raises
    ------
    EncoderError : as `OnnxEncoder`.
    """

    def __init__(
        self, hub: socket.socket, find: FindFile, provider: ProviderChoice, threads: int
    ) -> None:
        self._hub, self._find, self._options = hub, find, (provider, threads)
        self._lock = threading.Lock()
        self._closed = self._stopped = False
        self.batches: Batches
        self._open()

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images``; see `Encoder.encode`.

        Raises
        ------
        EncoderStopped : it died, or hung, over these images; or it does not start again.
        EncodingFailed : it refused them.
        """
        with self._lock:
            if self._closed:
                raise EncoderStopped("The encoder has been closed. Send the image again.")
            if self._stopped:
                self._open_again()
            try:
                self._images.write(images)
                self._connection.send((images.shape, images.dtype.str, at_once))
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                raise EncoderStopped(
                    "The encoder's process cannot be reached. Send the image again."
                ) from error
            self._stopped = isinstance(answer, EncoderStopped)
        if isinstance(answer, Embeddings):
            return answer
        if isinstance(answer, EncoderStopped):
            raise answer
        raise EncodingFailed(str(answer))

    def close(self) -> None:
        """Let go of it; whoever waits for it then waits no longer."""
        self._closed = True
        with suppress(OSError), socket.socket(fileno=_copied(self._connection)) as line:
            line.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._connection.close()
            self._images.close()

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        connection, images = Connection(ours.detach()), SharedPixels()
        try:
            with theirs:
                socket.send_fds(self._hub, [ASKS], [theirs.fileno(), images.fileno()])
            connection.send((self._find(), *self._options))
            answer = connection.recv()
        except (EOFError, OSError) as error:
            answer = EncoderError("The encoder does not start: its process cannot be reached.")
            answer.__cause__ = error
        if isinstance(answer, VouchError):
            connection.close()
            images.close()
            raise answer
        self._connection, self._images = connection, images
        self.facts, self.batches = answer

    def _open_again(self) -> None:
        """Tell the hub where the file is now: that of the first line may be gone.

        Raises
        ------
        EncoderStopped : it does not start.
        """
        connection, images, batches = self._connection, self._images, self.batches
        try:
            self._open()
        except VouchError as error:
            raise EncoderStopped(
                "The encoder has stopped and does not start again; the log says why. Send the "
                "image again later."
            ) from error
        self.batches = batches  # those that the queue in front goes by
        connection.close()
        images.close()
        self._stopped = False


def _copied(connection: Connection[Any, Any]) -> int:
    """Return a second number of a connection's file, whose owner may close it."""
    return os.dup(connection.fileno())
