"""A directory of bundles, and its files of the operator.

The files `CURRENT` and `PREVIOUS` contain the ids of two bundles. The files `OPERATOR` and `SHADOW`
contain the operator's decisions on a gallery.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from model_store.bundles.manifest import ID_LENGTH, MANIFEST_FILE
from model_store.errors import (
    BundleNotFound,
    ConfigError,
    GallerySuperseded,
    PointerUnreadable,
    WriteRefused,
)
from model_store.files import FileMark, file_mark, lock_between_processes, replacing

ACTIVATION_LOCK = ".activating"
PUBLISH_LOCK = ".publishing"
"""Lock file of `publish`. The file contains the id of a complete bundle that is not yet current."""

COMPACTION_LOCK = ".compacting"
"""Lock file of a compaction. The file contains the id of the prepared bundle."""

RESTORING = ".restoring-"
"""Prefix of the temporary directory that a restore creates in an existing directory of bundles."""

CURRENT_FILE = "CURRENT"
PREVIOUS_FILE = "PREVIOUS"

GALLERY_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Pattern of gallery names. A name is valid as a part of a URL and as a file name."""

KEPT_BUNDLES = 3
"""Default number of bundles to keep, including the current bundle."""

_MOST_POINTER_BYTES = 1024
"""Maximum number of bytes to read from a pointer file. The file contains an id, and possibly white
space that an editor has added."""

_BUNDLE_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


def name_problem(name: str) -> str | None:
    """Return why a gallery cannot have this name; None if it can."""
    if re.fullmatch(GALLERY_NAME, name):
        return None
    return (
        f"A gallery cannot be called {name[:80]!r}. Wanted: 1 to 64 lower-case letters, digits, "
        "dots, hyphens and underscores; the first must be a letter or a digit."
    )


def is_bundle_id(name: object) -> bool:
    """Return whether ``name`` has the form of a bundle id."""
    return isinstance(name, str) and _BUNDLE_ID.fullmatch(name) is not None


def bundle_directory(root: Path, bundle_id: str) -> Path:
    """Return the path of a bundle in ``root``; the bundle need not exist.

    Only this function may convert an id to a path. Ids come from requests, archives and pointer
    files, and an unchecked id could lead to any path.

    Raises
    ------
    BundleNotFound : ``bundle_id`` does not have the form of an id.
    """
    return root / _checked(bundle_id)


def _checked(bundle_id: str) -> str:
    """Return ``bundle_id``, or raise `BundleNotFound` if it does not have the form of an id."""
    if not is_bundle_id(bundle_id):
        raise BundleNotFound(
            f"There is no bundle {str(bundle_id)[:80]!r}: the id of a bundle has {ID_LENGTH} "
            "hexadecimal digits. `vouch-build bundles` lists the existing bundles."
        )
    return bundle_id


def activate(root: Path, bundle_id: str, instead_of: str | None = None) -> None:
    """Set ``root/CURRENT`` to a bundle atomically, and ``root/PREVIOUS`` to the old current bundle.

    A lock excludes other processes. Services that serve ``root`` switch to the new bundle
    automatically.

    Parameters
    ----------
    instead_of : id of the bundle that must be current before the change; None allows any bundle.

    Raises
    ------
    BundleNotFound : ``bundle_id`` does not have the form of an id.
    GallerySuperseded : ``instead_of`` is not the current bundle; nothing was changed.
    """
    bundle_id = _checked(bundle_id)
    with lock_between_processes(root / ACTIVATION_LOCK):
        if instead_of is not None:
            require_current(root, instead_of)
        try:
            before = current_id(root)
        except PointerUnreadable:  # the file is written again below
            before = None
        if before == bundle_id:
            return
        if before is not None:
            _write_pointer(root / PREVIOUS_FILE, before)
        _write_pointer(root / CURRENT_FILE, bundle_id)


def require_current(root: Path, bundle_id: str) -> None:
    """Raise `GallerySuperseded` if the bundle is not the current bundle.

    A writer calls this function inside a write transaction of the log. A compaction also holds a
    write transaction of this log while it sets `CURRENT`. So no writer adds a change to a log that
    is no longer in use.

    Raises
    ------
    GallerySuperseded
    """
    named = current_id(root)
    if named != bundle_id:
        raise GallerySuperseded(
            f"The bundle {bundle_id} accepts no more changes: CURRENT names {named}. Nothing was "
            "changed; send the request again when the service has opened the new bundle."
        )


def current_id(root: Path) -> str | None:
    """Return the id in ``root/CURRENT``; None if there is no such file.

    Raises
    ------
    PointerUnreadable : the file cannot be read, or does not contain a bundle id.
    """
    return _read_pointer(root / CURRENT_FILE)


def previous_id(root: Path) -> str | None:
    """Return the id in ``root/PREVIOUS``; None if there is no such file.

    Raises
    ------
    PointerUnreadable : see `current_id`.
    """
    return _read_pointer(root / PREVIOUS_FILE)


def bundle_ids(root: Path) -> list[str]:
    """Return the ids of the bundles in ``root``, oldest first."""
    at: dict[str, float] = {}
    for manifest in root.glob(f"*/{MANIFEST_FILE}"):
        directory = manifest.parent
        if is_bundle_id(directory.name):
            with suppress(FileNotFoundError):  # another process may remove it
                at[directory.name] = published_at(directory)
    return sorted(at, key=at.__getitem__)


def published_at(directory: Path) -> float:
    """Return the time when a bundle was published, in seconds since 1970.

    A bundle contains no dates: this is the modification time of its manifest, the last file that a
    publisher writes. A signature can be written later. In a copied bundle, it may be the time of
    the copy.

    Raises
    ------
    FileNotFoundError : there is no such bundle.
    """
    return (directory / MANIFEST_FILE).stat().st_mtime


def galleries_below(directory: Path) -> list[Path]:
    """Return the directories of bundles at and below ``directory``, at most two levels deep.

    Hidden directories are left out: a creation, a restore or a removal is unfinished there.
    """
    ends = ("", "[!.]*/", "[!.]*/[!.]*/")
    found = (path for end in ends for path in directory.glob(end + CURRENT_FILE))
    return sorted(path.parent for path in found)


def created_below(directory: Path) -> list[Path]:
    """Return the directories of the created galleries in the directory of bundles ``directory``."""
    return [root for root in galleries_below(directory) if root != directory]


def locate(path: Path) -> Path:
    """Return ``path`` if it is a bundle; else return the current bundle in the directory ``path``.

    Raises
    ------
    BundleNotFound : neither exists.
    PointerUnreadable : see `current_id`.
    """
    if (path / MANIFEST_FILE).is_file():
        return path
    named = current_id(path)
    if named is not None:
        directory = bundle_directory(path, named)
        if (directory / MANIFEST_FILE).is_file():
            return directory
        raise BundleNotFound(f"{path / CURRENT_FILE} names {named!r}, but there is no such bundle.")
    raise BundleNotFound(
        f"No bundle at {path}: wanted a directory with {MANIFEST_FILE}, or one whose "
        f"{CURRENT_FILE} names a bundle. Build one with `vouch-build all`."
    )


def locate_current(root: Path) -> Path:
    """Return the current bundle in the directory ``root``, which must not be a bundle.

    Raises
    ------
    WriteRefused : ``root`` is a bundle.
    BundleNotFound, PointerUnreadable : see `locate`.
    """
    refuse_bundle(root)
    return locate(root)


def refuse_bundle(root: Path) -> None:
    """Raise `WriteRefused` if ``root`` is a bundle instead of a directory of bundles."""
    if (root / MANIFEST_FILE).is_file():
        raise WriteRefused(
            f"{root} is a single bundle, which never changes. Name the directory of bundles."
        )


def _read_pointer(pointer: Path) -> str | None:
    try:
        with pointer.open("rb") as file:
            content = file.read(_MOST_POINTER_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PointerUnreadable(
            f"{pointer.name} cannot be read ({error.strerror}). Check the directory of bundles."
        ) from error
    named = content.decode("ascii", errors="replace").strip()
    if not is_bundle_id(named):
        raise PointerUnreadable(
            f"{pointer.name} names no bundle: wanted the {ID_LENGTH} hexadecimal digits of an id, "
            f"found {len(content)} bytes of text. List the bundles with `vouch-build doctor`, "
            "and write the file again with `vouch-build activate`."
        )
    return named


def _write_pointer(pointer: Path, bundle_id: str) -> None:
    with replacing(pointer) as staged:
        staged.write_text(bundle_id + "\n", encoding="ascii")


OPERATOR_FILE = "OPERATOR"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The settings of a gallery's operator.

    Attributes
    ----------
    absent_share : share of absent queries (queries without a match in the gallery), in (0, 1). It
        replaces the configured share; None keeps the configured share.
    adopted_at : time when ``absent_share`` was set, ISO 8601.
    acknowledged_at : time when the operator last acknowledged drift, in seconds since 1970; 0 for
        never.
    """

    absent_share: float | None = None
    adopted_at: str | None = None
    acknowledged_at: float = 0.0

    def with_share(self, share: float | None) -> OperatorSettings:
        """Return the settings with the given ``share``; None restores the configured share.

        Raises
        ------
        ConfigError : the share is not between 0 and 1.
        """
        if share is None:
            return replace(self, absent_share=None, adopted_at=None)
        if not 0 < share < 1:
            raise ConfigError(f"A share of absent queries is above 0 and below 1, not {share:g}.")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, absent_share=share, adopted_at=now)

    def acknowledged(self) -> OperatorSettings:
        """Return the settings with the current time in ``acknowledged_at``."""
        return replace(self, acknowledged_at=time.time())

    def to_text(self) -> str:
        """Return the content of the file ``OPERATOR``."""
        return json.dumps(asdict(self)) + "\n"


def read_operator(root: Path) -> OperatorSettings:
    """Read ``root/OPERATOR``; return the defaults if there is no such file.

    Raises
    ------
    PointerUnreadable : the file cannot be read, or its content is invalid.
    """
    try:
        said = json.loads((root / OPERATOR_FILE).read_bytes())
        share, at = said["absent_share"], said["adopted_at"]
        settings = OperatorSettings(
            None if share is None else float(share),
            None if at is None else str(at),
            float(said["acknowledged_at"]),
        )
        if share is None or 0 < settings.absent_share < 1:  # type: ignore[operator] # a number
            return settings
    except FileNotFoundError:
        return OperatorSettings()
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    raise PointerUnreadable(
        f"{OPERATOR_FILE} cannot be read, or its share of absent queries is invalid. Remove the "
        "file from the directory of bundles, and adopt the share again."
    )


def operator_mark(root: Path) -> FileMark | None:
    """Return a mark that changes when ``root/OPERATOR`` changes; None if there is no such file."""
    return file_mark(f"{root}/{OPERATOR_FILE}")


def change_operator(
    root: Path, change: Callable[[OperatorSettings], OperatorSettings]
) -> OperatorSettings:
    """Change ``root/OPERATOR`` atomically, and return the new settings.

    Raises
    ------
    WriteRefused : ``root`` is a bundle. An additional file would make the bundle invalid.
    OSError : the directory cannot be written to.
    """
    refuse_bundle(root)
    with lock_between_processes(root / ACTIVATION_LOCK):
        try:
            settings = read_operator(root)
        except PointerUnreadable:
            settings = OperatorSettings()  # the file is replaced
        settings = change(settings)
        with replacing(root / OPERATOR_FILE) as staged:
            staged.write_text(settings.to_text(), encoding="ascii")
    return settings


SHADOW_FILE = "SHADOW"


@dataclass(frozen=True, slots=True)
class ShadowTerms:
    """The id of the tested bundle, and the share of queries that are also sent to it.

    Attributes
    ----------
    share : share of queries that also go to the tested bundle, above 0 and at most 1.
    """

    bundle_id: str
    share: float


def read_shadow(root: Path) -> ShadowTerms | None:
    """Read ``root/SHADOW``; return None if there is no such file.

    Raises
    ------
    PointerUnreadable : the file cannot be read, or its content is invalid.
    """
    try:
        said = json.loads((root / SHADOW_FILE).read_bytes())
        terms = ShadowTerms(said["bundle_id"], float(said["share"]))
        if is_bundle_id(terms.bundle_id) and 0 < terms.share <= 1:
            return terms
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise PointerUnreadable(
        f"{SHADOW_FILE} cannot be read, or has no bundle id and share. Remove it from the "
        "directory of bundles; `PUT /v1/galleries/{gallery}/shadow` writes it again."
    )


def write_shadow(root: Path, terms: ShadowTerms | None) -> None:
    """Write ``root/SHADOW`` atomically; None removes the file.

    A lock excludes other processes, which would write to the same temporary file.

    Raises
    ------
    OSError : the directory cannot be written to.
    """
    with lock_between_processes(root / ACTIVATION_LOCK):
        if terms is None:
            (root / SHADOW_FILE).unlink(missing_ok=True)
            return
        with replacing(root / SHADOW_FILE) as staged:
            staged.write_text(json.dumps(asdict(terms)) + "\n", encoding="ascii")
