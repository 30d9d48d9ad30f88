"""Answers to a query, and comparisons of the answers of two bundles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from model_store.messages import ChangeReason, Order, Verdict

from .decision import Decision
from .gallery import Item
from .predictive import Predictive
from .records import Explanation, Match
from .search import Neighbours

_COLUMNS = ("", "item", "label", "P(match)", "similarity")


def answer_html(decision: Decision, matches: Sequence[Match]) -> str:
    """Return an answer as HTML, with escaped item ids and labels."""
    lines = [f"<b>{escape(decision.verdict)}</b>"]
    if decision.no_match_probability is not None:
        lines.append(f"P(no match) {decision.no_match_probability:.3f}")
    if decision.assessment.percentile is not None:
        lines.append(f"more uncertain than {decision.assessment.percentile:.0f} %")
    if decision.reason is not None:
        lines.append(escape(decision.reason))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(map(_row, matches))
    return f"<p>{'; '.join(lines)}</p><table><tr>{head}</tr>{rows}</table>"


def _row(match: Match) -> str:
    probability = "" if match.match_probability is None else f"{match.match_probability:.3f}"
    cells = (
        str(match.rank),
        escape(match.id),
        escape(match.label or ""),
        probability,
        f"{match.similarity:.3f}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query.

    Attributes
    ----------
    decision : the verdict.
    predictive : predictive distribution of the query.
    alpha : accepted false-alarm rate of the outlier flag.
    order : order of the list.
    matches : the first items of the list.
    n_listed : number of items in the whole list; ``matches`` holds the first items.
    result_set : items of `Decision.result_set`, nearest first; possibly not all are in ``matches``.
    seconds : duration of each stage.
    explain : search plan; None without a filter.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=10)
    >>> answer.decision.verdict, [match.id for match in answer.matches]
    """

    decision: Decision
    predictive: Predictive
    alpha: float
    order: Order
    matches: tuple[Match, ...]
    n_listed: int
    result_set: tuple[Item, ...]
    seconds: dict[str, float]
    explain: Explanation | None = None

    @property
    def uncertainty(self) -> float | None:
        """Standard deviation of the similarity to the gallery's nearest item, see `Assessment`."""
        return self.decision.assessment.uncertainty

    def _repr_html_(self) -> str:
        """Return the answer as HTML for a notebook."""
        return answer_html(self.decision, self.matches)


def matches_of(
    items: Sequence[Item],
    neighbours: Neighbours,
    decision: Decision,
    *,
    has_uncertainty: bool,
) -> tuple[Match, ...]:
    """Return the first items of the list as matches.

    Parameters
    ----------
    has_uncertainty : whether the query's uncertainty is known. Rank stability and rank confidence
        need this uncertainty.
    """
    n = len(items)
    places = neighbours.listed[:n]
    unknown: list[float | None] = [None] * n
    stds, stabilities, confidences = unknown, unknown, unknown
    if has_uncertainty:
        stds = neighbours.pairs.std[places].tolist()
        stabilities = neighbours.rank_stability[:n].tolist()
        confidences = [*neighbours.rank_confidence.tolist(), None][:n]
    probabilities = decision.match_probabilities
    columns = zip(
        range(1, n + 1),
        items,
        neighbours.similarities[places].tolist(),
        stds,
        unknown if probabilities is None else probabilities.tolist(),
        stabilities,
        confidences,
        neighbours.pairs.variances[places].tolist(),
        strict=True,
    )
    return tuple(
        Match(
            rank=rank,
            id=item.id,
            similarity=similarity,
            similarity_std=std,
            match_probability=probability,
            rank_stability=stability,
            rank_confidence=confidence,
            variance=variance,
            label=item.label,
            metadata=dict(item.metadata),
        )
        for rank, item, similarity, std, probability, stability, confidence, variance in columns
    )


CONFIDENCE = 0.95
"""The confidence level of the interval of `ComparedAnswers.probability_change`."""


@dataclass(frozen=True, slots=True)
class Said:
    """A summary of an answer: the parts that are compared.

    Attributes
    ----------
    item_id : id of the first item; None if nothing was found.
    name : label of the first item, or its id if it has none.
    probability : match probability of the first item; None without calibration.
    outlier : whether the query was flagged; None if not known.
    lacking : whether a guarantee is missing: the calibration guaranteed less than requested, or the
        gallery had no calibration.
    """

    verdict: Verdict
    item_id: str | None
    name: str | None
    probability: float | None
    outlier: bool | None
    lacking: bool

    @classmethod
    def of(cls, answer: Answer) -> Said:
        """Return the summary of an answer."""
        decision = answer.decision
        item_id, name, probability = None, None, None
        if answer.matches:
            first = answer.matches[0]
            item_id, probability = first.id, first.match_probability
            name = item_id if first.label is None else first.label
        outlier = decision.assessment.is_outlier(answer.alpha)
        lacking = decision.reason is not None or decision.verdict == "not_calibrated"
        return cls(decision.verdict, item_id, name, probability, outlier, lacking)


def reason_of_change(old: Said, new: Said) -> ChangeReason | None:
    """Return the reason for a changed answer; None if verdict and first item are the same.

    Items with the same label count as the same answer. If there are several reasons, the first one
    in `ChangeReason` is returned.
    """
    if (old.verdict, old.name) == (new.verdict, new.name):
        return None
    if old.outlier != new.outlier and "out_of_distribution" in (old.verdict, new.verdict):
        return "outlier"
    if old.name != new.name:
        return "first_item"
    return "promise" if old.lacking != new.lacking else "probability"


@dataclass(slots=True)
class ComparedAnswers:
    """Counts of the answers of two bundles to the same queries.

    Attributes
    ----------
    n : number of queries.
    n_same_first : number of queries with the same first item (by id).
    verdicts : number of queries for each pair (old verdict, new verdict).
    outliers : number of queries for each pair (old outlier flag, new outlier flag).
    reasons : number of changed answers for each reason.
    """

    n: int = 0
    n_same_first: int = 0
    verdicts: Counter[tuple[Verdict, Verdict]] = field(default_factory=Counter)
    outliers: Counter[tuple[bool | None, bool | None]] = field(default_factory=Counter)
    reasons: Counter[ChangeReason] = field(default_factory=Counter)
    n_probabilities: int = 0
    _sum: float = 0.0
    _sum_of_squares: float = 0.0

    def add(self, old: Said, new: Said) -> ChangeReason | None:
        """Count one query; return the reason if its answer changes."""
        self.n += 1
        self.n_same_first += old.item_id == new.item_id
        self.verdicts[old.verdict, new.verdict] += 1
        self.outliers[old.outlier, new.outlier] += 1
        if old.probability is not None and new.probability is not None:
            difference = new.probability - old.probability
            self.n_probabilities += 1
            self._sum += difference
            self._sum_of_squares += difference**2
        reason = reason_of_change(old, new)
        if reason is not None:
            self.reasons[reason] += 1
        return reason

    @property
    def n_changed(self) -> int:
        """Number of answers that change."""
        return self.reasons.total()

    @property
    def probability_change(self) -> float | None:
        """Mean change of the first item's match probability, if both bundles give a probability."""
        return self._sum / self.n_probabilities if self.n_probabilities else None

    def probability_interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        r"""Return a confidence interval of `probability_change`, valid for every n ≥ 1.

        Empirical Bernstein bound (Maurer & Pontil 2009, theorem 4). n differences in [−1, 1] have
        the sample variance V. With δ = 1 − ``confidence``, each side of the interval has the level
        δ / 2:

            mean ± (√(2 V log(4/δ) / n) + 14 log(4/δ) / (3 (n − 1)))
        """
        n = self.n_probabilities
        if n < 2:
            return -1.0, 1.0
        mean = self._sum / n
        variance = max(0.0, (self._sum_of_squares - n * mean**2) / (n - 1))
        log = math.log(4 / (1 - confidence))
        width = math.sqrt(2 * variance * log / n) + 14 * log / (3 * (n - 1))
        return max(-1.0, mean - width), min(1.0, mean + width)
