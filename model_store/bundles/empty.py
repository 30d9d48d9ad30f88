"""Writes a bundle with the encoder of another bundle and a new, usually empty, gallery."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from model_store.bundles.kept_queries import ItemFeatures
from model_store.bundles.manifest import ENCODER_FILE, Manifest
from model_store.decision.outliers import averaging
from model_store.decision.staleness import search_settings
from model_store.encoder.text import TEXT_ENCODER_FILE, TOKENIZER_FILE
from model_store.files import PARTIAL, flush
from model_store.gallery import FaissGallery, write_faiss_parts
from model_store.gallery.protocol import Part
from model_store.table import HalfRows

ENCODER_FILES = (ENCODER_FILE, TEXT_ENCODER_FILE, TOKENIZER_FILE)
"""Files that are identical in all bundles with the same encoder."""

Items = tuple[int, Iterable[Part]]
"""The number of items, and an iterable of parts; each part has items and their embeddings."""

NOTHING: Items = (0, ())


def write_bundle(
    staging: Path,
    like: Path,
    manifest: Manifest,
    gallery: Mapping[str, str],
    shared: Path,
    items: Items = NOTHING,
) -> Manifest:
    """Write the files of a bundle into ``staging``; return its manifest without digests.

    The bundle has no calibration, because a calibration is valid only for its own gallery. The
    gallery will store the features of later items, so that it can be calibrated.

    Parameters
    ----------
    like : directory of the bundle with the encoder. The files of the encoder are linked if
        possible, else copied.
    manifest : manifest of the bundle in ``like``.
    gallery : gallery section of the manifest, for example its ``name``.
    shared : a directory on the file system of ``staging``. If a file in ``like`` cannot be linked,
        the file is copied into this directory, and the copy is linked.
    """
    staging.mkdir()
    for file in ENCODER_FILES:
        if file in manifest.files:
            _share(like / file, staging / file, shared / str(manifest.files[file]["sha256"]))
    encoder = dict(manifest.encoder)
    if "text" in encoder:
        encoder["text"] = {**encoder["text"], "calibration": None}
    n_items, parts = items
    fingerprint, dim = str(encoder["fingerprint"]), int(encoder["dim"])
    report = write_faiss_parts(staging, (n_items, dim), parts, fingerprint)
    no_features(int(encoder["n_features"])).save(staging)
    settings = search_settings(FaissGallery(staging))
    return Manifest(
        gallery={**gallery, "n_items": n_items, "search": settings, "index": asdict(report)},
        encoder=encoder,
        calibration=None,
        metrics=None,
        samples=(),
        library_versions=manifest.library_versions,
    )


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file that never changes; copy the file if linking fails."""
    try:
        os.link(source, target)
    except OSError:  # another file system, another owner, or too many links
        shutil.copy2(source, target)


def _share(source: Path, target: Path, master: Path) -> None:
    """Link ``target`` to ``source``; if linking fails, link ``target`` to a copy of ``source``.

    ``master`` is the path of the copy.
    """
    try:
        os.link(source, target)
    except OSError:
        if not master.exists():
            master.parent.mkdir(exist_ok=True)
            partial = master.with_name(f"{master.name}{PARTIAL}")
            shutil.copy2(source, partial)
            flush(partial)
            partial.rename(master)
        link_or_copy(master, target)


def no_features(n_features: int) -> ItemFeatures:
    """Return an empty sample of features; with its file, a gallery stores those of later items."""
    width = n_features // averaging(n_features)
    none = HalfRows.of(np.empty((0, width), dtype=np.float32))
    return ItemFeatures((), (), none, np.empty(0, dtype=bool), share=1.0)
