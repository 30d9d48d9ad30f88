"""Local copies of whole files: archives, tables, manifests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from index_builder.storage.source import NotFetched
from index_builder.storage.urls import shown, unsigned
from model_store.errors import DatasetError
from model_store.files import FreeSpace, replacing


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
