"""Backup and restore: stores galleries, their live changes and settings in one file.

::

    vouch-backup.json     id of the bundle, number of changes, digest of the log
    bundle/…              a copy of the bundle's directory
    changes.sqlite        a consistent copy of the log of changes
    OPERATOR              the operator's settings, if there are any
    galleries/<id>/…      the same files of each created gallery in the directory
    galleries/names/…     the names of the created galleries

During a backup, a service can answer queries and change the galleries. This is safe, because a
bundle never changes, and SQLite copies a consistent state of each log. A restore verifies every
byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from model_store.bundles.changes import changes_path, open_live
from model_store.bundles.directory import (
    CURRENT_FILE,
    OPERATOR_FILE,
    RESTORING,
    OperatorSettings,
    activate,
    bundle_directory,
    created_below,
    is_bundle_id,
    locate_current,
    read_operator,
)
from model_store.bundles.galleries import (
    CREATED_ID,
    NAMES_FOLDER,
    GalleryFolder,
)
from model_store.bundles.manifest import MANIFEST_FILE, read_manifest
from model_store.bundles.retention import Hold
from model_store.errors import ArchiveError, BundleNotFound, PointerUnreadable, StorageFull
from model_store.files import (
    FreeSpace,
    abandoned_folders,
    finish,
    flush,
    relative_name,
    work_folder,
)
from model_store.gallery import ChangesFile, FaissGallery, GallerySnapshot, LiveGallery
from model_store.gallery.live.log import HighWater
from model_store.gallery.opening import engine_of
from model_store.items import check_item_id
from model_store.sqlite import connect

SUMMARY_FILE = "vouch-backup.json"
BUNDLE_FOLDER = "bundle"
LOG_FILE = "changes.sqlite"
FORMAT = 1
_ITEMS_AT_ONCE = 10_000
_MOST_TEXT_BYTES = 2**16
"""Maximum size of a summary, of settings and of a name in bytes. Real ones are much smaller."""

_MOVING = ".moving"
"""File in the folder of a restore: names of the files that are moved to the final directory."""

_FOLDER = "(?:[^./][^/]*/)?"
_MEMBER = re.compile(
    rf"(?:{_FOLDER}{CREATED_ID}/)?"
    rf"(?:(?P<bundle>{BUNDLE_FOLDER}(?:/.+)?)|(?P<log>{LOG_FILE})|{SUMMARY_FILE}|{OPERATOR_FILE})"
    rf"|{_FOLDER}{NAMES_FOLDER}/[^/]+\.json"
)
"""The members of an archive."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """The contents of an archive.

    Attributes
    ----------
    bundle_id : id of the bundle.
    n_items : number of items in the gallery, after all changes in the log.
    version : version of the gallery, after all changes in the log.
    log_sha256 : digest of the log of changes; None if there is no log.
    """

    bundle_id: str
    n_items: int
    version: int
    log_sha256: str | None
    format: int = FORMAT


Summaries = dict[str, BackupSummary]
"""Summaries by the directory of the gallery, relative to the root; ``.`` is the root itself."""


def back_up(root: Path, archive: Path) -> Summaries:
    """Write the galleries of ``root``, with their live changes, to the new file ``archive``.

    These are the current bundle of ``root``, if ``root`` has bundles, and the galleries created
    over HTTP in ``root`` or in a folder of ``root``. A gallery that is dropped during the backup
    is left out.

    Raises
    ------
    ArchiveError : the file exists, cannot be written or is in a bundle; or a gallery is in a
        database.
    WriteRefused : ``root`` is a bundle, whose live changes are not in its directory.
    BundleError : there is no gallery, or a current bundle is damaged.
    PointerUnreadable : the operator's settings cannot be read.
    """
    _require_new(archive)
    for folder in archive.resolve().parents:
        if is_bundle_id(folder.name) and (folder / MANIFEST_FILE).is_file():
            raise ArchiveError(
                f"{archive} is in the bundle {folder.name}, which never changes. Name a file "
                "outside this directory."
            )
    created = _created_below(root)
    has_own = not created or (root / CURRENT_FILE).exists()
    summaries: Summaries = {}
    try:
        # Each backup has its own folder, because another backup to the same file may be running.
        with work_folder(archive.parent, f".{archive.name}.backup-") as folder:
            partial, copy = folder / archive.name, folder / LOG_FILE
            with tarfile.open(partial, "w") as tar:
                if has_own:
                    summaries["."] = _add(tar, root, "", copy)
                for gallery, (file, name) in created.items():
                    place = gallery.relative_to(root).as_posix()
                    try:
                        summaries[place] = _add(tar, gallery, f"{place}/", copy)
                    except BundleNotFound:
                        if gallery.exists():
                            raise
                    else:
                        _add_file(tar, file.relative_to(root).as_posix(), name)
            flush(partial)
            _require_new(archive)
            partial.rename(archive)
        flush(archive.parent)
    except (OSError, StorageFull) as error:
        cause = error.strerror if isinstance(error, OSError) else os.strerror(errno.ENOSPC)
        raise ArchiveError(f"{archive} cannot be written: {cause}.") from error
    return summaries


def _created_below(root: Path) -> dict[Path, tuple[Path, bytes]]:
    """Return the directory of each created gallery below ``root``, with the file of its name."""
    found: dict[Path, tuple[Path, bytes]] = {}
    for folder in sorted({gallery.parent for gallery in created_below(root)}):
        if (folder / NAMES_FOLDER).is_dir():  # else these are other directories of bundles
            try:
                found |= GalleryFolder(folder, most=0).name_files()
            except (TypeError, ValueError) as error:
                raise ArchiveError(
                    f"A file in {folder / NAMES_FOLDER} is damaged ({error}). Remove it, or take "
                    "it from an earlier backup."
                ) from error
    return found


def _add(tar: tarfile.TarFile, root: Path, prefix: str, copy: Path) -> BackupSummary:
    """Add the gallery in ``root``; the log is first copied to ``copy``."""
    directory = locate_current(root)
    with Hold(directory):
        bundle_id, settings = read_manifest(directory).id, read_operator(root)
        summary = _copy_log(root, directory, bundle_id, copy)
        _add_file(tar, prefix + SUMMARY_FILE, json.dumps(asdict(summary), indent=1).encode())
        tar.add(directory, prefix + BUNDLE_FOLDER)  # files of several galleries are added once
        if summary.log_sha256 is not None:
            tar.add(copy, prefix + LOG_FILE)
            copy.unlink()
        if settings != OperatorSettings():
            _add_file(tar, prefix + OPERATOR_FILE, settings.to_text().encode())
    return summary


def _require_new(archive: Path) -> None:
    if archive.exists():
        raise ArchiveError(f"{archive} exists already. Name a new file, or move the old file.")


def _copy_log(root: Path, directory: Path, bundle_id: str, copy: Path) -> BackupSummary:
    """Copy a consistent state of the log, and return a summary of the gallery in this state."""
    engine = engine_of(directory)
    if engine is not None:
        raise ArchiveError(
            f"The gallery of {bundle_id} is in {engine.name}, and a copy of files does not contain "
            f"it. {engine.back_up}"
        )
    base = FaissGallery(directory)
    if changes_path(root, bundle_id).exists():
        log = ChangesFile(changes_path(root, bundle_id), bundle_id, base.encoder_fingerprint)
        log.copy_to(copy)
        log.close()
        with closing(connect(copy, "rw")) as connection:  # merge the journal into the file
            connection.execute("PRAGMA journal_mode=DELETE")
    copied = ChangesFile(copy, bundle_id, base.encoder_fingerprint)
    snapshot = LiveGallery(base, copied).snapshot()
    copied.close()
    log_sha256 = _sha256(copy) if copy.exists() else None
    return BackupSummary(bundle_id, snapshot.n_items, snapshot.version, log_sha256)


def restore(archive: Path, root: Path) -> Summaries:
    """Create the directory ``root`` with the galleries of an archive, atomically.

    If ``root`` exists and is empty, the directory itself is kept, because a process may use it or a
    disk may be mounted there. `CURRENT` is written last. The files of a killed restore are removed.

    Raises
    ------
    ArchiveError : ``root`` is not empty, its disk has too little space, or the archive is damaged.
    BundleError : a bundle in the archive is damaged.
    """
    is_there = root.exists()
    if is_there:
        _remove_interrupted(root)
        if not root.is_dir() or any(root.iterdir()):
            raise ArchiveError(f"{root} exists already. Name an empty directory or a new one.")
    parent, prefix = (root, RESTORING) if is_there else (root.parent, f".{root.name}{RESTORING}")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with work_folder(parent, prefix) as partial:
            summaries = _unpack(archive, partial)
            for place, summary in summaries.items():
                _verify(partial / place, summary)
                if summary.log_sha256 is not None:
                    log = changes_path(partial / place, summary.bundle_id)
                    HighWater(log).make(summary.version)
            _verify_names(partial, summaries)
            finish(partial, linked=True)  # all links are in this directory
            if is_there:
                _move_all(partial, root)
            else:
                partial.rename(root)
        flush(root.parent)
    except (OSError, tarfile.TarError, KeyError, TypeError, ValueError) as error:  # as a bad name
        raise ArchiveError(f"{archive} cannot be restored to {root}: {error}.") from error
    return summaries


def _remove_interrupted(root: Path) -> None:
    """Remove the files of a killed restore to ``root``."""
    for partial in abandoned_folders(root, RESTORING):
        moving = partial / _MOVING
        moved = set(moving.read_text("utf-8").splitlines()) if moving.exists() else set()
        others = {path.name for path in root.iterdir()} - {partial.name}
        is_interrupted = any((partial / name).exists() for name in moved)  # else all was moved
        if is_interrupted and others <= moved:  # if other files were added, keep all files
            for name in others:
                path = root / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(partial)


def _move_all(partial: Path, root: Path) -> None:
    """Move the content of ``partial`` to ``root``. What makes galleries visible is moved last."""
    last = {NAMES_FOLDER: 1, CURRENT_FILE: 2}
    names = sorted((path.name for path in partial.iterdir()), key=lambda name: last.get(name, 0))
    (partial / _MOVING).write_text("\n".join(names), "utf-8")
    flush(partial / _MOVING)
    for name in names:
        (partial / name).rename(root / name)
    flush(root)


def _unpack(archive: Path, root: Path) -> Summaries:
    space = FreeSpace(root)
    with tarfile.open(archive, "r:") as tar:  # an uncompressed archive, so the sizes are known
        summaries = _read_summaries(tar, archive)
        members = [_wanted(member) for member in tar]
        _require_space(archive, space, sum(member.size for member in members))
        # Check the free space before each file, because other programs may write to the disk too.
        tar.extractall(root, _fitting(members, archive, space), filter="data")
    for place, summary in summaries.items():
        gallery = root / place
        (gallery / SUMMARY_FILE).unlink()
        (gallery / BUNDLE_FOLDER).rename(bundle_directory(gallery, summary.bundle_id))
        if summary.log_sha256 is not None:
            path = changes_path(gallery, summary.bundle_id)
            path.parent.mkdir()
            (gallery / LOG_FILE).rename(path)
        activate(gallery, summary.bundle_id)
    return summaries


def _fitting(
    members: Iterable[tarfile.TarInfo], archive: Path, space: FreeSpace
) -> Iterator[tarfile.TarInfo]:
    for member in members:
        _require_space(archive, space, member.size)
        yield member


def _require_space(archive: Path, space: FreeSpace, n_bytes: int) -> None:
    if not space.has(n_bytes):
        raise ArchiveError(
            f"{archive} is not restored: {n_bytes / 2**20:,.1f} MiB are needed, but the disk "
            f"has space for {space.n_bytes / 2**20:,.1f} MiB. Free disk space, or restore to "
            "another disk."
        )


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return ``member`` if a backup can contain such a member; else raise `ArchiveError`."""
    with suppress(ValueError):
        relative_name(member.name)
        if member.islnk():
            relative_name(member.linkname)
        if _is_wanted(member):
            return member
    raise ArchiveError(
        f"The archive is not restored: it contains {member.name[:80]!r}, but a backup of "
        "Vouch has no such file. Take another backup."
    )


def _is_wanted(member: tarfile.TarInfo) -> bool:
    found = _MEMBER.fullmatch(member.name)
    if found is None:
        return False
    is_file = member.isreg() and not member.issparse()
    if found["bundle"] is None:
        return is_file and (found["log"] is not None or member.size <= _MOST_TEXT_BYTES)
    if member.islnk():  # a file that another gallery has, too
        linked = _MEMBER.fullmatch(member.linkname)
        return linked is not None and linked["bundle"] is not None
    return is_file or member.isdir()


def _read_summaries(tar: tarfile.TarFile, archive: Path) -> Summaries:
    found = {}
    for member in tar.getmembers():
        name = PurePosixPath(member.name)
        if name.name == SUMMARY_FILE:
            found[name.parent.as_posix()] = _read_summary(tar, member, archive)
    if not found:
        raise ArchiveError(f"{archive} is not a backup that Vouch made.")
    return found


def _read_summary(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> BackupSummary:
    try:
        file = tar.extractfile(member)
        fields = json.loads(file.read(_MOST_TEXT_BYTES) if file else b"")
        if fields["format"] != FORMAT:
            raise ArchiveError(
                f"{archive} is a backup of format {fields['format']}; this release reads {FORMAT}."
            )
        summary = BackupSummary(**fields)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArchiveError(f"{archive} is not a backup that Vouch made.") from error
    if not is_bundle_id(summary.bundle_id):
        raise ArchiveError(
            f"{archive} is not a backup that Vouch made: {str(summary.bundle_id)[:80]!r} is "
            "not the id of a bundle."
        )
    return summary


def _verify_names(root: Path, summaries: Summaries) -> None:
    """Check that each created gallery has one name, and each name a gallery."""
    created = {root / place for place in summaries if place != "."}
    named = [
        file.parent.parent / str(json.loads(file.read_bytes())["id"])
        for pattern in (f"{NAMES_FOLDER}/*", f"*/{NAMES_FOLDER}/*")
        for file in root.glob(pattern)
    ]
    if len(named) != len(created) or set(named) != created:
        raise ArchiveError(
            "The archive is not restored: the names of its galleries are damaged. Take another "
            "backup."
        )


def _verify(root: Path, summary: BackupSummary) -> None:
    """Check every byte of the bundle and the log, and compare the gallery with the summary."""
    directory = root / summary.bundle_id
    manifest = read_manifest(directory)
    path = changes_path(root, summary.bundle_id)
    log_sha256 = _sha256(path) if path.exists() else None
    checks: dict[str, Callable[[], bool]] = {
        "it contains another bundle": lambda: manifest.id == summary.bundle_id,
        "its log of changes is damaged": lambda: log_sha256 == summary.log_sha256,
        "its settings of the operator are damaged": lambda: _has_sound_settings(root),
        "its log of changes is incomplete": lambda: log_sha256 is None or _is_sound(path),
    }
    for problem, holds in checks.items():
        if not holds():
            raise ArchiveError(f"The archive is not restored: {problem}. Take another backup.")
    with closing(open_live(root, directory)) as live:
        _verify_gallery(live.snapshot(), summary)


def _verify_gallery(gallery: GallerySnapshot, summary: BackupSummary) -> None:
    """Check that the gallery agrees with the summary of the backup.

    The summary contains the number of items and the version. The id of each item must be valid.
    """
    if (gallery.n_items, gallery.version) != (summary.n_items, summary.version):
        raise ArchiveError(
            "The archive is not restored: its gallery has another number of items, or another "
            "version, than its summary. Take another backup."
        )
    rows = gallery.page(None, _ITEMS_AT_ONCE)
    while len(rows):
        for item in gallery.items(rows):
            try:
                check_item_id(item.id)
            except ValueError as error:
                raise ArchiveError(
                    f"The archive is not restored: the id {item.id[:80]!r} {error}. Delete this "
                    "item in the original gallery, and take another backup."
                ) from error
        rows = gallery.page(int(rows[-1]), _ITEMS_AT_ONCE)


def _has_sound_settings(root: Path) -> bool:
    with suppress(PointerUnreadable):
        read_operator(root)
        return True
    return False


def _is_sound(path: Path) -> bool:
    with closing(connect(path, "ro")) as connection:
        try:
            return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            return False


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, BytesIO(data))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
