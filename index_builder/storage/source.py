"""The interface of byte sources for `Storage`, and the errors of fetching."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


class NotFetched(Exception):
    """A file could not be fetched. The message states the reason and contains no secrets."""


class TryAgain(NotFetched):
    """A temporary failure; a retry may succeed.

    Attributes
    ----------
    after_s : seconds that the server asks the client to wait; 0 if the server states no time.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Opened:
    """A file whose content the server is sending.

    Attributes
    ----------
    start : position of the first byte sent.
    version : text that identifies this version of the file; empty if unknown.
    chunks : the content.
    """

    start: int
    version: str
    chunks: AsyncIterator[bytes]


class ByteSource(Protocol):
    """A web server or a bucket from which files are read."""

    def opened(
        self, url: str, version: str = "", start: int = 0
    ) -> AbstractAsyncContextManager[Opened]:
        """Request a file, or the rest of a file.

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
        """Raise an error if the whole source is unavailable.

        `Storage` calls this method after it could not fetch a file.

        Raises
        ------
        SourceUnavailable
        """

    async def close(self) -> None:
        """Close all connections of the source."""
