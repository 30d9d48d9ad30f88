"""What a calibrated gallery says of test queries, beside the truth."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from index_builder.datasets import LabelledImages
from model_store.decision import SIZE_CLASSES, Calibration, Retrieved, Terms, decide, size_classes
from model_store.decision.probabilities import prior_shift, shifted
from model_store.decision.verdict import FoundLabels
from model_store.encoder.contract import Encoder
from model_store.gallery import Gallery
from model_store.predictive import predict
from model_store.search import N_CANDIDATES

AT_ONCE = 512

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """N queries, answered for the share of absent queries that was fitted with.

    Attributes
    ----------
    probabilities : (N,) match probability of the first item.
    no_match : (N,) P(no match).
    not_listed : (N,) P(no match among the labels of the list that signals are taken from).
    similarities : (N,) of the first item.
    outlier_scores, p_values : (N,).
    classes : (N,) size class of the first item's label.
    correct : (N,) whether the first item has the query's true label.
    true_classes : (N,) size class of the true label in the gallery, −1 where it is not there.
    covered : (N,) whether the result set holds the true label.
    set_sizes : (N,) items of it.
    """

    probabilities: Floats
    no_match: Floats
    not_listed: Floats
    similarities: Floats
    outlier_scores: Floats
    p_values: Floats
    classes: NDArray[np.int8]
    correct: Bools
    true_classes: NDArray[np.int8]
    covered: Bools
    set_sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.probabilities)

    def at(self, rows: Bools) -> Answers:
        """Return the answers to some of the queries."""
        return Answers(*(getattr(self, field.name)[rows] for field in fields(self)))

    def at_share(self, calibration: Calibration, share: float) -> Floats:
        """Return the match probabilities (N,) where a share of the queries is absent."""
        shift = prior_shift(calibration.assumed_absent, share)
        return calibration.feedback.of(shifted(self.probabilities, self.not_listed, shift))

    def reach_threshold(self, calibration: Calibration, share: float) -> Bools:
        """Return which first items (N,) reach the promised threshold of their size class."""
        promises = calibration.promises(share)
        thresholds = np.array([promises.threshold(place) for place in range(len(SIZE_CLASSES))])
        return self.at_share(calibration, share) >= thresholds[self.classes]

    def is_match(self, calibration: Calibration, share: float, alpha: float) -> Bools:
        """Return which queries (N,) get the verdict ``match``."""
        return self.reach_threshold(calibration, share) & self.ordinary(calibration, alpha)

    def ordinary(self, calibration: Calibration, alpha: float) -> Bools:
        """Return which queries (N,) are not flagged out of distribution."""
        least = 1 / (len(calibration.outlier_scores) + 1)
        return ~((self.p_values <= alpha) & (alpha >= least))


def answer_all(
    encoder: Encoder,
    gallery: Gallery,
    calibration: Calibration,
    images: LabelledImages,
) -> Answers:
    """Ask the gallery about images whose labels are the truth.

    `decide` is asked as `Retriever.find` asks it, but candidates are searched in batches, and
    nothing is read of items but their labels.
    """
    names = np.array(gallery.labels)
    counts = np.bincount(gallery.label_codes(gallery.rows()), minlength=len(names))
    of_label = size_classes(counts)
    code_of = {name: code for code, name in enumerate(gallery.labels)}
    truth = np.array([code_of.get(label, -1) for label in images.labels])
    terms = Terms(calibration.alpha, expected_absent=calibration.assumed_absent)
    rows: list[tuple[Any, ...]] = []
    for positions, batch in images.batches(encoder.metadata.preprocessing, AT_ONCE):
        embeddings = encoder.encode(batch)
        scores = calibration.outlier_score(embeddings)
        found = gallery.candidates(embeddings.directions, N_CANDIDATES)
        codes = gallery.label_codes(found.rows)
        n_listed = min(found.rows.shape[1], calibration.n_candidates)
        for row, predictive in enumerate(predict(embeddings, scores)):
            label = truth[positions[row]]
            retrieved = Retrieved(found.similarities[row], codes[row], n_listed, np.array([0]))
            decided = decide(calibration, predictive, retrieved, terms)
            labels = FoundLabels.of(calibration, predictive, retrieved)
            listed = labels.probabilities(calibration, 0.0)[: labels.n_in_list]
            chosen = decided.result_set
            assert decided.match_log_odds is not None
            assert chosen is not None
            rows.append(
                (
                    expit(decided.match_log_odds[0]),
                    decided.assumed_no_match,
                    1 - listed.sum(),
                    found.similarities[row, 0],
                    predictive.outlier_score,
                    decided.assessment.outlier_p_value,
                    of_label[codes[row, 0]],
                    codes[row, 0] == label,
                    of_label[label] if label >= 0 else -1,
                    (codes[row, chosen.places] == label).any(),
                    len(chosen.places),
                )
            )
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Answers(**dict(zip((field.name for field in fields(Answers)), columns, strict=True)))
