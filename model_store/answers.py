"""Answers: what a query found, the decision on it, and how it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_store.decision import Decision
from model_store.gallery import Item
from model_store.matches import Match
from model_store.notebook import answer_html
from model_store.predictive import Predictive
from model_store.verdicts import IndexedBy, Order, Plan


@dataclass(frozen=True, slots=True)
class Explanation:
    """The way in which the items that pass a filter were found.

    Attributes
    ----------
    plan : see `model_store.verdicts.Plan`.
    share : estimated share of the gallery's items that pass.
    indexes : the fields that the filter asks for, and where their indexes are.
    """

    plan: Plan
    share: float
    indexes: Mapping[str, IndexedBy]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query.

    Attributes
    ----------
    decision, predictive : the verdict and the numbers behind it.
    alpha : the rate of false alarms that was accepted.
    order : what the list is ordered by.
    matches : the first items of the list.
    n_listed : number of items in the whole list, of which ``matches`` are the first.
    result_set : items of `Decision.result_set`, nearest first; some may stand below the matches.
    seconds : of each stage.
    explain : how the items were found; None without a filter.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=10)
    >>> answer.decision.verdict, [match.item.id for match in answer.matches]
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
        """Return what a notebook shows of it."""
        return answer_html(self.decision, self.matches)
