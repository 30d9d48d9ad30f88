"""Turns of decoders whose images take long: others are decoded and answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from service.fair_share import FairShare

PATIENCE_S = 0.25
"""After which an image takes long; a photograph of 12 megapixels takes a tenth of a second."""

SLICE_S = 0.25
"""For which a decoder then computes before another has its turn."""


class Pausable(Protocol):
    """A process that can be made to stand still."""

    def pause(self) -> None:
        """Have it stand still."""

    def go_on(self) -> None:
        """Have it compute again."""


class Overtime:
    """At most half of the processors for images that take long, whoever has sent how many.

    Small files can be made that take seconds to decode. Their decoders stand still until it is
    their turn, in turn of the callers; without them they would share all processors with whoever
    answers, encodes and decodes for the others.

    Parameters
    ----------
    n_processors : that there are.
    """

    def __init__(self, n_processors: int) -> None:
        n_places = max(1, n_processors // 2)
        self._share = FairShare(n_places, n_places)

    async def answer_of(self, decoder: Pausable, asked: Coroutine[Any, Any, bytes]) -> bytes:
        """Wait for what ``decoder`` was asked, and let it compute in its turns."""
        answering = asyncio.ensure_future(asked)
        try:
            done, _ = await asyncio.wait({answering}, timeout=PATIENCE_S)
            while not done:
                decoder.pause()
                who = await self._share.enter()
                decoder.go_on()
                try:
                    done, _ = await asyncio.wait({answering}, timeout=SLICE_S)
                finally:
                    self._share.leave(who)
            return answering.result()
        finally:
            answering.cancel()
