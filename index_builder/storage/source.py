"""The interface of byte sources for `Storage`, and the errors of fetching."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


class NotFetched(Exception):
    """A file could not be fetched; the message states the reason, without secrets."""


class TryAgain(NotFetched):
    """A temporary failure; a retry may succeed.

    Attributes
    ----------
    after_s : seconds to wait as the server requests; 0 without a request.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that the server is sending.

    Attributes
    ----------
    start : position of the first byte sent.
    version : identifies the content among versions of the same URL; empty if unknown.
    chunks : the bytes.
    """

    start: int
    version: str
    chunks: AsyncIterator[bytes]


class ByteSource(Protocol):
    """A server with files to read."""

    def opened(
        self, url: str, version: str = "", start: int = 0
    ) -> AbstractAsyncContextManager[Opened]:
        """Request a file, or the rest of it.

        Parameters
        ----------
        version : required version of the file; empty for any.
        start : number of bytes already received.

        Raises
        ------
        TryAgain : the server is busy, or the connection broke.
        NotFetched : the file does not exist, is refused, or has another version.
        """

    async def require_there(self) -> None:
        """Raise an error if the source is unavailable; called after a file could not be fetched.

        Raises
        ------
        SourceUnavailable
        """

    async def close(self) -> None:
        """End its connections."""
