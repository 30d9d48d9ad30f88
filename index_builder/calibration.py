"""Fitting the decision layer on held-out queries, never on the gallery's own images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from index_builder.configuration import CalibrationConfig
from index_builder.metrics import auroc, expected_calibration_error, reliability
from index_builder.observation import Observed
from model_store.decision import (
    SIGNALS,
    Calibration,
    LogisticModel,
    OperatingCurve,
    OutlierDetector,
)
from model_store.decision.outliers import unit_rows
from model_store.errors import CalibrationError

MIN_QUERIES = 50
"""Below it a conformal p-value cannot even reach 0.02, and a logistic fit is guesswork."""

RANK = 128
"""Principal directions of the features that the outlier detector keeps."""

MIN_REFERENCES = 20
"""Gallery images below which there is no subspace to speak of."""

N_REFERENCES = 5000
"""Gallery images whose features a query's are compared with."""

FITTED_RANKS = np.array([0, 1, 2, 4, 9])
"""Places in the result list that the match probability is fitted on."""

N_FOLDS = 5

N_POINTS = 200
"""Of the risk-coverage curve."""

CONFIDENCE = 0.9
"""Of the upper bounds on its errors."""

Floats = NDArray[np.float64]


def fit_detector(features: NDArray[np.float32], seed: int) -> OutlierDetector:
    """Fit the outlier detector on features (N, F) of gallery images.

    Raises
    ------
    CalibrationError : too few images for a subspace.
    """
    if len(features) < MIN_REFERENCES:
        raise CalibrationError(
            f"The gallery has {len(features)} images; outlier detection needs at least "
            f"{MIN_REFERENCES}. Index more images."
        )
    rows = unit_rows(features)
    rank = min(RANK, len(rows) // 2, rows.shape[1])
    pca = PCA(rank, svd_solver="randomized", random_state=seed).fit(rows)
    centre = pca.mean_.astype(np.float32)
    basis = np.ascontiguousarray(pca.components_.T, dtype=np.float32)
    return OutlierDetector(centre, basis, (rows[:N_REFERENCES] - centre) @ basis)


def fit_calibration(
    detector: OutlierDetector,
    matched: Observed,
    no_match: Observed,
    outliers: Observed | None,
    encoder_fingerprint: str,
    config: CalibrationConfig,
    seed: int,
    quality_limits: Mapping[str, float],
) -> Calibration:
    """Fit everything that turns a result list into promises.

    Parameters
    ----------
    matched : held-out queries whose label is in the gallery.
    no_match : queries of the same world without a true match there.
    outliers : queries from another world, which have none either. They teach the match
        probability what alien images look like; the p-value needs no example of them.
    quality_limits : what is ordinary for the pictures of ``matched``.

    Raises
    ------
    CalibrationError : too few of the first two.
    """
    for name, observed in (("matched", matched), ("no-match", no_match)):
        if len(observed) < MIN_QUERIES:
            raise CalibrationError(
                f"There are {len(observed)} {name} calibration queries; at least {MIN_QUERIES} are "
                "needed. Hold out more images, or withhold more labels."
            )
    n_no_match = len(no_match)
    if outliers is not None:
        no_match = no_match.joined(outliers)
    examples = _Examples.of(matched, no_match, config.no_match_share)
    top, top_matches, top_weights = examples.first_ranks()
    top_probabilities = _cross_fitted(examples, seed)
    has_no_match = np.r_[np.zeros(len(matched)), np.ones(len(no_match))]
    curve = operating_curve(top_probabilities, top_matches, top_weights)
    point = curve.at(config.max_error)
    in_gallery = slice(0, len(matched))
    correct = matched.matches[:, 0]
    report = {
        "n_matched": len(matched),
        "n_no_match": n_no_match,
        "n_outliers": 0 if outliers is None else len(outliers),
        "no_match_share": config.no_match_share,
        "max_error": config.max_error,
        "cross_fitted": {
            "top1_ece": expected_calibration_error(top_probabilities[in_gallery], correct),
            "error_auroc": auroc(
                1 - top_probabilities[in_gallery][~correct],
                1 - top_probabilities[in_gallery][correct],
            ),
            "reliability": [
                asdict(one) for one in reliability(top_probabilities[in_gallery], correct)
            ],
            "match_coverage": 0.0 if point is None else point.coverage,
            "outlier_auroc": None
            if outliers is None
            else auroc(outliers.outlier_distances, matched.outlier_distances),
        },
    }
    return Calibration(
        encoder_fingerprint,
        len(matched),
        config.alpha,
        1.0 if point is None else point.threshold,  # no point: (nearly) nothing is a match
        curve,
        np.sort(matched.spherical_variances),
        np.sort(matched.outlier_distances),
        detector,
        fit_logistic(examples.values, examples.matches, examples.weights),
        fit_logistic(top, has_no_match.astype(bool), top_weights),
        quality_limits,
        report,
    )


@dataclass(frozen=True, slots=True)
class _Examples:
    """Pairs of a query and one of its candidates: signals, outcome, weight, and whose they are."""

    values: Floats
    matches: NDArray[np.bool_]
    weights: Floats
    queries: NDArray[np.int64]
    is_first: NDArray[np.bool_]

    @classmethod
    def of(cls, matched: Observed, no_match: Observed, no_match_share: float) -> _Examples:
        """The pairs at `FITTED_RANKS`.

        Queries without a match weigh together ``no_match_share`` of the whole; of each query's
        weight half lies on its first item, the one that a verdict is about.
        """
        ranks = FITTED_RANKS[matched.similarities.shape[1] > FITTED_RANKS]
        of_rank = np.where(ranks == 0, 1.0, 1.0 / max(len(ranks) - 1, 1))
        of_no_match = no_match_share / max(1 - no_match_share, 1e-9) * len(matched) / len(no_match)
        values, matches, weights = [], [], []
        for observed, weight in ((matched, 1.0), (no_match, of_no_match)):
            values.append(observed.signals(ranks).reshape(-1, len(SIGNALS)))
            matches.append(observed.matches[:, ranks].ravel())
            weights.append(np.tile(of_rank * weight, len(observed)))
        n_queries = len(matched) + len(no_match)
        return cls(
            np.concatenate(values),
            np.concatenate(matches),
            np.concatenate(weights),
            np.repeat(np.arange(n_queries), len(ranks)),
            np.tile(ranks == 0, n_queries),
        )

    def first_ranks(self) -> tuple[Floats, NDArray[np.bool_], Floats]:
        """Signals, outcomes and weights of every query's first item."""
        return self.values[self.is_first], self.matches[self.is_first], self.weights[self.is_first]


def _cross_fitted(examples: _Examples, seed: int) -> Floats:
    """Match probability of every query's first item, from a fit that has not seen the query."""
    top, top_matches, _ = examples.first_ranks()
    probabilities = np.empty(len(top))
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    for kept, left_out in folds.split(top, top_matches):
        rows = np.isin(examples.queries, kept)
        fitted = fit_logistic(examples.values[rows], examples.matches[rows], examples.weights[rows])
        probabilities[left_out] = fitted(top[left_out])
    return probabilities


def fit_logistic(values: Floats, outcomes: NDArray[np.bool_], weights: Floats) -> LogisticModel:
    """Weighted logistic regression of ``outcomes`` (N,) on standardised ``values`` (N, M)."""
    centre = np.average(values, axis=0, weights=weights)
    scale = np.sqrt(np.average((values - centre) ** 2, axis=0, weights=weights))
    scale = np.where(scale > 0, scale, 1.0)
    if outcomes.all() or not outcomes.any():  # nothing to separate: the smoothed rate itself
        rate = (weights[outcomes].sum() + 1) / (weights.sum() + 2)
        return LogisticModel(np.zeros(len(scale)), centre, scale, float(np.log(rate / (1 - rate))))
    fitted = LogisticRegression(C=1.0, max_iter=1000).fit(
        (values - centre) / scale, outcomes, sample_weight=weights
    )
    return LogisticModel(fitted.coef_[0], centre, scale, float(fitted.intercept_[0]))


def operating_curve(
    probabilities: Floats, outcomes: NDArray[np.bool_], weights: Floats
) -> OperatingCurve:
    """Measure the error of the accepted at every threshold, at most `N_POINTS` of them.

    Confidence bounds count weighted queries by their effective number, (Σ w)² / Σ w² (Kish 1965).

    Parameters
    ----------
    probabilities : (N,) of first items, by a fit that has not seen the query.
    outcomes : (N,) whether the item is a true match.
    weights : (N,) of the queries.
    """
    order = np.argsort(-probabilities, kind="stable")
    ranked, weight = probabilities[order], weights[order]
    accepted = np.cumsum(weight)
    wrong = np.cumsum(weight * ~outcomes[order])
    effective = accepted**2 / np.cumsum(weight**2)
    # Queries of one probability are accepted together: a threshold cannot tell them apart.
    ends = np.flatnonzero(np.r_[ranked[1:] < ranked[:-1], True])
    kept = ends[np.unique(np.linspace(0, len(ends) - 1, N_POINTS).round().astype(int))]
    error = (wrong / accepted)[kept]
    n_wrong = error * effective[kept]
    bounds = beta.ppf(CONFIDENCE, n_wrong + 1, np.maximum(effective[kept] - n_wrong, 1e-9))
    return OperatingCurve(ranked[kept], accepted[kept] / accepted[-1], error, bounds)
