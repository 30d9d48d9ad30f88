"""Calibrates a gallery with images or texts as queries; used for all kinds of galleries.

Text queries are captions of items or labels, or search texts that led to a click. The similarities
and outlier scores of texts differ from those of images. So text queries have a separate calibration
for the same gallery.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MeasuredPictures, fit_detector, fit_picture_state
from index_builder.calibration.fit import MIN_QUERIES, fit_calibration
from index_builder.calibration.item_queries import (
    ENOUGH,
    ENOUGH_WITH_PARENTS,
    CrossFittedLayers,
    DetectorFolds,
    ItemQueries,
    group_numbers,
    leave_one_out_queries,
    put_queries,
    rows_of_groups,
)
from index_builder.calibration.kept_queries import keep
from index_builder.calibration.layer_gallery import ItemVectors
from index_builder.calibration.queries import (
    BY_LABEL,
    LEAST_LABELS,
    CalibratedGallery,
    CalibrationQueries,
    Earlier,
    Hidden,
    LeaveOneOut,
    PlainItems,
    RetrievalSetup,
    TruthRule,
    list_length,
    plain_items,
)
from index_builder.calibration.retrieval import (
    RetrievedQueries,
    fit_label_folds,
    look_up,
    look_up_hidden,
)
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from index_builder.progress import track_parts
from index_builder.vectors.encoder import embed_with_features
from index_builder.vectors.images import Seen
from model_store.decision import Calibration, OutlierDetector, label_means
from model_store.encoder.contract import Embeddings, Encoder, TextEncoder
from model_store.errors import CalibrationError
from model_store.gallery import Gallery
from model_store.table import Table

N_DETECTOR_IMAGES = 10_000
"""Maximum number of gallery images to fit the outlier detector to. Above this number, more images
bring no gain, and the features may not fit into memory."""


def calibration_queries(
    setup: RetrievalSetup,
    queries: QuerySet,
    *,
    are_views: bool = False,
    unseen: bool = False,
    plain: PlainItems | None = None,
    seen: Seen | None = None,
) -> CalibrationQueries:
    """Search the gallery with all queries that the decision layer is fitted to.

    If too few labels are withheld, each matched query is used a second time, as an absent query.
    The query's label is then hidden from the result list and from the outlier detector. If the
    queries are views, the absent queries are the original pictures, not the views.

    Parameters
    ----------
    are_views : whether the queries are views of gallery images.
    unseen : whether the encoder was not trained on the gallery's labels.
    plain : the original pictures of the views, which become the absent queries. An original picture
        is as similar to other items as a new photograph is; a cropped or rotated view is less
        similar to other items.
    seen : callback for each matched query that is decoded.
    """
    matched, withheld, hidden = queries.matched, queries.withheld, None
    if setup.label_folds is None:
        of_matched = setup.observe(matched, seen)
    else:
        embeddings = embed_with_features(setup.encoder, matched, "calibration queries", seen)
        scores = setup.detector.scores(embeddings)
        of_matched = setup.look_up(matched.labels, embeddings, scores)
        places, items, of_items = plain or (np.arange(len(matched)), matched, embeddings)
        hidden = setup.observe_hidden(items, of_items)
        hidden = None if hidden is None else replace(hidden, of=places[hidden.of])
    return CalibrationQueries(
        matched=of_matched,
        clusters=group_numbers(matched),
        hidden=hidden,
        withheld=setup.observe_absent(withheld) if len(withheld) else None,
        are_views=are_views,
        sources=matched.sources,
        withheld_sources=withheld.sources,
        withheld_labels=withheld.labels,
        rivals=1.0 if setup.earlier is None else setup.earlier.rivals,
        unseen=unseen,
    )


def calibrate_gallery(
    encoder: Encoder,
    gallery: Gallery,
    images: LabelledImages,
    queries: QuerySet,
    config: CalibrationConfig,
    seed: int,
    *,
    are_views: bool,
    unseen: bool,
    enough: int = ENOUGH,
    rule: TruthRule = BY_LABEL,
    items: ItemQueries | None = None,
    kept_in: Path | None = None,
) -> Calibration:
    """Search the gallery with all queries, and fit the decision layer to the results.

    Parameters
    ----------
    images : gallery images in random order, at most `N_DETECTOR_IMAGES`.
    are_views : whether the queries are augmented views of gallery images, because there are no
        labels. Each image is then its own label.
    unseen : whether the encoder was not trained on the gallery's images.
    enough : sufficient number of matched queries. If there are fewer matched queries and the
        gallery is ``unseen``, gallery images become queries, too; each is hidden from its own
        results. If labels have parents, ``enough`` is at least `ENOUGH_WITH_PARENTS`.
    rule : the rule for a match, and the parents of labels.
    items : items that replace the matched queries of ``queries``.
    kept_in : directory of the bundle that stores the queries, see `keep`; None to store nothing.

    Raises
    ------
    CalibrationError : too few queries, or too few images.
    """
    smallest_side = encoder.metadata.input.smallest_side
    pictures = MeasuredPictures(smallest_side)
    # Views can be made from pictures of reduced size, so the quality of views is not measured.
    are_measured = smallest_side is None or not are_views
    setup, observed = observe_gallery(
        encoder,
        gallery,
        images,
        queries,
        seed,
        are_views=are_views,
        unseen=unseen,
        enough=enough,
        rule=rule,
        seen=pictures.look_at if are_measured else None,
        items=items,
    )
    limits = pictures.limits(queries.matched if items is None else items.images)
    calibration = fit_calibration(setup, observed, config, seed, limits)
    if kept_in is not None:
        known = kept_in, encoder, images, queries, gallery, seed
        keep(*known, are_views=are_views, unseen=unseen, items=items)
    return replace(calibration, picture=fit_picture_state(encoder, images, seed))


def observe_gallery(
    encoder: Encoder,
    gallery: Gallery,
    images: LabelledImages,
    queries: QuerySet,
    seed: int,
    *,
    are_views: bool,
    unseen: bool,
    enough: int = ENOUGH,
    rule: TruthRule = BY_LABEL,
    seen: Seen | None = None,
    was_put: NDArray[np.bool_] | None = None,
    known_labels: Collection[str] = (),
    items: ItemQueries | None = None,
) -> tuple[RetrievalSetup, CalibrationQueries]:
    """Search the gallery with all queries; see `calibrate_gallery` and `calibration_queries`.

    Parameters
    ----------
    was_put : (N,) mask of the images that were added to the gallery after the queries were held
        out. Images added later become queries, too; each is hidden from its own results.
    known_labels : labels that the gallery had when the absent queries were chosen. If empty, no
        label is assumed to be new.
    items : see `calibrate_gallery`.
    """
    embeddings = embed_with_features(encoder, images, "features of the gallery")
    matched = queries.matched if items is None else items.images
    was_put = np.zeros(len(images), dtype=bool) if was_put is None else was_put
    put = put_queries(gallery, images, was_put, len(matched))
    if rule.hierarchy is not None:
        enough = max(enough, ENOUGH_WITH_PARENTS)
    enough = enough if unseen and items is None else 0
    left_out = leave_one_out_queries(images, len(matched), enough, was_put, put)
    hidden = rows_of_groups(gallery, images)[left_out] if len(left_out) else None
    n_withheld = len(set(queries.withheld.labels))
    few = len(queries.withheld) < MIN_QUERIES or n_withheld < LEAST_LABELS
    hide_labels = items is not None or n_withheld == 0 or (unseen and few)
    own = None if items is None else items.own_rows(gallery, images)
    earlier = None
    if len(queries.withheld):
        earlier = Earlier.of(gallery, images, embeddings, known_labels)
    n_since = 0 if earlier is None else int((~earlier.rows).sum())
    setup = RetrievalSetup.of(
        encoder,
        gallery,
        images,
        embeddings,
        seed,
        hide_labels=hide_labels,
        n_hidden=max([n_since, *(rows.shape[1] for rows in (hidden, own) if rows is not None)]),
        layers=None if items is None else items.layers,
    )
    setup = replace(setup, rule=rule, earlier=earlier)
    if items is not None and own is not None:
        observed = _observe_items(setup, items, own, images, embeddings, queries)
    else:
        observed = calibration_queries(
            setup,
            queries,
            are_views=are_views,
            unseen=unseen,
            plain=plain_items(matched, images, embeddings) if are_views else None,
            seen=seen,
        )
    if hidden is not None:
        n_put = int(was_put[left_out].sum())
        observed = _with_gallery_images(
            *(observed, setup, matched, images, embeddings, left_out, hidden, n_put),
            layers=None if items is None else items.layers,
        )
    return setup, observed


def _observe_items(
    setup: RetrievalSetup,
    items: ItemQueries,
    own: NDArray[np.int64],
    images: LabelledImages,
    embeddings: Embeddings,
    queries: QuerySet,
) -> CalibrationQueries:
    """Search the gallery with its own items; each item is excluded from its own results.

    Parameters
    ----------
    own : (B, m) rows to exclude for each item, see `ItemQueries.own_rows`.
    images : gallery images in random order.
    embeddings : embeddings of ``images``.
    queries : queries without a match.
    """
    groups = group_numbers(images, items.images)
    of_images, of_items = groups[: len(images)], groups[len(images) :]
    if items.layers is None:
        detectors = DetectorFolds.of(embeddings, images.label_codes(), of_images)
        scores = detectors.scores(items.alone, of_items)
        matched = setup.look_up(items.images.labels, items.alone, scores, hidden=own)
        of_hidden = setup.observe_hidden(items.images, items.unlabelled)
    else:
        matched, of_hidden = _seen_by_layers(setup, items, items.layers, own, images, embeddings)
    withheld = queries.withheld
    return CalibrationQueries(
        matched=matched,
        clusters=of_items,
        hidden=of_hidden,
        withheld=setup.observe_absent(withheld) if len(withheld) else None,
        sources=items.images.sources,
        withheld_sources=withheld.sources,
        withheld_labels=withheld.labels,
        unseen=True,
        are_items=True,
    )


def _seen_by_layers(
    setup: RetrievalSetup,
    items: ItemQueries,
    layers: CrossFittedLayers,
    own: NDArray[np.int64],
    images: LabelledImages,
    embeddings: Embeddings,
) -> tuple[RetrievedQueries, Hidden | None]:
    """Search the gallery of each fold: its layer, fitted without the query, embeds all items.

    Parameters
    ----------
    own, images, embeddings : see `_observe_items`.

    Returns
    -------
    The queries, and the queries with their label hidden; see `RetrievalSetup.observe_hidden`.
    """
    detectors = DetectorFolds.of(
        embeddings,
        images.label_codes(),
        layers.of_items(images.ids),
        len(layers.weights),
        layers.weights,
    )
    of_items, of_labels = layers.of_items(items.images.ids), layers.of_labels(items.images.labels)
    scores = detectors.scores(items.alone, of_items)
    vectors = ItemVectors.of(setup.gallery, tuple(layers.fold_of_item), layers.features)
    found, hidden, rows_found, rows_hidden = [], [], [], []
    for fold, weight in enumerate(layers.weights):
        gallery = vectors.embedded(weight)
        of_fold = replace(setup, gallery=gallery, means=label_means(gallery))
        rows = np.flatnonzero(of_items == fold)
        if len(rows):
            some, of_some = items.images.at(rows), items.alone.at(rows)
            found.append(of_fold.look_up(some.labels, of_some, scores[rows], hidden=own[rows]))
            rows_found.append(rows)
        rows = np.flatnonzero(of_labels == fold)
        some, of_some = items.images.at(rows), items.unlabelled.at(rows)
        if len(rows) and (absent := of_fold.observe_hidden(some, of_some)) is not None:
            hidden.append(absent.observed)
            rows_hidden.append(rows[absent.of])
    matched = RetrievedQueries.concatenate(found).at(np.argsort(np.concatenate(rows_found)))
    if not hidden:
        return matched, None
    made_from = np.concatenate(rows_hidden)
    order = np.argsort(made_from)
    return matched, Hidden(RetrievedQueries.concatenate(hidden).at(order), made_from[order])


def calibrate_with_queries(
    encoder: Encoder,
    gallery: Gallery,
    detector: OutlierDetector,
    queries: QuerySet,
    config: CalibrationConfig,
    seed: int,
    rule: TruthRule = BY_LABEL,
) -> Calibration:
    """Fit the decision layer to queries; reuse the gallery's outlier detector.

    Parameters
    ----------
    detector : the gallery's outlier detector, from an earlier calibration.
    queries : queries with a match, and queries without a match.
    rule : the rule for a match, and the parents of labels.

    Raises
    ------
    CalibrationError : there are too few queries with a match, or too few queries without a match.
    """
    setup = replace(RetrievalSetup.known(encoder, gallery, detector), rule=rule)
    pictures = MeasuredPictures(encoder.metadata.input.smallest_side)
    observed = calibration_queries(setup, queries, seen=pictures.look_at)
    limits = pictures.limits(queries.matched)
    return fit_calibration(setup, observed, config, seed, limits)


def _with_gallery_images(
    observed: CalibrationQueries,
    setup: RetrievalSetup,
    matched: LabelledImages,
    images: LabelledImages,
    embeddings: Embeddings,
    rows: NDArray[np.int64],
    hidden: NDArray[np.int64],
    n_put: int,
    layers: CrossFittedLayers | None,
) -> CalibrationQueries:
    """Add gallery images as queries; each image is excluded from its own results.

    Parameters
    ----------
    matched : the held-out queries.
    images : gallery images.
    embeddings : embeddings of ``images``.
    rows : (B,) indices of the images that become queries.
    hidden : (B, m) see `look_up`.
    n_put : number of images that were added after the held-out queries were chosen. The added
        images come first in ``rows``.
    layers : layers fitted without the images; None if no layer was fitted to items.
    """
    some, of_some = images.at(rows), embeddings.at(rows)
    if layers is None:
        groups = group_numbers(images)
        detectors = DetectorFolds.of(embeddings, images.label_codes(), groups)
        scores = detectors.scores(embeddings, groups)
        found = setup.look_up(some.labels, of_some, scores[rows], hidden=hidden)
        of_hidden = setup.observe_hidden(some, of_some)
    else:
        found, of_hidden = _seen_by_layers(
            setup, layers.queries(some, of_some), layers, hidden, images, embeddings
        )
    clusters = group_numbers(matched, some)
    of_matched, of_rows = clusters[: len(matched)], clusters[len(matched) :]
    left_out = LeaveOneOut(found, of_hidden, of_rows, some.sources, rows, n_put)
    return replace(observed, clusters=of_matched, leave_one_out=left_out)


BATCH = 64

_NOTHING = "\0"
"""First character of the artificial label of a text without a match. Labels of a gallery never
contain this null character."""


@dataclass(frozen=True, slots=True)
class Captions(Table):
    """N search texts, and the label that each text describes.

    Attributes
    ----------
    texts : (N,).
    labels : (N,) label that each text describes; in a gallery without labels, the id of an item.
        None if no item matches the text.
    clusters : (N,) cluster of each text. Texts of one cluster are not independent.
    sources : (N,) origin of each text; None if unknown.
    """

    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    clusters: tuple[str, ...]
    sources: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the texts.

        A text without a match gets an artificial label. All such texts of one cluster get the same
        artificial label.
        """
        return tuple(
            _NOTHING + cluster if label is None else label
            for label, cluster in zip(self.labels, self.clusters, strict=True)
        )


def calibrate_texts(
    encoder: TextEncoder,
    gallery: Gallery,
    captions: Captions,
    config: CalibrationConfig,
    seed: int,
) -> Calibration:
    """Search with every caption, and fit the decision layer for texts to the results.

    Absent queries are captions without a match. If all captions have a match, each caption is used
    a second time, as an absent query. The label of the caption is then hidden from the result list
    and from the outlier detector. The detector that the service uses is fitted to all captions with
    a match. For the calibration, each caption is scored by a detector that was not fitted to this
    caption.

    Raises
    ------
    CalibrationError : there are too few captions with a match, or too few without a match, or all
        captions have the same label.
    """
    captions = captions.at(np.random.default_rng(seed).permutation(len(captions)))
    about = np.array([label is not None for label in captions.labels], np.bool_)
    matched, absent = captions.at(np.flatnonzero(about)), captions.at(np.flatnonzero(~about))
    _require_enough(matched, absent)
    names, embeddings = matched.names, _embedded(encoder, matched.texts)
    codes = np.unique(np.array(names), return_inverse=True)[1]
    clusters = np.unique(np.array(matched.clusters), return_inverse=True)[1].astype(np.int64)
    n_listed = list_length(gallery, 0, hide_labels=len(absent) == 0)
    detector = fit_detector(embeddings, codes)
    setup = CalibratedGallery.described(encoder, gallery, detector, n_listed)
    means = setup.means
    scores = DetectorFolds.of(embeddings, codes, clusters).scores(embeddings, clusters)
    found = look_up(gallery, means, names, embeddings, scores, n_listed)
    hidden, withheld = None, None
    if len(absent) == 0:
        folds = fit_label_folds(embeddings, names, seed)
        hidden = Hidden(*look_up_hidden(gallery, means, names, embeddings, folds, n_listed))
    else:
        embedded = _embedded(encoder, absent.texts)
        scores = detector.scores(embedded)
        withheld = look_up(gallery, means, absent.names, embedded, scores, n_listed)
    queries = CalibrationQueries(
        matched=found,
        clusters=clusters,
        hidden=hidden,
        withheld=withheld,
        sources=matched.sources,
        withheld_sources=absent.sources,
        unseen=True,
    )
    calibration = fit_calibration(setup, queries, config, seed, quality_limits={})
    return replace(calibration, report={**calibration.report, "queries": "captions"})


def _require_enough(matched: Captions, absent: Captions) -> None:
    if len(matched) < MIN_QUERIES or 0 < len(absent) < MIN_QUERIES:
        raise CalibrationError(
            f"{len(matched)} captions have a match in the gallery and {len(absent)} have none; "
            f"wanted at least {MIN_QUERIES} with a match, and either none or at least "
            f"{MIN_QUERIES} without. Add captions, for example search texts with the clicked items."
        )
    if len(set(matched.labels)) == 1:
        raise CalibrationError(
            f"All captions are about {matched.labels[0]!r}, so there are no wrong answers to "
            "compare with. Add captions of other labels."
        )


def _embedded(encoder: TextEncoder, texts: Sequence[str]) -> Embeddings:
    """Embed texts in batches."""
    parts = [
        encoder.encode(encoder.tokenize(texts[start : start + BATCH]))
        for start in track_parts(len(texts), BATCH, "captions")
    ]
    return Embeddings.concatenate(parts)
