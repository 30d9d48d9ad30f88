"""Images that several processes of the service send at the same time, encoded together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_store.encoder.contract import Embeddings, Encoder, Inputs
from model_store.encoder.forwarding import ForwardingEncoder
from service.encoding.batch_size import Batches


@dataclass(eq=False, slots=True)
class _Part:
    """The images of one of those who ask, and what became of them."""

    images: Inputs
    outcome: Embeddings | Exception | None = None


class JoinedEncoder(ForwardingEncoder):
    """An `Encoder` that joins what threads ask of it while it is at work.

    What waits is encoded in one turn, first come, first served, and each gets its own: as many
    images as one process would be given, by the same measurement, so that each has the bits that
    it has alone. Where the turn fails, the part of each is encoded by itself: nobody's images fail
    over those of another.

    Parameters
    ----------
    encoder : encodes one turn at a time.
    batches : of a turn.
    padded : see `MicroBatcher`.
    """

    def __init__(self, encoder: Encoder, batches: Batches, *, padded: bool = False) -> None:
        super().__init__(encoder)
        self._padded = padded
        self._waiting: deque[_Part] = deque()
        self._working = threading.Lock()
        self.batches = batches

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images``; see `Encoder.encode`.

        Raises
        ------
        EncoderStopped, EncodingFailed : over these images, by themselves.
        """
        if at_once != self.batches.size:
            with self._working:
                return self.real.encode(images, at_once)
        part = _Part(images)
        self._waiting.append(part)
        with self._working:  # whoever comes first works for those who wait behind it as well
            while part.outcome is None:
                self._take_a_turn()
        if isinstance(part.outcome, Exception):
            raise part.outcome
        return part.outcome

    def _take_a_turn(self) -> None:
        parts = [self._waiting.popleft()]
        n, most = len(parts[0].images), self.batches.size * self.batches.turn
        while self._waiting and _alike(self._waiting[0], parts[0]):
            n += len(self._waiting[0].images)
            if n > most:
                break
            parts.append(self._waiting.popleft())
        together = self._encoded([part.images for part in parts])
        if len(parts) == 1:
            parts[0].outcome = together
            return
        begin = 0
        for part in parts:
            end = begin + len(part.images)
            if isinstance(together, Exception):
                part.outcome = self._encoded([part.images])
            else:
                part.outcome = together[begin:end]
            begin = end

    def _encoded(self, several: Sequence[Inputs]) -> Embeddings | Exception:
        try:
            images = np.concatenate(several)
            n = len(images)
            if self._padded and n % self.batches.size:
                blank = np.zeros((-n % self.batches.size, *images.shape[1:]), images.dtype)
                images = np.concatenate([images, blank])
            return self.real.encode(images, self.batches.size)[:n]
        except Exception as error:
            return error


def _alike(one: _Part, other: _Part) -> bool:
    """Return whether images of two can lie in one array: what can be encoded, can."""
    return one.images.shape[1:] == other.images.shape[1:] and one.images.dtype == other.images.dtype
