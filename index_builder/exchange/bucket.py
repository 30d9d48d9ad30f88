"""Bundles in a bucket of S3, of Google Cloud Storage, or of Azure.

A bucket, or a prefix in it, is a directory of bundles as a disk has it: ``<id>/…`` and `CURRENT`.
The manifest of a bundle is written after its files and `CURRENT` after all, so that no reader finds
half a bundle. Credentials come from the environment, as the clients of the clouds read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from index_builder.exchange.place import MOST_BYTES
from index_builder.progress import track
from index_builder.storage.library import client_config, redacted
from model_store.bundles.directory import CURRENT_FILE, is_bundle_id
from model_store.bundles.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from model_store.errors import TransferError
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_CHUNK = 2**20
_LONGEST = timedelta(days=1)
"""The time that one file may take."""


class Bucket:
    """A directory of bundles in a bucket, or one bundle in it.

    Parameters
    ----------
    url : ``s3://bucket/prefix``, or ``gs://`` or ``az://``.

    Raises
    ------
    TransferError : obstore is not installed, or the environment lacks a variable.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore import exceptions, store  # noqa: PLC0415
        except ImportError as error:
            raise TransferError(
                f"Reaching {url} needs obstore. {how_to_install('remote')}"
            ) from error
        self._url, self._obstore, self._errors = url, obstore, exceptions
        # A large file may take long; a service that is not there is soon given up.
        client = client_config(10, _LONGEST)
        patience: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        with self._reached("be opened"):
            self._store = store.from_url(url, client_options=client, retry_config=patience)

    def read(self, name: str) -> bytes | None:
        """Return a file of the bundle that the URL names, or `CURRENT`."""
        return self._read(self._bundle + name)

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of that bundle."""
        written = 0
        with self._reached("be read"):
            found = self._obstore.get(self._store, self._bundle + name)
            with (directory / name).open("wb") as file:
                for chunk in found.stream(min_chunk_size=_CHUNK):
                    written += file.write(chunk)
                    if written > size:
                        raise TransferError(
                            f"{self._url} holds more of {name} than its manifest says. Push the "
                            "bundle again."
                        )

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy a bundle into the bucket, and let `CURRENT` name it."""
        prefix = f"{manifest.id}/"
        with self._reached("be written"):
            there = {
                one["path"]: one["size"]
                for page in self._obstore.list(self._store, prefix)
                for one in page
            }
            for name in track(sorted(manifest.files), "sending", len(manifest.files)):
                # A file has its name once all of it is there; what bears the id is of this bundle.
                if there.get(prefix + name) != manifest.files[name]["bytes"]:
                    self._obstore.put(self._store, prefix + name, directory / name)
            for name in (SIGNATURE_FILE, MANIFEST_FILE):
                if (directory / name).exists():
                    self._obstore.put(self._store, prefix + name, directory / name)
            self._obstore.put(self._store, CURRENT_FILE, f"{manifest.id}\n".encode())
        return f"{self._url}/{manifest.id}"

    @cached_property
    def _bundle(self) -> str:
        """The prefix of the one bundle that is meant."""
        if is_bundle_id(self._url.rpartition("/")[2]):
            return ""
        content = self._read(CURRENT_FILE)
        if content is None and self._read(MANIFEST_FILE) is not None:
            return ""
        named = (content or b"").decode("ascii", errors="replace").strip()
        if not is_bundle_id(named):
            raise TransferError(
                f"There is no bundle at {self._url}: neither a {CURRENT_FILE} that names one nor "
                f"{MANIFEST_FILE}. `vouch-build push` puts one there."
            )
        return f"{named}/"

    def _read(self, path: str) -> bytes | None:
        with self._reached("be read"):
            try:
                found = self._obstore.get(self._store, path)
            except (FileNotFoundError, self._errors.NotFoundError):
                return None
            except self._errors.PermissionDeniedError:
                # So S3 calls what is not there to those who may not list.
                if path.endswith(SIGNATURE_FILE):
                    return None
                raise
            if found.meta["size"] > MOST_BYTES:
                raise TransferError(f"{path} at {self._url} is larger than any bundle has it.")
            return bytes(found.bytes())

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """Report failures in one line, without secrets."""
        try:
            yield
        except (self._errors.BaseError, FileNotFoundError, ValueError) as error:
            raise TransferError(
                f"{self._url} cannot {what} ({type(error).__name__}: {redacted(error)}). Is there "
                "such a bucket, and do the credentials in the environment (AWS_…, GOOGLE_…, "
                "AZURE_…) allow it? The same command resumes from here."
            ) from error
