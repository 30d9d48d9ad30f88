"""Answers: the result list of a query, the decision on it, and the search plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from model_store.decision import Decision
from model_store.gallery import Item
from model_store.predictive import Predictive
from model_store.records import Explanation, Match
from model_store.search import Neighbours
from model_store.verdicts import Order

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
