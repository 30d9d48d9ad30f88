"""Everything that turns a result list into promises, from held-out queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import cross_fitted_scores, fit_fusion
from index_builder.calibration.label_choices import LabelChoices
from index_builder.calibration.levels import level_evidence, levels_measured
from index_builder.calibration.probabilities import (
    Examples,
    Group,
    Limits,
    cross_fitted,
    fit_choice,
    fit_venn_abers,
    limits_of,
)
from index_builder.calibration.queries import (
    CalibratedGallery,
    CalibrationQueries,
    Integers,
    Names,
)
from index_builder.calibration.retrieval import RetrievedQueries
from index_builder.configuration.build import CalibrationConfig
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.decision import (
    OUTLIER_SIGNALS,
    Absence,
    Calibration,
    Evidence,
    OutlierFusion,
    Recalibration,
    VennAbers,
    bounded_logit,
    size_classes,
)
from model_store.decision.calibration import DEFAULT_ABSENT
from model_store.decision.promises import LEAST_ABSENT_LABELS
from model_store.errors import CalibrationError
from model_store.verdicts import Order

MIN_QUERIES = 50
"""Below it a conformal p-value cannot even reach 0.02, and a logistic fit is guesswork."""

ASSUMED_ABSENT = 0.3
"""Share of absent queries that probabilities are fitted with, and shifted from to any other: at few
per cent the fit hardly looks at absent queries, and is wrong where they are many. Where those at
hand say little of others, it had better not look."""

N_INTERVAL_LABELS = 5
"""Labels of each query, the nearest, that intervals are tabulated with."""

COVERAGES = (0.8, 0.9, 0.95, 0.98, 0.99)
"""Coverages for which the report describes result sets."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Queries of one kind on their way into the evidence; ``labels`` are withheld ones."""

    observed: RetrievedQueries
    scores: Floats
    clusters: Integers
    absent: bool
    sources: Names | None
    labels: Names | None = None


def fit_calibration(
    gallery: CalibratedGallery,
    queries: CalibrationQueries,
    config: CalibrationConfig,
    seed: int,
    quality_limits: Mapping[str, float],
) -> Calibration:
    """Fit everything that turns a result list into promises.

    Scores and probabilities that something else is fitted to or measured on come from fits that
    have not seen their query (five folds); what is served is fitted to all of them. Gallery images
    left out of their own lists count as queries for probabilities, operating points and result
    sets: with one item of their label fewer to be found, they are if anything the harder ones.
    Percentiles rest on held-out queries alone, outlier p-values also on items that were put since.

    Parameters
    ----------
    quality_limits : of ordinary pictures.

    Raises
    ------
    CalibrationError : too few queries, matched or absent.
    """
    _require_enough(queries)
    matched, kinds = queries.matched, queries.outlier_kinds()
    fusion = fit_fusion(matched.outlier_signals, [kind.outlier_signals for kind in kinds.values()])
    parts, of_kinds = _scored(queries, fusion, seed)
    fitted, ordinary = _cross_fit(queries, parts, gallery, seed), parts[0].scores
    calibration = Calibration(
        encoder_fingerprint=gallery.encoder_fingerprint,
        search=gallery.search,
        n_candidates=gallery.n_candidates,
        n_queries=len(matched),
        alpha=config.alpha,
        coverage=config.coverage,
        max_error=config.max_error,
        max_false_match_rate=config.max_false_match_rate,
        delta=config.delta,
        assumed_absent=fitted.assumed,
        expected_absent=config.expected_absent,
        order=config.order,
        outlier_scores=np.sort(np.r_[ordinary, parts[1].scores[: queries.n_put]]),
        means=gallery.means,
        label_classes=size_classes(gallery.label_counts),
        n_labels=gallery.n_labels(),
        detector=gallery.detector,
        fusion=fusion,
        match=fit_choice(fitted.examples, fitted.limits),
        intervals=_fit_intervals(fitted.examples, fitted.probabilities),
        feedback=Recalibration(),
        evidence=fitted.evidence,
        quality_limits=quality_limits,
        report={},
        hierarchy=gallery.rule.hierarchy,
        within=gallery.rule.within,
        similarity_stds=np.sort(matched.similarity_stds),
        absent_outlier_scores=_absent_scores(queries, parts),
    )
    by_kind = {name: auroc(scores, ordinary) for name, scores in of_kinds.items()}
    measured = _measured(calibration, fitted.choices, fitted.examples) | {"outlier_auroc": by_kind}
    return replace(calibration, report=_described(queries, parts, fusion, measured))


def _absent_scores(queries: CalibrationQueries, parts: Sequence[_Part]) -> Floats:
    """Return the outlier scores of held-out absent queries and of withheld labels, sorted."""
    kinds = queries.absent, queries.withheld
    scores = [part.scores for part in parts if any(part.observed is one for one in kinds)]
    ordered: Floats = np.sort(np.concatenate(scores))
    return ordered


@dataclass(frozen=True, slots=True)
class _CrossFitted:
    """Match probabilities by fits that have not seen their query.

    Attributes
    ----------
    examples, probabilities : the labels that the queries find; (N,).
    assumed : share of absent queries that the examples are weighed to.
    limits : of the fit, see `fit_choice`.
    choices, evidence : what came of each query.
    """

    examples: Examples
    probabilities: Floats
    assumed: float
    limits: Limits | None
    choices: LabelChoices
    evidence: Evidence


def _cross_fit(
    queries: CalibrationQueries, parts: list[_Part], gallery: CalibratedGallery, seed: int
) -> _CrossFitted:
    """Fit probabilities in folds, among the labels of the gallery."""
    assumed = ASSUMED_ABSENT if _is_known(queries) else DEFAULT_ABSENT
    examples = Examples.of(_weighted(parts, assumed))
    limits = limits_of(queries.absence, examples)
    probabilities, folds = cross_fitted(examples, seed, limits)
    choices = LabelChoices.of(examples, probabilities, folds)
    n_labels = int(gallery.n_labels().sum())
    rivals = queries.absent_rivals
    if queries.absent_of is not None:
        rivals = n_labels / max(n_labels - 1, 1)
    evidence = _evidence(parts, examples, probabilities, choices, queries.absence, rivals)
    evidence = replace(evidence, outlier_p_values=_outlier_p_values(parts, queries.n_put))
    if gallery.rule.hierarchy is not None:
        withheld = [name for part in parts for name in part.labels or [None] * len(part.observed)]
        known = gallery.rule.hierarchy, gallery.labels, withheld
        evidence = replace(evidence, levels=level_evidence(*known, examples, probabilities))
    return _CrossFitted(examples, probabilities, assumed, limits, choices, evidence)


def _require_enough(queries: CalibrationQueries) -> None:
    """Raise `CalibrationError` where there are too few queries, matched or absent."""
    for name, n, advice in (
        ("with a match", len(queries.matched), "Add labelled images."),
        ("without a match", queries.n_absent, "Add labels, or images of withheld labels."),
    ):
        if n < MIN_QUERIES:
            raise CalibrationError(
                f"There are {n} calibration queries {name}; at least {MIN_QUERIES} are needed. "
                f"{advice}"
            )


def _fit_intervals(examples: Examples, probabilities: Floats) -> VennAbers:
    """Tabulate intervals for the nearest labels of each query, of which the first weighs half."""
    near = examples.places < N_INTERVAL_LABELS
    share = np.where(examples.places == 0, 0.5, 0.5 / (N_INTERVAL_LABELS - 1))
    of_row = share * examples.weights[examples.queries]
    return fit_venn_abers(bounded_logit(probabilities[near]), examples.matches[near], of_row[near])


def _described(
    queries: CalibrationQueries,
    parts: Sequence[_Part],
    fusion: OutlierFusion,
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the report of a calibration: its queries, and what was ``measured``."""
    return {
        "n_matched": len(queries.matched),
        "n_leave_one_out": sum(len(part.observed) for part in parts[1:] if not part.absent),
        "n_absent": sum(len(part.observed) for part in parts if part.absent),
        "absence": queries.absence,
        "queries": queries.origin,
        "n_outliers": 0 if queries.outliers is None else len(queries.outliers),
        "outlier_weights": dict(zip(OUTLIER_SIGNALS, fusion.weights.tolist(), strict=True)),
        "cross_fitted": measured,
    }


def _is_known(queries: CalibrationQueries) -> bool:
    """Return whether the absent queries say enough of others."""
    if queries.absence == "hidden_labels":
        known = [queries.absent] if queries.withheld is None else [queries.absent, queries.withheld]
        return sum(len(np.unique(one.codes)) for one in known) >= LEAST_ABSENT_LABELS
    return queries.absence != "hidden_trained_labels"


def _measured(
    calibration: Calibration, choices: LabelChoices, examples: Examples
) -> dict[str, Any]:
    """Measure, cross-fitted, how true probabilities and result sets are on the assumed stream.

    What is said of first items is of lists in the default order; ``orders`` has both.
    """
    evidence, present = calibration.evidence, ~calibration.evidence.absent
    orders = {order: _of_order(calibration, order, examples.weights) for order in get_args(Order)}
    return {
        **orders[calibration.order],
        "orders": orders,
        "absent_auroc": auroc(
            evidence.no_match_probabilities[~present], evidence.no_match_probabilities[present]
        ),
        "result_sets": choices.outcomes(COVERAGES, evidence, calibration),
        **levels_measured(calibration, examples.weights),
    }


def _of_order(calibration: Calibration, order: Order, weights: Floats) -> dict[str, Any]:
    """Measure the first items of lists in ``order``, of queries that weigh ``weights`` (Q,)."""
    evidence = calibration.evidence.of_order(order)
    of_first, correct = evidence.first_probabilities, evidence.correct
    bins = reliability(of_first, correct, weights=weights)
    present, wrong = ~evidence.absent, ~correct
    return {
        "recall_at_1": float(correct[present].mean()),
        "top1_ece": calibration_error(bins),
        "error_auroc": auroc(1 - of_first[present & wrong], 1 - of_first[present & correct]),
        "reliability": [asdict(one) for one in bins],
        "match_coverage": calibration.promises(order=order).point.coverage,
    }


def _scored(
    queries: CalibrationQueries, fusion: OutlierFusion, seed: int
) -> tuple[list[_Part], dict[str, Floats]]:
    """Score every kind of query by a fusion that has not seen it.

    Parameters
    ----------
    fusion : fitted to all queries but those left out of the gallery.

    Returns
    -------
    parts : the queries that are searched with, the matched ones first.
    scores : of each kind of outlier, ``corrupted`` ones included.
    """
    matched, absent, kinds = queries.matched, queries.absent, queries.outlier_kinds()
    left_out = queries.leave_one_out
    # Spoilt and hidden queries share the cluster of their original; others are their own.
    taken = [queries.clusters] if left_out is None else [queries.clusters, left_out.clusters]
    free = 1 + max(int(numbers.max()) for numbers in taken)
    starts = {"near": free, "far": free + len(kinds.get("near", ()))}
    clusters = {kind: starts.get(kind, 0) + np.arange(len(kinds[kind])) for kind in kinds}
    clusters["corrupted"] = queries.clusters[queries.corrupted_of]
    judged: list[tuple[Floats, Integers]] = []
    of_absent = clusters.get("near", np.empty(0, dtype=np.int64))
    if queries.absent_of is not None:
        of_absent = queries.clusters[queries.absent_of]
        judged.append((absent.outlier_signals, of_absent))
    ordinary, of_kinds, of_judged = cross_fitted_scores(
        matched.outlier_signals,
        [observed.outlier_signals for observed in kinds.values()],
        np.concatenate([queries.clusters, *(clusters[kind] for kind in kinds)]),
        seed,
        judged,
    )
    scores = dict(zip(kinds, of_kinds, strict=True))
    of_near = scores["near"] if queries.absent_of is None else of_judged[0]
    parts = _parts(queries, fusion, ordinary, of_near, of_absent)
    if queries.withheld is not None:
        parts.append(
            _Part(
                queries.withheld,
                scores["near"],
                clusters["near"],
                absent=True,
                sources=queries.absent_sources,
                labels=queries.absent_labels,
            )
        )
    return parts, scores


def _parts(
    queries: CalibrationQueries,
    fusion: OutlierFusion,
    ordinary: Floats,
    near: Floats,
    near_clusters: Integers,
) -> list[_Part]:
    """Return the queries that are searched with, the matched ones first.

    Parameters
    ----------
    fusion : scores those left out of the gallery.
    ordinary, near : scores of the matched and of the absent queries.
    near_clusters : of the absent ones.
    """
    matched, left_out = queries.matched, queries.leave_one_out
    parts = [_Part(matched, ordinary, queries.clusters, absent=False, sources=queries.sources)]
    if left_out is not None:
        scores = fusion(left_out.matched.outlier_signals)
        parts.append(
            _Part(
                left_out.matched, scores, left_out.clusters, absent=False, sources=left_out.sources
            )
        )
    hidden = _some(queries.sources, queries.absent_of)
    is_hidden = queries.absent_of is not None
    sources = hidden if is_hidden else queries.absent_sources
    labels = None if is_hidden else queries.absent_labels
    parts.append(_Part(queries.absent, near, near_clusters, True, sources, labels))
    if left_out is not None and left_out.absent is not None:
        assert left_out.absent_of is not None  # noqa: S101 - the two come together
        parts.append(
            _Part(
                left_out.absent,
                fusion(left_out.absent.outlier_signals),
                left_out.clusters[left_out.absent_of],
                absent=True,
                sources=_some(left_out.sources, left_out.absent_of),
            )
        )
    return parts


def _some(names: Names | None, places: Integers | None) -> Names | None:
    return None if names is None or places is None else tuple(names[place] for place in places)


def _weighted(parts: list[_Part], assumed: float) -> list[Group]:
    """Weigh queries to a stream of which a share ``assumed`` is absent; present ones weigh 1."""
    n_present = sum(len(part.observed) for part in parts if not part.absent)
    n_absent = sum(len(part.observed) for part in parts if part.absent)
    of_absent = assumed / (1 - assumed) * n_present / n_absent
    return [
        Group(
            part.observed,
            part.scores,
            of_absent if part.absent else 1.0,
            part.clusters,
            part.absent,
        )
        for part in parts
    ]


def _outlier_p_values(parts: list[_Part], n_put: int) -> Floats:
    """Return the outlier p-values (N,) of all queries, of ordinary ones among the others."""
    ordinary = np.sort(np.r_[parts[0].scores, parts[1].scores[:n_put]])
    n, p_values = len(ordinary), []
    for place, part in enumerate(parts):
        at_least = n - np.searchsorted(ordinary, part.scores)
        n_ordinary = {0: len(part.scores), 1: n_put}.get(place, 0)
        is_ordinary = np.arange(len(part.scores)) < n_ordinary
        p_values.append(np.where(is_ordinary, at_least / n, (1 + at_least) / (n + 1)))
    return np.concatenate(p_values)


def _evidence(
    parts: list[_Part],
    examples: Examples,
    probabilities: Floats,
    choices: LabelChoices,
    absence: Absence,
    rivals: float,
) -> Evidence:
    """Note what came of each query that was cross-fitted; ``rivals`` as in `Evidence`."""
    absent = np.concatenate([np.full(len(part.observed), part.absent) for part in parts])
    own_sizes = np.concatenate([part.observed.own_sizes for part in parts])
    first, likeliest = examples.starts, examples.likeliest(probabilities)
    # Absent queries of one label are one cluster: what another label would do, they do not say.
    of_label = np.concatenate([part.observed.codes for part in parts]).astype(np.int64)
    clusters = np.concatenate([part.clusters for part in parts])
    numbers = np.unique(
        np.where(absent, -1 - np.abs(of_label) * 2 - (of_label < 0), clusters), return_inverse=True
    )[1]
    names: list[str] = []
    for part in parts:
        names += part.sources or [""] * len(part.observed)
    source_names, sources = np.unique(np.array(names), return_inverse=True)
    return Evidence(
        first_probabilities=probabilities[first],
        no_match_probabilities=1 - np.add.reduceat(probabilities, examples.starts),
        correct=examples.matches[first],
        absent=absent,
        first_classes=size_classes(examples.sizes[first]),
        likeliest_probabilities=probabilities[likeliest],
        likeliest_correct=examples.matches[likeliest],
        likeliest_classes=size_classes(examples.sizes[likeliest]),
        true_classes=np.where(absent, -1, size_classes(own_sizes)).astype(np.int8),
        critical=choices.critical(),
        clusters=numbers.astype(np.int64),
        sources=sources.astype(np.int16),
        source_names=source_names.tolist(),
        absence=absence,
        rivals=rivals,
    )
