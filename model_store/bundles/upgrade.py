"""Upgrades bundles of earlier releases to this release.

Bundles of schemas 1 to 7 do not store items and vectors in the current file format. The upgrade
writes the items and vectors in the current format. The upgrade leaves out the old calibration,
which lacks the data for guarantees. Live changes (logs of format 1 and 2) become part of the new
bundle.
"""

from __future__ import annotations

import heapq
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.bundles.changes import changes_path
from model_store.bundles.directory import current_id, locate_current
from model_store.bundles.manifest import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    SCHEMA_VERSION,
    Manifest,
    parse_manifest,
    read_manifest,
)
from model_store.bundles.publish import copy_content, publish
from model_store.bundles.retention import Hold
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.decision.calibration import FILES, search_settings
from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch, LogDamaged
from model_store.gallery import (
    ChangesFile,
    FaissGallery,
    IndexSettings,
    NewItem,
    Thumbnail,
    write_faiss_parts,
)
from model_store.gallery.files.fields import ITEMS_FILE
from model_store.gallery.files.gallery import GALLERY_FILES, Variances
from model_store.gallery.index.build import REPORT_FILE
from model_store.gallery.index.search import DIRECTIONS_FILE, INDEX_FILE
from model_store.gallery.live.log import SCHEMA_VERSION as LOG_VERSION
from model_store.gallery.opening import engine_of
from model_store.gallery.protocol import Part
from model_store.sqlite import connect, errors_in_words

_PART = 1024
KNOWN_SCHEMAS = range(1, SCHEMA_VERSION + 1)
"""Schemas that this release can read: the current schema, and schemas that it can upgrade."""

_LEFT_OUT = {EVALUATION_FILE, *(name for names in FILES.values() for name in names)}

T = TypeVar("T")

Row = tuple[NewItem, NDArray[np.float32], NDArray[np.float32]]
"""An item with the mean (D,) and the variance (D,) of its embedding."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The outcome of an upgrade.

    Attributes
    ----------
    before : id of the old bundle.
    after : id of the new bundle.
    schema : schema of the old bundle.
    n_items : number of items of the new gallery.
    n_changes : number of changed items in the old log.
    left_calibration : whether the old bundle had a calibration.
    """

    before: str
    after: str
    schema: int
    n_items: int
    n_changes: int
    left_calibration: bool


def old_schema(root: Path) -> int | None:
    """Return the schema of the current bundle of ``root`` if it must be upgraded; else None.

    Raises
    ------
    WriteRefused : ``root`` is a bundle.
    BundleNotFound : there is no current bundle.
    BundleMismatch : the bundle is from a later release.
    BundleTampered : the manifest is damaged.
    """
    return old_schema_of(locate_current(root))


def old_schema_of(directory: Path) -> int | None:
    """Return the schema of the bundle in ``directory`` if it must be upgraded, else None."""
    content = (directory / MANIFEST_FILE).read_bytes()
    manifest = parse_manifest(content, directory.name, KNOWN_SCHEMAS)
    return None if manifest.schema_version == SCHEMA_VERSION else manifest.schema_version


def upgrade(root: Path, signing: Signing = UNSIGNED) -> Upgraded | None:
    """Rewrite the current bundle of ``root``, with its live changes, in the current schema.

    The new bundle becomes the current bundle, and the old bundle becomes the previous bundle.
    Writers of a running service wait during the upgrade. After the upgrade, the service refuses the
    changes of the waiting writers. So no accepted change is lost.

    Parameters
    ----------
    signing : how the new bundle is signed.

    Returns
    -------
    The outcome; None if the bundle has the current schema already.

    Raises
    ------
    BundleMismatch : the bundle is from a later release, or its gallery is in a database.
    BundleTampered, LogDamaged : the bundle or its changes are damaged.
    WriteRefused : the new bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    """
    schema = old_schema(root)
    if schema is None:
        return None
    signing.key_for(root)  # fails before the work
    directory = root / str(current_id(root))
    engine = engine_of(directory)
    if engine is not None:
        raise BundleMismatch(
            f"The bundle {directory.name} has schema {schema} and its gallery is in {engine.name}: "
            "this gallery cannot be upgraded. Index the images again with this release."
        )
    staging = root / f".{directory.name}.upgrading"
    shutil.rmtree(staging, ignore_errors=True)
    with Hold(directory):
        manifest = read_manifest(directory, KNOWN_SCHEMAS)
        try:
            fingerprint = str(manifest.encoder["fingerprint"])
            with _changes(changes_path(root, directory.name), fingerprint) as changed:
                _copy(directory, staging)
                new = _write_gallery(directory, staging, manifest, changed)
                after = publish(staging, new, root, keep=False, signing=signing)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Upgraded(
        before=directory.name,
        after=after.name,
        schema=schema,
        n_items=int(new.gallery["n_items"]),
        n_changes=len(changed),
        left_calibration=manifest.calibration is not None,
    )


_copy = partial(copy_content, without={*GALLERY_FILES, *_LEFT_OUT})
"""Copies the files that have the same format in all schemas."""


def _write_gallery(
    directory: Path, staging: Path, manifest: Manifest, changed: dict[str, Row | None]
) -> Manifest:
    """Write the gallery's files, and return the manifest without digests."""
    stored = {}
    if (directory / REPORT_FILE).exists():
        report_fields = json.loads((directory / REPORT_FILE).read_text(encoding="utf-8"))
        known = ("kind", "min_recall", "memory_budget_bytes")
        stored = {name: report_fields[name] for name in known if name in report_fields}
    if stored.get("kind") == "flat":
        stored["kind"] = "auto"  # may be too large now, with live changes
    with closing(_Base(directory)) as base:
        n_items = base.n_items - len(base.ids() & changed.keys())
        n_items += sum(row is not None for row in changed.values())
        added = (row for _, row in sorted(changed.items()) if row is not None)
        kept = (row for row in base.rows() if row[0].id not in changed)
        merged = heapq.merge(kept, added, key=lambda row: row[0].id)
        report = write_faiss_parts(
            staging,
            (n_items, base.dim),
            map(_part, _batched(merged)),
            str(manifest.encoder["fingerprint"]),
            IndexSettings(**stored),
        )
    gallery = FaissGallery(staging)
    sections: dict[str, Any] = {
        "n_items": gallery.n_items,
        "search": search_settings(gallery),
        "index": asdict(report),
        "n_changed": gallery.n_changed,
        "upgraded_from": manifest.id,
    }
    return replace(
        manifest,
        gallery={**manifest.gallery, **sections},
        calibration=None,
        metrics=None,
        files={},
        schema_version=SCHEMA_VERSION,
    )


def _batched(rows: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(rows)
    while batch := tuple(islice(left, _PART)):
        yield batch


def _part(rows: tuple[Row, ...]) -> Part:
    items, means, variances = zip(*rows, strict=True)
    no_features = np.empty((len(rows), 0), dtype=np.float32)
    return Embeddings(np.stack(means), np.stack(variances), no_features), list(items)


class _Base:
    """Reads a gallery of schema 1 to 7, row by row, in the order of the ids."""

    def __init__(self, directory: Path) -> None:
        if (directory / DIRECTIONS_FILE).exists():
            self._directions = np.load(directory / DIRECTIONS_FILE, mmap_mode="r")
        else:
            index = faiss.read_index(str(directory / INDEX_FILE))
            self._directions = index.reconstruct_n(0, index.ntotal)
        self.n_items, self.dim = self._directions.shape
        self._variances = Variances(directory)
        uri = f"{(directory / ITEMS_FILE).resolve().as_uri()}?mode=ro&immutable=1"
        self._items = sqlite3.connect(uri, uri=True)

    def ids(self) -> set[str]:
        return {item_id for (item_id,) in self._items.execute("SELECT id FROM items")}

    def rows(self) -> Iterator[Row]:
        query = (
            "SELECT row, id, label, metadata, data, media_type FROM items "
            "JOIN thumbnails USING (row) ORDER BY row"
        )
        for rows in _batched(self._items.execute(query)):
            places = np.array([row for row, *_ in rows], dtype=np.int64)
            norms = self._variances.norms(places)[:, None]
            means = self._directions[places] * norms
            variances = self._variances.relative(places) * norms**2
            for (_, item_id, label, metadata, data, media_type), mean, variance in zip(
                rows, means, variances, strict=True
            ):
                item = NewItem(item_id, label, json.loads(metadata), Thumbnail(data, media_type))
                yield item, mean, variance

    def close(self) -> None:
        self._items.close()


@contextmanager
def _changes(path: Path, fingerprint: str) -> Iterator[dict[str, Row | None]]:
    """Yield a mapping: id of a changed item → its last version, None for a deleted item.

    Writers of the log wait until the context ends.
    """
    if not path.exists():
        yield {}
        return
    with closing(connect(path, "rw")) as connection:
        with errors_in_words(path):
            connection.execute("BEGIN IMMEDIATE")
            changed = _last_writes(connection, path, fingerprint)
        yield changed
        connection.execute("ROLLBACK")


def _last_writes(
    connection: sqlite3.Connection, path: Path, fingerprint: str
) -> dict[str, Row | None]:
    _verify_log(connection, path, fingerprint)
    query = (
        "SELECT id, label, metadata, thumbnail, media_type, mean, variance FROM changes "
        "ORDER BY sequence"
    )
    changed: dict[str, Row | None] = {}
    for item_id, label, metadata, data, media_type, *vector in connection.execute(query):
        row = None
        if vector[0] is not None:
            mean, variance = (np.frombuffer(one, "<f4").astype(np.float32) for one in vector)
            item = NewItem(item_id, label, json.loads(metadata), Thumbnail(data, media_type))
            row = item, mean, variance
        changed[item_id] = row
    return changed


def _verify_log(connection: sqlite3.Connection, path: Path, fingerprint: str) -> None:
    """Check that a log is not damaged, and that it belongs to the bundle in its file name."""
    found = dict(connection.execute("SELECT key, value FROM meta"))
    wanted = {"bundle": path.stem, "encoder": fingerprint}
    if found.get("schema") not in {"1", LOG_VERSION} or not wanted.items() <= found.items():
        raise BundleMismatch(
            f"The changes in {path} have format {found.get('schema')} and belong to the bundle "
            f"{found.get('bundle')}; wanted format 1 or {LOG_VERSION} of {path.stem}. Restore them "
            "from a backup."
        )
    if found["schema"] == LOG_VERSION:
        log = ChangesFile(path, path.stem, fingerprint)
        try:
            log.verify()
        finally:
            log.close()
    elif connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        raise LogDamaged(f"The changes in {path} are damaged. Restore them from a backup.")
