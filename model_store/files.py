"""Crash-safe files, checked paths, locks between processes, free disk space, and full disks.

A manifest, an archive or an index may come from a third party. All code uses `inside` to convert
names in such a file to paths. `disk_error` recognises errors of a full disk or of a missing
permission, whichever library raises them.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Self

from filelock import AcquireReturnProxy, FileLock

_NUMBER_LENGTH = 8
"""Number of hexadecimal digits at the end of a work folder's name. The digits distinguish a work
folder from a user's folders."""

PARTIAL = ".partial"
"""Suffix of unfinished files. An unfinished file that no process writes is left from a crash."""


def flush(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner(path: Path, *, linked: bool = False) -> None:
    """If this process is root, give a new file or directory to the owner of its parent directory.

    A service with fewer rights could otherwise not change what an operator has made as root.

    Parameters
    ----------
    linked : whether this includes a file with several links, which may be the file of another
        user.
    """
    if os.geteuid() != 0:
        return
    owner, made = path.parent.stat(), path.lstat()
    if owner.st_uid != made.st_uid and (linked or path.is_dir() or made.st_nlink == 1):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def make_for_owner(path: Path, mode: int = 0o666) -> None:
    """If this process is root, create a missing file for the owner of its parent directory."""
    if os.geteuid() == 0:
        with suppress(OSError):  # the caller gets this error when it opens the file
            if not path.exists():
                path.touch(mode)
                give_to_owner(path)


def finish(directory: Path, *, linked: bool = False) -> None:
    """Flush a new directory with its files, and give all to the owner of its parent directory.

    Parameters
    ----------
    linked : see `give_to_owner`.
    """
    for path in [directory, *sorted(directory.rglob("*"))]:  # a directory before its files
        give_to_owner(path, linked=linked)
        flush(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` at the end.

    After a crash, ``path`` is unchanged or complete. After an error inside the block, ``path`` is
    unchanged and the temporary file is removed. The error of a full disk names ``path``.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        with naming(path):
            yield partial
            give_to_owner(partial)
            flush(partial)
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush(path.parent)


def create(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a new file, which has the permissions ``mode`` before it has content.

    After an error, there is no file, so that the same call can be repeated.

    Parameters
    ----------
    mode : permissions; the umask removes some of them.

    Raises
    ------
    FileExistsError : there is a file already; it is unchanged.
    OSError : the file cannot be written; the error names ``path``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise


FileMark = tuple[int, int, int, int]
"""A value that changes whenever a file is replaced or written."""


def file_mark(path: str) -> FileMark | None:
    """Return the mark of a file, which takes a microsecond; None if there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - each request calls this function
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def json_text(content: Mapping[str, Any]) -> str:
    """Return ``content`` as JSON for a file, one entry per line.

    Equal content gives equal text, because the name of a bundle is a hash of its bytes. NaN and
    infinity raise ValueError, because JSON has no such values.
    """
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def lock_between_processes(path: Path) -> FileLock:
    """Return a lock between processes on the file ``path``.

    The kernel releases the lock when the process ends; the file remains. The lock belongs to the
    returned object, and not to a thread. ``acquire`` raises FileNotFoundError if the directory of
    ``path`` does not exist.
    """
    make_for_owner(path, 0o600)
    return _LockBetweenProcesses(path, mode=0o600, thread_local=False)


class _LockBetweenProcesses(FileLock):
    """A lock that creates no directory.

    `FileLock` creates a missing directory. If an operator has moved the directory, a new one would
    take its place.
    """

    def acquire(  # type: ignore[override]
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AcquireReturnProxy[Self]:
        """Acquire the lock; see `FileLock.acquire`.

        Raises
        ------
        FileNotFoundError : the directory of the lock does not exist.
        """
        folder = Path(self.lock_file).parent
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return super().acquire(timeout, blocking=blocking)


@contextmanager
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory ``<prefix>…`` in ``parent``; it is removed at the end.

    First, the function removes directories with this prefix that killed processes have left. The
    directory of a running process is locked and is not removed.

    Raises
    ------
    OSError : the directory cannot be created.
    """
    for left in abandoned_folders(parent, prefix):
        shutil.rmtree(left, ignore_errors=True)
    folder, descriptor = Path(), None
    while descriptor is None:  # another process may have removed the directory as abandoned
        folder = parent / f"{prefix}{secrets.token_hex(_NUMBER_LENGTH // 2)}"
        folder.mkdir()
        descriptor = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def abandoned_folders(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield the directories of `work_folder` that no process uses; each is locked."""
    for path in sorted(parent.glob(glob.escape(prefix) + "[0-9a-f]" * _NUMBER_LENGTH)):
        with suppress(OSError):
            descriptor = _locked(path, must=True)
            if descriptor is not None:
                try:
                    yield path
                finally:
                    os.close(descriptor)


def _locked(folder: Path, *, must: bool = False) -> int | None:
    """Lock a directory and return its descriptor; None if another process has the lock.

    Parameters
    ----------
    must : whether to raise OSError if the file system has no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_mine = folder.exists()
    except OSError as error:
        is_mine = not must and not isinstance(error, BlockingIOError)
    if is_mine:
        return descriptor
    os.close(descriptor)
    return None


class FreeSpace:
    """The free disk space that files from an archive or a server may use.

    A tenth of the initial free space is kept free, even if other programs write at the same time.

    Parameters
    ----------
    directory : a directory on the disk to write to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        free = shutil.disk_usage(directory).free
        self._least_free = free // 10
        self.n_bytes = free - self._least_free
        """Maximum number of bytes to write in total."""

    def has(self, n_bytes: int) -> bool:
        """Return whether ``n_bytes`` additional bytes may be written now."""
        return shutil.disk_usage(self._directory).free - n_bytes >= self._least_free


_MAX_PART_BYTES = 255
"""Maximum length of a file name on common file systems."""

_UNUSUAL = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")
"""Control characters, and the path separators and drive letters of Windows."""


def relative_name(name: str) -> str:
    """Return ``name`` if it is a normalised relative POSIX path.

    Raises
    ------
    ValueError : ``name`` is absolute, empty, not normalised, contains "..", names no file, or has a
        part that is too long.
    """
    path = PurePosixPath(name)
    try:
        longest = max((len(part.encode()) for part in path.parts), default=0)
    except UnicodeEncodeError:
        longest = 0
    if (
        not 0 < longest <= _MAX_PART_BYTES
        or path.is_absolute()
        or ".." in path.parts
        or path.as_posix() != name  # another name of the same file
        or _UNUSUAL.search(name)
    ):
        raise ValueError(f"{name[:80]!r} is not a path inside its directory")
    return name


def inside(directory: Path, name: str) -> Path:
    """Return the path of the file ``name`` below ``directory``; the file need not exist.

    Raises
    ------
    ValueError : see `relative_name`; or a symbolic link leads out of ``directory``.
    """
    path = directory / relative_name(name)
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"{name[:80]!r} is a link out of its directory")
    return path


_OF_THE_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
_OF_SQLITE = {3, 8, 10, 13, 14}  # PERM, READONLY, IOERR, FULL, CANTOPEN; a client has no sqlite3
_TEXT = re.compile(
    "|".join(map(re.escape, map(os.strerror, sorted(_OF_THE_SYSTEM - {errno.EPERM}))))
    + r"|\d+ requested and \d+ written"
)
"""Texts in errors that have no code: of safetensors and FAISS, and, in the last line, of NumPy."""

_ADVICE = (
    "Free disk space or grant permission, or name another directory; then run the same command "
    "again."
)


def disk_error(error: BaseException) -> str | None:
    """Return a sentence about a full disk or a missing permission, with advice.

    Returns
    -------
    None for an error with another cause.
    """
    where = ""
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno not in _OF_THE_SYSTEM:
            return None
        where, why = f"{error.filename}: " if error.filename else "", os.strerror(error.errno)
    elif hasattr(error, "sqlite_errorcode"):
        if error.sqlite_errorcode & 0xFF not in _OF_SQLITE:
            return None
        why = str(error)
    else:
        of_a_writer = isinstance(error, OSError | RuntimeError) or _is_of_safetensors(error)
        found = _TEXT.search(str(error)) if of_a_writer else None
        if found is None:
            return None
        why = found[0]
    return f"{where}{why}. {_ADVICE}"


def _is_of_safetensors(error: BaseException) -> bool:
    return type(error).__name__ == "SafetensorError"  # without an import of safetensors


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file to the error of a full disk, because the system names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            error.filename = error.filename or str(path)
        raise
