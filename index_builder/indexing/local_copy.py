"""Copies a source into a local folder, because a build reads the images repeatedly."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO
from urllib.parse import quote

from index_builder.datasets.folder import CopiedItem, write_copied_items
from index_builder.datasets.image_files import LeftOut, is_system_file
from index_builder.indexing.blocks import Entry, Tolerance
from index_builder.indexing.prepare import unreadable
from index_builder.indexing.sources import open_source
from index_builder.output import read_from, writing
from index_builder.storage import NotFetched, Storage
from model_store.errors import DatasetError, SourceUnavailable, TooManyBadImages
from model_store.images import ImageLimits

logger = logging.getLogger(__name__)

AHEAD = 64
"""Maximum number of pending downloads."""

_TOLERANCE = Tolerance(share=0.01)
_PARTIAL = ".partial"


def copy_images(
    source: str,
    folder: Path,
    storage: Storage,
    *,
    labelled: bool = True,
    root: Path | str | None = None,
) -> LeftOut:
    """Copy the images of a source into ``folder``, one sub-folder for each label.

    A manifest in ``folder`` keeps the ids, labels, groups, sources and metadata; see
    `CopiedItem`. An image from a folder keeps its path; the file name of any other image is derived
    from the id of the image. If the folder already has a file with the same size and date, the file
    is not copied again. Files that are no longer in the source are removed.

    Parameters
    ----------
    labelled, root : see `open_source`.

    Returns
    -------
    The names of files in the source that were left out.

    Raises
    ------
    DatasetError : the source is invalid, has no images, or has boxes (parts of images).
    UsageError : see `open_source`.
    SourceUnavailable : the source can no longer be reached. Copied files are kept.
    TooManyBadImages : more than 1 % of the images could not be copied.
    OutputError : the disk is full.
    """
    left_out = LeftOut()
    wanted: set[Path] = set()
    items: list[CopiedItem] = []
    bad: dict[str, str] = {}
    n_known = 0
    with (
        closing(storage),
        writing(f"the images in {folder}"),
        TemporaryDirectory(dir=_made(folder.parent)) as scratch,
    ):
        found = open_source(source, root, labelled=labelled, storage=storage)
        entries = read_from(found.entries(Path(scratch), left_out), Path(scratch))
        try:
            for entry, path, why in _copies(entries, _made(folder), storage):
                wanted.add(path)
                n_known += 1
                if why is not None:
                    bad[entry.id] = why
                else:
                    items.append(_item(entry, path.relative_to(folder).as_posix()))
        except SourceUnavailable as error:
            raise SourceUnavailable(
                f"{error} {len(wanted):,} images are copied and kept. The same command resumes "
                "from there."
            ) from error
        if not n_known:
            raise DatasetError(
                f"There are no images in {source}. Name another source, or add images. "
                f"{left_out.sentence}".strip()
            )
        wanted.add(write_copied_items(folder, items))
        for path in folder.rglob("*"):
            if path.is_file() and path not in wanted:
                path.unlink()
    if not _TOLERANCE.allows(len(bad), n_known):
        name, why = next(iter(bad.items()))
        raise TooManyBadImages(
            f"{len(bad):,} of {n_known:,} images could not be copied, and at most {_TOLERANCE} may "
            f"fail; for example {name!r}: {why} The other copies are kept. The same command tries "
            "again."
        )
    for name, why in bad.items():
        logger.warning("left out %s: %s", name, why)
    return left_out


def _copies(
    entries: Iterator[Entry], folder: Path, storage: Storage
) -> Iterator[tuple[Entry, Path, str | None]]:
    """Copy images in parallel; yield each image, the path of its copy, and the error.

    The error is None if the image was copied.
    """
    waiting: deque[tuple[Entry, Path, IO[bytes] | None, Future[None] | None]] = deque()
    taken: set[Path | str] = set()
    try:
        for entry in entries:
            path = _path_in(folder, entry, taken)
            if _is_there(entry, path):
                waiting.append((entry, path, None, None))
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.with_name(path.name + _PARTIAL).open("wb")
                waiting.append((entry, path, file, _begun(entry, file, storage)))
            if len(waiting) >= AHEAD:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())
    finally:
        for _, _, unfinished, _ in waiting:
            if unfinished is not None:
                unfinished.close()


def _path_in(folder: Path, entry: Entry, taken: set[Path | str]) -> Path:
    """Return the target path of an image; add the path and the image's id to ``taken``."""
    if entry.place.box is not None:
        raise DatasetError(
            f"{entry.origin} names a part of a picture, but a build takes whole images. Use "
            "`vouch-build index` for parts."
        )
    path = folder / _path_of(entry)
    if path in taken or entry.id in taken:
        raise DatasetError(
            f"{entry.origin} and another image are both called {entry.id!r}. Give every image "
            "its own id."
        )
    taken |= {path, entry.id}
    return path


def _item(entry: Entry, path: str) -> CopiedItem:
    return CopiedItem(path, entry.id, entry.label, entry.group, entry.source, entry.metadata)


def _begun(entry: Entry, file: IO[bytes], storage: Storage) -> Future[None]:
    place = entry.place
    if place.is_remote:
        return storage.fetch(place.path, file, ImageLimits().max_bytes + 1, place.version)
    done: Future[None] = Future()
    if place.offset is not None and place.size < 0:  # the bytes at ``offset`` are another image
        done.set_exception(NotFetched("The row has no image."))
        return done
    try:
        with place.opened() as packed:
            if place.offset:
                packed.seek(place.offset)
            file.write(packed.read(-1 if place.offset is None else place.size))
    except OSError as error:
        done.set_exception(NotFetched(unreadable(error).reason))
    else:
        done.set_result(None)
    return done


def _finished(
    entry: Entry, path: Path, file: IO[bytes] | None, future: Future[None] | None
) -> tuple[Entry, Path, str | None]:
    if file is None or future is None:
        return entry, path, None
    partial = Path(file.name)
    try:
        future.result()
    except NotFetched as error:  # `copy_images` removes partial copies
        return entry, path, str(error)
    finally:
        file.close()
    os.utime(partial, ns=(entry.place.changed_ns, entry.place.changed_ns))
    partial.replace(path)
    return entry, path, None


def _is_there(entry: Entry, path: Path) -> bool:
    """Return whether the image was copied before.

    The copy must have the date of the image. It must also have the size of the image, if this size
    is known.
    """
    if not path.is_file():
        return False
    status, place = path.stat(), entry.place
    return status.st_mtime_ns == place.changed_ns and place.size in {0, status.st_size}


def _path_of(entry: Entry) -> PurePosixPath:
    """Return the path of an image below the target folder; the first sub-folder is the label."""
    path = PurePosixPath(entry.id)
    is_path = not path.is_absolute() and ".." not in path.parts and path.as_posix() == entry.id
    label = path.parts[0] if len(path.parts) > 1 else None
    if is_path and label == entry.label and not is_system_file(entry.id):
        return path
    name = _file_name(entry.id)
    if is_system_file(name):
        name = f"item {name}"
    return (
        PurePosixPath(name) if entry.label is None else PurePosixPath(_file_name(entry.label), name)
    )


def _file_name(text: str) -> str:
    """Return ``text`` as a valid file name; a long text is replaced by its hash."""
    name = quote(text, safe=" ,;()[]+&'@=!")
    if name in {".", ".."} or len(name) > 150:
        name = hashlib.sha256(text.encode()).hexdigest() + PurePosixPath(name).suffix[:10]
    return name


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
