"""A directory of galleries, which a running service creates, renames and drops.

::

    <folder>/
      names/<name>.json   id, title and description of the gallery with this name
      <gallery id>/       the gallery's directory of bundles, see `model_store.bundles.directory`
      .shared/            files by digest; several galleries link to each file
      .changing           lock file for changes in `names`

Only the file ``names/<name>.json`` determines the name of a gallery. When a gallery is created,
this file is written last. When the gallery is renamed or dropped, this file is renamed or deleted.
So after a crash, the gallery has its old name, its new name, or no name.
`GalleryFolder.remove_nameless` removes galleries without a name. Other data about a gallery is
stored under the gallery's id.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_store.bundles.directory import bundle_ids, name_problem
from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import NOTHING, Items, publish, write_bundle
from model_store.bundles.retention import Hold
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.errors import (
    BundleNotFound,
    GalleryExists,
    GalleryNotFound,
    InvalidRequest,
    WriteRefused,
)
from model_store.files import (
    PARTIAL,
    FileMark,
    file_mark,
    flush,
    lock_between_processes,
    replacing,
    work_folder,
)
from model_store.sqlite import of_the_system

CREATED_ID = "[0-9a-f]{16}"
"""Regular expression of the id of a created gallery."""

NAMES_FOLDER = "names"
_ID = re.compile(CREATED_ID)
_SHARED, _LOCK = ".shared", ".changing"


@dataclass(frozen=True, slots=True)
class GalleryEntry:
    """The description of a gallery in a `GalleryFolder`.

    Attributes
    ----------
    id : permanent id; a rename does not change it.
    title, description : texts for readers.
    created_at : time of creation, ISO 8601.
    """

    id: str
    name: str
    title: str
    description: str
    created_at: str


class GalleryFolder:
    """The galleries in a directory; threads and processes can share the directory.

    Parameters
    ----------
    path : directory of the galleries, created if missing.
    most : maximum number of galleries.

    Raises
    ------
    WriteError : the directory cannot be created.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path, self._most = path, most
        self._known: dict[str, tuple[FileMark | None, GalleryEntry]] = {}
        with _errors_in_words():
            (path / NAMES_FOLDER).mkdir(parents=True, exist_ok=True)

    def find(self, name: str) -> GalleryEntry | None:
        """Return the gallery with this name; None if there is no such gallery.

        The file of the gallery is read again only if it has changed.
        """
        if name_problem(name) is not None:
            return None
        file = self._file(name)
        mark = file_mark(str(file))
        known = self._known.get(name)
        try:
            if mark is None or known is None or known[0] != mark:
                known = mark, GalleryEntry(name=name, **json.loads(file.read_bytes()))
                self._known[name] = known
        except FileNotFoundError:
            self._known.pop(name, None)
            return None
        return known[1]

    def entries(self) -> list[GalleryEntry]:
        """All galleries, by name."""
        names = sorted(path.stem for path in (self.path / NAMES_FOLDER).glob("[a-z0-9]*.json"))
        return [entry for name in names if (entry := self.find(name)) is not None]

    def name_files(self) -> dict[Path, tuple[Path, bytes]]:
        """Return the directory of each gallery, with the file of its name, at one moment."""
        with self._changing():
            files = {self.root(entry): self._file(entry.name) for entry in self.entries()}
            return {root: (file, file.read_bytes()) for root, file in files.items()}

    def root(self, entry: GalleryEntry) -> Path:
        """Return the directory of the gallery's bundles.

        Raises
        ------
        GalleryNotFound : the entry's id is invalid.
        """
        if _ID.fullmatch(entry.id) is None:
            raise GalleryNotFound(f"The gallery {entry.name!r} has no directory of bundles.")
        return self.path / entry.id

    def create(
        self,
        name: str,
        like: tuple[Path, Manifest],
        title: str = "",
        description: str = "",
        *,
        items: Items = NOTHING,
        signing: Signing = UNSIGNED,
        admit: Callable[[], None] = lambda: None,
    ) -> GalleryEntry:
        """Create a gallery, by default without items.

        Parameters
        ----------
        like : directory and manifest of a bundle; the gallery uses its encoder.
        items : see `write_bundle`.
        signing : how the gallery's bundle is signed.
        admit : function that is called under the lock, before the first write. It raises an error
            if the caller is not allowed to create the gallery.

        Raises
        ------
        GalleryExists
        InvalidRequest : the name is not valid.
        WriteRefused : the maximum number of galleries is reached.
        WriteError : the gallery cannot be written. Its files are removed.
        """
        made = GalleryEntry(secrets.token_hex(8), name, title, description, _now())
        partial, staging = (self.path / f".{made.id}.{end}" for end in ("partial", "staging"))
        with self._changing():
            self._require_free(name)
            admit()
            if len(self.entries()) >= self._most:
                raise WriteRefused(
                    f"This service has its maximum of {self._most} galleries. Drop a gallery, or "
                    "ask the operator to raise VOUCH_MAX_GALLERIES."
                )
            try:
                # With the id, two empty galleries of the same name have different bundles.
                said = {"name": name, "description": description, "gallery_id": made.id}
                manifest = write_bundle(staging, *like, said, self.path / _SHARED, items)
                publish(staging, manifest, partial, keep=False, signing=signing)
                flush(partial)
                partial.rename(self.root(made))
                flush(self.path)
                self._write(made)
            except BaseException:
                for left in (staging, partial, self.root(made)):
                    shutil.rmtree(left, ignore_errors=True)
                raise
        return made

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """Yield a temporary directory, on the file system of the galleries.

        Raises
        ------
        WriteError : the directory cannot be created, or a file in it cannot be written.
        """
        with _errors_in_words(), work_folder(self.path, ".work-") as place:
            yield place

    def describe(
        self, name: str, title: str | None = None, description: str | None = None
    ) -> GalleryEntry:
        """Change the title or the description of a gallery; None keeps the text.

        Raises
        ------
        GalleryNotFound
        WriteError : nothing was changed.
        """
        with self._changing():
            entry = self.require(name)
            said = {"title": title, "description": description}
            entry = replace(entry, **{key: text for key, text in said.items() if text is not None})
            self._write(entry)
        return entry

    def rename(self, name: str, new_name: str) -> GalleryEntry:
        """Rename a gallery.

        Raises
        ------
        GalleryNotFound, GalleryExists
        InvalidRequest : the name is not valid.
        WriteError : nothing was changed.
        """
        with self._changing():
            entry = self.require(name)
            if new_name != name:
                self._require_free(new_name)
                self._file(name).rename(self._file(new_name))
                flush(self.path / NAMES_FOLDER)
        return replace(entry, name=new_name)

    def drop(self, name: str) -> GalleryEntry:
        """Drop a gallery's name.

        `remove_nameless` deletes the files of the gallery when no process uses them.

        Raises
        ------
        GalleryNotFound
        WriteError : nothing was changed.
        """
        with self._changing():
            entry = self.require(name)
            self._file(name).unlink()
            flush(self.path / NAMES_FOLDER)
        return entry

    def remove_nameless(self) -> list[str]:
        """Remove dropped and incomplete galleries that no process uses; return their ids."""
        removed = []
        with self._changing():
            named = {entry.id for entry in self.entries()}
            for path in self.path.iterdir():
                if _ID.fullmatch(path.name) and path.name not in named and _removed(path):
                    removed.append(path.name)
                elif re.fullmatch(rf"\.{_ID.pattern}\.(partial|staging|removed)", path.name):
                    shutil.rmtree(path, ignore_errors=True)
            for left in (self.path / NAMES_FOLDER).glob(f".*{PARTIAL}"):
                left.unlink()
            for shared in (self.path / _SHARED).glob("*"):
                if shared.stat().st_nlink == 1:  # no gallery links to the file
                    shared.unlink(missing_ok=True)
        return removed

    def require(self, name: str) -> GalleryEntry:
        """Return the gallery with this name, or raise `GalleryNotFound`."""
        found = self.find(name)
        if found is None:
            raise gallery_not_found(name)
        return found

    def _require_free(self, name: str) -> None:
        if (problem := name_problem(name)) is not None:
            raise InvalidRequest(problem)
        if self._file(name).exists():
            raise GalleryExists(f"There is a gallery {name!r} already. Choose another name.")

    def _file(self, name: str) -> Path:
        """Return the file of a valid name. Only this function converts names to paths."""
        return self.path / NAMES_FOLDER / f"{name}.json"

    def _write(self, entry: GalleryEntry) -> None:
        fields: dict[str, Any] = {k: v for k, v in asdict(entry).items() if k != "name"}
        with replacing(self._file(entry.name)) as staged:
            staged.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", "utf-8")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the names against changes by other processes."""
        with _errors_in_words(), lock_between_processes(self.path / _LOCK):
            yield


def gallery_not_found(name: str) -> GalleryNotFound:
    """Return the error for an unknown name, or for a gallery that is hidden from the caller."""
    return GalleryNotFound(
        f"There is no gallery {name[:80]!r} here. `GET /v1/galleries` lists the galleries."
    )


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_the_system(error) from error


def _removed(root: Path) -> bool:
    """Remove a directory of bundles, unless one of its bundles is open."""
    gone = root.with_name(f".{root.name}.removed")
    with ExitStack() as holds:
        try:
            for bundle_id in bundle_ids(root):
                holds.enter_context(Hold(root / bundle_id, alone=True))
            root.rename(gone)
        except (BundleNotFound, OSError):
            return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
