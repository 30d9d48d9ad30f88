"""A source of bytes as `Storage` wants it, and the errors of fetching."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


class NotFetched(Exception):
    """The bytes that a URL names could not be had; the message says why, without secrets."""


class TryAgain(NotFetched):
    """The same may succeed a moment later.

    Attributes
    ----------
    after_s : seconds that the server asks to wait; 0 where it asks nothing.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is being sent.

    Attributes
    ----------
    start : the position of the first byte that will come.
    version : tells this content from others of the same URL; empty where the server does not.
    chunks : the bytes.
    """

    start: int
    version: str
    chunks: AsyncIterator[bytes]


class ByteSource(Protocol):
    """A server that files are read from."""

    def opened(
        self, url: str, version: str = "", start: int = 0
    ) -> AbstractAsyncContextManager[Opened]:
        """Ask for a file, or for the rest of it.

        Parameters
        ----------
        version : the file must be of; any where it is empty.
        start : bytes that are there already.

        Raises
        ------
        TryAgain : the server is busy, or the connection broke.
        NotFetched : it has no such file, does not give it, or has another version of it.
        """

    async def require_there(self) -> None:
        """Find out, after a file could not be fetched, whether the source is still available.

        Raises
        ------
        SourceUnavailable
        """

    async def close(self) -> None:
        """End its connections."""
