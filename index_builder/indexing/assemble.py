"""Builds the gallery from shards, and the manifest of its bundle; publishes an empty gallery."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.configuration.environment import database_access, signing
from index_builder.indexing.catalogue import note_groups
from index_builder.indexing.workdir import Position, ShardStore, Work
from index_builder.output import writing
from index_builder.progress import track_parts
from index_builder.vectors.encoder_file import find_encoder, text_files
from model_store.bundles.bundle import open_parts
from model_store.bundles.directory import bundle_ids
from model_store.bundles.manifest import ENCODER_FILE, EVALUATION_FILE, Manifest, SampleQuery
from model_store.bundles.publish import no_features, publish
from model_store.decision import Calibration, outcome_of
from model_store.decision.calibration import search_settings
from model_store.encoder.contract import Embeddings
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import DatasetError, OutputError
from model_store.files import work_folder
from model_store.gallery import IndexSettings, NewItem, Thumbnail, write_faiss_parts
from model_store.gallery.opening import index_description, write_gallery
from model_store.gallery.protocol import AT_ONCE, PREVIEWED_AT_ONCE, GalleryContent, Part
from model_store.installation import DISTRIBUTION, installed_versions
from model_store.queries import answer_canary, embedding_canary
from model_store.records import GalleryOutcome
from model_store.retriever import Retriever

Check = Callable[[GalleryOutcome], object]
"""Function that gets the outcome of a build before the bundle is published. The function raises an
error to prevent the publication."""

_LIBRARIES = (DISTRIBUTION, "torch", "torchvision", "onnx", "numpy", "scikit-learn", "faiss-cpu")


def accept_any(_: GalleryOutcome) -> None:
    """Accept every outcome."""


def describe(
    retriever: Retriever,
    index: Mapping[str, Any],
    name: str,
    description: str,
    metrics: Mapping[str, Any] | None = None,
    samples: tuple[SampleQuery, ...] = (),
) -> Manifest:
    """Return a manifest that describes the parts of ``retriever``, but lists no files."""
    encoder, calibration = retriever.encoder, retriever.calibration
    return Manifest(
        gallery={
            "name": name,
            "description": description,
            "n_items": retriever.gallery.n_items,
            "search": search_settings(retriever.gallery),
            "index": dict(index),
        },
        encoder={
            "fingerprint": encoder.fingerprint,
            **encoder.metadata.fields(),
            "dim": encoder.dim,
            "n_features": encoder.n_features,
            **text_described(retriever),
        },
        calibration=None if calibration is None else summarise(calibration),
        metrics=metrics,
        samples=samples,
        library_versions=installed_versions(_LIBRARIES),
    )


def text_described(retriever: Retriever) -> dict[str, Any]:
    """Return ``{"text": description}`` of the text encoder; empty if there is none."""
    text, calibration = retriever.text, retriever.for_kind("text").calibration
    if text is None:
        return {}
    return {
        "text": {
            "fingerprint": text.fingerprint,
            "posterior": text.metadata.posterior,
            "context_length": text.context_length,
            "calibration": None if calibration is None else summarise(calibration),
        }
    }


def calibrated(
    manifest: Manifest, fitted: Calibration, staging: Path, check: Check = accept_any
) -> Manifest:
    """Save a new calibration of images to ``staging``, and return the manifest that describes it.

    The evaluation of the previous calibration is removed.

    Parameters
    ----------
    check : see `Check`.
    """
    check(outcome_of(fitted))
    fitted.save(staging)
    (staging / EVALUATION_FILE).unlink(missing_ok=True)
    return replace(manifest, calibration=summarise(fitted), metrics=None)


def summarise(calibration: Calibration) -> dict[str, Any]:
    """Return the summary of a calibration for the manifest."""
    return {
        "n_queries": calibration.n_matched,
        "alpha": calibration.alpha,
        "max_error": calibration.max_error,
        "max_false_match_rate": calibration.max_false_match_rate,
        "delta": calibration.delta,
        "expected_absent": calibration.expected_absent,
        "order": calibration.order,
        "report": dict(calibration.report),
    }


_SCHEMA = """
CREATE TABLE embedded (
  id TEXT PRIMARY KEY, hash TEXT NOT NULL, media_type TEXT NOT NULL,
  shard INTEGER NOT NULL, mean INTEGER NOT NULL, variance INTEGER NOT NULL,
  thumbnail INTEGER NOT NULL, thumbnail_end INTEGER NOT NULL,
  preview INTEGER NOT NULL, preview_end INTEGER NOT NULL
) WITHOUT ROWID;
"""

_BY_ID = """
SELECT id, label, metadata, media_type, shard, mean, variance,
  thumbnail, thumbnail_end, preview, preview_end
FROM entries JOIN embedded USING (id) ORDER BY id
"""


def assemble(
    work: Work,
    n_blocks: int,
    dim: int,
    fingerprint: str,
    settings: IndexSettings,
    database_uri: str | None = None,
    *,
    grouped: bool = False,
    owner: str = "",
) -> int:
    """Write the gallery of all shards into ``work.bundle``; return the number of items.

    Parameters
    ----------
    dim : D, the dimension of an embedding.
    fingerprint : the encoder's fingerprint.
    settings : the settings of the index.
    database_uri : address of the database that stores the gallery; None for files.
    grouped : whether to find the groups of images, see `index_builder.indexing.catalogue`.
    owner : see `GalleryContent`.

    Raises
    ------
    DatasetError : no image could be embedded, or an item is too large for the database.
    GalleryUnavailable : the database does not answer.
    """
    shutil.rmtree(work.bundle, ignore_errors=True)
    work.bundle.mkdir()
    with closing(sqlite3.connect(work.catalogue)) as connection:
        n_items = _note_embedded(connection, work.store, n_blocks, grouped=grouped)
        if n_items == 0:
            raise DatasetError(
                f"None of the images could be embedded. {work.quarantine} lists the reasons."
            )
        shape = n_items, dim
        at_once = AT_ONCE if settings.preview_side is None else PREVIEWED_AT_ONCE
        parts = partial(_parts, connection, work.store, shape, at_once)
        try:
            new = GalleryContent(work.bundle, shape, parts, fingerprint, settings, owner)
            write_gallery(new, database_uri, database_access)
        except RuntimeError as error:  # FAISS raises this error if the disk is full
            raise OSError(str(error)) from error
    return n_items


def duplicates(catalogue: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each hash that several items have, with the ids of these items.

    Items with equal content have equal hashes. Call this function after `assemble`.
    """
    with closing(sqlite3.connect(catalogue)) as connection:
        rows = connection.execute(
            "SELECT hash, json_group_array(id) FROM (SELECT hash, id FROM embedded ORDER BY id)"
            " GROUP BY hash HAVING count(*) > 1 ORDER BY hash"
        )
        for content, ids in rows:
            yield content, json.loads(ids)


def _note_embedded(
    connection: sqlite3.Connection, store: ShardStore, n_blocks: int, *, grouped: bool
) -> int:
    """Verify shards, store the position of each image, and return the number of gallery items."""
    connection.executescript(f"PRAGMA journal_mode = OFF; DROP TABLE IF EXISTS embedded; {_SCHEMA}")
    with connection:
        for shard in store.all(n_blocks):
            connection.executemany(
                "INSERT INTO embedded VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (name, content, thumbnail.media_type, *position)
                    for name, content, thumbnail, position in zip(
                        shard.ids, shard.hashes, shard.thumbnails, shard.positions, strict=True
                    )
                ],
            )
        if grouped:
            note_groups(connection, store, n_blocks)
    (n_items,) = connection.execute("SELECT count(*) FROM embedded").fetchone()
    return int(n_items)


def _parts(
    connection: sqlite3.Connection, store: ShardStore, shape: tuple[int, int], at_once: int
) -> Iterator[Part]:
    """Yield the embeddings and items of the gallery in parts, sorted by id."""
    n_items, dim = shape
    found = connection.execute(_BY_ID)
    for _ in track_parts(n_items, at_once, "assembling"):
        rows = found.fetchmany(at_once)
        mean, variance, pictures = store.gather([Position(*row[4:]) for row in rows], dim)
        items = [
            NewItem(name, label, json.loads(metadata), Thumbnail(picture, media_type), preview)
            for (name, label, metadata, media_type, *_), (picture, preview) in zip(
                rows, pictures, strict=True
            )
        ]
        yield Embeddings(mean, variance, np.empty((len(items), 0), np.float32)), items


def new_gallery(bundles: Path, name: str, encoder: Path, description: str = "") -> Path:
    """Publish an empty gallery; return its bundle.

    Parameters
    ----------
    bundles : directory of bundles to create; it must not have bundles yet.
    name : name of the gallery.
    encoder : the encoder, see `find_encoder`. Its file is copied.

    Raises
    ------
    OutputError : the directory already has bundles, or cannot be written.
    BundleNotFound : there is no encoder.
    EncoderError : the encoder cannot be used, or cannot embed a test image.
    WriteRefused : the bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    """
    if bundle_ids(bundles):
        raise OutputError(
            f"{bundles} already has bundles. Name another gallery, or another directory with "
            "--bundles."
        )
    signing().key_for(bundles)  # fails before the encoder is opened
    file = find_encoder(encoder)
    opened = OnnxEncoder(file, "cpu", threads=1)
    with writing(f"the gallery in {bundles}"):
        bundles.mkdir(parents=True, exist_ok=True)
        with work_folder(bundles, ".new-") as place:
            staging = place / "bundle"
            staging.mkdir()
            shutil.copyfile(file, staging / ENCODER_FILE)
            for path in text_files(file, opened.fingerprint):
                shutil.copyfile(path, staging / path.name)
            write_faiss_parts(staging, (0, opened.dim), (), opened.fingerprint)
            no_features(opened.n_features).save(staging)
            index = index_description(staging)
            retriever = open_parts(staging, "cpu", threads=1)
            with embedding_canary(name):
                answer_canary(retriever)
            manifest = describe(retriever, index, name, description)
            return publish(staging, manifest, bundles, keep=False, signing=signing())
