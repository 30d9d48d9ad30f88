"""A tar of images; a compressed one is unpacked to a plain tar first, to be read at any place."""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from index_builder.datasets.other_formats import OtherFormats
from index_builder.indexing.blocks import Entry, Place
from model_store.errors import DatasetError
from model_store.images import SUFFIXES

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
UNPACKED = "source.tar"


@dataclass(frozen=True, slots=True)
class Archive:
    """The images in a tar file, by their names there, in its order. Nothing is ever extracted."""

    path: Path
    labelled: bool = True

    def entries(self, scratch: Path, others: OtherFormats, /) -> Iterator[Entry]:
        """Its regular files that are called as images are.

        Raises
        ------
        DatasetError : it is no tar file, or cut off.
        """
        try:
            plain = self._plain(scratch)
            with tarfile.open(plain, "r:") as archive:
                yield from self._members(archive, plain, others)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk; a decompressor's own has no number
            raise DatasetError(
                f"{self.path.name} is not a whole tar file ({error}). Copy it again."
            ) from error

    def _members(
        self, archive: tarfile.TarFile, plain: Path, others: OtherFormats
    ) -> Iterator[Entry]:
        changed_ns = self.path.stat().st_mtime_ns
        size = plain.stat().st_size
        for member in archive:
            # The list that tarfile keeps of what it has seen would grow with the archive.
            archive.members = []  # type: ignore[attr-defined]
            name = member.name.removeprefix("./")
            plain_file = member.isreg() and not member.issparse()
            if not plain_file:
                continue
            if not name.lower().endswith(tuple(SUFFIXES)):
                others.look_at(name)
                continue
            if member.offset_data + member.size > size:
                raise tarfile.ReadError(f"it ends within {name}")
            parts = PurePosixPath(name).parts
            yield Entry(
                name,
                Place(str(plain), member.offset_data, member.size, changed_ns),
                parts[0] if self.labelled and len(parts) > 1 else None,
                {},
                f"{self.path.name} at byte {member.offset}",
            )

    def _plain(self, scratch: Path) -> Path:
        """The archive itself, or what it was when it was not compressed; unpacked once."""
        if self.path.suffix.lower() == ".tar":
            return self.path
        plain = scratch / UNPACKED
        status = self.path.stat()
        if plain.exists() and plain.stat().st_mtime_ns == status.st_mtime_ns:
            return plain
        partial = plain.with_suffix(".partial")
        with tarfile.open(self.path, "r:*") as packed, partial.open("wb") as file:
            content = cast("IO[bytes]", packed.fileobj)
            content.seek(0)
            shutil.copyfileobj(content, file, 2**20)
        # By its date it is known which archive it was unpacked from.
        os.utime(partial, ns=(status.st_mtime_ns, status.st_mtime_ns))
        partial.replace(plain)
        return plain
