"""Schemas of queries: options, results, verdicts and assessments."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.records import Explanation, Match, QualityHint, RollUp
from model_store.verdicts import MAX_TEXT_CHARACTERS, Absence, FilterMeans, Order, Verdict
from service.schemas.base import HasReason, RequestModel
from service.schemas.bundles import BundleState
from service.schemas.galleries import EncoderState
from service.schemas.items import ItemDetail
from service.schemas.problems import Problem
from service.schemas.queries import Query, Uncertainty


def _as_text(value: object) -> object:
    """Return the JSON text of a filter that is an object; return any other value unchanged."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


FilterText = Annotated[str | None, BeforeValidator(_as_text)]

FILTER_DESCRIPTION = (
    'Condition on the items to list, as JSON: `{"label": "shoe", "year": {"gte": 2000}}`. Fields '
    "are `id`, `label` and keys of the metadata; dots separate the keys of nested objects. A bare "
    "value means `eq`. The other comparisons are `ne`, `in`, `gt`, `gte`, `lt`, `lte`, `has` (a "
    "list holds the value) and `exists`. `and`, `or` and `not` join filters. A filter restricts "
    "the listed items; match probabilities are for the whole gallery, see `filter_means`."
)


EXPLAIN = Field(description="How the items under the filter were found; null without a filter.")

ShareOrigin = Literal["request", "key", "adopted", "bundle"]
"""The origin of a share of absent queries: the request, the caller's key, the operator (`adopted`),
or the configuration at calibration (`bundle`)."""

CacheOutcome = Literal["hit", "miss"]
"""The origin of a query's embedding: the cache, or the encoder."""

OnUncertain = Literal["answer", "refuse"]
"""The condition for showing results: `answer` always, `refuse` only with verdict `match`."""

Alpha = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="Share of ordinary queries that may be flagged as out of distribution by "
        "mistake. Default: the value in the gallery's calibration.",
    ),
]


class ListFields(RequestModel):
    """The options of a list of items."""

    limit: int = Field(10, ge=1, le=100, description="How many neighbours to return.")
    filter: FilterText = Field(
        None,
        max_length=MAX_BYTES,
        description=FILTER_DESCRIPTION,
        examples=['{"label": "shoe", "year": {"gte": 2000}}'],
        json_schema_extra={"minLength": 2},
    )
    group_by: Literal["label"] | None = Field(
        None,
        description="`label`: list only the nearest item of each label, among the nearest 200 "
        "items.",
    )
    duplicate_similarity: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Leave out an item if its similarity to a nearer result is at least this "
        "value, for example 0.98. Results come from the nearest 200 items.",
    )


class DecisionFields(RequestModel):
    """The options of a decision on a list of neighbours."""

    alpha: Alpha = None
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Requested probability that `result_set` holds a true match. Default: the "
        "value in the gallery's calibration.",
    )
    expected_absent: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the caller's queries that have no match in the gallery. All "
        "probabilities and verdicts depend on this share. Default: the share of the caller's key, "
        "else the share that the operator adopted, else the configured share (0.05 by default).",
    )
    source: str | None = Field(
        None,
        max_length=200,
        description="Source of the query: one of the `sources` in the gallery's "
        "calibration. The guarantees then apply to queries from this source.",
    )


class SearchFields(DecisionFields, ListFields):
    """The options of a search."""

    filter_means: FilterMeans = Field(
        "show",
        description="`show`: the filter only selects the items to list; a true match possibly does "
        "not pass the filter. `known`: the caller knows that a true match passes the filter, and "
        "probabilities are conditional on this.",
    )
    order: Order | None = Field(
        None,
        description="Order of the results. `similarity`: the nearest item first. `probability`: "
        "the likeliest match first, among the nearest 200 items. Items of one label are in order "
        "of similarity. The verdict and its guarantees apply to the first result. Default: the "
        "order in the gallery's calibration, or `similarity` if the gallery has no configured "
        "order. Without calibration, `probability` is an error.",
    )
    on_uncertain: OnUncertain = Field(
        "answer", description="`refuse` leaves `results` empty unless the verdict is `match`."
    )


class JsonSearchFields(SearchFields):
    """The options of a search in JSON; the filter may be a JSON object."""

    filter: Annotated[
        FilterText,
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "object", "additionalProperties": True},
                    {"type": "string", "minLength": 2, "maxLength": MAX_BYTES},
                    {"type": "null"},
                ],
            }
        ),
    ] = Field(
        None,
        max_length=MAX_BYTES,
        description=FILTER_DESCRIPTION,
        examples=[{"label": "shoe", "year": {"gte": 2000}}],
    )


class SearchRequest(JsonSearchFields):
    """A search with an image in base64."""

    image_base64: str = Field(
        description="An image file in base64 (RFC 4648 section 4), alone or in a `data:` URI. URLs "
        "are not fetched.",
        json_schema_extra={
            "minLength": 4,
            "pattern": r"^(?:data:[\w.+/;=-]{0,200};base64,)?(?:[A-Za-z0-9+/]{4})*"
            "(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        },
    )

    @model_validator(mode="before")
    @classmethod
    def _holds_the_image(cls, value: object) -> object:
        if not isinstance(value, dict) or "image_base64" in value:
            return value
        others = [str(name) for name in value if name not in cls.model_fields]
        if not others or any("url" in name.lower() for name in others):
            raise ValueError(
                "image_base64 is missing; URLs are not fetched: send the image file itself"
            )
        return value


class TextSearchRequest(JsonSearchFields):
    """A search with a text in place of an image."""

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_CHARACTERS,
        description="Description of an image: a phrase or a sentence, as in the encoder's "
        "training captions.",
        examples=["a red shoe"],
    )


class Result(Match):
    """One ranked neighbour."""

    thumbnail_url: str | None = Field(description="Null in a gallery of vectors.")
    preview_url: str | None = Field(
        None,
        description="URL of a larger picture; null if the gallery keeps thumbnails only.",
    )


SizeClass = Literal["one", "few", "many"]


class SetItem(BaseModel):
    """An item of a result set."""

    id: str
    label: str | None


class ResultSet(HasReason):
    """The smallest set of items that holds a true match with the requested probability.

    Items of one label are right or wrong together, so the set holds only the nearest item of each
    likely label. The coverage is guaranteed for queries that have a match in the gallery and
    resemble the calibration queries. The guarantee is for one coverage that was chosen in
    advance. The guarantee holds with probability 0.9 over calibrations (exact binomial test).
    """

    items: list[SetItem] = Field(
        description="Nearest item first. `results` does not necessarily contain all these items."
    )
    coverage: float = Field(description="The requested coverage.")
    promised: bool = Field(description="Whether the coverage is guaranteed for every label.")
    promised_for: list[SizeClass] = Field(
        description="Size classes of the labels for which the coverage is guaranteed: `one` item "
        "in the gallery, a `few` (2 to 5), or `many`."
    )
    reason: str | None = Field(description="Why the coverage is not guaranteed for all labels.")


ROLL_UP = Field(
    description="Answer to an `ambiguous` query with a parent label that meets the error bound. "
    "Null if no parent label meets the bound, or if labels have no parents."
)


GUARANTEED = Field(
    description="Whether all guarantees of the calibration (possibly none) hold for this answer. "
    "Guarantees need a calibration that is not stale, and recent queries of the caller that "
    "resemble the calibration queries. Guarantees also need a share of absent queries that is not "
    "too large, and absent calibration queries with enough labels. `reason` names what is missing."
)


class AbsentShare(BaseModel):
    """The share of queries without a match in the gallery that the probabilities assume."""

    share: float
    origin: ShareOrigin
    adopted_at: str | None = Field(
        None,
        description="Time when the operator adopted the share; null for a share of another origin.",
    )
    basis: Absence = Field(
        description="Kind of absent queries in the calibration. `absent_labels`: images of labels "
        "that are not in the gallery and were not used in any fit. `hidden_labels`: queries whose "
        "own label was hidden from the search; an approximation. `hidden_trained_labels`: like "
        "`hidden_labels`, but the encoder was trained on the label; weak evidence. "
        "`near_misses_of_views`: augmented views of an item that was hidden; weak evidence."
    )


class SearchAnswer(HasReason):
    """The answer to one query."""

    request_id: str
    gallery: str
    verdict: Verdict = Field(description="The verdict on the query.")
    reason: str | None = Field(
        description="Why a guarantee is missing, with the number of calibration queries that the "
        "guarantee needs; or why probabilities can be inaccurate. Null if there is no such reason."
    )
    guaranteed: bool = GUARANTEED
    roll_up: RollUp | None = ROLL_UP
    no_match_probability: float | None = Field(
        description="Probability that no item of the gallery is a true match: 1 − the sum of the "
        "match probabilities of all labels. With a filter, only items that pass the filter count. "
        "Null without calibration."
    )
    absent: AbsentShare | None = Field(description="Null without calibration.")
    query: Query
    order: Order = Field(description="Order of the results.")
    results: list[Result] = Field(
        description="Results by similarity, or by match probability and then similarity; ties are "
        "ordered by id. Empty if `on_uncertain=refuse` refused the answer."
    )
    explain: Explanation | None = EXPLAIN
    result_set: ResultSet | None = Field(
        description="Null without calibration, or if `on_uncertain=refuse` refused the answer."
    )
    next_cursor: str | None = Field(
        description="Cursor for `GET …/search/next`, valid while the service keeps the query. "
        "Null if there are no more candidates."
    )
    audit: bool = Field(
        description="Whether this answer was drawn at random for review. If true, report by `POST "
        "…/feedback` whether `results[0]` is right. Only feedback on drawn answers counts in the "
        "error rate of `match`."
    )
    bundle: BundleState
    cache: CacheOutcome
    timing_ms: dict[str, float]


class Quality(BaseModel):
    """The technical quality of an image, independent of what it shows."""

    hints: list[QualityHint] = Field(
        description="The hints. A measure has a hint only if its value is unusual among the "
        "calibration queries."
    )
    measures: dict[str, float]


class AssessmentAnswer(BaseModel):
    """The assessment of an image, without a search."""

    request_id: str
    gallery: str
    query: Query
    quality: Quality
    bundle: BundleState


class BatchItem(BaseModel):
    """The outcome of one file of a batch: an answer, or a problem."""

    index: int = Field(description="Position of the file in the batch, from 0.")
    file_name: str | None
    status: int = Field(description="HTTP status that a search with only this file would get.")
    answer: SearchAnswer | None
    problem: Problem | None


class BatchAnswer(BaseModel):
    """The answers to several queries."""

    request_id: str
    gallery: str
    items: list[BatchItem] = Field(
        description="One outcome for each file, in the order of the files."
    )


class SimilarAnswer(HasReason):
    """The items most similar to an item of the gallery, without the item itself."""

    request_id: str
    gallery: str
    item: ItemDetail
    verdict: Verdict
    reason: str = Field(description="Why there are no probabilities.")
    uncertainty: Uncertainty = Field(description="Uncertainty of the item's embedding.")
    results: list[Result] = Field(description="Results by similarity; ties are ordered by id.")
    explain: Explanation | None = EXPLAIN
    bundle: BundleState
    timing_ms: dict[str, float]


class EmbeddingAnswer(BaseModel):
    """An image's embedding as a distribution, for your own store.

    Before normalisation the embedding is Gaussian. If the embedding is scaled so that its mean has
    length 1, its distribution is N(`direction`, diag `variance`). Similarities compare directions
    only.
    """

    request_id: str
    gallery: str
    query: Query
    direction: list[float] = Field(description="Direction of the mean, as a unit vector.")
    variance: list[float] = Field(
        description="Variance of each dimension, relative to the mean's squared norm."
    )
    concentration: float = Field(
        description="κ of the von Mises-Fisher distribution with the same mean resultant length."
    )
    spherical_variance: float = Field(description="1 − mean resultant length of the embedding.")
    outlier_score: float | None = Field(
        description="Outlier score; a larger score means less similarity to the calibration "
        "images. Null without calibration. `query.ood` has its p-value."
    )
    encoder: EncoderState
    bundle: BundleState
