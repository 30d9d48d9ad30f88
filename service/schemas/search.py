"""Schemas of queries: options, results, verdicts and assessments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema, model_validator

from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.verdicts import Absence, FilterMeans, Order, Verdict
from service.schemas.bundles import BundleState
from service.schemas.filters import EXPLAIN, FILTER_DESCRIPTION, Explanation, FilterText
from service.schemas.galleries import EncoderState
from service.schemas.items import ItemDetail
from service.schemas.problems import Problem
from service.schemas.queries import Query, Uncertainty
from service.schemas.reasons import HasReason
from service.schemas.requests import RequestModel

ShareOrigin = Literal["request", "key", "adopted", "bundle"]
"""The origin of a share of absent queries: the request, the caller's key, the operator who adopted
it while serving, or the configuration that the gallery was calibrated with."""

CacheOutcome = Literal["hit", "miss"]
"""The origin of a query's embedding: the cache, or the encoder."""

OnUncertain = Literal["answer", "refuse"]
"""The condition for showing results: `answer` always, `refuse` only with verdict `match`."""

Alpha = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="Share of ordinary queries that may be called out of distribution by "
        "mistake; left out: what the gallery was calibrated with.",
    ),
]


class ListOptions(RequestModel):
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
        None, description="`label`: of each label the nearest item only, of the nearest 200 items."
    )
    duplicate_similarity: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Leave out items at least this similar to a nearer result, such as 0.98, of "
        "the nearest 200 items.",
    )


class DecisionOptions(RequestModel):
    """The options of a decision on a list of neighbours."""

    alpha: Alpha = None
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Probability with which `result_set` shall hold a true match; left out: what "
        "the gallery was calibrated with.",
    )
    expected_absent: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the caller's queries that have no match in the gallery: all "
        "probabilities and verdicts follow it. Left out: the share of the caller's key, else the "
        "one that the operator adopted, else the configured one (0.05 by default).",
    )
    source: str | None = Field(
        None,
        max_length=200,
        description="Where the query comes from, one of the `sources` that the gallery was "
        "calibrated with: promises are then those for queries from there.",
    )


class SearchOptions(DecisionOptions, ListOptions):
    """The options of a search."""

    filter_means: FilterMeans = Field(
        "show",
        description="`show`: the filter says which items to list, and a match may not be among "
        "them. `known`: the caller knows that a true match passes the filter, and probabilities "
        "are conditioned on that.",
    )
    order: Order | None = Field(
        None,
        description="What comes first. `similarity`: the nearest item. `probability`: of the "
        "nearest 200 items the likeliest true match, items of one label nearest first; verdict and "
        "promises are then of that one. Left out: what the gallery was calibrated with, "
        "`similarity` unless its owner said otherwise. Without calibration `probability` is an "
        "error.",
    )
    on_uncertain: OnUncertain = Field(
        "answer", description="`refuse` leaves `results` empty unless the verdict is `match`."
    )


class JsonSearchOptions(SearchOptions):
    """The options of a search in JSON, whose filter may be an object."""

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


class SearchRequest(JsonSearchOptions):
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


class Result(BaseModel):
    """One ranked neighbour."""

    rank: int
    id: str
    similarity: float = Field(description="Cosine, −1 to 1; larger is nearer.")
    similarity_std: float | None = Field(
        description="Standard deviation of the similarity: the posterior moves the embeddings of "
        "query and item. Null where the query's uncertainty is."
    )
    match_probability: float | None = Field(
        description="Calibrated probability that the item is a true match; among results of one "
        "label a closer one never has the lower."
    )
    rank_stability: float | None = Field(
        description="Share of samples of the posterior under which the item is among the nearest, "
        "with as many places as results, including those of earlier pages; null where the "
        "query's uncertainty is."
    )
    rank_confidence: float | None = Field(
        description="Probability that the item is nearer to the query than the next one, given how "
        "uncertain both similarities are; null where that is, and for the gallery's last. "
        "Below ½ where the next one is nearer, and stands lower because it is the less likely "
        "match, or where it is hardly farther and much more certain."
    )
    variance: float = Field(description="Of the item's embedding, relative to its squared norm.")
    label: str | None
    metadata: dict[str, Any]
    thumbnail_url: str | None = Field(description="Null in a gallery of vectors.")
    preview_url: str | None = Field(
        None,
        description="Of a picture to compare by; null where the gallery keeps thumbnails only.",
    )


SizeClass = Literal["one", "few", "many"]


class SetItem(BaseModel):
    """An item of a result set."""

    id: str
    label: str | None


class ResultSet(HasReason):
    """As few items as hold a true match with a stated probability.

    Items of one label are right or wrong together: the nearest of each likely label stands for all.
    Promised for queries that have a match in the gallery and are like the calibration queries, in
    nine of ten calibrations (exact binomial test); for one coverage chosen in advance.
    """

    items: list[SetItem] = Field(description="Nearest first; some may stand below the results.")
    coverage: float = Field(description="The requested coverage.")
    promised: bool = Field(
        description="Whether one of them is a true match so often, whatever the query's label."
    )
    promised_for: list[SizeClass] = Field(
        description="For queries of which labels it is promised: those with `one` item in the "
        "gallery, a `few` (2 to 5), or `many`."
    )
    reason: str | None = Field(description="Why the coverage is not promised for all of them.")


class RollUp(BaseModel):
    """The finest label above labels that is sure enough, where no label is.

    Its promise is that of `match`: of such answers of one level at most `max_error` are wrong.
    """

    level: str = Field(description="Name of the level, such as `genus`.")
    label: str = Field(description="Of that level, such as `Panthera`.")
    probability: float = Field(
        description="That the gallery holds a true match whose label is below it: the sum over "
        "these labels."
    )


ROLL_UP = Field(
    description="Of an `ambiguous` query in a gallery whose labels have parents: what it is all "
    "the same, if that is sure enough. Else null."
)


GUARANTEED = Field(
    description="Whether the guarantees of the calibration hold for this answer, if it "
    "has any. They do not for a gallery that is not calibrated or whose calibration is stale, "
    "while the caller's recent queries differ from the calibration queries, for a share of absent "
    "queries too large for the calibration, and where labels of absent calibration queries are too "
    "few; `reason` says why."
)


class AbsentShare(BaseModel):
    """The share of queries without a match in the gallery that the probabilities are for."""

    share: float
    origin: ShareOrigin
    adopted_at: str | None = Field(
        None, description="When the operator adopted it; null for another origin."
    )
    basis: Absence = Field(
        description="What stood for absent queries in calibration: `absent_labels`, images of "
        "labels that were kept out of everything; `hidden_labels`, queries whose own label was "
        "hidden, a stand-in; `hidden_trained_labels`, the same of an encoder that was trained on "
        "these labels, which says little; `near_misses_of_views`, views of items with the item "
        "hidden, which says little too."
    )


class SearchAnswer(HasReason):
    """The answer to one query."""

    request_id: str
    gallery: str
    verdict: Verdict = Field(description="What a front end switches on.")
    reason: str | None = Field(
        description="What the calibration does not promise, and how many queries would do: why the "
        "verdict is less than it could be, or why probabilities may be far off; else null."
    )
    guaranteed: bool = GUARANTEED
    roll_up: RollUp | None = ROLL_UP
    no_match_probability: float | None = Field(
        description="Probability that nothing in the gallery, or under a filter nothing that "
        "passes it, is a true match: 1 − the sum over labels. Null without calibration."
    )
    absent: AbsentShare | None = Field(description="Null without calibration.")
    query: Query
    order: Order = Field(description="What the results are ordered by.")
    results: list[Result] = Field(
        description="By similarity, equal ones by id; or by match probability, equal ones so. None "
        "where `on_uncertain=refuse` refused."
    )
    explain: Explanation | None = EXPLAIN
    result_set: ResultSet | None = Field(
        description="None where nothing is calibrated, or `on_uncertain=refuse` refused."
    )
    next_cursor: str | None = Field(
        description="For `GET …/search/next`, while the service remembers the query; null where "
        "there are no more candidates."
    )
    audit: bool = Field(
        description="This answer was drawn at random for review: please say whether `results[0]` "
        "is right, by `POST …/feedback`. Only feedback on such answers counts as the error "
        "rate of `match`."
    )
    bundle: BundleState
    cache: CacheOutcome
    timing_ms: dict[str, float]


class QualityHint(BaseModel):
    """One reason why a picture may be a poor query, for the photographer."""

    code: str = Field(
        description="`too_small`, `too_dark`, `flat`, `blurred`, `extreme_aspect` or `degraded`."
    )
    measure: str = Field(
        description="What was measured: a key of `measures`, or `aleatoric` of `query.uncertainty`."
    )
    value: float
    advice: str = Field(description="One sentence on what to do.")


class Quality(BaseModel):
    """The technical quality of an image, independent of what it shows."""

    hints: list[QualityHint] = Field(description="Only what is unusual for this gallery's queries.")
    measures: dict[str, float]


class AssessmentAnswer(BaseModel):
    """The assessment of an image that nothing was searched with."""

    request_id: str
    gallery: str
    query: Query
    quality: Quality
    bundle: BundleState


class BatchItem(BaseModel):
    """The outcome of one file of a batch: an answer, or a problem."""

    index: int = Field(description="Its place among the files, from 0.")
    file_name: str | None
    status: int = Field(description="What a search with this file alone would have answered.")
    answer: SearchAnswer | None
    problem: Problem | None


class BatchAnswer(BaseModel):
    """The answers to several queries."""

    request_id: str
    gallery: str
    items: list[BatchItem] = Field(description="One for each file, in the order of the files.")


class SimilarAnswer(HasReason):
    """The items most similar to an item of the gallery, without the item itself."""

    request_id: str
    gallery: str
    item: ItemDetail
    verdict: Verdict
    reason: str = Field(description="Why there are no probabilities.")
    uncertainty: Uncertainty = Field(description="Of the item's embedding.")
    results: list[Result] = Field(description="By similarity, equal ones by id.")
    explain: Explanation | None = EXPLAIN
    bundle: BundleState
    timing_ms: dict[str, float]


class EmbeddingAnswer(BaseModel):
    """An image's embedding as a distribution, for your own store.

    Before normalisation the embedding is Gaussian. Scaled to a mean of length 1 it is
    N(`direction`, diag `variance`), and what is compared are its directions.
    """

    request_id: str
    gallery: str
    query: Query
    direction: list[float] = Field(description="Unit vector, the mean's direction.")
    variance: list[float] = Field(
        description="Of each dimension, relative to the mean's squared norm."
    )
    concentration: float = Field(
        description="κ of the von Mises-Fisher distribution with the same mean resultant length."
    )
    spherical_variance: float = Field(description="1 − mean resultant length of the embedding.")
    outlier_score: float | None = Field(
        description="Larger is less like the calibration images; null without calibration. Its "
        "p-value: `query.ood`."
    )
    encoder: EncoderState
    bundle: BundleState
