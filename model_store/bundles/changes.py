"""The logs that store the changes of bundles. Only the log of the current bundle accepts changes.

::

    <root>/
      CURRENT
      <bundle id>/            never changes
      changes/
        <bundle id>.sqlite    changes after the build, see `model_store.gallery.live.log`

Every bundle has its own log. A compaction makes a new bundle from an old one and its log. The old
bundle and its log are kept, so that a rollback restores the earlier gallery. A gallery in a
database has a log for its collection, which several bundles can share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from model_store.bundles.directory import bundle_directory, require_current
from model_store.bundles.manifest import read_manifest
from model_store.errors import WriteRefused
from model_store.gallery import (
    ChangesFile,
    FaissGallery,
    Gallery,
    LiveGallery,
    Writable,
)
from model_store.gallery.live import rows
from model_store.gallery.opening import engine_of, open_changes
from model_store.sqlite import connect, errors_in_words

CHANGES_FOLDER = "changes"


def changes_path(root: Path, bundle_id: str) -> Path:
    """Return the path of the log for a bundle's gallery; the file need not exist.

    Raises
    ------
    BundleNotFound : ``bundle_id`` is not an id of a bundle.
    """
    return root / CHANGES_FOLDER / f"{bundle_directory(root, bundle_id).name}.sqlite"


def open_live(root: Path, directory: Path, base: FaissGallery | None = None) -> LiveGallery:
    """Open the gallery of the bundle ``directory`` with its log of changes in ``root``.

    Raises
    ------
    BundleMismatch, StorageFailed : the log cannot be read, or belongs to another bundle.
    """
    base = base or FaissGallery(directory)
    path, admit = changes_path(root, directory.name), _admission(root, directory)
    log = ChangesFile(path, directory.name, base.encoder_fingerprint, admit)
    return LiveGallery(base, log)


def n_changes_without(root: Path, directory: Path, other: Path) -> int:
    """Return the number of changes of the bundle ``directory`` that the bundle ``other`` lacks.

    ``other`` has the changes in its own log, and those that were in its gallery from the start, if
    it was compacted from ``directory``, also by way of bundles between the two. Changes that were
    in the gallery of ``directory`` from the start have lower numbers than its log; ``other`` lacks
    those after its own last change. The number is 0 for a gallery in a database, because its
    changes belong to no bundle. The bundle ``directory`` may be damaged.
    """
    path, of_other = (changes_path(root, one.name) for one in (directory, other))
    if engine_of(directory) is not None or not path.exists():
        return 0
    known: set[tuple[int, bytes]] = set()
    start, last = -1, 0
    if of_other.exists():
        with errors_in_words(of_other, "read"), closing(connect(of_other, "ro")) as log:
            known.update(rows.identities(log))
            last = rows.last_sequence(log)
        start = _included(root, directory, other)
    with errors_in_words(path, "read"), closing(connect(path, "ro")) as log:
        in_log = sum(one[0] > start and one not in known for one in rows.identities(log))
        return in_log + max(rows.first_sequence(log) - last, 0)


def _included(root: Path, directory: Path, other: Path) -> int:
    """Return the last change of ``directory`` in the gallery of ``other`` from the start, else −1.

    ``other`` was compacted from ``directory``, or from a bundle that was compacted from it. −1 also
    if a bundle between the two is gone.
    """
    while (before := read_manifest(other).gallery.get("compacted_from")) is not None:
        if before == directory.name:
            path = changes_path(root, other.name)
            with errors_in_words(path, "read"), closing(connect(path, "ro")) as log:
                return rows.first_sequence(log)
        other = bundle_directory(root, str(before))
        if not other.exists():
            break
    return -1


def open_writable(root: Path, directory: Path, gallery: Gallery) -> Writable:
    """Open the ``gallery`` of the bundle ``directory`` for changes; it is in files or a database.

    Raises
    ------
    BundleMismatch, StorageFailed : the log cannot be read, or belongs to another bundle.
    GalleryUnavailable : the gallery is in a database, which does not answer.
    """
    changes = open_changes(gallery, root / CHANGES_FOLDER, _admission(root, directory))
    if changes is not None:
        return changes
    return open_live(root, directory, gallery if isinstance(gallery, FaissGallery) else None)


def require_files(live: Writable, name: str) -> LiveGallery:
    """Return the gallery ``name`` with its log of changes, for a compaction.

    Raises
    ------
    WriteRefused : the gallery is in a database.
    """
    if not isinstance(live, LiveGallery):
        raise WriteRefused(
            f"The gallery {name!r} is in a database, which stores each change directly: there is "
            "nothing to compact. To calibrate it again, build it again: `vouch-build index "
            "--calibrate` or `vouch-build all`."
        )
    return live


def _admission(root: Path, directory: Path) -> Callable[[], None]:
    return partial(require_current, root, directory.name)
