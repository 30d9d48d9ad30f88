"""Opens the new bundle of a gallery that is open, and a created gallery at its first request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import bundle_directory, bundle_ids
from model_store.bundles.galleries import GalleryEntry, GalleryFolder, gallery_not_found
from model_store.errors import ActivationRefused, BundleNotFound, StorageFailed, VouchError
from service.serving.engine import SearchEngine

logger = logging.getLogger(__name__)

OpenBundle = Callable[[Path], Bundle]
StartEngine = Callable[[Bundle], Awaitable[SearchEngine]]

OPENED_AT_ONCE = 2
"""Maximum number of galleries that are opened at the same time."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens bundles and starts their engines.

    Attributes
    ----------
    open_bundle : opens and verifies the bundle of a directory.
    start : starts an engine for an open bundle, and returns it after its first canary.
    """

    open_bundle: OpenBundle
    start: StartEngine

    async def successor(self, now: Bundle, directory: Path) -> SearchEngine:
        """Open a bundle that replaces another, and start its engine.

        Raises
        ------
        ActivationRefused : the bundle cannot be served.
        """
        try:
            opened = await asyncio.to_thread(self._open_within, directory)
        except VouchError as error:
            raise ActivationRefused(
                f"The bundle {directory.name} cannot be served; the current bundle stays in use. "
                f"{error}"
            ) from error
        if opened.built_as != now.built_as:
            opened.retriever.encoder.close()
            raise ActivationRefused(
                f"The bundle {directory.name} holds the gallery {opened.built_as!r}, not "
                f"{now.built_as!r}. Publish the bundle into another directory."
            )
        try:
            return await self.start(replace(opened, entry=now.entry))
        except VouchError as error:
            raise ActivationRefused(
                f"The bundle {directory.name} opens, but did not answer a canary: {error}"
            ) from error

    def _open_within(self, directory: Path) -> Bundle:
        """Open a bundle with the changes of its gallery."""
        opened = self.open_bundle(directory)
        try:
            return opened.within(directory.parent)
        except VouchError:
            opened.retriever.encoder.close()
            raise


def directory_of(now: Bundle, bundle_id: str) -> Path:
    """Return the directory of another bundle of a gallery.

    Raises
    ------
    ActivationRefused : there is only one bundle.
    BundleNotFound : the gallery has no such bundle.
    """
    if now.root is None:
        raise ActivationRefused(
            f"The gallery {now.name!r} is served from one bundle. To activate "
            "other bundles, start the service with the directory that contains the bundles."
        )
    if bundle_id not in bundle_ids(now.root):
        raise BundleNotFound(
            f"There is no bundle {bundle_id!r} of the gallery {now.name!r} here. Publish it "
            "with `vouch-build publish`."
        )
    return bundle_directory(now.root, bundle_id)


class OnDemand:
    """Opens the galleries of a folder on demand; concurrent requests for a gallery open it once.

    Parameters
    ----------
    folder : folder of the created galleries; None if there is none.
    """

    def __init__(self, opener: Opener, folder: GalleryFolder | None) -> None:
        self._opener, self.folder = opener, folder
        self._turns = asyncio.Semaphore(OPENED_AT_ONCE)
        self._opening: dict[str, asyncio.Task[None]] = {}

    def find(self, name: str) -> GalleryEntry | None:
        """Return the created gallery with this name; None if there is none."""
        return None if self.folder is None else self.folder.find(name)

    async def open(self, entry: GalleryEntry, opened: Callable[[SearchEngine], None]) -> None:
        """Open a gallery once for all waiting requests, and call ``opened`` with the new engine.

        The opening continues even if the caller is cancelled.

        Raises
        ------
        GalleryNotFound : the gallery was dropped after the request arrived.
        VouchError : the gallery cannot be opened.
        """
        opening = self._opening.get(entry.id)
        if opening is None:
            opening = asyncio.create_task(self._open(entry, opened), context=Context())
            self._opening[entry.id] = opening
        await asyncio.shield(opening)

    async def close(self) -> None:
        """Wait for galleries that are being opened."""
        await asyncio.gather(*self._opening.values(), return_exceptions=True)

    async def _open(self, entry: GalleryEntry, opened: Callable[[SearchEngine], None]) -> None:
        folder = self.folder
        try:
            if folder is None:
                raise gallery_not_found(entry.name)
            async with self._turns:
                bundle = await self._opened(folder, entry)
                opened(await self._opener.start(replace(bundle, entry=entry)))
        finally:  # before the task ends, so that no request finds an ended task
            self._opening.pop(entry.id, None)

    async def _opened(self, folder: GalleryFolder, entry: GalleryEntry) -> Bundle:
        try:
            return await asyncio.to_thread(self._opener.open_bundle, folder.root(entry))
        except (OSError, VouchError) as error:
            if folder.find(entry.name) is None:  # the gallery was dropped in the meantime
                raise gallery_not_found(entry.name) from error
            fields = {"gallery": entry.name, "id": entry.id, "reason": str(error)}
            logger.error("gallery not opened", extra={"fields": fields})  # noqa: TRY400
            if isinstance(error, VouchError):
                raise
            raise StorageFailed(
                f"The gallery {entry.name!r} cannot be read ({error.strerror}). The operator "
                "should check the directory of created galleries."
            ) from error
