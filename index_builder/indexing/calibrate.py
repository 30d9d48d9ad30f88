"""Calibrates a gallery with held-out images of its collection, or with augmented views.

If the images have labels, about a fifth of each label's images becomes queries
(`index_builder.indexing.catalogue`). There are at most `N_QUERIES` queries. The held-out images
are in the catalogue, but not in the gallery. Without labels, every image is its own class, and the
queries are augmented views of gallery images. `vouch-build calibrate` fits a calibration with the
user's own queries instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import numpy as np

from index_builder.calibration import MIN_QUERIES
from index_builder.calibration.calibrate import N_DETECTOR_IMAGES, calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import whole_groups
from index_builder.calibration.plan import Plan
from index_builder.calibration.retrieval import TruthRule
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import views
from index_builder.datasets.images import Pixels
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.assemble import IDS_OF_GALLERY
from index_builder.indexing.blocks import Place
from index_builder.indexing.catalogue import Catalogue, place_of
from index_builder.indexing.fetching import ReadAgain
from index_builder.indexing.prepare import read_again, read_vector
from index_builder.indexing.workdir import Work
from index_builder.storage import NotFetched
from model_store.decision import Calibration, Hierarchy
from model_store.encoder.contract import Encoder
from model_store.errors import CalibrationError, DatasetError
from model_store.gallery import Gallery

N_QUERIES = 2_000
"""Maximum number of queries. With 2,000 queries, the smallest p-value is 0.0005. More queries would
improve the calibration little, and the gallery would lose more images."""

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
    found = catalogue.contents
    if not of_images and found.n_labels == 0:
        raise CalibrationError(
            "Vectors without labels cannot calibrate: they have no augmented views. Add labels to "
            "the table of items. Or index without --calibrate, then calibrate with queries whose "
            "matches are known (`vouch-build calibrate --vectors`)."
        )
    if found.n_labels == 1:
        advice = "Use --no-labels, which makes each image its own class"
        raise CalibrationError(
            f"All {found.n_labelled} labelled images have the same label, so there are no queries "
            f"without a match. {advice if of_images else 'Add other labels'}, or index without "
            "--calibrate."
        )
    n_queries = catalogue.n_to_hold_out() if found.n_labels else catalogue.n_different()
    if n_queries < MIN_QUERIES:
        if found.n_labels:
            raise too_few_queries(n_queries, of_images=of_images)
        raise too_few_images(n_queries)
    if found.n_labels and catalogue.n_labels_to_hold_out() < 2:
        raise one_label(n_queries, of_images=of_images)
    n_images, n_queries = found.n_images - found.n_missing, min(n_queries, N_QUERIES)
    return Plan(
        n_images=n_images,
        n_labels=found.n_labels,
        n_gallery=n_images - n_queries if found.n_labels else n_images,
        n_gallery_labels=found.n_labels,
        is_labelled=found.n_labels > 0,
        items_are_queries=False,
        n_matched=(n_queries, 0),
        n_withheld=(0, 0),
        n_withheld_labels=0,
        promises=promises,
        is_estimate=found.n_labels > 0,
    )


def one_label(n_queries: int, *, of_images: bool = True) -> CalibrationError:
    """Return the error for queries that all have the same label.

    Vectors without labels have no augmented views, so the error for vectors does not name
    --no-labels.
    """
    without_labels = "use --no-labels, which makes each image its own class; or " * of_images
    return CalibrationError(
        f"All {n_queries} queries would have the same label, so there are no queries without a "
        "match. The other labels have one image each, or copies of one image. Add images of these "
        f"labels; or {without_labels}index without --calibrate."
    )


def too_few_images(n_images: int) -> CalibrationError:
    """Return the error for a collection without labels that has too few images."""
    return CalibrationError(
        f"Calibration needs at least {MIN_QUERIES} different images, and the collection has "
        f"{n_images}. Add images, or index without --calibrate."
    )


def too_few_queries(n_queries: int, *, of_images: bool = True) -> CalibrationError:
    """Return the error for a collection whose labels give too few queries; see `one_label`."""
    without_labels = (
        "use --no-labels, which makes each image its own class and calibrates with augmented "
        "views; or " * of_images
    )
    return CalibrationError(
        f"A fifth of each label's images is {n_queries} queries to calibrate with; at least "
        f"{MIN_QUERIES} are needed. Copies count as one image. A label with one image gives no "
        "query; five labels with two images each give two queries. Add images; or "
        f"{without_labels}index without --calibrate."
    )


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
    labelled : True if images with labels were held out as queries; False if augmented views are the
        queries.
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
        images = _some_of_the_gallery(connection, read, seed, labelled=labelled)
        held_out = f"SELECT {_COLUMNS} FROM held_out JOIN entries USING (id){_GROUPS} ORDER BY id"  # noqa: S608 - no value in it
        if labelled:
            matched = _images(connection.execute(held_out), read)
            if len(matched) < MIN_QUERIES:
                raise too_few_queries(len(matched), of_images=encoder.metadata.takes_images)
            if len(set(matched.labels)) < 2:
                raise one_label(len(matched), of_images=encoder.metadata.takes_images)
        else:
            n_images = len(set(images.groups or images.ids))
            if n_images < MIN_QUERIES:
                raise too_few_images(n_images)
            again = int(np.random.default_rng(seed).integers(2**32))
            matched = views(images.at(range(min(N_QUERIES, len(images)))), again)
    queries = QuerySet(matched, matched.at([]), None, held_out=labelled)
    inputs = GalleryQueries(
        *(encoder, gallery, images, queries, seed),
        are_views=not labelled,
        unseen=labelled,
        rule=TruthRule(hierarchy),
    )
    return calibrate_gallery(inputs, config, kept_in=work.bundle)


def _some_of_the_gallery(
    connection: sqlite3.Connection, read: ReadAgain, seed: int, *, labelled: bool
) -> LabelledImages:
    """Return a random sample of gallery images; if ``labelled``, only images with labels."""
    wanted = "AND label IS NOT NULL" if labelled else ""
    of_gallery = f"SELECT id, number FROM ({IDS_OF_GALLERY} {wanted}) JOIN entries USING (id)"  # noqa: S608
    found = connection.execute(f"{of_gallery} JOIN groups USING (position) ORDER BY id").fetchall()
    names, groups = [name for name, _ in found], np.array([of for _, of in found], dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(names))
    query = f"SELECT {_COLUMNS} FROM entries{_GROUPS} WHERE id = ?"  # noqa: S608
    places = whole_groups(groups, order, N_DETECTOR_IMAGES)
    chosen = [names[place] for place in places.tolist()]
    entries = (connection.execute(query, (name,)).fetchone() for name in chosen)
    return _images(entries, read)


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
