"""Everything that turns a result list into promises, from held-out queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import beta

from index_builder.calibration.detector import cross_fitted_scores, fit_fusion
from index_builder.calibration.label_choices import LabelChoices
from index_builder.calibration.probabilities import (
    CrossFit,
    Examples,
    Group,
    fit_logistic,
    fit_venn_abers,
)
from index_builder.configuration import CalibrationConfig
from index_builder.metrics import auroc, expected_calibration_error, reliability
from index_builder.observation import Observed
from model_store.decision import (
    OUTLIER_SIGNALS,
    Calibration,
    OperatingCurve,
    OutlierDetector,
)
from model_store.errors import CalibrationError

MIN_QUERIES = 50
"""Below it a conformal p-value cannot even reach 0.02, and a logistic fit is guesswork."""

N_POINTS = 200
"""Of the risk-coverage curve."""

CONFIDENCE = 0.9
"""Of the upper bounds on its errors."""

COVERAGES = (0.8, 0.9, 0.95, 0.98, 0.99)
"""Of result sets, that the report speaks of."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CalibrationQueries:
    """What a gallery is calibrated with.

    Attributes
    ----------
    matched : held-out queries whose label is in the gallery.
    no_match : queries of the same world without a true match there.
    strangers : whether those are images of labels that the gallery does not hold; else they are the
        matched queries again, with their own label hidden from them.
    are_views : whether all of these are views of gallery images, made up, because nobody knows what
        belongs together.
    corrupted : some of the matched queries, spoilt.
    corrupted_of : their places among the matched queries.
    outliers : queries from another world, which have no match either. They teach what alien images
        look like; the p-value needs no example of them.
    """

    matched: Observed
    no_match: Observed
    strangers: bool
    are_views: bool
    corrupted: Observed
    corrupted_of: NDArray[np.int64]
    outliers: Observed | None

    def aliens(self) -> dict[str, Observed]:
        """What teaches the outlier score, by kind."""
        kinds = {"corrupted": self.corrupted}
        if self.strangers:
            kinds["near"] = self.no_match
        if self.outliers is not None:
            kinds["far"] = self.outliers
        return kinds


def fit_calibration(
    detector: OutlierDetector,
    queries: CalibrationQueries,
    encoder_fingerprint: str,
    search: Mapping[str, Any],
    config: CalibrationConfig,
    seed: int,
    quality_limits: Mapping[str, float],
) -> Calibration:
    """Fit everything that turns a result list into promises.

    Scores and probabilities that something else is fitted to or measured on come from fits that
    have not seen their query (five folds); what is served is fitted to all of them.

    Parameters
    ----------
    search : the settings that the queries were searched with.
    quality_limits : what is ordinary for the pictures of the matched queries.

    Raises
    ------
    CalibrationError : too few queries, matched or without a match.
    """
    matched, no_match, outliers = queries.matched, queries.no_match, queries.outliers
    for name, observed in (("matched", matched), ("no-match", no_match)):
        if len(observed) < MIN_QUERIES:
            raise CalibrationError(
                f"There are {len(observed)} {name} calibration queries; at least {MIN_QUERIES} are "
                "needed. Hold out more images, or withhold more labels."
            )
    groups, alien = _scored(queries, config.no_match_share, seed)
    of_matched, ordinary = groups[0], groups[0].outlier_scores
    examples = Examples.of(groups)
    fits = CrossFit.of(examples, seed)
    log_odds = fits.log_odds(examples.values, examples.queries)

    first = examples.is_first
    probabilities = expit(log_odds[first])
    curve = operating_curve(probabilities, examples.matches[first], examples.weights[first])
    point = curve.at(config.max_error)
    choices = LabelChoices.of(of_matched, fits)
    aliens = [observed.outlier_signals for observed in queries.aliens().values()]
    fusion = fit_fusion(matched.outlier_signals, aliens)
    correct = matched.matches[:, 0]
    of_first = probabilities[: len(matched)]
    report = {
        "n_matched": len(matched),
        "n_no_match": len(no_match),
        "no_match_are_strangers": queries.strangers,
        "queries": "views_of_items" if queries.are_views else "held_out_images",
        "n_outliers": 0 if outliers is None else len(outliers),
        "no_match_share": config.no_match_share,
        "max_error": config.max_error,
        "outlier_weights": dict(zip(OUTLIER_SIGNALS, fusion.weights.tolist(), strict=True)),
        "cross_fitted": {
            "top1_ece": expected_calibration_error(of_first, correct),
            "error_auroc": auroc(1 - of_first[~correct], 1 - of_first[correct]),
            "reliability": [asdict(one) for one in reliability(of_first, correct)],
            "match_coverage": 0.0 if point is None else point.coverage,
            "outlier_auroc": {name: auroc(values, ordinary) for name, values in alien.items()},
            "result_sets": [choices.outcome(coverage) for coverage in COVERAGES],
        },
    }
    return Calibration(
        encoder_fingerprint=encoder_fingerprint,
        search=search,
        n_queries=len(matched),
        alpha=config.alpha,
        coverage=config.coverage,
        match_threshold=1.0 if point is None else point.threshold,  # then (nearly) nothing matches
        operating=curve,
        uncertainties=np.sort(matched.spherical_variances),
        outlier_scores=np.sort(ordinary),
        detector=detector,
        fusion=fusion,
        match=examples.fitted(),
        no_match=fit_logistic(
            examples.values[first],
            np.arange(len(probabilities)) >= len(matched),
            examples.weights[first],
        ),
        intervals=fit_venn_abers(log_odds, examples.matches, examples.weights / 2),
        sets=choices.rule(),
        quality_limits=quality_limits,
        report=report,
    )


def _scored(
    queries: CalibrationQueries, no_match_share: float, seed: int
) -> tuple[list[Group], dict[str, Floats]]:
    """Every kind of query with its outlier scores.

    Each kind without a match weighs ``no_match_share`` by itself: aliens, which are easily told
    apart, take nothing from the rest.

    Returns
    -------
    groups : of the queries that are searched with, the matched ones first.
    scores : of each kind of outlier, ``corrupted`` ones included.
    """
    matched, no_match, kinds = queries.matched, queries.no_match, queries.aliens()
    places = np.arange(len(matched))
    # Spoilt copies share the source of their original; every other query is a source of its own.
    starts = {"near": len(matched), "far": len(matched) + len(no_match)}
    sources = {kind: starts.get(kind, 0) + np.arange(len(kinds[kind])) for kind in kinds}
    sources["corrupted"] = queries.corrupted_of
    ordinary, *of_kinds = cross_fitted_scores(
        matched.outlier_signals,
        [observed.outlier_signals for observed in kinds.values()],
        np.concatenate([places, *sources.values()]),
        seed,
    )
    scores = dict(zip(kinds, of_kinds, strict=True))
    total = no_match_share / (1 - no_match_share) * len(matched)
    groups = [Group(matched, ordinary, 1.0, places)]
    if not queries.strangers:  # the same pictures again, and as alien as before
        groups.append(Group(no_match, ordinary, total / len(no_match), places))
    for kind in ("near", "far"):
        if kind in kinds:
            weight = total / len(kinds[kind])
            groups.append(Group(kinds[kind], scores[kind], weight, sources[kind]))
    return groups, scores


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
