"""Compaction: merges a bundle and its live changes into a new bundle, while services run.

::

    with Compaction(root, manifest, live) as compaction:
        directory = compaction.prepare()     writes a bundle of the current gallery
        …                                    changes may follow
        compaction.switch()                  copies later changes, and sets CURRENT

A crash never damages the old bundle and its changes. The next compaction removes unfinished files.
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import Timeout
from numpy.typing import NDArray

from model_store.bundles.changes import changes_path
from model_store.bundles.directory import COMPACTION_LOCK, activate, require_current
from model_store.bundles.kept_queries import ItemFeatures
from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import ENCODER_FILES, copy_content, seal, with_digests
from model_store.bundles.retention import Hold, note, remove_left_under, remove_log
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.decision import Calibration, label_means
from model_store.decision.calibration import FILES, search_settings
from model_store.errors import GallerySuperseded, StorageBusy
from model_store.files import flush, lock_between_processes
from model_store.gallery import (
    FaissGallery,
    GallerySnapshot,
    IndexSettings,
    LiveGallery,
    write_faiss_parts,
)
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.index.plan import IndexKind
from model_store.gallery.live.log import HighWater
from model_store.gallery.live.rows import last_sequence
from model_store.sqlite import of_the_system

_N_FREE_BYTES = 2**20
"""Minimum free space in bytes. If a library cannot write, and the disk has less free space than
this minimum, the error is reported as a full disk."""

Calibrate = Callable[[FaissGallery, Path, Manifest], Manifest]
"""A function that calibrates a gallery, writes to the bundle's directory, and returns the
manifest."""


RENAMED_LABELS = "renamed_labels"
"""Name of a field in the ``gallery`` section of the manifest. If all items of a label got the same
new label, the field maps the old label to the new label. Stored calibration queries have the old
labels."""


class Compaction:
    """One compaction of a live gallery.

    A lock excludes other compactions of the same directory of bundles.

    Parameters
    ----------
    root : directory of bundles.
    manifest : manifest of the current bundle.
    live : live gallery of the current bundle.
    signing : how the new bundle is signed.
    calibrate : function that calibrates the new gallery; None keeps the old calibration.

    Raises
    ------
    StorageBusy : another process compacts the gallery.
    GallerySuperseded : another bundle is current already.
    WriteRefused : the new bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    WriteError : the directory cannot be written to.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        live: LiveGallery,
        signing: Signing = UNSIGNED,
        calibrate: Calibrate | None = None,
    ) -> None:
        self._root, self._manifest, self._live = root, manifest, live
        self._signing, self._calibrate = signing, calibrate
        self._key: Ed25519PrivateKey | None = None
        self._lock = lock_between_processes(root / COMPACTION_LOCK)
        self._prepared: Path | None = None
        self._hold: Hold | None = None
        self._until = 0

    def __enter__(self) -> Self:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise StorageBusy(
                "Another process is compacting the gallery. Wait until it has ended."
            ) from None
        except OSError as error:
            raise of_the_system(error) from error
        try:
            # Another process may have compacted the gallery before.
            require_current(self._root, self._manifest.id)
            self._key = self._signing.key_for(self._root)
            remove_left_under(self._root, COMPACTION_LOCK)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._hold is not None:
            self._hold.close()
        if self._prepared is not None:  # the prepared bundle has not become the current bundle
            shutil.rmtree(self._prepared, ignore_errors=True)
        self._lock.release()

    def prepare(self) -> Path:
        """Write a bundle with the current state of the gallery, beside the current bundle.

        Raises
        ------
        WriteError : the bundle cannot be written, for example on a full disk. Its files are
            removed.
        """
        snapshot = self._live.snapshot()
        try:
            _copy_rest(self._root / self._manifest.id, self._staging)
            manifest = _write(self._staging, self._manifest, snapshot, self._calibrate)
            note(self._root / COMPACTION_LOCK, manifest.id)
            self._prepared, self._hold = seal(self._staging, manifest, self._key)
        except OSError as error:
            remove_left_under(self._root, COMPACTION_LOCK)
            raise of_the_system(error) from error
        except (sqlite3.OperationalError, RuntimeError) as error:  # from SQLite, and from FAISS
            if shutil.disk_usage(self._root).free > _N_FREE_BYTES:
                raise
            remove_left_under(self._root, COMPACTION_LOCK)
            raise of_the_system(OSError(errno.ENOSPC, "No space left on device")) from error
        self._until = snapshot.version
        return self._prepared

    def switch(self) -> None:
        """Copy later changes to the prepared bundle, and make it the current bundle.

        Writers wait until `switch` returns. Changes after the snapshot of `prepare` are copied.
        Afterwards, changes to the old bundle are refused, because it is no longer current.

        Raises
        ------
        GallerySuperseded : another bundle is current already.
        WriteError : nothing was changed; the message has the reason.
        """
        if self._prepared is None:
            raise ValueError("no bundle is prepared; call `prepare` first")
        path = changes_path(self._root, self._prepared.name)
        partial = path.with_name(f".{path.name}.partial")
        with self._live.log.transaction() as turn:
            try:
                remove_log(partial)
                turn.copy_tail(partial, self._prepared.name, self._until)
                flush(partial)
                partial.rename(path)
                HighWater(path).make(last_sequence(turn.connection))
                flush(path.parent)
                # Another process may have published a bundle without a write transaction.
                activate(self._root, self._prepared.name, instead_of=self._manifest.id)
            except GallerySuperseded:
                remove_log(path)
                raise
            except OSError as error:
                remove_log(path)
                raise of_the_system(error) from error
            self._prepared = None
        note(self._root / COMPACTION_LOCK, "")

    def publish(self) -> Path:
        """Write the bundle, and make it the current bundle; see `prepare` and `switch`."""
        prepared = self.prepare()
        self.switch()
        return prepared

    @property
    def _staging(self) -> Path:
        return self._root / f".{self._manifest.id}.compacting"


def _write(
    staging: Path, manifest: Manifest, snapshot: GallerySnapshot, calibrate: Calibrate | None
) -> Manifest:
    """Write the gallery of a snapshot; return the new manifest."""
    renamed = snapshot.renamed_labels()
    earlier = manifest.gallery.get(RENAMED_LABELS, {})
    renamed |= {label: renamed.get(later, later) for label, later in earlier.items()}
    before = manifest.id  # `calibrate` returns another manifest, whose id was never published
    report = write_faiss_parts(
        staging,
        (snapshot.n_items, snapshot.dim),
        snapshot.parts(),
        snapshot.encoder_fingerprint,
        IndexSettings(
            kind=_next_kind(snapshot.index.kind),
            memory_budget_bytes=snapshot.index.memory_budget_bytes,
            min_recall=snapshot.index.min_recall,
            filter_fields=snapshot.filter_fields,
            preview_side=snapshot.preview_side,
        ),
        snapshot.n_changed,
    )
    gallery = FaissGallery(staging)
    for kind in FILES:
        kept = Calibration.load(staging, kind)
        if kept is not None:  # the label codes and the mean of each label may have changed
            classes = kept.known_classes(_codes_until_now(gallery, snapshot))
            replace(kept, means=label_means(gallery), label_classes=classes).save(staging, kind)
    known = ItemFeatures.load(staging)
    if known is not None:
        known.updated(snapshot).save(staging)
    if renamed:
        manifest = replace(manifest, gallery={**manifest.gallery, RENAMED_LABELS: renamed})
    if calibrate is not None:
        manifest = calibrate(gallery, staging, manifest)
    sections = {
        "n_items": gallery.n_items,
        "search": search_settings(gallery),
        "index": asdict(report),
        "n_changed": gallery.n_changed,
        "compacted_from": before,
        "compacted_at": datetime.now(UTC).isoformat(),  # makes the bundle's id unique
    }
    return with_digests(staging, replace(manifest, gallery={**manifest.gallery, **sections}))


def _codes_until_now(gallery: FaissGallery, snapshot: GallerySnapshot) -> NDArray[np.int32]:
    """For each label of the new ``gallery``, return the code of the label in the snapshot: (C,)."""
    code_of = {label: code for code, label in enumerate(snapshot.labels)}
    return np.array([code_of[label] for label in gallery.labels], dtype=np.int32)


_copy_rest = partial(copy_content, without=GALLERY_FILES, linked=ENCODER_FILES)
"""Copies the files that a compaction does not rewrite."""


def _next_kind(kind: IndexKind) -> IndexKind | Literal["auto"]:
    """Return ``kind``, but auto instead of flat: the gallery can be too large for a flat index."""
    return "auto" if kind == "flat" else kind
