"""Calibrating a gallery again as it has become, from what its bundle keeps: no image is read.

Queries whose label has gone from the gallery are absent ones from then on; items that were put
since are queries too, each left out of its own list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.calibrate import (
    RetrievalSetup,
    SpoiltQueries,
    calibration_queries,
    observe_gallery,
)
from index_builder.calibration.fit import MIN_QUERIES, fit_calibration
from index_builder.calibration.kept_queries import KeptQueries, KeptVectors, as_vectors
from index_builder.calibration.queries import CalibrationQueries
from index_builder.calibration.retrieval import RetrievedQueries
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import joined
from index_builder.datasets.splits import QuerySet
from model_store.bundles.item_features import ItemFeatures
from model_store.decision import Calibration
from model_store.decision.absent_share import prior_shift
from model_store.decision.logistic import choice_probabilities
from model_store.decision.promises import LEAST_ABSENT_LABELS
from model_store.encoder.contract import Embeddings
from model_store.errors import CalibrationError
from model_store.gallery import FaissGallery, Gallery

Floats = NDArray[np.float64]

_LEAST = 1e-6
"""Probability below which a log loss grows no more: one query is not to decide."""

NOTHING_KEPT = (
    "The bundle keeps no calibration queries, as none of an earlier release does: it cannot be "
    "calibrated again by itself. Run `vouch-build calibrate BUNDLES --queries FILE` once, with "
    "queries of your own, or build it again; from then on it can."
)


@dataclass(frozen=True, slots=True)
class Refit:
    """A calibration that was fitted again.

    Attributes
    ----------
    calibration : the new one.
    loss_before, loss_after : mean log loss of "the first result is right" on matched queries, by
        the calibration before and by fits that have not seen the query.
    standard_error : of their difference.
    """

    calibration: Calibration
    loss_before: float
    loss_after: float
    standard_error: float

    @property
    def foretells_as_well(self) -> bool:
        """True if the new one is not worse by more than the standard error of the difference.

        The one before has seen most of these queries, the new one none.
        """
        return self.loss_after - self.loss_before <= self.standard_error


def fit_again(
    directory: Path, gallery: FaissGallery, before: Calibration, config: CalibrationConfig
) -> Refit:
    """Fit the calibration of a bundle to its gallery as it is.

    Parameters
    ----------
    directory : of the bundle, which keeps queries and features of items.
    before : the calibration until now.
    config : what shall be promised.

    Raises
    ------
    CalibrationError : the bundle keeps nothing, or too little is left of it.
    """
    kept, items = KeptQueries.load(directory), ItemFeatures.load(directory)
    if kept is None:
        raise CalibrationError(NOTHING_KEPT)
    n_features = kept.matched.features.values.shape[1]
    encoder = KeptVectors(before.encoder_fingerprint, gallery.dim, n_features)
    # Kept features are averaged already, those of served queries are not.
    n_averaged = before.detector.n_averaged
    before = replace(before, detector=replace(before.detector, n_averaged=1))
    queries, of_spoilt = _queries(kept, items, gallery)
    if items is None:
        images = queries.matched.subset([])
        setup = RetrievalSetup.known(encoder, gallery, before.detector)
        observed = calibration_queries(setup, queries, kept.seed, of_spoilt=of_spoilt)
    else:
        images, was_put = _items(items, gallery, kept.seed)
        setup, observed = observe_gallery(
            encoder,
            gallery,
            images,
            queries,
            kept.seed,
            are_views=kept.are_views,
            unseen=kept.unseen,
            of_spoilt=of_spoilt,
            was_put=was_put,
        )
    fitted = fit_calibration(setup.calibrated, observed, config, kept.seed, before.quality_limits)
    refit = _compared(
        fitted, before, observed, _embeddings(encoder, queries.matched, images, observed)
    )
    detector = replace(fitted.detector, n_averaged=n_averaged)
    return replace(refit, calibration=replace(fitted, detector=detector))


def _queries(
    kept: KeptQueries, items: ItemFeatures | None, gallery: Gallery
) -> tuple[QuerySet, SpoiltQueries]:
    """Divide what is kept by what the gallery holds now."""
    held = _held(kept, items, gallery)
    of_matched, of_withheld = (
        np.array([label in held for label in part.labels], dtype=bool)
        for part in (kept.matched, kept.withheld)
    )
    matched, withheld = kept.matched.images(), kept.withheld.images()
    absent = joined(
        withheld.subset(np.flatnonzero(~of_withheld)), matched.subset(np.flatnonzero(~of_matched))
    )
    least = 1 if len(kept.withheld) else LEAST_ABSENT_LABELS
    if len(absent) < MIN_QUERIES or len(set(absent.labels)) < least:
        absent = absent.subset([])  # then labels are hidden
    rows = np.flatnonzero(of_matched)
    place = {row: number for number, row in enumerate(rows.tolist())}
    spoilt = np.flatnonzero(of_matched[kept.corrupted_of])
    of_spoilt = [place[of] for of in kept.corrupted_of[spoilt].tolist()]
    present = joined(matched.subset(rows), withheld.subset(np.flatnonzero(of_withheld)))
    outliers = kept.outliers.images() if len(kept.outliers) else None
    return (
        QuerySet(present, absent, outliers),
        (kept.corrupted.images().subset(spoilt), np.array(of_spoilt, dtype=np.int64)),
    )


def _held(kept: KeptQueries, items: ItemFeatures | None, gallery: Gallery) -> set[str]:
    """Return the labels of the gallery; without labels, the items that queries are still of."""
    rows = np.arange(gallery.n_items)
    if gallery.labels:
        codes = gallery.label_codes(rows)
        return {gallery.labels[code] for code in np.unique(codes[codes >= 0])}
    held = {item.id for item in gallery.items(rows)}
    if kept.are_views and items is not None:  # another picture may have the id by now
        held &= {name for name, put in zip(items.ids, items.was_put, strict=True) if not put}
    return held


def _items(
    items: ItemFeatures, gallery: FaissGallery, seed: int
) -> tuple[LabelledImages, NDArray[np.bool_]]:
    """Return the items whose features are known, in random order, and which of them were put."""
    items = items.at(np.random.default_rng(seed).permutation(len(items)))
    rows = np.array([gallery.row(item_id) for item_id in items.ids], dtype=np.int64)
    of_gallery, features = gallery.embeddings(rows), items.features.whole()
    known = gallery.items(rows)
    named = [n for n, item in enumerate(known) if item.label is not None or not gallery.labels]
    labels = tuple(item.id if item.label is None else item.label for item in known)
    embeddings = Embeddings(of_gallery.mean, of_gallery.variance, features)
    images = as_vectors(items.ids, labels, items.groups, None, embeddings)
    return images.subset(named), items.was_put[named]


def _embeddings(
    encoder: KeptVectors,
    matched: LabelledImages,
    images: LabelledImages,
    queries: CalibrationQueries,
) -> Embeddings:
    """Return the embeddings of the matched queries, then of items left out of their own lists."""
    left_out = queries.leave_one_out
    some = images.subset([] if left_out is None else left_out.places)
    rows = [part.pixels(row) for part in (matched, some) for row in range(len(part))]
    return encoder.encode(np.stack(rows))


def _compared(
    fitted: Calibration, before: Calibration, queries: CalibrationQueries, embeddings: Embeddings
) -> Refit:
    """Compare two calibrations on the queries that have a match."""
    parts = [queries.matched]
    if queries.leave_one_out is not None:
        parts.append(queries.leave_one_out.matched)
    observed = RetrievedQueries.concatenate(parts)
    evidence = fitted.evidence
    present = ~evidence.absent
    correct = evidence.correct[present]
    after = _log_loss(evidence.first_probabilities[present], correct)
    shift = prior_shift(before.assumed_absent, fitted.assumed_absent)
    old = _log_loss(_first_probabilities(before, observed, embeddings, shift), correct)
    difference = after - old
    return Refit(
        fitted,
        float(old.mean()),
        float(after.mean()),
        float(difference.std(ddof=1) / np.sqrt(len(difference))),
    )


def _first_probabilities(
    calibration: Calibration, observed: RetrievedQueries, embeddings: Embeddings, shift: float
) -> Floats:
    """Return the match probabilities (B,) of first results by a calibration of another gallery."""
    observed = observed.first(calibration.n_candidates)
    scores = calibration.outlier_score(embeddings)
    first = np.empty(len(observed))
    for row, score in enumerate(scores.tolist()):
        _, values = observed.signals(row, score)
        log_odds = calibration.match.log_odds(values) + shift
        first[row] = calibration.feedback.of(choice_probabilities(log_odds)[:1])[0]
    return first


def _log_loss(probabilities: Floats, correct: NDArray[np.bool_]) -> Floats:
    """Return −log of what was said of the truth, (B,)."""
    of_truth = np.where(correct, probabilities, 1 - probabilities)
    loss: Floats = -np.log(np.maximum(of_truth, _LEAST))
    return loss
