"""Bundles in a bucket of S3, Google Cloud Storage or Azure.

A bucket, or a prefix in a bucket, has the layout of a directory of bundles: ``<id>/…`` and
`CURRENT`. The manifest is written after the other files, and `CURRENT` last, so no reader finds an
incomplete bundle. Credentials come from the usual environment variables of each cloud.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from index_builder.exchange.pull import MOST_BYTES
from index_builder.progress import track
from index_builder.storage.bucket import client_config, redacted
from model_store.bundles.directory import CURRENT_FILE, is_bundle_id
from model_store.bundles.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from model_store.errors import TransferError
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_CHUNK = 2**20
_LONGEST = timedelta(days=1)
"""Timeout for one file."""


class BundleBucket:
    """A directory of bundles in a bucket, or a single bundle.

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
        # A large file may take hours, but an unreachable service must fail within seconds.
        client = client_config(10, _LONGEST)
        patience: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        with self._reached("be opened"):
            self._store = store.from_url(url, client_options=client, retry_config=patience)

    def read(self, name: str) -> bytes | None:
        """Return a file of the bundle, or None if the file does not exist."""
        return self._read(self._bundle + name)

    def fetch(self, name: str, size: int, directory: Path) -> None:
        """Copy a file of the bundle to ``directory``."""
        written = 0
        with self._reached("be read"):
            found = self._obstore.get(self._store, self._bundle + name)
            with (directory / name).open("wb") as file:
                for chunk in found.stream(min_chunk_size=_CHUNK):
                    written += file.write(chunk)
                    if written > size:
                        raise TransferError(
                            f"{name} at {self._url} is larger than its size in the manifest. "
                            "Push the bundle again."
                        )

    def put(self, directory: Path, manifest: Manifest) -> str:
        """Copy a bundle into the bucket, and make it the current bundle."""
        prefix = f"{manifest.id}/"
        with self._reached("be written"):
            there = {
                one["path"]: one["size"]
                for page in self._obstore.list(self._store, prefix)
                for one in page
            }
            for name in track(sorted(manifest.files), "sending", len(manifest.files)):
                # Uploads are atomic, so an existing file of the right size is complete.
                if there.get(prefix + name) != manifest.files[name]["bytes"]:
                    self._obstore.put(self._store, prefix + name, directory / name)
            for name in (SIGNATURE_FILE, MANIFEST_FILE):
                if (directory / name).exists():
                    self._obstore.put(self._store, prefix + name, directory / name)
            self._obstore.put(self._store, CURRENT_FILE, f"{manifest.id}\n".encode())
        return f"{self._url}/{manifest.id}"

    @cached_property
    def _bundle(self) -> str:
        """The prefix of the bundle's files: the id and a slash. Empty if the URL names a bundle."""
        if is_bundle_id(self._url.rpartition("/")[2]):
            return ""
        content = self._read(CURRENT_FILE)
        if content is None and self._read(MANIFEST_FILE) is not None:
            return ""
        named = (content or b"").decode("ascii", errors="replace").strip()
        if not is_bundle_id(named):
            raise TransferError(
                f"There is no bundle at {self._url}: neither a valid {CURRENT_FILE} nor "
                f"{MANIFEST_FILE} exists. `vouch-build push` copies a bundle to a bucket."
            )
        return f"{named}/"

    def _read(self, path: str) -> bytes | None:
        with self._reached("be read"):
            try:
                found = self._obstore.get(self._store, path)
            except (FileNotFoundError, self._errors.NotFoundError):
                return None
            except self._errors.PermissionDeniedError:
                # S3 reports a missing file as a denied permission if listing is not permitted.
                if path.endswith(SIGNATURE_FILE):
                    return None
                raise
            if found.meta["size"] > MOST_BYTES:
                raise TransferError(f"{path} at {self._url} is too large for a bundle.")
            return bytes(found.bytes())

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """Convert failures to a `TransferError` whose message is one line without secrets."""
        try:
            yield
        except (self._errors.BaseError, FileNotFoundError, ValueError) as error:
            raise TransferError(
                f"{self._url} cannot {what} ({type(error).__name__}: {redacted(error)}). Check "
                "that the bucket exists, and that the credentials in the environment (AWS_…, "
                "GOOGLE_…, AZURE_…) permit access. Then run the same command to continue."
            ) from error
