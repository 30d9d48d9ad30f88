"""Everything that turns a result list into promises, from held-out queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from index_builder.calibration.detector import cross_fitted_scores, fit_fusion
from index_builder.calibration.label_choices import LabelChoices
from index_builder.calibration.probabilities import (
    Examples,
    Group,
    cross_fitted,
    fit_choice,
    fit_logistic,
    fit_venn_abers,
)
from index_builder.configuration import CalibrationConfig
from index_builder.metrics import auroc, expected_calibration_error, reliability
from index_builder.observation import Observed
from model_store.decision import (
    OUTLIER_SIGNALS,
    Calibration,
    LabelMeans,
    OperatingCurve,
    OutlierDetector,
    OutlierFusion,
    Recalibration,
    bounded_logit,
)
from model_store.errors import CalibrationError

MIN_QUERIES = 50
"""Below it a conformal p-value cannot even reach 0.02, and a logistic fit is guesswork."""

N_POINTS = 200
"""Of the risk-coverage curve."""

CONFIDENCE = 0.9
"""Of the upper bounds on its errors."""

N_INTERVAL_LABELS = 5
"""Labels of each query, the nearest, that intervals are tabulated with."""

COVERAGES = (0.8, 0.9, 0.95, 0.98, 0.99)
"""Of result sets, that the report speaks of."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Gallery images as queries, each hidden from its own list.

    Nothing may have been learned from them but the gallery itself: then they are to the rest of it
    what held-out queries are to all of it.

    Attributes
    ----------
    matched : those whose label another item has.
    no_match : the same with their own label hidden from them, as in `CalibrationQueries`; or None.
    sources : what each shows, numbered as those of the held-out queries are.
    """

    matched: Observed
    no_match: Observed | None
    sources: NDArray[np.int64]


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
    sources : what each of the matched queries shows; copies of a picture share a number.
    left_out : more queries, for whatever needs no exchangeability of the outlier scores; None where
        there are enough, or the encoder has learned from the gallery's images.
    """

    matched: Observed
    no_match: Observed
    strangers: bool
    are_views: bool
    corrupted: Observed
    corrupted_of: NDArray[np.int64]
    outliers: Observed | None
    sources: NDArray[np.int64]
    left_out: LeftOut | None = None

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
    means: LabelMeans,
    queries: CalibrationQueries,
    encoder_fingerprint: str,
    search: Mapping[str, Any],
    config: CalibrationConfig,
    seed: int,
    quality_limits: Mapping[str, float],
) -> Calibration:
    """Fit everything that turns a result list into promises.

    Scores and probabilities that something else is fitted to or measured on come from fits that
    have not seen their query (five folds); what is served is fitted to all of them. Gallery images
    left out of their own lists, where there are any, count as queries for probabilities, operating
    points and result sets: they have one item of their label fewer to be found, and are if anything
    the harder queries. Outlier p-values and percentiles rest on held-out queries alone.

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
    fusion = fit_fusion(
        matched.outlier_signals, [kind.outlier_signals for kind in queries.aliens().values()]
    )
    groups, alien = _scored(queries, fusion, config.no_match_share, seed)
    ordinary = groups[0].outlier_scores
    n_left_out = 0 if queries.left_out is None else len(queries.left_out.matched)
    n_matched = len(matched) + n_left_out
    examples = Examples.of(groups)
    probabilities, folds = cross_fitted(examples, seed)

    first = examples.starts
    of_first, correct = probabilities[first], examples.matches[first]
    curve = operating_curve(of_first, correct, examples.weights)
    point = curve.at(config.max_error)
    choices = LabelChoices.of(examples, probabilities, folds, n_matched)
    near = examples.places < N_INTERVAL_LABELS
    share = np.where(examples.places == 0, 0.5, 0.5 / (N_INTERVAL_LABELS - 1))
    of_row = share * examples.weights[examples.queries]
    of_first, correct = of_first[:n_matched], correct[:n_matched]
    report = {
        "n_matched": len(matched),
        "n_left_out": n_left_out,
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
        means=means,
        detector=detector,
        fusion=fusion,
        match=fit_choice(examples),
        no_match=fit_logistic(
            examples.values[first], np.arange(len(first)) >= n_matched, examples.weights
        ),
        intervals=fit_venn_abers(
            bounded_logit(probabilities[near]), examples.matches[near], of_row[near]
        ),
        feedback=Recalibration(),
        sets=choices.rule(),
        quality_limits=quality_limits,
        report=report,
    )


def _scored(
    queries: CalibrationQueries, fusion: OutlierFusion, no_match_share: float, seed: int
) -> tuple[list[Group], dict[str, Floats]]:
    """Every kind of query with its outlier scores.

    Each kind without a match weighs ``no_match_share`` by itself: aliens, which are easily told
    apart, take nothing from the rest.

    Parameters
    ----------
    fusion : fitted to all queries but those left out of the gallery.

    Returns
    -------
    groups : of the queries that are searched with, the matched ones first.
    scores : of each kind of outlier, ``corrupted`` ones included.
    """
    matched, no_match, kinds = queries.matched, queries.no_match, queries.aliens()
    left_out = queries.left_out
    # Spoilt copies share the source of their original; every other query is a source of its own.
    taken = [queries.sources] if left_out is None else [queries.sources, left_out.sources]
    free = 1 + max(int(numbers.max()) for numbers in taken)
    starts = {"near": free, "far": free + len(no_match)}
    sources = {kind: starts.get(kind, 0) + np.arange(len(kinds[kind])) for kind in kinds}
    sources["corrupted"] = queries.sources[queries.corrupted_of]
    ordinary, *of_kinds = cross_fitted_scores(
        matched.outlier_signals,
        [observed.outlier_signals for observed in kinds.values()],
        np.concatenate([queries.sources, *sources.values()]),
        seed,
    )
    scores = dict(zip(kinds, of_kinds, strict=True))
    groups = [Group(matched, ordinary, 1.0, queries.sources)]
    absent: list[tuple[Observed, Floats, NDArray[np.int64]]] = []
    if not queries.strangers:  # the same pictures again, and as alien as before
        absent.append((no_match, ordinary, queries.sources))
    if left_out is not None:
        of_left_out = fusion(left_out.matched.outlier_signals)
        groups.append(Group(left_out.matched, of_left_out, 1.0, left_out.sources))
        if left_out.no_match is not None:
            absent.append((left_out.no_match, of_left_out, left_out.sources))
    total = no_match_share / (1 - no_match_share) * sum(len(one.observed) for one in groups)
    n_absent = sum(len(observed) for observed, _, _ in absent)
    groups += [Group(observed, score, total / n_absent, of) for observed, score, of in absent]
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
