"""Fits the calibration, which turns result lists into probabilities and guarantees.

Also measures the most probable parents of calibration queries, for example genus and family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.probabilities import (
    CrossFit,
    Examples,
    cross_fitted,
    fit_decrease,
    fit_match,
    numbers_of_signals,
    presence_is_apart,
    set_outcomes,
)
from index_builder.calibration.queries import LEAST_LABELS, CalibrationQueries, QueryGroup
from index_builder.calibration.retrieval import CalibratedGallery
from index_builder.configuration.build import CalibrationConfig
from index_builder.metrics import (
    auroc,
    calibration_error,
    calibration_spread,
    error_auroc,
    reliability,
)
from index_builder.progress import console
from model_store.decision import (
    SIGNALS,
    Calibration,
    Evidence,
    Hierarchy,
    LevelEvidence,
    Recalibration,
    likeliest_parents,
    size_classes,
)
from model_store.decision.calibration import DEFAULT_ABSENT, search_settings
from model_store.errors import CalibrationError
from model_store.messages import Order

MIN_QUERIES = 50
"""Minimum number of queries with a match; also the minimum number of queries without a match. With
fewer queries than this number, a conformal p-value cannot reach 0.02, and a logistic fit is
unreliable."""

ASSUMED_ABSENT = 0.3
"""Total weight of absent queries in the fit, divided by the total weight of all queries. When the
service answers a query, it converts the probabilities to the expected share of absent queries. With
a share of a few per cent, the fit would almost ignore absent queries. The probabilities would be
wrong for a service with many absent queries. If the available absent queries are not
representative, the fit uses `DEFAULT_ABSENT` instead."""

N_RESAMPLED = 30
"""Number of bootstrap samples to estimate how often a calibration gives a guarantee."""

COVERAGES = (0.8, 0.9, 0.95, 0.98, 0.99)
"""Coverages of the result sets in the report."""

Floats = NDArray[np.float64]


def fit_calibration(
    gallery: CalibratedGallery,
    queries: CalibrationQueries,
    config: CalibrationConfig,
    seed: int,
    quality_limits: Mapping[str, float],
) -> Calibration:
    """Fit the calibration of a gallery to queries.

    The models that the service uses are fitted to all queries. All evidence and measurements come
    from five-fold cross-fits. Gallery images can be additional queries; each is excluded from its
    own results. A new photograph of a label can find all items of the label. A gallery image cannot
    find itself, so it can find one item fewer and is a slightly harder query. The fits of
    probabilities, operating points and result sets use held-out queries and gallery images.
    Percentiles of uncertainties use only held-out queries. Outlier p-values use held-out queries
    and items added later.

    Parameters
    ----------
    quality_limits : quality limits of ordinary pictures.

    Raises
    ------
    CalibrationError : too few matched or absent queries.
    """
    _require_enough(queries)
    matched, groups, within = queries.matched, queries.of(), gallery.rule.within
    assumed = ASSUMED_ABSENT if _is_known(queries) else DEFAULT_ABSENT
    weighted = _weighted(groups, assumed)
    examples = Examples.of(weighted)
    apart = presence_is_apart(queries.absence, examples)
    fitted = cross_fitted(
        examples, seed, numbers_of_signals(queries.absence, examples), apart=apart
    )
    absent_scores = np.sort(np.concatenate([one.outlier_scores for one in queries.absent]))
    calibration = Calibration(
        encoder_fingerprint=gallery.encoder_fingerprint,
        search=search_settings(gallery.gallery),
        n_candidates=gallery.n_candidates,
        n_queries=len(matched),
        alpha=config.alpha,
        coverage=config.coverage,
        max_error=config.max_error,
        max_false_match_rate=config.max_false_match_rate,
        delta=config.delta,
        assumed_absent=assumed,
        expected_absent=config.expected_absent,
        order=config.order,
        outlier_scores=_ordinary_scores(groups, queries.n_put),
        means=gallery.means,
        label_classes=size_classes(gallery.label_counts),
        n_labels=gallery.n_labels(),
        detector=gallery.detector,
        match=fit_match(examples, fitted.n_signals, apart=apart),
        feedback=Recalibration(),
        evidence=_evidence(gallery, queries, groups, examples, fitted.probabilities),
        quality_limits=quality_limits,
        report={},
        hierarchy=gallery.rule.hierarchy,
        within=within,
        decrease=None if within is None else fit_decrease(weighted, fitted, within),
        similarity_stds=np.sort(matched.similarity_stds),
        absent_outlier_scores=absent_scores,
        largest_similarity=float(matched.similarities[:, 0].max()),
    )
    alone = signals_alone(examples, fitted.n_signals)
    say_signals(alone)
    report = {
        "n_matched": len(matched),
        "n_leave_one_out": sum(len(one.observed) for one in queries.of("items")),
        "n_absent": sum(len(one.observed) for one in groups if one.absent),
        "absence": queries.absence,
        "queries": queries.origin,
        "signals": list(SIGNALS[: fitted.n_signals]),
        "signals_alone": alone,
        "cross_fitted": {
            **_measured(calibration, examples, fitted),
            "outlier_auroc": {"near": auroc(absent_scores, calibration.outlier_scores)},
        },
        "guarantee_share": _guarantee_share(calibration, seed),
        "series_share": series_share(queries),
    }
    return replace(calibration, report=report)


LEAST_OF_LABEL = 2
"""Minimum number of results with the query's own label, to detect a series."""

SERIES_RATIO = 3.0
"""Ratio of the median distance to the smallest distance within a label that shows a series.
Independent images have this ratio in 0 % to 3 % of cases (CUB, Omniglot and Caltech-101, with 3 to
12 images of each label). `make bench NAME=series` has the shares in series."""

_LEAST_DISTANCE = 1e-3


def series_share(queries: CalibrationQueries) -> float | None:
    """Return the share of queries that find other images of the same series.

    A series is a burst, frames of a film, or several photographs of one object. If images of a
    series are not in one group, they find each other. A new photograph finds no such image. Among
    independent images of one label, the smallest cosine distance is not much below the median. If
    the nearest image is from the same series as the query, the distance is far below the median.

    Returns
    -------
    None if the queries are no images of the gallery's collection, or if labels have too few images.
    """
    if not (queries.origin == "left_out_items" or queries.of("items")):
        return None
    found = []
    for group in queries.of("matched", "items"):
        observed = group.observed
        own = observed.label_codes == observed.codes[:, None]
        for similarities, of_own in zip(observed.similarities, own, strict=True):
            distances = np.maximum(1 - similarities[of_own], _LEAST_DISTANCE)
            if len(distances) >= LEAST_OF_LABEL:
                found.append(distances[len(distances) // 2] > SERIES_RATIO * distances[0])
    return float(np.mean(found)) if found else None


def with_evidence_of(
    calibration: Calibration, queries: CalibrationQueries, chosen: NDArray[np.bool_], seed: int
) -> Calibration:
    """Return the calibration with only some queries with a match as evidence for bounds.

    Bounds, result sets and outlier p-values then hold for queries like these, whatever the other
    queries were. The models, which were fitted to all queries, stay.

    Parameters
    ----------
    queries : all queries of the fit.
    chosen : (B,) mask of the queries of the kind ``matched``.
    """
    evidence = calibration.evidence
    is_chosen = np.zeros(len(evidence.absent), dtype=bool)
    is_chosen[: len(chosen)] = chosen
    rows = np.flatnonzero(is_chosen | evidence.absent)
    scores = np.concatenate([one.observed.outlier_scores for one in queries.of()])
    ordinary, is_ordinary = np.sort(scores[is_chosen]), is_chosen[rows]
    restricted = replace(
        calibration,
        n_queries=len(ordinary),
        outlier_scores=ordinary,
        evidence=replace(
            evidence.at(rows), outlier_p_values=_p_values(scores[rows], ordinary, is_ordinary)
        ),
    )
    report = {
        **calibration.report,
        "n_matched": len(ordinary),
        "n_leave_one_out": 0,
        "queries": "held_out_images",
        "guarantee_share": _guarantee_share(restricted, seed),
        "series_share": None,
    }
    return replace(restricted, report=report)


def signals_alone(examples: Examples, n_signals: int) -> dict[str, dict[str, float | None]]:
    """Measure how well each of the first ``n_signals`` of `SIGNALS` detects two problems alone.

    The gallery determines whether small or large values of a signal show a problem. So each AUROC
    is at least ½: the larger one of both directions.

    Returns
    -------
    By signal, two AUROCs of its value for the nearest label: ``error_auroc`` for wrong first
    results, among queries with a match, and ``absent_auroc`` for absent queries. None if there is
    only one kind of query.
    """
    first, absent = examples.values[examples.starts], examples.absent
    is_right = examples.matches[examples.starts][~absent]
    found = {}
    for name, values in zip(SIGNALS[:n_signals], first.T, strict=False):
        of_matched = values[~absent]
        areas = {
            "error_auroc": error_auroc(of_matched, is_right),
            "absent_auroc": auroc(values[absent], of_matched),
        }
        found[name] = {
            key: None if area is None else max(area, 1 - area) for key, area in areas.items()
        }
    return found


def say_signals(alone: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print the signals of the match model, with the AUROCs of `signals_alone`."""
    shown = [
        f"{name.replace('_', ' ')} "
        + " and ".join("–" if value is None else f"{value:.2f}" for value in of_signal.values())
        for name, of_signal in alone.items()
    ]
    console.print(
        f"The probabilities use {len(alone)} signals. The AUROC of each signal alone, in its "
        "better direction, for wrong first results and for absent queries: "
        f"{', '.join(shown)}.",
        soft_wrap=True,
    )


def _guarantee_share(calibration: Calibration, seed: int) -> float:
    """Return the share of bootstrap samples that give a guarantee.

    Objects and labels are resampled. A calibration gives a wrong guarantee with a probability of at
    most δ. This probability refers to all calibrations, including calibrations that give no
    guarantee. So if few calibrations give a guarantee, a large share of the given guarantees may be
    wrong.
    """
    generator = np.random.default_rng(seed)
    evidence = replace(calibration.evidence.of_order(calibration.order), levels=None)
    rows_of = [
        np.split(rows, np.unique(evidence.clusters[rows], return_index=True)[1][1:])
        for rows in (
            np.flatnonzero(kind)[np.argsort(evidence.clusters[kind], kind="stable")]
            for kind in (~evidence.absent, evidence.absent)
        )
    ]
    n_given = 0
    for _ in range(N_RESAMPLED):
        drawn = [
            of_kind[place]
            for of_kind in rows_of
            for place in generator.integers(len(of_kind), size=len(of_kind))
        ]
        rows = np.concatenate(drawn)
        clusters = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        resampled = replace(evidence.at(rows), clusters=clusters.astype(np.int64))
        again = replace(calibration, evidence=resampled, hierarchy=None)
        n_given += again.promises().gives_guarantee
    return n_given / N_RESAMPLED


def _ordinary_scores(groups: Sequence[QueryGroup], n_put: int) -> Floats:
    """Return the outlier scores of held-out queries and of items added later, sorted together."""
    held_out, others = (one.observed.outlier_scores for one in groups[:2])
    ordered: Floats = np.sort(np.r_[held_out, others[:n_put]])
    return ordered


def _require_enough(queries: CalibrationQueries) -> None:
    """Raise `CalibrationError` if there are too few matched or absent queries."""
    for name, n, advice in (
        ("with a match", len(queries.matched), "Add labelled images."),
        (
            "without a match",
            sum(map(len, queries.absent)),
            "Add labels, or images of withheld labels.",
        ),
    ):
        if n < MIN_QUERIES:
            raise CalibrationError(
                f"There are {n} calibration queries {name}; at least {MIN_QUERIES} are needed. "
                f"{advice}"
            )


def _is_known(queries: CalibrationQueries) -> bool:
    """Return whether the absent queries represent truly absent queries."""
    if queries.absence == "hidden_labels":
        return sum(len(np.unique(one.codes)) for one in queries.absent) >= LEAST_LABELS
    return queries.absence != "hidden_trained_labels"


def _measured(calibration: Calibration, examples: Examples, fitted: CrossFit) -> dict[str, Any]:
    """Measure cross-fitted probabilities and result sets at the assumed share of absent queries.

    Results are in the gallery's default order; the key ``orders`` has results for both orders, by
    similarity and by probability.
    """
    evidence, present = calibration.evidence, ~calibration.evidence.absent
    orders = {order: _of_order(calibration, order, examples) for order in get_args(Order)}
    return {
        **orders[calibration.order],
        "orders": orders,
        "absent_auroc": auroc(
            evidence.no_match_probabilities[~present], evidence.no_match_probabilities[present]
        ),
        "result_sets": set_outcomes(examples, fitted, COVERAGES, evidence, calibration),
        **levels_measured(calibration, examples.weights),
    }


def _of_order(calibration: Calibration, order: Order, examples: Examples) -> dict[str, Any]:
    """Sort the results by ``order``; measure the accuracy and calibration of the first items."""
    weights = examples.weights
    evidence = calibration.evidence.of_order(order)
    of_first, correct = evidence.first_probabilities, evidence.correct
    bins = reliability(of_first, correct, weights=weights)
    present = ~evidence.absent
    return {
        "recall_at_1": float(correct[present].mean()),
        "top1_ece": calibration_error(bins),
        "top1_ece_by_chance": calibration_spread(of_first, correct, examples.labels, weights),
        "error_auroc": error_auroc(1 - of_first[present], correct[present]),
        "reliability": [one.model_dump() for one in bins],
        "match_coverage": calibration.promises(order=order).point.coverage,
    }


def _weighted(groups: Sequence[QueryGroup], assumed: float) -> list[QueryGroup]:
    """Weight absent queries so that their share is ``assumed``; matched queries have weight 1."""
    n_present = sum(len(one.observed) for one in groups if not one.absent)
    n_absent = sum(len(one.observed) for one in groups if one.absent)
    of_absent = assumed / (1 - assumed) * n_present / n_absent
    return [replace(one, weight=of_absent) if one.absent else one for one in groups]


def _outlier_p_values(groups: Sequence[QueryGroup], n_put: int) -> Floats:
    """Return the outlier p-value of each query, (N,); no query is compared with itself."""
    ordinary, p_values = _ordinary_scores(groups, n_put), []
    for place, group in enumerate(groups):
        scores = group.observed.outlier_scores
        n_ordinary = {0: len(scores), 1: n_put}.get(place, 0)
        p_values.append(_p_values(scores, ordinary, np.arange(len(scores)) < n_ordinary))
    return np.concatenate(p_values)


def _p_values(scores: Floats, ordinary: Floats, is_ordinary: NDArray[np.bool_]) -> Floats:
    """Compare ``scores`` (B,) with sorted scores, to which those that are ordinary belong."""
    n = len(ordinary)
    at_least = n - np.searchsorted(ordinary, scores)
    p_values: Floats = np.where(is_ordinary, at_least / n, (1 + at_least) / (n + 1))
    return p_values


def _evidence(
    gallery: CalibratedGallery,
    queries: CalibrationQueries,
    groups: Sequence[QueryGroup],
    examples: Examples,
    probabilities: Floats,
) -> Evidence:
    """Return the cross-fitted outcome of each query."""
    absent, matches = examples.absent, examples.matches
    own_sizes = np.concatenate([one.observed.own_sizes for one in groups])
    first, likeliest = examples.starts, examples.likeliest(probabilities)
    of_match = np.maximum.reduceat(np.where(matches, probabilities, -1.0), first)
    clusters = np.unique(examples.clusters, return_inverse=True)[1]
    names = [name for one in groups for name in one.sources or [""] * len(one.observed)]
    source_names, sources = np.unique(np.array(names), return_inverse=True)
    rivals, hierarchy, levels = queries.rivals, gallery.rule.hierarchy, None
    lone_share = gallery.lone_share() if queries.origin == "left_out_items" else None
    if queries.of("hidden"):
        n_labels = int(gallery.n_labels().sum())
        rivals = n_labels / max(n_labels - 1, 1)
    if hierarchy is not None:
        withheld = [name for one in groups for name in one.labels or [None] * len(one.observed)]
        levels = level_evidence(
            hierarchy, gallery.gallery.labels, withheld, examples, probabilities
        )
    return Evidence(
        first_probabilities=probabilities[first],
        no_match_probabilities=1 - np.add.reduceat(probabilities, first),
        correct=matches[first],
        absent=absent,
        first_classes=size_classes(examples.sizes[first]),
        likeliest_probabilities=probabilities[likeliest],
        likeliest_correct=matches[likeliest],
        likeliest_classes=size_classes(examples.sizes[likeliest]),
        true_classes=np.where(absent, -1, size_classes(own_sizes)).astype(np.int8),
        critical=np.where(matches[likeliest], np.inf, of_match),
        clusters=clusters.astype(np.int64),
        sources=sources.astype(np.int16),
        source_names=source_names.tolist(),
        absence=queries.absence,
        rivals=rivals,
        outlier_p_values=_outlier_p_values(groups, queries.n_put),
        levels=levels,
        lone_share=lone_share,
    )


def level_evidence(
    hierarchy: Hierarchy,
    labels: Sequence[str],
    withheld: Sequence[str | None],
    examples: Examples,
    probabilities: NDArray[np.float64],
) -> LevelEvidence:
    """Compare the most probable parents of Q queries with their true parents.

    Parameters
    ----------
    labels : labels of the gallery, by code.
    withheld : (Q,) the query's label if the gallery does not contain it; otherwise None.
    examples : the labels that queries find.
    probabilities : (N,) cross-fitted match probability of each label in ``examples``.
    """
    of_codes = hierarchy.of_labels([*labels, None])  # code −1 selects the last row: no label
    of_found = of_codes[np.maximum(examples.codes, -1)]
    own = hierarchy.of_labels(withheld)
    held = examples.labels >= 0
    own[held] = of_codes[examples.labels[held]]
    shape = len(examples.starts), len(hierarchy.levels)
    sums, correct = np.zeros(shape), np.zeros(shape, dtype=bool)
    ends = examples.starts + examples.counts
    for row, (start, end) in enumerate(zip(examples.starts, ends, strict=True)):
        places, sums[row] = likeliest_parents(of_found[start:end], probabilities[start:end])
        correct[row] = (places >= 0) & (places == own[row])
    return LevelEvidence(sums, correct)


def levels_measured(
    calibration: Calibration, weights: NDArray[np.float64]
) -> dict[str, list[dict[str, Any]]]:
    """For each level, measure the accuracy and the calibration of the most probable parent.

    A parent counts as right only if the query has a match in the gallery. The result is empty if
    labels have no parents.

    Parameters
    ----------
    weights : (N,) weights of the queries.
    """
    hierarchy, evidence = calibration.hierarchy, calibration.evidence
    if hierarchy is None or evidence.levels is None:
        return {}
    measured = []
    for level, (name, promises) in enumerate(
        zip(hierarchy.levels, calibration.promises().roll_ups, strict=True)
    ):
        right = evidence.levels.correct[:, level] & ~evidence.absent
        bins = reliability(evidence.levels.probabilities[:, level], right, weights=weights)
        measured.append(
            {
                "level": name,
                "n_labels": len(hierarchy.parents[level]),
                "accuracy": float(right[~evidence.absent].mean()),
                "ece": calibration_error(bins),
                "coverage": sum(one.point.coverage for one in promises if one.point is not None),
            }
        )
    return {"levels": measured}
