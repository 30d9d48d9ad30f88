"""Creates, describes, renames and drops galleries while the service runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.directory import current_id
from model_store.bundles.galleries import GalleryEntry, GalleryFolder, gallery_not_found
from model_store.bundles.manifest import Manifest
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.errors import GalleryExists, PointerUnreadable, QuotaExceeded, WriteRefused
from service.scheduling import Tasks
from service.serving.builder import empty_bundle
from service.serving.registry import Galleries

logger = logging.getLogger(__name__)

REMOVED_EVERY_S = 60.0
"""Seconds between checks for dropped galleries that are no longer used."""


@dataclass(frozen=True, slots=True)
class ListedGallery:
    """A gallery in a list.

    Attributes
    ----------
    title : title of the gallery; empty for a gallery that the operator built.
    n_items : number of items; None if the gallery is not open, or cannot be read now.
    bundle_id : id of the current bundle; empty if `CURRENT` cannot be read.
    """

    name: str
    title: str
    n_items: int | None
    bundle_id: str


class CreatedGalleries:
    """The galleries that clients create over HTTP while the service runs.

    Parameters
    ----------
    galleries : all served galleries.
    folder : folder of created galleries; None if galleries cannot be created.
    signing : how the bundles of created galleries are signed.
    """

    def __init__(
        self,
        galleries: Galleries,
        folder: GalleryFolder | None,
        signing: Signing = UNSIGNED,
    ) -> None:
        self._galleries, self._folder, self._signing = galleries, folder, signing
        self._creating = Tasks()

    async def listed(self) -> list[ListedGallery]:
        """Return all galleries, ordered by name.

        The list includes all changes that were acknowledged before the call, by any process.
        """
        folder, entries, roots = self._folder, dict[str, GalleryEntry](), dict[str, Path]()
        if folder is not None:
            entries = {entry.name: entry for entry in await asyncio.to_thread(folder.entries)}
            roots = {name: folder.root(entry) for name, entry in entries.items()}
        for engine in self._galleries.fixed():
            entries.pop(engine.bundle.name, None)  # the operator's gallery has the name
            if engine.bundle.root is not None:
                roots[engine.bundle.name] = engine.bundle.root
        found = dict[str, ListedGallery]()
        for bundle in await self._galleries.current():
            name, entry = bundle.name, entries.get(bundle.name)
            if bundle.entry is not None and (entry is None or entry.id != bundle.entry.id):
                continue  # renamed or dropped by another process
            title, n_items = entry.title if entry else "", bundle.retriever.gallery.n_items
            found[name] = ListedGallery(name, title, n_items, bundle.manifest.id)
        closed = {name: root for name, root in roots.items() if name not in found}
        for name, bundle_id in (await asyncio.to_thread(_current_ids, closed)).items():
            title = entries[name].title if name in entries else ""
            found[name] = ListedGallery(name, title, None, bundle_id)
        return [found[name] for name in sorted(found)]

    async def create(
        self,
        name: str,
        like: str | None,
        title: str,
        description: str,
        visible: Callable[[str], bool],
        most: int | None,
    ) -> None:
        """Create an empty gallery with the encoder of another gallery.

        If there is no other gallery, `vouch-build` provides the encoder that comes with Vouch. The
        creation continues even if the caller is cancelled.

        Parameters
        ----------
        like : gallery whose encoder is used; if None, the first of the galleries that the service
            was started with, else the oldest created gallery that the key can use.
        visible : returns whether the caller's key can use a gallery.
        most : maximum number of created galleries that the key can use; None for no maximum.

        Raises
        ------
        GalleryExists, InvalidRequest, WriteRefused, QuotaExceeded
        GalleryNotFound : no gallery has the name in ``like``.
        WriteError : the gallery cannot be written.
        """
        folder = self._require_folder()
        if (objection := self._signing.objection()) is not None:
            raise WriteRefused(objection)
        if self._is_fixed(name):
            raise GalleryExists(f"There is a gallery {name!r} already. Choose another name.")

        def require_room() -> None:
            if most is not None and self.n_visible(visible) >= most:
                raise QuotaExceeded(
                    f"The gallery quota of this key, {most}, is used up. Drop a gallery, or ask "
                    "the service's operator for a larger quota."
                )

        await asyncio.to_thread(require_room)  # before an encoder is opened or made

        async def create_now() -> None:
            async with self._template(folder, like, visible) as template:
                made = await asyncio.to_thread(
                    folder.create,
                    name,
                    template,
                    title,
                    description,
                    signing=self._signing,
                    admit=require_room,
                )
            logger.info("gallery created", extra={"fields": {"gallery": name, "id": made.id}})

        await asyncio.shield(self._creating.start(create_now(), Context()))

    async def close(self) -> None:
        """Cancel galleries that are being created."""
        await self._creating.cancel()

    @asynccontextmanager
    async def _template(
        self, folder: GalleryFolder, like: str | None, visible: Callable[[str], bool]
    ) -> AsyncIterator[tuple[Path, Manifest]]:
        """Yield the directory and the manifest of a bundle with the encoder of a new gallery."""
        name = like or self._galleries.first or await asyncio.to_thread(_oldest, folder, visible)
        if name is None:
            async with empty_bundle(folder) as made:
                yield made
            return
        async with self._galleries.lease(name) as lease:
            yield lease.bundle.directory, lease.bundle.manifest

    def n_visible(self, visible: Callable[[str], bool]) -> int:
        """Return the number of created galleries that a caller can see."""
        entries = [] if self._folder is None else self._folder.entries()
        return sum(visible(entry.name) for entry in entries)

    async def describe(self, name: str, title: str | None, description: str | None) -> None:
        """Change the title or description of a gallery.

        Raises
        ------
        GalleryNotFound, WriteError
        """
        folder = self._require_created(name)
        await asyncio.to_thread(folder.describe, name, title, description)

    async def rename(self, name: str, new_name: str) -> None:
        """Rename a gallery; running requests are answered under the old name.

        Raises
        ------
        GalleryNotFound, GalleryExists, InvalidRequest, WriteError
        """
        folder = self._require_created(name)
        if self._is_fixed(new_name):
            raise GalleryExists(f"There is a gallery {new_name!r} already. Choose another name.")
        renamed = await asyncio.to_thread(folder.rename, name, new_name)
        self._galleries.close_nameless()
        fields = {"gallery": name, "id": renamed.id, "renamed": new_name}
        logger.info("gallery renamed", extra={"fields": fields})

    async def drop(self, name: str) -> None:
        """Drop a gallery; its files are removed when they are no longer used.

        Raises
        ------
        GalleryNotFound, WriteError
        """
        folder = self._require_created(name)
        dropped = await asyncio.to_thread(folder.drop, name)
        self._galleries.close_nameless()
        fields = {"gallery": name, "id": dropped.id}
        logger.info("gallery dropped", extra={"fields": fields})

    async def clean_up(self) -> None:
        """Remove the files of dropped galleries in a loop that survives errors."""
        while self._folder is not None:
            try:
                for gone in await asyncio.to_thread(self._folder.remove_nameless):
                    logger.info("gallery removed", extra={"fields": {"id": gone}})
            except WriteRefused:
                pass  # the directory is read-only: a service with write access removes the files
            except Exception:
                logger.exception("dropped galleries not removed")
            await asyncio.sleep(REMOVED_EVERY_S)

    def _require_folder(self) -> GalleryFolder:
        if self._folder is None:
            raise WriteRefused(
                "This service creates no galleries. The operator sets a directory for them in "
                "VOUCH_GALLERIES."
            )
        return self._folder

    def _require_created(self, name: str) -> GalleryFolder:
        """Return the folder of created galleries; refuse a gallery that the operator built."""
        if self._is_fixed(name):
            raise WriteRefused(
                f"The gallery {name!r} was built by the operator, not created over HTTP. Only the "
                "operator can describe, rename or remove this gallery."
            )
        if self._folder is None:
            raise gallery_not_found(name)
        return self._folder

    def _is_fixed(self, name: str) -> bool:
        return any(engine.bundle.name == name for engine in self._galleries.fixed())


def _current_ids(roots: Mapping[str, Path]) -> dict[str, str]:
    """Return the bundle id in each `CURRENT`; empty for a file that cannot be read."""
    found = dict.fromkeys(roots, "")
    for name, root in roots.items():
        with suppress(PointerUnreadable):
            found[name] = current_id(root) or ""
    return found


def _oldest(folder: GalleryFolder, visible: Callable[[str], bool]) -> str | None:
    """Return the name of the oldest created gallery that a caller can see; None without any."""
    seen = [entry for entry in folder.entries() if visible(entry.name)]
    return min(seen, key=lambda entry: (entry.created_at, entry.name)).name if seen else None
