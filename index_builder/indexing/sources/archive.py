"""Reads a tar of images. A compressed tar is first unpacked, for random access."""

from __future__ import annotations

import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import IO, Any, cast

from index_builder.datasets.image_files import (
    HEAD_BYTES,
    LeftOut,
    Reason,
    head_of,
    is_system_file,
)
from index_builder.indexing.blocks import Entry, Place
from model_store.errors import DatasetError
from model_store.files import PARTIAL, FreeSpace
from model_store.images import SUFFIXES, content_of, format_of

from .manifest import require_names, text_of


@contextmanager
def unpacking(target: Path, source: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to a temporary file, which finally becomes ``target``.

    A tenth of the disk's free space is not used. After an error, the temporary file is removed.

    Parameters
    ----------
    source : name of the compressed file, for messages.

    Raises
    ------
    DatasetError : the disk has too little space.
    """
    partial = target.with_name(f"{target.name}{PARTIAL}")
    partial.unlink(missing_ok=True)  # left by a killed run
    space = FreeSpace(target.parent)
    n_written = 0
    file = partial.open("wb", buffering=0)

    def write(content: bytes) -> None:
        nonlocal n_written
        if not space.has(len(content)):
            raise DatasetError(
                f"{source} needs more than {n_written / 2**20:,.1f} MiB unpacked, but the disk of "
                f"the run directory has space for {space.n_bytes / 2**20:,.1f} MiB. "
                "Name another disk with --run, or unpack the file and name its folder."
            )
        n_written += len(content)
        file.write(content)

    try:
        with file:
            yield write
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
UNPACKED = "source.tar"


SIDECARS = (".json", ".cls", ".txt")
_MOST_SIDECAR_BYTES = 2**20
_CHUNK = 2**20


@dataclass(slots=True)
class _Sample:
    """Consecutive files of a tar with names that are equal up to the first dot.

    Attributes
    ----------
    images : name, place and origin of each image.
    sidecars : content of each sidecar file, by name.
    orphans : sidecar files without an image, of this sample and of the samples before it.
    """

    key: str
    images: list[tuple[str, Place, str]] = field(default_factory=list)
    sidecars: dict[str, bytes] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)

    def entries(self, top: str, *, labelled: bool) -> Iterator[Entry]:
        """Yield the images, with label, metadata and caption from the sidecar files.

        A sidecar file with the name of an image belongs to this image. The other sidecar files
        belong to all images of the sample. If the sample has no image for them, they are recorded
        in `orphans`.

        Parameters
        ----------
        top : see `Archive._top_folder`.

        Raises
        ------
        DatasetError : a sidecar file is not valid text or JSON, or an image has two sidecar files
            with one suffix.
        """
        own: dict[str, list[str]] = {_stem(name): [] for name, _, _ in self.images}
        own.pop(self.key, None)
        shared = [name for name in self.sidecars if _stem(name) not in own]
        for name in self.sidecars:
            if _stem(name) in own:
                own[_stem(name)].append(name)
        if not self.images or any(own.values()):  # the names after the first dot tell images apart
            orphans = [name for name in shared if not self.images or _stem(name) != self.key]
            self.orphans += orphans
            shared = [name for name in shared if name not in orphans]
        for name, place, origin in self.images:
            names = _by_suffix(name, shared) | _by_suffix(name, own.get(_stem(name), []))
            label, known = self._described(names.values())
            folder = _folder_label(name, top)
            if not labelled and label is not None:
                known["label"] = label
            yield Entry(name, place, (label or folder) if labelled else None, known, origin)

    def _described(self, sidecars: Iterable[str]) -> tuple[str | None, dict[str, Any]]:
        """Return the label and the metadata in sidecar files."""
        label, metadata = None, {}
        for name in sidecars:
            suffix = PurePosixPath(name).suffix.lower()
            text = _decoded(name, self.sidecars[name])
            if suffix == ".cls":
                label = text.strip()
            elif suffix == ".txt":
                metadata["caption"] = text.strip()
            else:
                found = _object(name, text)
                require_names(found, name, frozenset({"label"}))
                metadata |= found
        label = label or text_of(metadata, "label", self.key)
        return label, {one: value for one, value in metadata.items() if one != "label"}


@dataclass(frozen=True, slots=True)
class Archive:
    """The images in a tar file, in the order of the file. Their names are the ids.

    A sidecar file (as in webdataset) has the name of its image, but a different suffix. ``.cls``
    contains the label, and ``.txt`` contains a caption. ``.json`` contains an object of metadata,
    which can have a ``label``. Without such a label, the label is a sub-folder, as in a folder of
    images: the sub-folder of the folder that contains all images of the archive. If all images are
    in one folder, this folder is the label.
    """

    path: Path
    labelled: bool = True

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each image.

        Raises
        ------
        DatasetError : the file is not a tar, is damaged or truncated, or contains a second tar; or
            unpacking needs too much space.
        """
        try:
            plain = self._plain(scratch)
            with tarfile.open(plain, "r:") as archive:
                yield from self._members(archive, plain, left_out)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # a disk error has a number; an error of a decompressor has none
            why = " ".join(str(error).split())  # of several lines
            raise DatasetError(
                f"{self.path.name} is not a complete tar file ({why}). {self._other_content()}"
                "Copy it again."
            ) from error

    def _other_content(self) -> str:
        """Return a sentence that names the content of a file with a wrong suffix, or nothing."""
        head = head_of(self.path)
        content = content_of(head)
        is_tar = head[257:262] == b"ustar"  # a tar begins with any text: the name of a file
        is_compressed = content is not None and content.name.startswith("compressed data")
        if content is None or is_tar or (is_compressed and self.path.suffix.lower() != ".tar"):
            return ""
        return f"It is {content.name}: unpack it and name its folder, or correct its suffix. "

    def _members(self, archive: tarfile.TarFile, plain: Path, left_out: LeftOut) -> Iterator[Entry]:
        changed_ns = self.path.stat().st_mtime_ns
        size = plain.stat().st_size
        top = self._top_folder(plain) if self.labelled else ""
        sample = _Sample("")
        for member in archive:
            # Without this line, tarfile would keep a list of all members in memory.
            archive.members = []  # type: ignore[attr-defined]
            name = member.name.removeprefix("./")
            plain_file = member.isreg() and not member.issparse()
            if member.isdir():
                continue
            if is_system_file(name) or not plain_file:  # may lie within a sample
                system = is_system_file(name)
                left_out.add(name, Reason.system_file if system else Reason.not_opened)
                continue
            if member.offset_data + member.size > size:
                raise tarfile.ReadError(f"it ends within {name}")
            if _key(name) != sample.key:
                yield from sample.entries(top, labelled=self.labelled)
                sample = _Sample(_key(name), orphans=sample.orphans)
            content = cast("IO[bytes]", archive.extractfile(member))
            head = content.read(HEAD_BYTES)
            is_sidecar = name.lower().endswith(SIDECARS) and format_of(head) is None
            if is_sidecar and member.size <= _MOST_SIDECAR_BYTES:
                sample.sidecars[name] = head + content.read()
            elif left_out.takes(name, partial(bytes, head)):
                place = Place(str(plain), member.offset_data, member.size, changed_ns)
                sample.images.append((name, place, f"{self.path.name} at byte {member.offset}"))
        yield from sample.entries(top, labelled=self.labelled)
        self._require_end(archive)
        self._note_orphans(sample.orphans, plain, left_out)

    def _require_end(self, archive: tarfile.TarFile) -> None:
        """Raise an error if members follow, because `tarfile` stops at a damaged header.

        `tarfile` also stops at the zero bytes between two archives that `cat` has joined.

        Raises
        ------
        tarfile.ReadError, DatasetError
        """
        content = cast("IO[bytes]", archive.fileobj)
        content.seek(archive.offset)
        block = content.read(tarfile.BLOCKSIZE)
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"the header at byte {archive.offset} is damaged")
        while block and not block.strip(b"\0"):
            block = content.read(tarfile.BLOCKSIZE)
        try:
            tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError:
            return  # the end of the file, or bytes that are no archive
        raise DatasetError(
            f"{self.path.name} is several archives in one file. Unpack all of them, for example "
            f"with `tar --ignore-zeros -xf {quote(self.path.name)}`, and name their folder."
        )

    def _top_folder(self, plain: Path) -> str:
        """Return the folder whose sub-folders are labels, with a slash at its end; or "".

        It contains all images, because `tar cf FILE FOLDER` puts the folder's name before all
        names. If all images are in one folder, this folder is their label. Other files count only
        if no name has the suffix of an image.
        """
        folders: dict[bool, list[str]] = {}
        is_flat: dict[bool, bool] = {}
        for name in self._names(plain):
            parts = name.split("/")[:-1]
            is_image = name.lower().endswith(tuple(SUFFIXES))
            before = folders.get(is_image, parts)
            is_flat[is_image] = is_flat.get(is_image, True) and parts == before
            folders[is_image] = _common(before, parts)
            if is_image and not folders[is_image]:
                return ""
        common = folders.get(True in folders, [])
        if is_flat.get(True in folders):
            common = common[:-1]
        return "".join(f"{part}/" for part in common)

    def _note_orphans(self, orphans: Sequence[str], plain: Path, left_out: LeftOut) -> None:
        """Record sidecar files without an image; the reason depends on the rest of the archive."""
        wanted = {_key(name) for name in orphans}
        if not wanted:
            return
        images = (name for name in self._names(plain) if not name.lower().endswith(SIDECARS))
        keys = wanted.intersection(map(_key, images))
        for name in orphans:
            reason = Reason.no_image if _key(name) in keys else Reason.not_an_image
            left_out.add(name, reason, PurePosixPath(name).suffix.lower())

    @staticmethod
    def _names(plain: Path) -> Iterator[str]:
        """Yield the names of all files, except files of the system."""
        with tarfile.open(plain, "r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]
                name = member.name.removeprefix("./")
                if member.isreg() and not is_system_file(name):
                    yield name

    def _plain(self, scratch: Path) -> Path:
        """Return the archive; if it is compressed, return an uncompressed copy."""
        if self.path.suffix.lower() == ".tar":
            return self.path
        plain = scratch / UNPACKED
        status = self.path.stat()
        if plain.exists() and plain.stat().st_mtime_ns == status.st_mtime_ns:
            return plain
        with unpacking(plain, self.path.name) as write, tarfile.open(self.path, "r:*") as packed:
            content = cast("IO[bytes]", packed.fileobj)
            content.seek(0)
            while chunk := content.read(_CHUNK):
                write(chunk)
        # The same date shows that the copy belongs to this archive.
        os.utime(plain, ns=(status.st_mtime_ns, status.st_mtime_ns))
        return plain


def _key(name: str) -> str:
    """Return the common part of the names in a sample: the name up to its first dot."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the first parts that two paths have in common."""
    both = zip(one, other, strict=False)
    return [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], both)]


def _by_suffix(image: str, sidecars: Iterable[str]) -> dict[str, str]:
    """Return sidecar files by their suffix; refuse two files with one suffix."""
    found: dict[str, str] = {}
    for name in sidecars:
        suffix = PurePosixPath(name).suffix.lower()
        if suffix in found:
            raise DatasetError(
                f"{image} has two {suffix} files: {found[suffix]} and {name}. Give each image one "
                "file, with the image's own name."
            )
        found[suffix] = name
    return found


def _folder_label(name: str, top: str) -> str | None:
    """Return the first sub-folder below ``top``; None for an image without sub-folder."""
    label, _, rest = name.removeprefix(top).partition("/")
    return label if label and rest else None


def _stem(name: str) -> str:
    """Return the name without its suffix, with a folder as in `_key`."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.rpartition('.')[0]}"


def _decoded(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{name} is not UTF-8 text. Save it as UTF-8, or leave it out."
        ) from error


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{name} is not JSON ({error}). Correct it, or leave it out.") from error
    if not isinstance(found, dict):
        raise DatasetError(f"{name} holds {text[:60]!r}; wanted an object of metadata.")
    return found
