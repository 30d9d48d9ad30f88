"""Calibrates a gallery with its own items, or with augmented views of them.

If the images have labels, the queries are items. Each item is compared with the rest of the
gallery, without the items of its group (`index_builder.indexing.catalogue`). Without labels, every
image is its own class, and the queries are augmented views of gallery images. `vouch-build
calibrate` fits a calibration with the user's own queries instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import N_DETECTOR_IMAGES, calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import (
    MOST_QUERIES,
    ItemQueries,
    partnered,
    whole_groups,
)
from index_builder.calibration.plan import Plan
from index_builder.calibration.retrieval import TruthRule
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import views
from index_builder.datasets.images import Pixels
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.blocks import Place
from index_builder.indexing.catalogue import Catalogue, code_of, largest_label, place_of
from index_builder.indexing.fetching import ReadAgain
from index_builder.indexing.prepare import read_again, read_vector
from index_builder.indexing.workdir import Work
from index_builder.storage import NotFetched
from index_builder.vectors.encoder import embed_with_features
from model_store.decision import Calibration, Hierarchy
from model_store.encoder.contract import Encoder
from model_store.errors import CalibrationError, DatasetError
from model_store.gallery import Gallery

_COLUMNS = (
    "entries.id, entries.label, number, source, hash, path, offset, size, changed_ns, box, version"
)
_GROUPS = " JOIN groups USING (position) JOIN embedded USING (id)"


def plan_of(catalogue: Catalogue, promises: CalibrationConfig, *, of_images: bool) -> Plan:
    """Count the calibration queries of a collection, before the embedding begins.

    Parameters
    ----------
    promises : the error bounds of the answers.
    of_images : True for a collection of images; False for vectors, which have no augmented views.

    Raises
    ------
    CalibrationError : the collection gives too few queries, has only one label, or has vectors
        without labels.
    """
    if catalogue.contents.n_labels:
        counted = catalogue.labels_and_groups()
        plan = Plan.of_items(*counted, catalogue.largest_label(), promises)
        plan = replace(plan, of_vectors=not of_images, is_estimate=True)
    elif of_images:
        plan = Plan.of_views(catalogue.n_different(), promises)
    else:
        raise CalibrationError(
            "Vectors without labels cannot calibrate: they have no augmented views. Add labels to "
            "the table of items. Or index without --calibrate, then calibrate with queries whose "
            "matches are known (`vouch-build calibrate --vectors`)."
        )
    _require_feasible(plan)
    return plan


def _require_feasible(plan: Plan) -> None:
    try:
        plan.require_feasible()
    except DatasetError as error:
        raise CalibrationError(f"{error} Or index without --calibrate.") from error


def calibrate_collection(
    work: Work,
    encoder: Encoder,
    gallery: Gallery,
    config: CalibrationConfig,
    seed: int,
    *,
    labelled: bool,
    read: ReadAgain = read_again,
    hierarchy: Hierarchy | None = None,
) -> Calibration:
    """Calibrate the new gallery in ``work``, and store the queries in the bundle.

    The encoder must not be trained on the collection's images.

    Parameters
    ----------
    config : the error bounds of the answers.
    labelled : True if items with labels are the queries; False if augmented views are the queries.
    read : function that decodes an image of the collection again.
    hierarchy : parents of labels; None if labels have no parents.

    Raises
    ------
    CalibrationError : too few queries are left, because some images could not be read.
    DatasetError : an embedded image cannot be read again.
    """
    with closing(sqlite3.connect(work.catalogue)) as connection:
        if not encoder.metadata.takes_images:
            read = _read_vector
        names, labels, groups = _of_gallery(connection)
        if labelled:
            plan = Plan.of_items(labels, groups, largest_label(connection), config)
            _require_feasible(replace(plan, of_vectors=not encoder.metadata.takes_images))
        else:
            _require_feasible(Plan.of_views(len(np.unique(groups)), config))
        known = np.flatnonzero(labels >= 0) if labelled else np.arange(len(names))
        order = np.random.default_rng(seed).permutation(len(known))
        places = known[whole_groups(groups[known], order, N_DETECTOR_IMAGES)]
        query = f"SELECT {_COLUMNS} FROM entries{_GROUPS} WHERE id = ?"  # noqa: S608 - no value in it
        entries = (connection.execute(query, (names[place],)).fetchone() for place in places)
        images = _images(entries, read)
    nothing = images.at([])
    items, matched = None, nothing
    if labelled:
        chosen = np.flatnonzero(partnered(labels, groups)[places])[:MOST_QUERIES]
        asked = images.at(chosen)
        alone = embed_with_features(encoder, asked, "features of the queries")
        items = ItemQueries(asked, alone, alone)  # no layer was fitted to an item or a label
    else:
        again = int(np.random.default_rng(seed).integers(2**32))
        matched = views(images.at(range(min(MOST_QUERIES, len(images)))), again)
    inputs = GalleryQueries(
        *(encoder, gallery, images, QuerySet(matched, nothing, None), seed),
        are_views=not labelled,
        unseen=labelled,
        items=items,
        rule=TruthRule(hierarchy),
    )
    return calibrate_gallery(inputs, config, kept_in=work.bundle)


def _of_gallery(
    connection: sqlite3.Connection,
) -> tuple[Sequence[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return ids, label codes and groups (N,) of all items; −1 for an item without a label."""
    found = connection.execute(
        f"SELECT id, {code_of('label')}, number FROM entries{_GROUPS} ORDER BY id"  # noqa: S608 - no value in it
    )
    names, labels, groups = zip(*found, strict=True)
    return names, np.array(labels, dtype=np.int64), np.array(groups, dtype=np.int64)


def _images(entries: Iterable[tuple[Any, ...]], read_place: ReadAgain) -> LabelledImages:
    """Convert catalogue entries to images; an entry without a label gets its id as label."""
    found = list(entries)
    ids = tuple(str(entry[0]) for entry in found)
    labels = tuple(str(entry[0] if entry[1] is None else entry[1]) for entry in found)
    groups = tuple(str(entry[2]) for entry in found)
    sources = tuple(entry[3] or "" for entry in found)
    contents = [bytes.fromhex(entry[4]) for entry in found]  # stored with the embeddings
    places = [place_of(*entry[5:]) for entry in found]

    def read(row: int, smallest_side: int | None) -> Pixels:
        try:
            return read_place(places[row], smallest_side)
        except (OSError, NotFetched) as error:
            why = getattr(error, "strerror", None) or error
            raise DatasetError(
                f"{ids[row]!r} was indexed and can no longer be read "
                f"({why}). Do not change the collection until the command has ended; "
                "the same command resumes from here."
            ) from error

    return LabelledImages(
        ids,
        labels,
        read,
        np.arange(len(found)),
        groups,
        sources if any(sources) else None,
        contents.__getitem__,
    )


def _read_vector(place: Place, _smallest_side: int | None) -> Pixels:
    return read_vector(place)
