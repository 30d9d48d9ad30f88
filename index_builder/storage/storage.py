"""Access to remote files, with retries, limits on size and time, and local copies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar

from index_builder.storage.web import ALLOWED_ORIGINS, Trust
from model_store.errors import DatasetError, SourceUnavailable
from model_store.files import FreeSpace, replacing

from .bucket import Bucket, ListedObject
from .source import ByteSource, NotFetched, Opened, TryAgain
from .urls import WEB, file_name, in_bucket, scheme_of, shown, unsigned
from .web import Web


@dataclass(frozen=True, slots=True)
class Copy:
    """The local copy of a remote file; it is replaced only if the remote file has changed.

    The modification time of the copy is derived from the content of the file. Caches that compare
    modification times therefore stay valid while the content is unchanged.

    Attributes
    ----------
    path : path of the complete copy.
    """

    path: Path

    @contextmanager
    def writing(self, url: str) -> Iterator[Writing]:
        """Write the content of ``url``; replace the old copy only after all bytes are written.

        Raises
        ------
        DatasetError : the disk has too little free space.
        """
        note = self.path.with_name(f"{self.path.name}.copied")
        of_url = hashlib.sha256(unsigned(url).encode()).hexdigest()
        partial = self.path.with_name(f"{self.path.name}.partial")
        known = json.loads(note.read_text()) if note.exists() and self.path.exists() else {}
        known_version = known["version"] if known.get("source") == of_url else ""
        try:
            with partial.open("w+b") as file:
                writing = Writing(url, file, FreeSpace(self.path.parent), known_version)
                yield writing
                file.seek(0)
                content = hashlib.file_digest(file, "sha256").digest()
        except BaseException:
            partial.unlink()
            raise
        if writing.is_known:
            partial.unlink()
            return
        # Whole seconds, because some file systems store no fractions.
        changed_ns = int.from_bytes(content[:4], "big") * 10**9
        os.utime(partial, ns=(changed_ns, changed_ns))
        note.unlink(missing_ok=True)
        partial.replace(self.path)
        with replacing(note) as whole:
            whole.write_text(json.dumps({"source": of_url, "version": writing.version}))


class Writing:
    """A copy that is being written.

    Attributes
    ----------
    size : number of bytes written.
    version : version of the remote file, see `Opened`.
    is_known : whether the existing copy has this version.
    """

    def __init__(self, url: str, file: IO[bytes], space: FreeSpace, known: str) -> None:
        self.size = 0
        self.version = ""
        self.is_known = False
        self._url = url
        self._file = file
        self._space = space
        self._known = known

    def begins(self, version: str, start: int) -> bool:
        """Start writing at ``start``; return False if the existing copy has this version.

        Raises
        ------
        NotFetched : the remote file has changed since the copy was started.
        """
        if start and version != self.version:
            raise NotFetched(f"{shown(self._url)} has changed while it was read.")
        self.is_known = bool(version) and version == self._known
        self.version = version
        self._file.seek(start)
        self._file.truncate()
        self.size = start
        return not self.is_known

    def add(self, chunk: bytes) -> None:
        """Append bytes.

        Raises
        ------
        DatasetError : the disk has too little free space for the bytes.
        """
        if not self._space.has(len(chunk)):
            raise DatasetError(
                f"{shown(self._url)} has more than {self.size / 2**30:,.1f} GiB, and the disk of "
                "the run directory has no space for more. Name a directory on another "
                "disk with --run."
            )
        self.size += len(chunk)
        self._file.write(chunk)


T = TypeVar("T")

N_AT_ONCE = 16
"""Maximum number of files that are fetched concurrently; more could overload a server."""

_STEP_BYTES = 2**20
"""While a file is copied, the timeout starts again after each block of this size, in bytes."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts and retries.

    Attributes
    ----------
    file_s : timeout in seconds for one image, including retries. For a file that is copied,
        ``file_s`` is the timeout for each MiB.
    stall_s : timeout in seconds between two chunks; afterwards, the connection is closed and the
        request is retried.
    n_tries : maximum number of tries for a file.
    backoff_s : seconds to wait before the second try; doubled before each further try. If the
        server asks for a longer wait, the client waits as long as the server asks.
    """

    file_s: float = 60.0
    stall_s: float = 20.0
    n_tries: int = 3
    backoff_s: float = 0.5


PATIENCE = Patience()


class Storage:
    """Reads files from buckets and web servers.

    One thread has all connections, so a timeout can end every kind of wait: a name lookup, or
    response headers that arrive byte by byte. The first request starts this thread. Methods may be
    called from any other thread.

    Parameters
    ----------
    trust : origins that the operator has named; None reads them from the environment.

    Raises
    ------
    ConfigError : the environment variable `ALLOWED_ORIGINS` is invalid.
    """

    def __init__(self, patience: Patience = PATIENCE, trust: Trust | None = None) -> None:
        self.patience = patience
        self.trust = Trust.of_environment() if trust is None else trust
        self._sources: dict[str, ByteSource] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(N_AT_ONCE)
        self._lock = threading.Lock()

    def name(self, url: str, *, is_source: bool) -> None:
        """Record that the operator has named ``url``, as a source of data or as a folder."""
        self.trust = self.trust.naming(url, is_foreign=is_source)

    def fetch(self, url: str, file: IO[bytes], most: int, version: str = "") -> Future[None]:
        """Start to write at most ``most`` bytes of ``url`` into ``file``; return a future.

        Parameters
        ----------
        version : required version, see `Opened`; empty accepts every version.

        Raises
        ------
        NotFetched : raised by the future; the file is not available.
        SourceUnavailable : raised by the future; the source is no longer available.
        """
        return self._begun(self._fetch(url, file, most, version))

    def read(self, url: str, most: int, version: str = "") -> bytes:
        """Return the content of ``url``; raises the same errors as `fetch`."""
        file = BytesIO()
        self.fetch(url, file, most, version).result()
        return file.getvalue()

    def copied(self, url: str, folder: Path) -> Path:
        """Copy the file at ``url`` to ``folder``, and return the path of the copy; see `Copy`.

        Raises
        ------
        SourceUnavailable : the file cannot be fetched.
        DatasetError : the file does not fit on the disk.
        """
        folder.mkdir(parents=True, exist_ok=True)
        copy = Copy(folder / file_name(url))
        try:
            self._begun(self._copy(url, copy)).result()
        except NotFetched as error:
            raise SourceUnavailable(f"{shown(url)} cannot be copied: {error}") from error
        return copy.path

    def listed(self, folder: str) -> Iterator[ListedObject]:
        """Yield the files below a folder in a bucket, in any order.

        Raises
        ------
        SourceUnavailable : the bucket cannot be listed.
        DatasetError : the URL is not a folder in a bucket.
        """
        bucket = self._source(folder)
        if not isinstance(bucket, Bucket):
            raise DatasetError(
                f"{shown(folder)} cannot be listed: a web address has no folders. Name a "
                "manifest, an archive or a IIIF manifest."
            )
        pages = bucket.pages(folder)
        while page := self._begun(self._page(bucket, pages)).result():
            yield from page

    def close(self) -> None:
        """Cancel all fetches and close all connections; a later call opens new connections."""
        with self._lock:
            loop, self._loop = self._loop, None
            sources, self._sources = self._sources, {}
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(sources), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _begun(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._turns = asyncio.Semaphore(N_AT_ONCE)
                threading.Thread(
                    target=_serve, args=[self._loop], name="storage", daemon=True
                ).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _source(self, url: str) -> ByteSource:
        """Return the source that reads ``url``: the source for web servers, or for a bucket."""
        is_web = scheme_of(url) in WEB
        if not is_web and not self.trust.names_bucket(url):
            raise NotFetched(
                f"{url} is in a bucket that the data source names, but not the command. If this is "
                f"intended, set {ALLOWED_ORIGINS}={in_bucket(url)[0]}."
            )
        name = "web" if is_web else in_bucket(url)[0]
        with self._lock:
            if name not in self._sources:
                stall_s = self.patience.stall_s
                web = Web(stall_s, N_AT_ONCE, lambda: self.trust) if is_web else None
                self._sources[name] = web or Bucket(name, stall_s)
            return self._sources[name]

    async def _fetch(self, url: str, file: IO[bytes], most: int, version: str) -> None:
        """Write at most ``most`` bytes of an image."""
        source = self._source(url)

        async def once() -> None:
            file.seek(0)
            file.truncate()
            left = most
            async with self._opened(source, url, version) as opened:
                async for chunk in opened.chunks:
                    file.write(chunk[:left])
                    left -= len(chunk)
                    if left <= 0:
                        return

        async with self._turns, _in_time(source, url, self.patience.file_s):
            await self._tried(once)

    async def _copy(self, url: str, copy: Copy) -> None:
        """Write a whole file; if the connection breaks, resume after the last received byte."""
        source, patience = self._source(url), self.patience
        async with _in_time(source, url, patience.file_s) as clock:
            with copy.writing(url) as writing:
                reached = 0

                async def once() -> None:
                    nonlocal reached
                    async with self._opened(source, url, writing.version, writing.size) as opened:
                        if not writing.begins(opened.version, opened.start):
                            return
                        async for chunk in opened.chunks:
                            writing.add(chunk)
                            if writing.size >= reached + _STEP_BYTES:
                                reached = writing.size
                                clock.reschedule(
                                    asyncio.get_running_loop().time() + patience.file_s
                                )

                await self._tried(once, lambda: reached)

    async def _tried(
        self, once: Callable[[], Awaitable[None]], reached: Callable[[], int] = lambda: 0
    ) -> None:
        """Call ``once``, and retry it after a temporary failure.

        If ``reached`` has increased since the last failure, failures are counted from zero again.
        """
        n_left, before = self.patience.n_tries, 0
        while True:
            try:
                return await once()
            except TryAgain as error:
                n_left = self.patience.n_tries if reached() > before else n_left
                before = reached()
                n_left -= 1
                if n_left <= 0:
                    raise
                n_failed = self.patience.n_tries - n_left
                pause_s = self.patience.backoff_s * 2 ** (n_failed - 1)
                await asyncio.sleep(max(pause_s, error.after_s))

    @asynccontextmanager
    async def _opened(
        self, source: ByteSource, url: str, version: str, start: int = 0
    ) -> AsyncIterator[Opened]:
        """Open a file; raise `TryAgain` if the server sends nothing for ``stall_s``."""
        stall_s = self.patience.stall_s
        loop = asyncio.get_running_loop()
        try:
            async with (
                asyncio.timeout(stall_s) as clock,
                source.opened(url, version, start) as opened,
            ):

                async def chunks() -> AsyncIterator[bytes]:
                    async for chunk in opened.chunks:
                        clock.reschedule(loop.time() + stall_s)
                        yield chunk

                yield Opened(opened.start, opened.version, chunks())
        except TimeoutError as error:
            raise TryAgain(f"{shown(url)} sent nothing for {stall_s:g} s.") from error

    async def _page(self, bucket: Bucket, pages: AsyncIterator[T]) -> T | None:
        try:
            async with asyncio.timeout(self.patience.file_s):
                return await anext(pages, None)
        except TimeoutError as error:
            raise SourceUnavailable(
                f"{bucket.url} was not listed within {self.patience.file_s:g} s."
            ) from error


@asynccontextmanager
async def _in_time(source: ByteSource, url: str, seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Limit the time. After a failure, raise an error if the whole source is unavailable."""
    try:
        async with asyncio.timeout(seconds) as clock:
            yield clock
    except TimeoutError as error:
        await source.require_there()
        raise NotFetched(f"{shown(url)} took more than {seconds:g} s.") from error
    except NotFetched:
        await source.require_there()
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(sources: dict[str, ByteSource]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for source in sources.values():
        await source.close()
