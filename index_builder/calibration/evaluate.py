"""Evaluates a bundle with the service's answers to queries that no fit has used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted, corrupted_vectors
from index_builder.datasets.images import joined
from index_builder.datasets.splits import QuerySet
from index_builder.metrics import (
    auroc,
    calibration_error,
    error_auroc,
    evened,
    recall_at_k,
    reliability,
)
from index_builder.vectors.encoder import embedded
from model_store.answers import Answer
from model_store.decision import Calibration, Hierarchy
from model_store.decision.operating import exact_interval
from model_store.decision.probabilities import prior_shift, shifted
from model_store.gallery import Gallery, Item
from model_store.messages import Order
from model_store.records import Match
from model_store.retriever import Retriever
from model_store.truth import label_or_id

from .retrieval import nearby

CONFIDENCE = 0.95
"""Confidence level of the exact intervals of shares that are computed from counts (Clopper &
Pearson 1934)."""

MOST_GROUPS = 20
"""Maximum number of groups in the report, which lists the groups with the most errors."""

N_POINTS = 100
"""Number of points of the risk-coverage curve."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Outcomes:
    """Outcomes of matched and absent queries in a calibrated gallery.

    Parameters
    ----------
    calibration : the calibration with its error bounds.
    answers : answers to B queries.
    correct : (B,) whether the first item is a true match.
    absent : (B,) whether the gallery has no true match.
    queries : the B queries, with labels, groups and sources.
    """

    def __init__(
        self,
        calibration: Calibration,
        answers: Sequence[Answer],
        correct: Bools,
        absent: Bools,
        queries: LabelledImages,
    ) -> None:
        self._calibration, self._absent, self._correct = calibration, absent, correct & ~absent
        self._groups, self._ids = np.array(queries.groups or queries.ids), queries.ids
        self._hashes = {content.hex() for content in queries.contents() or ()}
        self._sources = np.array(queries.sources or [""] * len(queries))
        # Absent queries of one label are right or wrong together, as in the calibration.
        labels = np.array([f"label {label}" for label in queries.labels])
        groups = np.array([f"group {group}" for group in self._groups.tolist()])
        self._clusters = np.where(absent, labels, groups)
        self._matched = np.array([one.decision.verdict == "match" for one in answers])
        self._probabilities = np.array(
            [one.matches[0].match_probability for one in answers], dtype=np.float64
        )
        rolled = [one.decision.roll_up for one in answers]
        self._levels = np.array(["" if one is None else one.level for one in rolled])
        self._rolled_right = np.array(
            [
                one is not None and one.label == _parent(calibration.hierarchy, label, one.level)
                for one, label in zip(rolled, queries.labels, strict=True)
            ]
        )
        share = calibration.default_share if absent.any() and not absent.all() else None
        self._weights = np.full(len(absent), 1 / max(len(absent), 1))
        if share is not None:
            self._weights = np.where(absent, share / absent.sum(), (1 - share) / (~absent).sum())

    def described(self) -> dict[str, Any]:
        """Return the report as a JSON object.

        The report has the results for all queries, for each level and for each source, and the
        groups with the most wrong matches.
        """
        everything = np.ones(len(self._absent), dtype=bool)
        report = {
            **self._rates(everything),
            "reliability": [one.model_dump() for one in self._reliability(everything)],
            "risk_coverage": self._risk_coverage(),
            "point": self._point(),
            "max_error": self._calibration.max_error,
        }
        hierarchy = self._calibration.hierarchy
        if hierarchy is not None:
            report["levels"] = {name: self._rolled_up(name) for name in hierarchy.levels}
        if len(set(self._sources.tolist())) > 1:
            report["sources"] = {
                name or "unnamed": self._rates(self._sources == name)
                for name in np.unique(self._sources).tolist()
            }
        return {**report, "groups": self._worst_groups()}

    @property
    def surest_errors(self) -> NDArray[np.int64]:
        """Rows of the queries with a wrong first item; the most confident errors come first."""
        wrong = np.flatnonzero(~self._correct)
        order: NDArray[np.int64] = wrong[np.argsort(-self._probabilities[wrong], kind="stable")]
        return order

    def _rates(self, rows: Bools) -> dict[str, Any]:
        """Return rates of the queries in ``rows`` (B,), with confidence intervals.

        FPIR is the share of absent queries that get a match. FNIR is the share of matched queries
        that do not get their true match (ISO/IEC 19795-1).
        """
        matched, absent, correct = (
            one[rows] for one in (self._matched, self._absent, self._correct)
        )
        weights = self._weights[rows]
        answered = float(weights[matched].sum())
        return {
            "n_present": int((~absent).sum()),
            "n_absent": int(absent.sum()),
            "coverage": answered / float(weights.sum()) if rows.any() else None,
            "error": float(weights[matched & ~correct].sum()) / answered if answered else None,
            "fpir": self._share(rows & self._absent, self._matched),
            "fnir": self._share(rows & ~self._absent, ~(self._matched & self._correct)),
            "ece": calibration_error(self._reliability(rows)) if rows.any() else None,
        }

    def _share(self, rows: Bools, counted: Bools) -> dict[str, Any]:
        """Return the share of ``counted`` queries among ``rows``, with its exact interval.

        Queries of one group, and absent queries of one label, count as one observation.
        """
        n, k = int(rows.sum()), int((rows & counted).sum())
        if n == 0:
            return {"n": 0, "share": None, "interval": None}
        interval = exact_interval(k / n, len(np.unique(self._clusters[rows])), CONFIDENCE)
        return {"n": n, "share": k / n, "interval": list(interval)}

    def _reliability(self, rows: Bools) -> Any:  # noqa: ANN401 - bins
        return reliability(
            self._probabilities[rows], self._correct[rows], weights=self._weights[rows]
        )

    def _risk_coverage(self) -> list[list[float]]:
        """Return pairs of the coverage and the error of the first items, for falling thresholds."""
        order = np.lexsort((self._weights, -self._probabilities))
        coverage = np.cumsum(self._weights[order])
        wrong = evened(self._probabilities, ~self._correct, self._weights)
        error = np.cumsum(self._weights[order] * wrong[order]) / coverage
        places = np.unique(np.linspace(0, len(order) - 1, N_POINTS).round().astype(int))
        return [[float(coverage[place]), float(error[place])] for place in places]

    def _point(self) -> dict[str, float] | None:
        """Return coverage, error and error bound of the verdict `match`; None without matches."""
        promises = self._calibration.promises()
        if not promises.gives_matches or not self._matched.any():
            return None
        answered = float(self._weights[self._matched].sum())
        return {
            "coverage": answered,
            "error": float(self._weights[self._matched & ~self._correct].sum()) / answered,
            "error_bound": promises.point.error_bound,
        }

    def _rolled_up(self, level: str) -> dict[str, Any]:
        """Return the share and the error of the answers that rolled up to ``level``."""
        rows = self._levels == level
        weight = float(self._weights[rows].sum())
        wrong = float(self._weights[rows & ~self._rolled_right].sum())
        return {
            "coverage": weight,
            "error": wrong / weight if weight else None,
        }

    def _worst_groups(self) -> dict[str, Any]:
        """Return the number of groups, and the groups with the most wrong matches.

        A group without a name, of a query and its copies, is named by its first query.
        """
        wrong = self._matched & ~self._correct
        names, firsts, places, sizes = np.unique(
            self._groups, return_index=True, return_inverse=True, return_counts=True
        )
        counts = np.bincount(places, wrong)
        worst = np.argsort(-counts, kind="stable")[:MOST_GROUPS]
        return {
            "n": len(names),
            "worst": {
                self._ids[firsts[row]] if names[row] in self._hashes else str(names[row]): {
                    "n": int(sizes[row]),
                    "wrong_matches": int(counts[row]),
                }
                for row in worst
                if counts[row]
            },
        }


LIMIT = 10
BATCH = 64
"""Number of queries whose outlier scores are computed together."""

ALPHAS = (0.01, 0.05, 0.1)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to B queries, and whether they are right.

    Attributes
    ----------
    queries : B queries with their true labels.
    answers : B answers.
    matches : (B, `LIMIT`) whether each returned item is a true match.
    covered : (B,) whether the result set contains a true match.
    """

    queries: LabelledImages
    answers: list[Answer]
    matches: NDArray[np.bool_]
    covered: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def first_probabilities(self) -> Floats:
        """Match probability of each query's first item, (B,)."""
        return self.values(lambda answer: answer.matches[0].match_probability)

    @property
    def first_similarities(self) -> Floats:
        """Similarity of each query's first item, (B,)."""
        return self.values(lambda answer: answer.matches[0].similarity)

    @property
    def uncertainties(self) -> Floats:
        """`Answer.uncertainty` of each query, (B,); 0 if the encoder gives no variance."""
        return self.values(lambda answer: answer.uncertainty or 0)

    @property
    def outlier_scores(self) -> Floats:
        """Outlier score of each query, (B,)."""
        return self.values(lambda answer: answer.predictive.outlier_score)

    @property
    def no_match_probabilities(self) -> Floats:
        """P(no match in the gallery) of each query, (B,)."""
        return self.values(lambda answer: answer.decision.no_match_probability)

    def values(self, value: Callable[[Answer], float | None]) -> Floats:
        """Return one value of each answer, (B,); NaN if it is None."""
        return np.array([value(answer) for answer in self.answers], dtype=float)

    def verdicts(self) -> dict[str, float]:
        """Share of each verdict."""
        counts = Counter(answer.decision.verdict for answer in self.answers)
        return {verdict: count / len(self) for verdict, count in sorted(counts.items())}


def ask(
    retriever: Retriever,
    queries: LabelledImages,
    description: str,
    order: Order | None = None,
    within: float | None = None,
) -> Answers:
    """Search the gallery with every query, as the service does.

    Parameters
    ----------
    order : order of the results; None for the gallery's default.
    within : maximum distance in metres between a query and a match; None if labels define matches.
    """
    answers: list[Answer] = []
    matches = np.zeros((len(queries), LIMIT), dtype=bool)
    covered = np.zeros(len(queries), dtype=bool)
    is_match = _truth(retriever.gallery, queries, within)
    for positions, embeddings in embedded(retriever.encoder, queries, description):
        for start in range(0, len(positions), BATCH):
            predictives = retriever.predictives(embeddings.at(slice(start, start + BATCH)))
            for position, predictive in zip(positions[start:], predictives, strict=False):
                answer = retriever.find(predictive, LIMIT, order=order)
                answers.append(answer)
                shown = answer.matches
                matches[position, : len(shown)] = is_match(position, shown)
                covered[position] = is_match(position, answer.result_set).any()
    return Answers(queries, answers, matches, covered)


def _truth(
    gallery: Gallery, queries: LabelledImages, within: float | None
) -> Callable[[int, Sequence[Item | Match]], NDArray[np.bool_]]:
    """Return a function that finds a query's true matches: (query position, items) → mask."""
    near = nearby(gallery, queries, within)

    def by_label(position: int, items: Sequence[Item | Match]) -> NDArray[np.bool_]:
        return np.array(
            [label_or_id(item) == queries.labels[position] for item in items], dtype=bool
        )

    def by_place(position: int, items: Sequence[Item | Match]) -> NDArray[np.bool_]:
        assert near is not None  # noqa: S101 - or it is not asked
        rows = np.array([[gallery.row(item.id) for item in items]], dtype=np.int64)
        found: NDArray[np.bool_] = near.matches(np.array([position]), rows)[0]
        return found

    return by_label if near is None else by_place


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcomes of evaluation queries, which no fit has used.

    Attributes
    ----------
    report : the report of `evaluate`. Its additional key ``stream`` holds the outcomes of verdicts
        at the expected share of absent queries, see `Outcomes`.
    queries : the N queries with and without a match; corrupted and far queries are left out.
    answers : the answer to each query.
    correct : (N,) whether the first item is a true match.
    absent : (N,) whether the gallery has no true match of the query.
    surest_errors : rows of the queries with a wrong first item; the most confident errors come
        first.
    """

    report: dict[str, Any]
    queries: LabelledImages
    answers: Sequence[Answer]
    correct: NDArray[np.bool_]
    absent: NDArray[np.bool_]
    surest_errors: NDArray[np.int64]


def evaluate(retriever: Retriever, queries: QuerySet, seed: int) -> dict[str, Any]:
    """Evaluate a calibrated retriever; ``seed`` sets the noise of corrupted queries.

    If no images were held out, the gallery's items are the queries with a match. The results for
    these queries come from the cross-fit of the calibration.

    Returns
    -------
    A JSON object with these parts:

    - the recall;
    - the calibration of probabilities: ECE and Brier score. If labels are withheld, absent queries
      are weighted to their expected share;
    - the AUROC of the match probability, and of single signals. The AUROC is measured for detecting
      errors, absent labels and out-of-distribution images;
    - the rate of false alarms at several α;
    - coverage and size of result sets;
    - the share of each verdict, by kind of query.

    ``far`` images are of another type, ``near`` images have labels that the gallery does not have,
    and ``corrupted`` images are degraded matched queries. Results are in the gallery's default
    order; the key ``orders`` has results for both orders, by similarity and by probability.
    """
    if not len(queries.matched):
        return _of_items(retriever, queries)
    return _asked(retriever, queries, seed)[0]


def _of_items(retriever: Retriever, queries: QuerySet) -> dict[str, Any]:
    """Return the report for a gallery whose items were the queries with a match."""
    calibration = retriever.calibration
    assert calibration is not None  # noqa: S101 - the caller has calibrated it
    measured, evidence = calibration.report["cross_fitted"], calibration.evidence
    present = ~evidence.absent
    # AUROC depends only on the order of queries, which is the same at every absent share.
    no_match = evidence.no_match_probabilities[present]
    asked = {"near": queries.withheld, "far": queries.outliers}
    kinds = {
        kind: ask(retriever, images, f"{kind} queries")
        for kind, images in asked.items()
        if images is not None and len(images)
    }
    report: dict[str, Any] = {
        "queries": calibration.report["queries"],
        "n_queries": int(present.sum()),
        "recall_at_1": measured["recall_at_1"],
        "error_auroc": {"match_probability": measured["error_auroc"]},
        "top1_ece": measured["top1_ece"],
        "result_sets": measured["result_sets"],
        "orders": {
            order: {name: value for name, value in of_order.items() if name != "reliability"}
            for order, of_order in measured["orders"].items()
        },
        "verdicts": {kind: answers.verdicts() for kind, answers in kinds.items()},
        "outlier_auroc": {
            kind: {"outlier_score": auroc(answers.outlier_scores, calibration.outlier_scores)}
            for kind, answers in kinds.items()
        },
    }
    if "near" in kinds:
        shift = prior_shift(calibration.default_share, calibration.assumed_absent)
        of_near = kinds["near"].no_match_probabilities
        report["no_match_auroc"] = {
            "no_match_probability": auroc(1 - shifted(1 - of_near, of_near, shift), no_match)
        }
    return report


def evaluated(
    retriever: Retriever, queries: QuerySet, seed: int, within: float | None = None
) -> Evaluation:
    """Evaluate a calibrated retriever; return the report and the outcome of each query.

    Parameters
    ----------
    within : see `ask`.
    """
    calibration = retriever.calibration
    assert calibration is not None  # noqa: S101 - the caller has calibrated it
    report, asked = _asked(retriever, queries, seed, within)
    absent = np.repeat([False, True][: len(asked)], [len(one) for one in asked])
    answers = [answer for one in asked for answer in one.answers]
    known = joined(*(one.queries for one in asked))
    correct = np.concatenate([one.matches[:, 0] for one in asked]) & ~absent
    outcomes = Outcomes(calibration, answers, correct, absent, known)
    with_stream = {**report, "stream": outcomes.described()}
    return Evaluation(with_stream, known, answers, correct, absent, outcomes.surest_errors)


def _asked(
    retriever: Retriever, queries: QuerySet, seed: int, within: float | None = None
) -> tuple[dict[str, Any], list[Answers]]:
    """Return the report of `evaluate`, and the answers to queries with and without a match."""
    assert retriever.calibration is not None  # noqa: S101 - the caller has calibrated it
    matched = ask(retriever, queries.matched, "queries with a match", within=within)
    correct = matched.matches[:, 0]
    probabilities = matched.first_probabilities
    p_values = matched.values(lambda answer: answer.decision.assessment.outlier_p_value)
    report: dict[str, Any] = {
        "n_queries": len(matched),
        "recall_at_1": recall_at_k(matched.matches, 1),
        "recall_at_10": recall_at_k(matched.matches, 10),
        "error_auroc": {
            "match_probability": error_auroc(1 - probabilities, correct),
            "similarity": error_auroc(-matched.first_similarities, correct),
            "uncertainty": error_auroc(matched.uncertainties, correct),
        },
        "false_alarm_rate": {str(alpha): float((p_values <= alpha).mean()) for alpha in ALPHAS},
        "result_sets": {
            "coverage": retriever.calibration.coverage,
            "covered": float(matched.covered.mean()),
            "mean_size": float(matched.values(lambda answer: len(answer.result_set)).mean()),
        },
        "verdicts": {"matched": matched.verdicts()},
    }
    report |= _of_first(retriever, probabilities, correct, None)
    report["orders"] = _of_orders(retriever, queries.matched, matched, within)
    corrupt = corrupted if retriever.encoder.metadata.takes_images else corrupted_vectors
    kinds = {"corrupted": ask(retriever, corrupt(queries.matched, seed), "corrupted queries")}
    if len(queries.withheld):
        withheld = ask(retriever, queries.withheld, "queries of withheld labels")
        kinds["near"] = withheld
        report |= _of_first(retriever, probabilities, correct, withheld.first_probabilities)
        report["no_match_auroc"] = {
            "no_match_probability": auroc(
                withheld.no_match_probabilities, matched.no_match_probabilities
            ),
            **_separation(withheld, matched),
        }
    if queries.outliers is not None:
        kinds["far"] = ask(retriever, queries.outliers, "out-of-distribution queries")
    report["verdicts"] |= {kind: answers.verdicts() for kind, answers in kinds.items()}
    report["outlier_auroc"] = {
        kind: {
            "outlier_score": auroc(answers.outlier_scores, matched.outlier_scores),
            **_separation(answers, matched),
        }
        for kind, answers in kinds.items()
    }
    return report, [matched, kinds["near"]] if "near" in kinds else [matched]


def _parent(hierarchy: Hierarchy | None, label: str, name: str) -> str | None:
    """Return a label's parent at the level ``name``; None without a parent."""
    if hierarchy is None:
        return None
    level = list(hierarchy.levels).index(name)
    place = int(hierarchy.of_labels([label])[0, level])
    return None if place < 0 else hierarchy.parents[level][place]


def _separation(answers: Answers, matched: Answers) -> dict[str, float | None]:
    """Measure how well queries are separated from queries with a match (AUROC)."""
    return {
        "similarity": auroc(-answers.first_similarities, -matched.first_similarities),
        "uncertainty": auroc(answers.uncertainties, matched.uncertainties),
    }


def _of_orders(
    retriever: Retriever, queries: LabelledImages, own: Answers, within: float | None
) -> dict[Order, dict[str, Any]]:
    """For queries with a match, measure the results in both orders (similarity and probability).

    Parameters
    ----------
    own : the answers in the gallery's default order.
    """
    measured: dict[Order, dict[str, Any]] = {}
    for order in get_args(Order):
        answered = own
        if order != retriever.order_of(None):
            answered = ask(retriever, queries, f"the same, by {order}", order, within)
        correct, probabilities = answered.matches[:, 0], answered.first_probabilities
        called = np.array([answer.decision.verdict == "match" for answer in answered.answers])
        measured[order] = {
            "recall_at_1": recall_at_k(answered.matches, 1),
            "recall_at_10": recall_at_k(answered.matches, 10),
            "error_auroc": error_auroc(1 - probabilities, correct),
            "match_share": float(called.mean()),
            "match_error": float((~correct[called]).mean()) if called.any() else None,
            **_of_first(retriever, probabilities, correct, None),
        }
    return measured


def _of_first(
    retriever: Retriever,
    matched: NDArray[np.float64],
    correct: NDArray[np.bool_],
    absent: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """Measure the calibration of the first item's match probability.

    Absent queries are weighted to their expected share.

    Parameters
    ----------
    matched : (B,) for each query with a match, the match probability of the first item.
    correct : (B,) whether this item is a true match.
    absent : for each query of a withheld label, the match probability of the first item. None
        without such queries.
    """
    probabilities, outcomes, weights = matched, correct, np.full(len(matched), 1 / len(matched))
    if absent is not None:
        assert retriever.calibration is not None  # noqa: S101 - the caller has calibrated it
        share = retriever.calibration.default_share
        probabilities = np.r_[matched, absent]
        outcomes = np.r_[correct, np.zeros(len(absent), dtype=bool)]
        weights = np.r_[(1 - share) * weights, np.full(len(absent), share / len(absent))]
    return {
        "top1_ece": calibration_error(reliability(probabilities, outcomes, weights=weights)),
        "top1_brier": float(np.average((probabilities - outcomes) ** 2, weights=weights)),
        "top1_stream": "matched" if absent is None else "matched_and_withheld_labels",
    }
