"""Limits on the size of each body, and on the memory for all bodies together."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from model_store.errors import ImageTooLarge, UploadTooSlow
from service.fair_share import FairShare
from service.http import limits

_PATH_OF_ITEMS = re.compile("/v1/galleries/[^/]+/items")
_PATH_OF_GALLERIES = re.compile("/v1/galleries(/[^/]+(/rename)?)?")


@dataclass(frozen=True, slots=True)
class _Bound:
    """The size limit of a request body.

    Attributes
    ----------
    n_bytes : maximum bytes of the encoded content, without boundaries and other fields.
    held : noun that names the content in the error message.
    n_bytes_held : the limit that the error message states, in bytes.
    """

    n_bytes: int
    held: str
    n_bytes_held: int

    @property
    def most(self) -> int:
        """Maximum size of the whole body in bytes, with boundaries and other fields."""
        return self.n_bytes + limits.FORM_ALLOWANCE

    def check(self, n_bytes: int) -> None:
        """Refuse a body if ``n_bytes``, the bytes received so far, exceed the limit.

        Raises
        ------
        ImageTooLarge
        """
        if n_bytes > self.most:
            raise ImageTooLarge(
                f"The request has {n_bytes:,} bytes or more; {self.held} may have at most "
                f"{self.n_bytes_held:,}. Send fewer bytes, such as smaller images."
            )


class BoundedBodies:
    """Receives request bodies; limits the size of each body, and the memory of all bodies together.

    A body stays in memory until its request is answered, and a slow client could hold this memory
    for long. Therefore the service reads a large body only when there is memory for the whole body.
    Callers take turns, and one caller gets at most half of this memory.

    Parameters
    ----------
    least_rate : minimum average upload rate in bytes per second, after `UPLOAD_GRACE_S`. The
        average is over the time in which the service waits for the client.
    """

    def __init__(self, max_image_bytes: int, max_batch_bytes: int, least_rate: float = 1.0) -> None:
        self._least_rate = least_rate
        self._max_image_bytes = max_image_bytes
        self._max_batch_bytes = max_batch_bytes
        self._room = FairShare(limits.HELD_BODIES_BYTES, limits.HELD_BODIES_BYTES // 2)

    @asynccontextmanager
    async def taken_in(self, scope: Scope, receive: Receive) -> AsyncIterator[Receive]:
        """Yield an ASGI ``receive`` function that applies the limits to the request's body.

        Raises
        ------
        ImageTooLarge : the declared or received size is too large.
        UploadTooSlow : the average upload rate is below the minimum.
        """
        bound = self._bound(scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        n_bytes = int(declared) if declared.isdigit() else 0
        bound.check(n_bytes)
        n_places, received, who = n_bytes or bound.most, 0, None
        waited_s, is_whole = 0.0, False

        async def bounded() -> Message:
            nonlocal received, who, waited_s, is_whole
            if is_whole:
                return await receive()
            began = time.monotonic()
            allowed_s = limits.UPLOAD_GRACE_S + received / self._least_rate
            try:
                async with asyncio.timeout(allowed_s - waited_s):
                    message = await receive()
            except TimeoutError as error:
                raise UploadTooSlow(
                    f"The upload is too slow: {received:,} bytes in {allowed_s:.0f} s. The minimum "
                    f"is {self._least_rate:,.0f} bytes per second. Send a smaller image or use a "
                    "faster network."
                ) from error
            waited_s += time.monotonic() - began
            is_whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            bound.check(received)
            if who is None and received > limits.SMALL_BODY_BYTES:
                who = await self._room.enter(n_places)
            return message

        try:
            yield bounded
        finally:
            if who is not None:
                self._room.leave(who, n_places)

    def _bound(self, path: str) -> _Bound:
        """Return the size limit of a body sent to ``path``."""
        if path.endswith(("/search/batch", "/review/import")) or _PATH_OF_ITEMS.fullmatch(path):
            return _Bound(self._max_batch_bytes, "a batch", self._max_batch_bytes)
        if path.endswith(limits.VECTOR_PATHS):
            most = limits.MAX_VECTOR_BYTES
            return _Bound(most, "a document of vectors", most)
        if path.endswith(limits.TEXT_PATH):
            return _Bound(limits.MAX_TEXT_BYTES, "a document with a text", limits.MAX_TEXT_BYTES)
        if path.endswith(("/feedback", "/review/leases")):
            return _Bound(0, "feedback", limits.FORM_ALLOWANCE)
        if _PATH_OF_GALLERIES.fullmatch(path):
            return _Bound(0, "the description of a gallery", limits.FORM_ALLOWANCE)
        image = self._max_image_bytes
        in_base64 = 4 * -(-image // 3)
        most = in_base64 if path.endswith("/search/json") else image
        return _Bound(most, "an image", image)
