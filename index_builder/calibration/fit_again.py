"""Calibrates a gallery with what its bundle stores; reads no image.

Queries whose label was removed from the gallery become absent queries. Items added later become
queries; each is excluded from its own results.

In the first calibration of a gallery, each labelled item is a query with which the rest of the
gallery is searched. For an absent query, all items of the query's label are hidden. The encoder
must not have been trained on the items. Otherwise, their similarities are too high, and the error
bounds do not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.groups import (
    Fingerprint,
    fingerprint,
    named_groups,
    pairs_among,
    pairs_of_equal,
)
from index_builder.datasets.images import joined
from index_builder.datasets.splits import QuerySet
from index_builder.progress import console
from index_builder.vectors.encoder import embed_with_features
from model_store.bundles.kept_queries import (
    BUILD_QUERIES_FILE,
    MOST_ITEMS,
    CalibrationInputs,
    ItemFeatures,
    series_of,
)
from model_store.decision import Calibration, size_classes
from model_store.decision.calibration import DEFAULT_ABSENT
from model_store.decision.outliers import averaging
from model_store.decision.probabilities import prior_shift, shifted
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import CalibrationError, DatasetError
from model_store.feedback import DrawnQuery
from model_store.gallery import FaissGallery, Gallery
from model_store.truth import label_or_id

from .calibrate import calibrate_gallery, calibration_queries, observe_gallery
from .fit import MIN_QUERIES, fit_calibration, with_evidence_of
from .inputs import GalleryQueries
from .item_queries import (
    MOST_QUERIES,
    CrossFittedLayers,
    ItemQueries,
    has_partner,
    leave_one_out_queries,
)
from .kept_queries import UNSAID, KeptVectors, as_vectors, images_of, with_decisions
from .probabilities import list_probabilities
from .queries import LEAST_LABELS, CalibrationQueries
from .retrieval import CalibratedGallery, RetrievedQueries, TruthRule, are_items, say_left_out

Floats = NDArray[np.float64]

NEGLIGIBLE = 0.02
"""Largest increase of the mean log loss, in nats, that counts as negligible. The loss of the new
calibration is higher for two reasons. The new calibration is also fitted to items; each item is
excluded from its own results. And the cross-fits of the new calibration use only four fifths of the
data. After half of the items were replaced, the loss rose by 0.015 nats on Caltech-101 and by 0.007
nats on Omniglot. On new queries, the new calibration was as good as the previous calibration."""

_LEAST = 1e-6
"""Minimum probability in a log loss, so that a single query does not dominate."""

ENOUGH_REVIEWED = 200
"""Number of reviewed queries with a match that are needed. Only these are then evidence for bounds.

Queries of users can be harder than images of the build. With 100 or 300 reviewed queries of another
camera beside images of the build as evidence, 9 to 13 % of `match` were wrong where 5 % were
allowed. With 300, outlier p-values flagged 7 % of that camera's queries, in place of 51 %, which
hides the camera from the drift test.
"""

BY_REVIEWED = "bounds_by_reviewed_queries"
"""Entry of a calibration's report: True if only reviewed queries are evidence for its bounds."""

TOO_FEW_REVIEWED = (
    "The bounds of the calibration come from reviewed queries, but there are only {:,} reviewed "
    "queries with a match; {:,} are needed. Run `vouch-build calibrate BUNDLES --decisions FILE` "
    "with the service's feedback file, or `--queries FILE` with your own queries."
)

NOTHING_KEPT = (
    "The bundle stores no calibration queries, so it cannot be recalibrated automatically; "
    "earlier releases did not store them. Run `vouch-build calibrate BUNDLES --queries FILE` "
    "once with your own queries, or rebuild the bundle."
)


FEATURES_NOT_KEPT = (
    "The gallery has labels of few items, and the bundle stores the features of at most {:,} "
    "items; without those of all items, such a gallery cannot be recalibrated. Run `vouch-build "
    "calibrate BUNDLES --queries FILE` with your own queries, or rebuild the bundle."
)


PLACES_NOT_KEPT = (
    "This bundle defines matches by place, but does not store the places of its calibration "
    "queries. Run `vouch-build calibrate BUNDLES --queries FILE` again."
)


@dataclass(frozen=True, slots=True)
class Refit:
    """A new calibration, compared with the previous calibration.

    Attributes
    ----------
    calibration : the new calibration.
    loss_before : loss of the previous calibration: mean log loss of P(the first result is right) on
        matched queries; see `_compared`.
    loss_after : the same loss of the new calibration.
    standard_error : standard error of ``loss_after`` − ``loss_before``.
    """

    calibration: Calibration
    loss_before: float
    loss_after: float
    standard_error: float

    @property
    def predicts_as_well(self) -> bool:
        """True if the loss increased by at most one standard error, or by at most `NEGLIGIBLE`."""
        return self.loss_after - self.loss_before <= max(self.standard_error, NEGLIGIBLE)


def fit_again(
    directory: Path,
    gallery: FaissGallery,
    before: Calibration,
    config: CalibrationConfig,
    drawn: Sequence[DrawnQuery] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Refit:
    """Fit the calibration of a bundle to its current gallery.

    Parameters
    ----------
    directory : directory of the bundle, which stores queries and item features.
    before : the current calibration.
    config : the error bounds.
    drawn : reviewed queries. They are used if `ENOUGH_REVIEWED` of them have a match; see
        `with_evidence_of`. If the bundle stores queries of users, they are used in any case.
    renamed : labels that were renamed since the queries were chosen, old → new.

    Raises
    ------
    CalibrationError : the bundle stores no queries, or too few remain; or too few reviewed queries,
        if only these were the evidence before.
    """
    kept, items = CalibrationInputs.load(directory), ItemFeatures.load(directory)
    if kept is None:
        raise CalibrationError(NOTHING_KEPT)
    kept, items = _regrouped(kept.relabelled(gallery, renamed), items, gallery)
    are_users = (directory / BUILD_QUERIES_FILE).exists()  # given to `calibrate --queries`
    n_kept, with_reviewed = len(kept.matched), with_decisions(kept, drawn, gallery)
    n_reviewed = len(with_reviewed.matched) - n_kept
    are_enough = n_reviewed >= ENOUGH_REVIEWED
    if are_users or are_enough:
        kept = with_reviewed
    elif before.report.get(BY_REVIEWED):
        raise CalibrationError(TOO_FEW_REVIEWED.format(n_reviewed, ENOUGH_REVIEWED))
    elif drawn:
        console.print(
            f"{n_reviewed:,} reviewed queries have a match, too few to be used: {ENOUGH_REVIEWED} "
            "are needed."
        )
    decided = set(kept.matched.ids[n_kept:])
    kept = _without_items(kept, gallery, n_kept)
    if before.within is not None:
        raise CalibrationError(PLACES_NOT_KEPT)
    rule = TruthRule(before.hierarchy)
    n_features = kept.matched.features.values.shape[1]
    encoder = KeptVectors(before.encoder_fingerprint, gallery.dim, n_features)
    # The stored features are already averaged, so the detector must not average again.
    n_averaged = before.detector.n_averaged
    before = replace(before, detector=replace(before.detector, n_averaged=1))
    queries, unlabelled = _queries(kept, items, gallery)
    if items is None:
        images, was_put = queries.matched.at([]), np.empty(0, dtype=bool)
        described = replace(CalibratedGallery.known(encoder, gallery, before.detector), rule=rule)
        observed = calibration_queries(encoder, described, queries)
    else:
        images, was_put = stored_items(items, gallery, kept.seed)
        if are_users:
            was_put[:] = False  # queries of users can be harder than items
        queries, item_queries = _as_items(
            kept, queries, unlabelled, decided, encoder, items, (images, was_put), gallery
        )
        inputs = GalleryQueries(
            *(encoder, gallery, images, queries, kept.seed),
            are_views=kept.are_views,
            unseen=kept.unseen,
            items=item_queries,
            rule=rule,
        )
        described, observed = observe_gallery(inputs, None, was_put, kept.labels)
    fitted = fit_calibration(described, observed, config, kept.seed, before.quality_limits)
    # A fit of these two values needs images and the encoder, which are not available.
    fitted = replace(fitted, picture=before.picture, similarity_stds=before.similarity_stds)
    was_decided = np.array([name in decided for name in queries.matched.ids], dtype=bool)
    known = queries.matched, images, was_decided
    refit = _compared(fitted, before, encoder, observed, *known)
    if are_enough and not are_users:
        if was_decided.sum() < MIN_QUERIES:  # the labels of the others have gone
            raise CalibrationError(TOO_FEW_REVIEWED.format(was_decided.sum(), ENOUGH_REVIEWED))
        fitted = with_evidence_of(fitted, observed, was_decided, kept.seed)
        fitted = replace(fitted, report={**fitted.report, BY_REVIEWED: True})
    detector = replace(fitted.detector, n_averaged=n_averaged)
    return replace(refit, calibration=_as_users_said(replace(fitted, detector=detector), before))


def _regrouped(
    kept: CalibrationInputs, items: ItemFeatures | None, gallery: FaissGallery
) -> tuple[CalibrationInputs, ItemFeatures | None]:
    """Return queries and items in larger groups.

    Groups are joined if metadata now name one series for their items. If items were added, groups
    of near-duplicates are joined, too.
    """
    if items is None:
        return kept, None
    series = series_of(gallery, items.ids)
    codes = {name: code for code, name in enumerate(dict.fromkeys(series.values()))}
    named = np.array([codes[series[one]] if one in series else -1 for one in items.ids])
    alike = [_near_duplicates(items, gallery)] if items.was_put.any() else []
    groups = named_groups([pairs_of_equal(named), *alike], items.groups, items.ids)
    group_of = dict(zip(items.groups, groups, strict=True))
    of_matched = tuple(group_of.get(group, group) for group in kept.matched.groups)
    matched = replace(kept.matched, groups=of_matched)
    return replace(kept, matched=matched), replace(items, groups=groups)


def _as_users_said(fitted: Calibration, before: Calibration) -> Calibration:
    """Return the new calibration with the feedback correction of the previous calibration.

    The correction stays valid, because feedback comes from served queries, not from calibration
    queries. The correction is dropped if another release computed the previous calibration.
    """
    if before.outdated is not None:
        return fitted
    said = {"feedback": before.report["feedback"]} if "feedback" in before.report else {}
    return replace(fitted, feedback=before.feedback, report={**fitted.report, **said})


def _without_items(kept: CalibrationInputs, gallery: Gallery, n_kept: int) -> CalibrationInputs:
    """Leave out the queries that are now items of the gallery; see `are_items`.

    Parameters
    ----------
    n_kept : number of matched queries that are not reviewed queries. If these queries are items or
        views of items, they remain: each is excluded from its own results.
    """
    matched, withheld = (
        are_items(gallery, part.embeddings().directions, 2**-10)  # as exact as half precision
        for part in (kept.matched, kept.withheld)
    )
    if kept.are_views or kept.unlabelled is not None:
        matched[:n_kept] = False
    say_left_out(int(matched.sum() + withheld.sum()))
    return replace(
        kept,
        matched=kept.matched.at(~matched),
        withheld=kept.withheld.at(~withheld),
        unlabelled=None if kept.unlabelled is None else kept.unlabelled.at(~matched),
    )


def _queries(
    kept: CalibrationInputs, items: ItemFeatures | None, gallery: Gallery
) -> tuple[QuerySet, NDArray[np.float32] | None]:
    """Divide the stored queries into present and absent queries of the current gallery.

    Returns
    -------
    Two values: the queries, and the embedding means (B, D) of the matched queries. For the means,
    see `ItemQueries.unlabelled`. The means are None if the queries are not items.
    """
    held = _held(kept, items, gallery)
    of_matched, of_withheld = (
        np.array([label in held or label == UNSAID for label in part.labels], dtype=bool)
        for part in (kept.matched, kept.withheld)
    )
    matched, withheld = images_of(kept.matched), images_of(kept.withheld)
    absent = joined(
        withheld.at(np.flatnonzero(~of_withheld)), matched.at(np.flatnonzero(~of_matched))
    )
    least = 1 if len(kept.withheld) else LEAST_LABELS
    is_too_few = len(absent) < MIN_QUERIES or len(set(absent.labels)) < least
    if kept.unlabelled is None and not kept.unseen and is_too_few:
        # The encoder was trained on the removed labels, so hidden labels are used instead.
        absent = absent.at([])
    rows = np.flatnonzero(of_matched)
    present = joined(matched.at(rows), withheld.at(np.flatnonzero(of_withheld)))
    unlabelled = None
    if kept.unlabelled is not None:
        others = kept.withheld.mean.whole()[of_withheld]
        unlabelled = np.concatenate([kept.unlabelled.whole()[rows], others])
    return QuerySet(present, absent, None), unlabelled


def _held(kept: CalibrationInputs, items: ItemFeatures | None, gallery: Gallery) -> set[str]:
    """Return the labels of the gallery.

    In a gallery without labels, return the ids of the items that queries can match.
    """
    rows = np.arange(gallery.n_items)
    if gallery.labels:
        codes = gallery.label_codes(rows)
        return {gallery.labels[code] for code in np.unique(codes[codes >= 0])}
    held = {item.id for item in gallery.items(rows)}
    if kept.are_views and items is not None:  # a new picture may have the old id
        held &= {name for name, put in zip(items.ids, items.was_put, strict=True) if not put}
    return held


def stored_items(
    items: ItemFeatures, gallery: FaissGallery, seed: int
) -> tuple[LabelledImages, NDArray[np.bool_]]:
    """Return the items with stored features, and a mask (N,) of the items added later.

    The items are in random order.
    """
    if items.was_put.any():  # items added later are at the end
        items = items.at(np.random.default_rng(seed).permutation(len(items)))
    rows = np.array([gallery.row(item_id) for item_id in items.ids], dtype=np.int64)
    of_gallery, features = gallery.embeddings(rows), items.features.whole()
    known = gallery.items(rows)
    named = [n for n, item in enumerate(known) if item.label is not None or not gallery.labels]
    labels = tuple(map(label_or_id, known))
    embeddings = Embeddings(of_gallery.mean, of_gallery.variance, features)
    images = as_vectors(items.ids, labels, items.groups, None, embeddings)
    return images.at(named), items.was_put[named]


def _as_items(
    kept: CalibrationInputs,
    queries: QuerySet,
    unlabelled: NDArray[np.float32] | None,
    decided: Collection[str],
    encoder: KeptVectors,
    items: ItemFeatures,
    stored: tuple[LabelledImages, NDArray[np.bool_]],
    gallery: FaissGallery,
) -> tuple[QuerySet, ItemQueries | None]:
    """Return the queries that remain, and the queries with a match if these are items.

    Parameters
    ----------
    queries, unlabelled : see `_queries`.
    decided : ids of the reviewed queries.
    stored : see `stored_items`.
    """
    if unlabelled is None:
        return queries, None  # the queries are held-out images
    was_fitted = _layer_was_fitted(kept)
    if was_fitted and items.share < 1:
        rows = _little_changed(queries.matched, decided, gallery)
        if len(rows) < MIN_QUERIES:
            raise CalibrationError(FEATURES_NOT_KEPT.format(MOST_ITEMS))
        queries = replace(queries, matched=queries.matched.at(rows))
        unlabelled = unlabelled[rows]
    alone = _embeddings(encoder, queries.matched)
    if was_fitted and items.share == 1:
        images, was_put = stored
        put = (images.ids[row] for row in np.flatnonzero(was_put))
        not_fitted = {*kept.not_fitted, *decided, *put}
        layers = _layers_again(encoder, images, queries.matched, not_fitted, kept.seed)
        return queries, layers.queries(queries.matched, alone)
    return queries, ItemQueries(queries.matched, alone, replace(alone, mean=unlabelled))


def _layer_was_fitted(kept: CalibrationInputs) -> bool:
    """Return whether the last layer was fitted to items, and again without each of them."""
    alone, unlabelled = kept.matched.mean, kept.unlabelled
    return unlabelled is not None and not np.array_equal(alone.values, unlabelled.values)


def _little_changed(
    queries: LabelledImages, decided: Collection[str], gallery: Gallery
) -> NDArray[np.int64]:
    """Return the queries whose similarities hardly depend on the fit of the last layer to them.

    If the features of some items are not stored, the items cannot be embedded without a query. The
    items of the query's label are then too similar to it, above all if the label has few. With
    seven items per label (4,613 drawings of Omniglot), the recall was 56 % instead of 53 %; it was
    62 % for new drawings, which find one item more. So queries of labels with few items are left
    out, and these labels have no guarantee. Reviewed queries, ``decided``, always stay.
    """
    codes = gallery.label_codes(np.arange(gallery.n_items))
    many = size_classes(np.bincount(codes[codes >= 0], minlength=len(gallery.labels))) > 1
    held = {label for label, is_large in zip(gallery.labels, many, strict=True) if is_large}
    return np.flatnonzero(
        [
            name in decided or label in held
            for name, label in zip(queries.ids, queries.labels, strict=True)
        ]
    )


def _layers_again(
    encoder: KeptVectors,
    images: LabelledImages,
    queries: LabelledImages,
    not_fitted: Collection[str],
    seed: int,
) -> CrossFittedLayers:
    """Fit the layers of a build again, to the stored features.

    Parameters
    ----------
    images : all items, in random order.
    queries : the queries, among them items that were removed; the layer was fitted to these, too.
    not_fitted : ids of images to which the layer was not fitted, such as later items.

    Raises
    ------
    CalibrationError : the remaining features do not determine a layer.
    """
    of_items = _embeddings(encoder, images)
    # The service's layer gives the means: it solves features @ weight.T = means.
    weight = np.linalg.lstsq(of_items.features, of_items.mean, rcond=None)[0].T
    held = {*images.ids, *not_fitted}  # a removed image that was not fitted changes nothing
    removed = queries.at([row for row, name in enumerate(queries.ids) if name not in held])
    every = joined(images, removed)
    fitted_to = np.flatnonzero([name not in not_fitted for name in every.ids])
    features = _embeddings(encoder, every).features
    try:
        return CrossFittedLayers.of(every, features, fitted_to, weight, seed)
    except DatasetError as error:
        raise CalibrationError(str(error)) from error


def _compared(
    fitted: Calibration,
    before: Calibration,
    encoder: KeptVectors,
    queries: CalibrationQueries,
    matched: LabelledImages,
    items: LabelledImages,
    was_decided: NDArray[np.bool_],
) -> Refit:
    """Compare two calibrations on queries with a match.

    Both calibrations were fitted to the held-out queries, so the losses of both calibrations on
    these queries are equally optimistic. Only the new calibration was fitted to items added later
    and to reviewed queries. For these items and these reviewed queries, the loss of the new
    calibration is computed from cross-fitted probabilities.
    """
    held_out, n_put = queries.matched, queries.n_put
    of_held_out = _embeddings(encoder, matched)
    unseen = _unseen_losses(fitted)
    after = np.where(was_decided, unseen[: len(held_out)], _losses(fitted, held_out, of_held_out))
    if before.outdated is not None:  # nothing to compare
        return Refit(fitted, float(after.mean()), float(after.mean()), 0.0)
    old = _losses(before, held_out, of_held_out)
    if n_put and queries.item_rows is not None:
        after = np.concatenate([after, unseen[len(held_out) :][:n_put]])
        of_put = _embeddings(encoder, items.at(queries.item_rows[:n_put]))
        put = queries.of("items")[0].observed.at(slice(n_put))
        old = np.concatenate([old, _losses(before, put, of_put)])
    difference = after - old
    return Refit(
        fitted,
        float(old.mean()),
        float(after.mean()),
        float(difference.std(ddof=1) / np.sqrt(len(difference))),
    )


def _unseen_losses(fitted: Calibration) -> Floats:
    """Return cross-fitted log losses (N,) of P(the first result is right).

    The losses are in the order of the evidence: held-out queries first, then items excluded from
    their own results.
    """
    evidence = fitted.evidence
    shift = prior_shift(fitted.assumed_absent, DEFAULT_ABSENT)
    first = shifted(evidence.first_probabilities, evidence.no_match_probabilities, shift)
    return _log_loss(first, evidence.correct)


def _embeddings(encoder: KeptVectors, images: LabelledImages) -> Embeddings:
    return encoder.encode(np.stack([images.pixels(row) for row in range(len(images))]))


def _losses(calibration: Calibration, observed: RetrievedQueries, embeddings: Embeddings) -> Floats:
    """Return log losses (B,) of P(the first result is right), without correction by feedback."""
    observed = observed.first(calibration.n_candidates)
    observed = replace(observed, outlier_scores=calibration.outlier_score(embeddings))
    lists = list_probabilities(calibration, observed, DEFAULT_ABSENT)
    first = np.array([probabilities[0] for _, probabilities in lists])
    return _log_loss(first, observed.matches[:, 0])


def _log_loss(probabilities: Floats, correct: NDArray[np.bool_]) -> Floats:
    """Return −log of the probability predicted for the actual outcome, (B,)."""
    of_truth = np.where(correct, probabilities, 1 - probabilities)
    loss: Floats = -np.log(np.maximum(of_truth, _LEAST))
    return loss


NO_FEATURES = (
    "The bundle stores neither calibration queries nor features of its items. Run "
    "`vouch-build calibrate BUNDLES --queries FILE --gallery SOURCE` once, or rebuild the bundle "
    "with --calibrate."
)


def fit_first(
    directory: Path, gallery: FaissGallery, encoder: Encoder, config: CalibrationConfig, seed: int
) -> Calibration:
    """Fit the first calibration of a bundle, and store its queries in the bundle.

    Copies and near-duplicates, as seen in the thumbnails, do not find each other, and neither do
    items whose metadata name the same group; see `series_of`.

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
    # No layer was fitted to an item or a label.
    items = ItemQueries(queries, alone, alone)
    nothing = QuerySet(images.at([]), images.at([]), None)
    known = vectors, gallery, images, nothing, seed
    inputs = GalleryQueries(*known, are_views=False, unseen=True, items=items)
    fitted = calibrate_gallery(inputs, config, kept_in=directory)
    # `keep` stores the keys of the queries' groups; a refit compares the two.
    replace(stored, groups=tuple(f"group {group}" for group in stored.groups)).save(directory)
    # The stored features are already averaged; those of a query are averaged by the detector.
    detector = replace(fitted.detector, n_averaged=averaging(encoder.n_features))
    return replace(fitted, detector=detector)


def _groups(stored: ItemFeatures, gallery: FaissGallery) -> tuple[str, ...]:
    """Return the groups of the stored items: near-duplicates, and items that name one group."""
    series = series_of(gallery, stored.ids)
    names = [series.get(one) for one in stored.ids]
    return named_groups([_near_duplicates(stored, gallery)], names, stored.ids)


def _near_duplicates(items: ItemFeatures, gallery: FaissGallery) -> NDArray[np.int64]:
    """Return pairs (P, 2) of items with nearly the same thumbnail."""
    return pairs_among([_seen(gallery.thumbnail(item_id).data) for item_id in items.ids])


def _seen(thumbnail: bytes) -> Fingerprint | None:
    """Return the fingerprint of a picture; None if an item of vectors has no picture."""
    try:
        with Image.open(BytesIO(thumbnail)) as picture:
            return fingerprint(np.asarray(picture.convert("RGB")))
    except UnidentifiedImageError:
        return None
