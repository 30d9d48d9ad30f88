"""Files in a bucket of S3, of Google Cloud Storage, or of Azure."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from model_store.errors import DatasetError, SourceUnavailable
from model_store.installation import how_to_install

from .source import NotFetched, Opened, TryAgain
from .urls import in_bucket, without_secrets

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig


_ENDPOINTS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"),
)

_SECRET = re.compile(r"(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN)")
"""Names of environment variables with secrets."""

_TEXT = re.compile(r'"([^"]*)"')
_SHORTEST = 4


def client_config(connect_s: float, longest: timedelta) -> ClientConfig:
    """Return connection settings.

    Plain HTTP is allowed only if an endpoint in the environment has an ``http://`` address.

    Parameters
    ----------
    connect_s : timeout for connecting in seconds.
    longest : timeout of a whole request, including the transfer of the content.
    """
    config: ClientConfig = {"connect_timeout": timedelta(seconds=connect_s), "timeout": longest}
    if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
        config["allow_http"] = True
    return config


def redacted(error: BaseException) -> str:
    """Return the error message of the library on one line, without secrets and raw XML."""
    text = without_secrets(str(error).split("\n", 1)[0])
    for name, value in os.environ.items():
        if _SECRET.fullmatch(name):  # a parser's error message may quote the secret or a part of it
            for secret in (value, *_TEXT.findall(value)):
                text = text.replace(secret, "…") if len(secret) >= _SHORTEST else text
    return text.partition(": <?xml")[0][:300] or type(error).__name__


_STATUS = re.compile(r"status code: (\d{3})")
_LONGEST = timedelta(days=7)
"""Timeout of a request. The timeout is long, because `Storage` has its own timeout for each
file."""

_CHUNK_BYTES = 2**16
"""Size of a chunk in bytes. If chunks were larger, the timeout between chunks would end slow
transfers."""

_PAGE = 1000
"""Number of files in a page of a listing; the cloud services answer with pages of this size."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """A file in the listing of a bucket.

    Attributes
    ----------
    key : name of the file in the bucket.
    changed_ns : time of the last write in nanoseconds.
    version : the entity tag, which identifies the content.
    """

    key: str
    size: int
    changed_ns: int
    version: str


class Bucket:
    """Reads the files of one bucket, with the credentials of the environment.

    Parameters
    ----------
    url : ``s3://name``, ``gs://name`` or ``az://name``.
    stall_s : timeout in seconds for connecting, and for checking that the bucket exists.

    Raises
    ------
    DatasetError : the extra `remote` is not installed, or an environment variable is missing.
    """

    def __init__(self, url: str, stall_s: float) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore import exceptions, store  # noqa: PLC0415
        except ImportError as error:
            raise DatasetError(
                f"Reading {url} needs obstore. {how_to_install('remote')}"
            ) from error
        self.url = url
        self._stall_s = stall_s
        self._errors = exceptions
        self._obstore = obstore
        self._was_listed = False
        self._check = asyncio.Lock()
        client = client_config(stall_s, _LONGEST)
        try:
            self._store = store.from_url(
                url, client_options=client, retry_config={"max_retries": 0}
            )
        except (exceptions.BaseError, ValueError) as error:
            raise DatasetError(
                f"{url} cannot be opened ({redacted(error)}). Set the credentials in the "
                "environment: AWS_…, GOOGLE_… or AZURE_STORAGE_ACCOUNT_NAME and its key."
            ) from error

    @asynccontextmanager
    async def opened(self, url: str, version: str = "", start: int = 0) -> AsyncIterator[Opened]:
        """Request a file; see `ByteSource`."""
        options: GetOptions = {}
        if version:
            options["if_match"] = version
        if start:
            options["range"] = {"offset": start}
        try:
            answer = await self._obstore.get_async(self._store, in_bucket(url)[1], options=options)
            yield Opened(start, answer.meta["e_tag"] or "", _chunks(answer.stream(_CHUNK_BYTES)))
        except self._errors.PreconditionError as error:
            raise NotFetched(
                f"{url} has changed since the bucket was listed. Run the command again."
            ) from error
        except (self._errors.BaseError, FileNotFoundError, ValueError) as error:
            raise _failure(url, error) from error

    async def pages(self, folder: str) -> AsyncIterator[Sequence[ListedObject]]:
        """Yield the files below ``folder`` in pages.

        Raises
        ------
        SourceUnavailable : the bucket cannot be listed.
        """
        prefix = in_bucket(folder)[1].strip("/")
        try:
            listing = self._obstore.list(self._store, prefix or None, chunk_size=_PAGE)
            async for page in listing:
                self._was_listed = True
                yield [_listed(one) for one in page]
        except (self._errors.BaseError, FileNotFoundError, ValueError) as error:
            advice = (
                "A file name in the bucket is not a valid path. Rename the file, or use a manifest."
                if "invalid path" in str(error)
                else "Check that the bucket exists, and that the credentials in the environment "
                "allow listing."
            )
            raise SourceUnavailable(
                f"{self.url} cannot be listed ({redacted(error)}). {advice}"
            ) from error

    async def require_there(self) -> None:
        """Raise an error if the bucket is unavailable.

        Raises
        ------
        SourceUnavailable
        """
        async with self._check:  # one check at a time
            try:
                async with asyncio.timeout(self._stall_s):
                    await anext(aiter(self._obstore.list(self._store, chunk_size=1)), None)
            except (self._errors.BaseError, FileNotFoundError, TimeoutError) as error:
                status = _STATUS.search(str(error))
                denied = status is not None and status[1] in {"401", "403"}
                if denied and not self._was_listed:
                    return  # the credentials may allow reading but not listing
                raise SourceUnavailable(
                    f"{self.url} no longer exists, or denies access ({redacted(error)})."
                ) from error

    async def close(self) -> None:
        """Do nothing: garbage collection closes the connections."""


async def _chunks(stream: AsyncIterator[object]) -> AsyncIterator[bytes]:
    async for chunk in stream:
        yield bytes(chunk)  # type: ignore[call-overload]


def _listed(found: ObjectMeta) -> ListedObject:
    changed_ns = int(found["last_modified"].timestamp()) * 10**9
    return ListedObject(found["path"], found["size"], changed_ns, found["e_tag"] or "")


def _failure(url: str, error: Exception) -> NotFetched:
    if isinstance(error, FileNotFoundError):
        return NotFetched(f"There is no {url}.")
    status = _STATUS.search(str(error))
    if status is None or status[1] in {"408", "429"} or status[1].startswith("5"):
        return TryAgain(f"{url} could not be read ({redacted(error)}).")
    return NotFetched(f"{url} could not be read ({redacted(error)}).")
