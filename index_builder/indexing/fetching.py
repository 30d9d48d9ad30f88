"""Fetching: downloads remote images to files, just before the images are decoded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from index_builder.datasets.images import Pixels
from index_builder.indexing.blocks import Block, Failure, Place
from index_builder.indexing.prepare import decode_again, read_again
from index_builder.output import writing
from index_builder.storage import NotFetched, Storage
from model_store.images import ImageLimits

BLOCKS_AT_ONCE = 2
"""Number of blocks that are downloaded in parallel. With two blocks, a slow image delays only the
downloads of the same block."""

ReadAgain = Callable[[Place, int | None], Pixels]
"""A function that reads an indexed image or vector again; see `read_again`."""


class Fetching:
    """Downloads the images of some blocks while other blocks are decoded.

    Decoders have no access to the network, because they process untrusted bytes.

    Parameters
    ----------
    directory : directory for the downloaded files; `released` removes the files of a block.
    limits : maximum size of an image. A download stops one byte after this limit, so that the
        decoder can report an image that is too large.
    """

    def __init__(self, storage: Storage, directory: Path, limits: ImageLimits) -> None:
        self._storage = storage
        self._directory = directory
        self._most = limits.max_bytes + 1
        self._threads = ThreadPoolExecutor(BLOCKS_AT_ONCE, thread_name_prefix="fetch")

    def submit(self, block: Block) -> Future[Block]:
        """Start to download the images of ``block``; the future returns the block with local files.

        Raises
        ------
        SourceUnavailable : raised by the future; the source is no longer available.
        OutputError : raised by the future; the disk is full.
        """
        return self._threads.submit(self._fetched, block)

    def released(self, block: Block) -> None:
        """Remove the files of a block that has been decoded."""
        shutil.rmtree(self._folder(block), ignore_errors=True)

    def close(self) -> None:
        """Cancel all downloads, and remove all downloaded files."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._storage.close()
        self._threads.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _folder(self, block: Block) -> Path:
        return self._directory / f"{block.number:08d}"

    def _fetched(self, block: Block) -> Block:
        remote = dict.fromkeys(_source(place) for place in block.places if place.is_remote)
        if not remote:
            return block
        folder = self._folder(block)
        folder.mkdir(parents=True, exist_ok=True)
        files = {source: folder / str(number) for number, source in enumerate(remote)}
        with writing(f"what is fetched, in {folder}"):
            reasons = self._fetch(files)
        failures = dict(block.failures) | {
            name: Failure("NotFetched", reasons[_source(place)], passing=True)
            for name, place in zip(block.ids, block.places, strict=True)
            if place.is_remote and _source(place) in reasons
        }
        places = tuple(
            replace(place, path=str(files[_source(place)]), size=0, version="")
            if place.is_remote
            else place
            for place in block.places
        )
        return replace(block, places=places, failures=failures)

    def _fetch(self, files: Mapping[tuple[str, str], Path]) -> dict[tuple[str, str], str]:
        """Download the files; return the reason of each failed download, by the key in ``files``.

        `Storage` limits the number of parallel downloads.
        """
        reasons = {}
        with ExitStack() as ends:
            begun = {}
            for (url, version), path in files.items():
                file = ends.enter_context(path.open("wb"))
                begun[url, version] = self._storage.fetch(url, file, self._most, version)
                ends.callback(begun[url, version].cancel)
            for source, future in begun.items():
                try:
                    future.result()
                except NotFetched as error:
                    reasons[source] = str(error)
        return reasons


def reader(storage: Storage, limits: ImageLimits) -> ReadAgain:
    """Return a function that decodes an indexed image again, from its file or its URL.

    The function raises `NotFetched` or `OSError` if the image no longer exists.
    """

    def read(place: Place, smallest_side: int | None) -> Pixels:
        if not place.is_remote:
            return read_again(place, smallest_side)
        data = storage.read(place.path, limits.max_bytes, place.version)
        return decode_again(data, place.box, smallest_side)

    return read


def _source(place: Place) -> tuple[str, str]:
    """Return the URL and the version, which are the same for all boxes of an image."""
    return place.path, place.version
