"""Parts of answers that the core computes and the service sends unchanged.

The module needs only pydantic, so that a client can import it without NumPy. The descriptions of
the fields are in the OpenAPI document.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model_store.messages import IndexedBy, OutcomeBasis, OutcomeSeverity, Plan


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class OperatingPoint(_Record):
    """The rates if one threshold is used for the match probability of the first result."""

    threshold: float = Field(
        description="A first result with at least this match probability is a match."
    )
    coverage: float = Field(description="Share of queries that get a match.")
    error: float = Field(description="Share of these matches that are wrong.")
    error_bound: float = Field(description="Upper confidence bound of `error`.")
    false_match_rate: float | None = Field(
        description="FPIR: share of the queries without a match in the gallery that still get a "
        "match. Null if the calibration has too few queries without a match."
    )
    false_match_bound: float | None = Field(
        description="Upper confidence bound of `false_match_rate`."
    )


class ReliabilityBin(_Record):
    """Calibration queries whose first results have about the same match probability."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(
        description="Share of the first results that are true matches. With perfect calibration, "
        "this share equals `probability`."
    )
    weight: float = Field(description="Share of the query stream that this bin represents.")


class Match(_Record):
    """One ranked neighbour: an item of the gallery, and its numbers."""

    rank: int
    id: str
    similarity: float = Field(description="Cosine, −1 to 1; larger is nearer.")
    similarity_std: float | None = Field(
        description="Standard deviation of the similarity, computed from the variances of query "
        "and item. Null if the query's uncertainty is null."
    )
    match_probability: float | None = Field(
        description="Calibrated probability that the item is a true match. Among results of one "
        "label, a nearer item never has a lower probability."
    )
    rank_stability: float | None = Field(
        description="Share of posterior samples in which the item is among the k nearest. k is "
        "the number of results, including earlier pages. Null if the query's uncertainty is null."
    )
    rank_confidence: float | None = Field(
        description="Probability that the item is nearer to the query than the next item, given "
        "the uncertainty of both similarities. Null if the query's uncertainty is null, or if "
        "there is no next item. Values below ½ are possible if the next item is nearer, but is "
        "less likely to be a match. They are also possible if the next item is slightly farther, "
        "but the similarity of the next item is much more certain."
    )
    variance: float = Field(
        description="Variance of the item's embedding, relative to that embedding's squared norm."
    )
    label: str | None
    metadata: dict[str, Any]


class RollUp(_Record):
    """A parent label as answer: the most specific parent label that meets the error bound.

    The guarantee is the same as for `match`: among the answers of one level, at most the share
    `max_error` is wrong.
    """

    level: str = Field(description="Name of the level, such as `genus`.")
    label: str = Field(description="Label of this level, such as `Panthera`.")
    probability: float = Field(
        description="Probability that the query has a true match with a label below this parent "
        "label. It is the sum of the probabilities of these labels."
    )


class QualityHint(_Record):
    """A reason why a picture may be a poor query, with advice for the photographer."""

    code: str = Field(
        description="`too_small`, `too_dark`, `flat`, `blurred`, `extreme_aspect` or `degraded`."
    )
    measure: str = Field(
        description="Name of the measure: a key of `measures`, or `aleatoric` for the aleatoric "
        "uncertainty."
    )
    value: float
    advice: str = Field(description="One sentence on what to do.")


class Explanation(_Record):
    """How the items that pass a filter were found."""

    plan: Plan = Field(
        description="`exact`: every item that passes was compared with the query. `filter_first`: "
        "the index searched only the items that pass. `search_first`: the index was searched "
        "for more items than requested, and items that do not pass were removed."
    )
    estimated_share: float = Field(description="Estimated share of the gallery's items that pass.")
    indexes: dict[str, IndexedBy] = Field(
        description="Index that was used for each field of the filter. `bundle`: an index stored "
        "in the bundle. `memory`: an index built in memory at the first filter with this field. "
        "`none`: no index, so every item was read."
    )


class FacetValue(_Record):
    """A value of a field."""

    value: str | int | float | bool
    n_items: int = Field(description="Number of items with this value.")


class Facet(_Record):
    """A field of a gallery's items, and its values."""

    field: str = Field(description="Name of the field in a filter.")
    comparison: Literal["eq", "has"] = Field(
        description="Comparison for a filter on this field: `has` if the items have lists of "
        "values."
    )
    n_items: int = Field(description="Number of items with a value.")
    n_values: int = Field(description="Number of distinct values.")
    least: float | None = Field(description="Smallest number; null without numbers.")
    greatest: float | None = Field(description="Largest number; null without numbers.")
    values: list[FacetValue] = Field(
        description="The most frequent values; empty if no two items share a value."
    )


class FeedbackSummary(_Record):
    """Served match probabilities compared with users' feedback."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Confirmed pairs as a share of all pairs that users judged.")


class OutcomeNumbers(_Record):
    """Quality of a gallery's answers, measured at calibration.

    A number is null if it is unknown.
    """

    basis: OutcomeBasis | None = Field(
        description="Source of the numbers. `evaluation`: separate queries. `calibration`: the "
        "calibration queries, cross-fitted. Null without calibration."
    )
    n_queries: int | None = Field(description="Queries with a match in the gallery.")
    recall_at_1: float | None = Field(
        description="Share of these queries whose first result is right."
    )
    match_share: float | None = Field(description="Share of these queries with verdict `match`.")
    match_error: float | None = Field(
        description="Observed share of wrong answers among matches. Queries are weighted so that "
        "absent queries have their expected share."
    )
    match_error_bound: float | None = Field(description="Upper confidence bound of `match_error`.")
    max_error: float | None = Field(description="Accepted maximum share of wrong matches.")
    false_match_rate: float | None = Field(
        description="Share of absent queries with verdict `match`."
    )
    false_match_bound: float | None = Field(
        description="Upper confidence bound of `false_match_rate`."
    )
    flagged_share: float | None = Field(
        description="Share of queries with a match that are flagged out of distribution."
    )
    absent_flagged_share: float | None = Field(
        description="Share of absent queries that are flagged out of distribution."
    )


class OutcomeLine(_Record):
    """One line of a gallery's quality summary."""

    code: str = Field(description="Stable name of the line's subject, such as `recall_low`.")
    severity: OutcomeSeverity = Field(
        description="`fact`: no shortfall. `warning`: a shortfall. `failure`: the gallery is of "
        "little use."
    )
    parameters: dict[str, float | int | str | None] = Field(
        description="The values in the line; shares are between 0 and 1."
    )
    sentence: str = Field(description="The line in English.")


class GalleryOutcome(OutcomeNumbers):
    """Quality of the gallery's answers, measured at calibration, with the shortfalls found."""

    lines: list[OutcomeLine] = Field(
        description="At most ten lines. The facts are first. The shortfalls follow, with their "
        "causes and next steps."
    )

    def sentences(self) -> list[str]:
        """Return the text of each line."""
        return [line.sentence for line in self.lines]
