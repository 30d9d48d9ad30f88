"""Calibrates a gallery with images or texts as queries; used for all kinds of galleries.

Text queries are captions of items or labels, or search texts that led to a click. The similarities
and outlier scores of texts differ from those of images. So text queries have a separate calibration
for the same gallery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MeasuredPictures, fit_detector, fit_picture_state
from index_builder.calibration.fit import MIN_QUERIES, fit_calibration
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import (
    ENOUGH_WITH_PARENTS,
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
    LEAST_LABELS,
    CalibrationQueries,
    Kind,
    Names,
    QueryGroup,
)
from index_builder.calibration.retrieval import (
    BY_LABEL,
    CalibratedGallery,
    Earlier,
    RetrievedQueries,
    TruthRule,
    fit_label_folds,
    list_length,
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
    encoder: Encoder,
    gallery: CalibratedGallery,
    queries: QuerySet,
    seen: Seen | None = None,
    *,
    are_views: bool = False,
    unseen: bool = False,
) -> CalibrationQueries:
    """Search the gallery with all queries that the decision layer is fitted to.

    If too few labels are withheld, each matched query is used a second time, as an absent query.
    The query's label is then hidden from the result list and from the outlier detector. Matched and
    absent queries are the same pictures, also if they are views: if absent queries were original
    pictures, a fit would learn to tell views from originals.

    Parameters
    ----------
    seen : callback for each matched query that is decoded.
    are_views : whether the queries are augmented views of gallery images.
    unseen : whether the encoder was not trained on the gallery's labels.
    """
    matched = queries.matched
    groups = []
    if gallery.label_folds is None:
        of_matched = gallery.observe(encoder, matched, seen)
    else:
        embeddings = embed_with_features(encoder, matched, "calibration queries", seen)
        scores = gallery.detector.scores(embeddings)
        of_matched = gallery.look_up(matched.labels, embeddings, scores)
        hidden, kept = gallery.look_up_hidden(matched.labels, embeddings)
        groups = [QueryGroup("hidden", hidden, sources=_sources(matched, kept))]
    return CalibrationQueries(
        [
            QueryGroup("matched", of_matched, group_numbers(matched), matched.sources),
            *groups,
            *_withheld(encoder, gallery, queries.withheld),
        ],
        "views_of_items" if are_views else "held_out_images",
        unseen,
        1.0 if gallery.earlier is None else gallery.earlier.rivals,
    )


def _sources(images: LabelledImages, rows: NDArray[np.int64]) -> Names | None:
    return None if images.sources is None else tuple(images.sources[row] for row in rows)


def _withheld(
    encoder: Encoder, gallery: CalibratedGallery, images: LabelledImages
) -> Iterable[QueryGroup]:
    """Search the gallery with queries of withheld labels, if there are any."""
    if len(images):
        observed = gallery.observe_absent(encoder, images)
        yield QueryGroup("withheld", observed, sources=images.sources, labels=images.labels)


def calibrate_gallery(
    inputs: GalleryQueries, config: CalibrationConfig, kept_in: Path | None = None
) -> Calibration:
    """Search the gallery with all queries, and fit the decision layer to the results.

    Parameters
    ----------
    kept_in : directory of the bundle that stores the queries, see `keep`; None to store nothing.

    Raises
    ------
    CalibrationError : too few queries, or too few images.
    """
    smallest_side = inputs.encoder.metadata.input.smallest_side
    pictures = MeasuredPictures(smallest_side)
    # Views can be made from pictures of reduced size, so the quality of views is not measured.
    are_measured = smallest_side is None or not inputs.are_views
    described, observed = observe_gallery(inputs, pictures.look_at if are_measured else None)
    limits = pictures.limits(inputs.matched)
    calibration = fit_calibration(described, observed, config, inputs.seed, limits)
    if kept_in is not None:
        keep(kept_in, inputs)
    picture = fit_picture_state(inputs.encoder, inputs.images, inputs.seed)
    return replace(calibration, picture=picture)


def observe_gallery(
    inputs: GalleryQueries,
    seen: Seen | None = None,
    was_put: NDArray[np.bool_] | None = None,
    known_labels: Collection[str] = (),
) -> tuple[CalibratedGallery, CalibrationQueries]:
    """Search the gallery with all queries; see `calibrate_gallery` and `calibration_queries`.

    Parameters
    ----------
    was_put : (N,) mask of the images that were added to the gallery after the queries were held
        out. Images added later become queries, too; each is hidden from its own results.
    known_labels : labels that the gallery had when the absent queries were chosen. If empty, no
        label is assumed to be new.
    """
    encoder, gallery = inputs.encoder, inputs.gallery
    images, queries = inputs.images, inputs.queries
    unseen, items, rule = inputs.unseen, inputs.items, inputs.rule
    embeddings = embed_with_features(encoder, images, "features of the gallery")
    was_put = np.zeros(len(images), dtype=bool) if was_put is None else was_put
    n_matched, enough = len(inputs.matched), inputs.enough
    put = put_queries(gallery, images, was_put, n_matched)
    if rule.hierarchy is not None:
        enough = max(enough, ENOUGH_WITH_PARENTS)
    enough = enough if unseen and items is None else 0
    left_out = leave_one_out_queries(images, n_matched, enough, was_put, put)
    own_of_left_out = rows_of_groups(gallery, images)[left_out] if len(left_out) else None
    own = None if items is None else items.own_rows(gallery, images)
    withheld, earlier, n_hidden = queries.withheld, None, [0]
    n_hidden += [rows.shape[1] for rows in (own_of_left_out, own) if rows is not None]
    if len(withheld):
        earlier = Earlier.of(gallery, images, embeddings, known_labels)
    if earlier is not None:
        n_hidden.append(int((~earlier.rows).sum()))
    n_withheld = len(set(withheld.labels))
    few = len(withheld) < MIN_QUERIES or n_withheld < LEAST_LABELS
    layers = None if items is None else items.layers
    described = CalibratedGallery.of(
        *(encoder, gallery, images, embeddings, inputs.seed),
        hide_labels=items is not None or n_withheld == 0 or (unseen and few),
        n_hidden=max(n_hidden),
        layers=layers,
    )
    described = replace(described, rule=rule, earlier=earlier)
    if items is not None and own is not None:
        scores = _outlier_scores(items, images, embeddings)
        found = _observe_items("matched", described, items, scores, own)
        found += _withheld(encoder, described, withheld)
        observed = CalibrationQueries(found, "left_out_items", unseen=True)
    else:
        observed = calibration_queries(
            encoder, described, queries, seen, are_views=inputs.are_views, unseen=unseen
        )
    if own_of_left_out is None:
        return described, observed
    if layers is None:
        every = ItemQueries(images, embeddings, embeddings)
        scores = _outlier_scores(every, images, embeddings)[left_out]
        more = every.at(left_out)
    else:
        more = layers.queries(images.at(left_out), embeddings.at(left_out))
        scores = _outlier_scores(more, images, embeddings)
    found = _observe_items("items", described, more, scores, own_of_left_out)
    # numbered over both kinds
    numbers = np.split(group_numbers(inputs.matched, more.images), [n_matched])
    of_kind = {"matched": numbers[0], "items": numbers[1]}
    groups = [replace(one, groups=of_kind.get(one.kind)) for one in (*observed.groups, *found)]
    n_put = int(was_put[left_out].sum())
    return described, replace(observed, groups=groups, item_rows=left_out, n_put=n_put)


def _outlier_scores(
    items: ItemQueries, images: LabelledImages, embeddings: Embeddings
) -> NDArray[np.float64]:
    """Return the outlier score of each item (B,), from a detector fitted without the item.

    Parameters
    ----------
    images, embeddings : gallery images in random order, and their embeddings.
    """
    codes, layers = images.label_codes(), items.layers
    if layers is None:
        groups, of_items = np.split(group_numbers(images, items.images), [len(images)])
        return DetectorFolds.of(embeddings, codes, groups).scores(items.alone, of_items)
    known = layers.of_items(images.ids), len(layers.weights), layers.weights
    detectors = DetectorFolds.of(embeddings, codes, *known)
    return detectors.scores(items.alone, layers.of_items(items.images.ids))


def _observe_items(
    kind: Literal["matched", "items"],
    gallery: CalibratedGallery,
    items: ItemQueries,
    scores: NDArray[np.float64],
    own: NDArray[np.int64],
) -> list[QueryGroup]:
    """Search the gallery with its own items; each item is excluded from its own results.

    If layers were fitted without the items, each fold has its own gallery: the layer of the fold
    embeds the queries and all items.

    Parameters
    ----------
    scores : (B,) outlier scores, see `_outlier_scores`.
    own : (B, m) rows to exclude for each item, see `ItemQueries.own_rows`.

    Returns
    -------
    The queries, and the queries with their label hidden, if labels are hidden.
    """
    layers, queries = items.layers, items.images
    parts: Iterable[tuple[CalibratedGallery, NDArray[np.int64], NDArray[np.int64]]]
    if layers is None:
        everything = np.arange(len(queries))
        parts = [(gallery, everything, everything)]
    else:
        folds, of_labels = layers.of_items(queries.ids), layers.of_labels(queries.labels)
        vectors = ItemVectors.of(gallery.gallery, tuple(layers.fold_of_item), layers.features)
        galleries = enumerate(map(vectors.embedded, layers.weights))
        parts = (
            (
                replace(gallery, gallery=one, means=label_means(one)),
                np.flatnonzero(folds == fold),
                np.flatnonzero(of_labels == fold),
            )
            for fold, one in galleries
        )
    found, hidden = [], []
    for of_fold, rows, absent in parts:
        if len(rows):
            some, of_some = queries.at(rows), items.alone.at(rows)
            one = of_fold.look_up(some.labels, of_some, scores[rows], hidden=own[rows])
            found.append((one, rows))
        if len(absent) and gallery.label_folds is not None:
            some, of_some = queries.at(absent), items.unlabelled.at(absent)
            one, kept = of_fold.look_up_hidden(some.labels, of_some)
            hidden.append((one, absent[kept]))
    observed, _ = _in_order(found)
    kinds = [QueryGroup(kind, observed, group_numbers(queries), queries.sources)]
    if hidden:
        observed, rows = _in_order(hidden)
        of_hidden: Kind = "hidden" if kind == "matched" else "hidden_items"
        kinds.append(QueryGroup(of_hidden, observed, sources=_sources(queries, rows)))
    return kinds


def _in_order(
    parts: Sequence[tuple[RetrievedQueries, NDArray[np.int64]]],
) -> tuple[RetrievedQueries, NDArray[np.int64]]:
    """Concatenate queries, and sort them by their rows."""
    rows = np.concatenate([of_part for _, of_part in parts])
    order = np.argsort(rows)
    return RetrievedQueries.concatenate([one for one, _ in parts]).at(order), rows[order]


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
    described = replace(CalibratedGallery.known(encoder, gallery, detector), rule=rule)
    pictures = MeasuredPictures(encoder.metadata.input.smallest_side)
    observed = calibration_queries(encoder, described, queries, pictures.look_at)
    limits = pictures.limits(queries.matched)
    return fit_calibration(described, observed, config, seed, limits)


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
    described = CalibratedGallery.known(encoder, gallery, detector, n_listed)
    scores = DetectorFolds.of(embeddings, codes, clusters).scores(embeddings, clusters)
    found = described.look_up(names, embeddings, scores)
    if len(absent) == 0:
        folds = fit_label_folds(embeddings, names, seed)
        hidden, rows = replace(described, label_folds=folds).look_up_hidden(names, embeddings)
        of_absent = QueryGroup("hidden", hidden, sources=matched.at(rows).sources)
    else:
        embedded = _embedded(encoder, absent.texts)
        withheld = described.look_up(absent.names, embedded, detector.scores(embedded))
        of_absent = QueryGroup("withheld", withheld, sources=absent.sources)
    groups = [QueryGroup("matched", found, clusters, matched.sources), of_absent]
    queries = CalibrationQueries(groups, "captions", unseen=True)
    return fit_calibration(described, queries, config, seed, quality_limits={})


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
