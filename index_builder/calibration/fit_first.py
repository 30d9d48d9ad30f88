"""Calibrates a gallery for the first time, with its own items as queries; reads no photograph.

Each labelled item is a query with which the rest of the gallery is searched. For an absent query,
all items of the query's label are hidden. The encoder must not have been trained on the items.
Otherwise, their similarities are too high, and the error bounds do not hold.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from index_builder.calibration.calibrate import observe_gallery
from index_builder.calibration.fit import MIN_QUERIES, fit_calibration
from index_builder.calibration.fit_again import stored_items
from index_builder.calibration.item_queries import MOST_QUERIES, ItemQueries
from index_builder.calibration.kept_queries import KeptVectors, keep
from index_builder.calibration.leave_one_out import has_partner, leave_one_out_queries
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets.groups import united
from index_builder.datasets.near_duplicates import Fingerprint, fingerprint, pairs_among
from index_builder.datasets.splits import QuerySet
from index_builder.vectors.encoder import embed_with_features
from model_store.bundles.item_features import ItemFeatures
from model_store.decision import Calibration
from model_store.decision.outliers import averaging
from model_store.encoder.contract import Encoder
from model_store.errors import CalibrationError
from model_store.gallery import FaissGallery

NO_FEATURES = (
    "The bundle stores neither calibration queries nor features of its items. Run "
    "`vouch-build calibrate BUNDLES --queries FILE --gallery SOURCE` once, or rebuild the bundle "
    "with --calibrate."
)


def fit_first(
    directory: Path, gallery: FaissGallery, encoder: Encoder, config: CalibrationConfig, seed: int
) -> Calibration:
    """Fit the first calibration of a bundle, and store its queries in the bundle.

    Copies and near-duplicates, as seen in the thumbnails, do not find each other.

    Parameters
    ----------
    directory : directory of the new bundle, which stores the features of items.
    encoder : encoder of the gallery; only its metadata are used.
    config : the error bounds.
    seed : seed of all random choices.

    Raises
    ------
    CalibrationError : the bundle stores no features, or too few items can be queries.
    """
    stored = ItemFeatures.load(directory)
    if stored is None:
        raise CalibrationError(NO_FEATURES)
    if not gallery.labels:
        raise CalibrationError(
            "No item of the gallery has a label, so it is unknown which items match. Give items "
            "that show the same thing the same label."
        )
    order = np.random.default_rng(seed).permutation(len(stored))  # a refit keeps this order
    stored = replace(stored, was_put=np.zeros(len(stored), dtype=bool)).at(order)
    stored = replace(stored, groups=_groups(stored, gallery))
    images, _ = stored_items(stored, gallery, seed)
    n_queries = int(has_partner(images).sum())
    if n_queries < MIN_QUERIES or len(set(images.labels)) < 2:
        raise CalibrationError(
            f"{n_queries:,} items share their label with another photograph, and the items have "
            f"{len(set(images.labels)):,} labels; at least {MIN_QUERIES} such items and 2 labels "
            "are needed. Copies do not count. Add photographs and labels."
        )
    width = stored.features.values.shape[1]
    vectors = KeptVectors(encoder.fingerprint, gallery.dim, width, encoder.metadata)
    queries = images.at(leave_one_out_queries(images, 0, MOST_QUERIES))
    alone = embed_with_features(vectors, queries, "features of the queries")
    items = ItemQueries(queries, alone, alone)  # no layer was fitted to an item or a label
    none = images.at([])
    nothing = QuerySet(none, none, None)
    setup, observed = observe_gallery(
        *(vectors, gallery, images, nothing, seed), are_views=False, unseen=True, items=items
    )
    # A limit of ordinary pictures needs the pictures.
    fitted = fit_calibration(setup.calibrated, observed, config, seed, quality_limits={})
    keep(
        *(directory, vectors, none, nothing, gallery, seed),
        are_views=False,
        unseen=True,
        items=items,
    )
    # `keep` stores the keys of the queries' groups; a refit compares the two.
    replace(stored, groups=tuple(f"group {group}" for group in stored.groups)).save(directory)
    # The stored features are already averaged; those of a query are averaged by the detector.
    detector = replace(fitted.detector, n_averaged=averaging(encoder.n_features))
    return replace(fitted, detector=detector)


def _groups(stored: ItemFeatures, gallery: FaissGallery) -> tuple[str, ...]:
    """Return the groups of the stored items; near-duplicates share a group."""
    seen = [_seen(gallery.thumbnail(item_id).data) for item_id in stored.ids]
    groups = united(len(stored), [pairs_among(seen)])
    return tuple(str(number) for number in groups.tolist())


def _seen(thumbnail: bytes) -> Fingerprint | None:
    """Return the fingerprint of a picture; None if an item of vectors has no picture."""
    try:
        with Image.open(BytesIO(thumbnail)) as picture:
            return fingerprint(np.asarray(picture.convert("RGB")))
    except UnidentifiedImageError:
        return None
