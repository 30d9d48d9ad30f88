"""A storage whose contents a test writes: nothing is connected to."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO, cast

from index_builder.storage import NotFetched, Storage
from model_store.errors import SourceUnavailable


class Elsewhere:
    """Gives what is there, by URL; of anything else it says that it is not there.

    Attributes
    ----------
    asked : URL, most bytes and version of each that was fetched, in order.
    n_asked_first : how many had been asked for when the first result was waited for.
    lost_at : the number of a fetch that finds the source gone; None where it stays.
    """

    def __init__(self, contents: Mapping[str, bytes], lost_at: int | None = None) -> None:
        self.contents, self.lost_at = contents, lost_at
        self.asked: list[tuple[str, int, str]] = []
        self.n_asked_first = 0
        self.is_closed = False

    def as_storage(self) -> Storage:
        """The same, for whoever wants a `Storage`."""
        return cast("Storage", self)

    def fetch(self, url: str, file: IO[bytes], most: int, version: str = "") -> Future[None]:
        """Write at once what is to be fetched."""
        self.asked.append((url, most, version))
        done = _Noted(self)
        if self.lost_at is not None and len(self.asked) > self.lost_at:
            done.set_exception(SourceUnavailable("The bucket is gone."))
        elif url in self.contents:
            file.write(self.contents[url][:most])
            done.set_result(None)
        else:
            done.set_exception(NotFetched("It is not there."))
        return done

    def read(self, url: str, most: int, version: str = "") -> bytes:
        """Return what is there."""
        self.asked.append((url, most, version))
        return self.contents[url]

    def close(self) -> None:
        """End."""
        self.is_closed = True


class _Noted(Future[None]):
    """Tells how much was asked for before anybody waited."""

    def __init__(self, storage: Elsewhere) -> None:
        super().__init__()
        self._storage = storage

    def result(self, timeout: float | None = None) -> None:
        self._storage.n_asked_first = self._storage.n_asked_first or len(self._storage.asked)
        return super().result(timeout)
