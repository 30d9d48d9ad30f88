"""Schemas of queries, by image, text or vector: options, results, verdicts and assessments."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.items import MAX_ID_LENGTH
from model_store.messages import MAX_TEXT_CHARACTERS, Absence, FilterMeans, Level, Order, Verdict
from model_store.records import Explanation, Match, QualityHint, RollUp

from .base import HasReason, Problem, RequestModel
from .galleries import BundleState, EncoderState
from .items import ItemDetail


class PictureState(BaseModel):
    """The image quality: how far blur, noise, darkness or a crop move the embedding."""

    value: float = Field(
        description="Expected displacement of the embedding: 1 − c, where c is the cosine between "
        "this embedding and the embedding of the same picture without defects."
    )
    percentile: float = Field(
        description="Percentage of ordinary pictures with a smaller displacement."
    )


class Uncertainty(BaseModel):
    """The uncertainty of the similarity between the query and the gallery's nearest item."""

    value: float | None = Field(
        description="Standard deviation (to first order) of the similarity between the query and "
        "the gallery's nearest item. Null if the encoder gives no variance, if the gallery is "
        "empty, or if another store found the neighbours."
    )
    percentile: float | None = Field(
        description="Share of calibration queries that are less uncertain, in percent. Null "
        "without calibration, and in bundles of earlier releases."
    )
    level: Level | None = Field(description="The percentile as a level.")
    epistemic: float | None = Field(
        description="The part of `value` that would disappear with more training images. Equal to "
        "`value` if the encoder has a posterior over its weights. Null if the encoder has a "
        "posterior over single images, or if `value` is null."
    )
    aleatoric: PictureState | None = Field(
        description="Uncertainty that a better photograph would remove. Null without calibration, "
        "for vectors and texts, and in bundles of earlier releases."
    )
    method: str = Field(description="Posterior from which the encoder computes the variance.")


class OutOfDistribution(HasReason):
    """The outlier test: whether a query is unlike the calibration queries."""

    flag: bool | None = Field(
        description="Whether p_value ≤ alpha. Null without calibration, or if `alpha` is too "
        "small to flag any query: see `reason`."
    )
    reason: str | None = Field(description="Why `alpha` cannot flag any query; else null.")
    p_value: float | None = Field(
        description="Share of ordinary queries that look at least as unusual as this query."
    )
    alpha: float = Field(description="Share of ordinary queries that may be flagged by mistake.")
    method: str


class QueryImage(BaseModel):
    """The image that was received."""

    format: str
    width: int
    height: int
    warnings: list[str]


class QueryText(BaseModel):
    """The text that was received."""

    n_tokens: int = Field(description="Number of tokens that the encoder read.")
    warnings: list[str] = Field(description="Warnings, for example that the text was truncated.")


class Query(BaseModel):
    """The query: its uncertainty, outlier test and input."""

    id: str = Field(description="Hash of the upload. Use this id in feedback on the query.")
    uncertainty: Uncertainty
    ood: OutOfDistribution
    image: QueryImage | None = Field(description="Null for a vector or a text.")
    text: QueryText | None = Field(description="Null for an image or a vector.")


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
        description="Share of all the caller's queries that have no match in the gallery. All "
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


MAX_NUMBERS = 16_384
"""Maximum number of dimensions of a vector."""

MAX_NEIGHBOURS = 1_000


def _as_numbers(value: object) -> object:
    """Decode base64 of little-endian float32 to numbers; return any other value unchanged."""
    if isinstance(value, list) and any(isinstance(one, bool) for one in value):
        raise ValueError("should be numbers, not true or false")
    if not isinstance(value, str):
        return value
    try:
        data = base64.b64decode(value, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (binascii.Error, ValueError, struct.error) as error:
        raise ValueError("it is neither numbers nor base64 of float32") from error


Numbers = Annotated[
    list[float],
    BeforeValidator(_as_numbers),
    Field(min_length=1, max_length=MAX_NUMBERS),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "number"},
                    "minItems": 1,
                    "maxItems": MAX_NUMBERS,
                },
                {
                    "type": "string",
                    "contentEncoding": "base64",
                    "minLength": 8,
                    "pattern": "^(?:[A-Za-z0-9+/]{16})*"
                    "(?:[A-Za-z0-9+/]{6}==|[A-Za-z0-9+/]{11}=)?$",  # of whole float32
                },
            ],
            "description": "Numbers, or base64 of little-endian float32.",
        }
    ),
]


class VectorFields(RequestModel):
    """A query that another system has embedded with the gallery's encoder.

    If the gallery was built from vectors, send a vector of the same kind. The service then applies
    the gallery's learned encoder to this vector.
    """

    mean: Numbers = Field(
        description="Mean of the embedding: `direction` from `embed`, or a raw vector."
    )
    variance: Numbers | None = Field(
        None,
        description="Variance of the embedding, in squared units of `mean`; default: zero. A "
        "variance is an error if the gallery was built from vectors without variances.",
    )
    features: Numbers | None = Field(
        None,
        description="Penultimate activations, for the outlier score. Required if the gallery is "
        "calibrated and its encoder has a posterior, unless `outlier_score` is given. If the "
        "encoder has no posterior, the vector itself is used as the features.",
    )
    outlier_score: float | None = Field(
        None, allow_inf_nan=False, description="Outlier score from `embed`, in place of `features`."
    )
    encoder_fingerprint: str | None = Field(
        None,
        max_length=64,
        description="Fingerprint of the encoder that computed the vector. The request fails if "
        "the gallery has another encoder.",
    )


class VectorSearchRequest(VectorFields, JsonSearchFields):
    """A search with a vector in place of an image."""


class Neighbour(RequestModel):
    """An item that another store has found."""

    id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    label: str | None = Field(None, max_length=512)
    similarity: float | None = Field(
        None, description="Cosine to the query; give it for all neighbours or for none."
    )
    vector: Numbers | None = Field(
        None, description="Vector of the item, in place of `similarity`."
    )


class DecisionRequest(VectorFields, DecisionFields):
    """A query, and the neighbours that another store has found for it."""

    neighbours: list[Neighbour] = Field(
        min_length=1,
        max_length=MAX_NEIGHBOURS,
        description="Nearest first, by cosine. Send as many neighbours as the calibration used: "
        "200, or fewer in a small gallery.",
    )


class DecidedNeighbour(BaseModel):
    """A neighbour with its probability."""

    id: str
    label: str | None
    similarity: float
    match_probability: float | None


class DecisionAnswer(HasReason):
    """The decision on the neighbours of a query that another store has found."""

    request_id: str
    gallery: str = Field(description="Gallery whose calibration was used.")
    verdict: Verdict
    reason: str | None = Field(description="Why less is guaranteed than requested; else null.")
    guaranteed: bool = GUARANTEED
    roll_up: RollUp | None = ROLL_UP
    no_match_probability: float | None
    absent: AbsentShare | None
    query: Query
    neighbours: list[DecidedNeighbour] = Field(
        description="Neighbours in the order of the request."
    )
    result_set: ResultSet | None
    bundle: BundleState
    timing_ms: dict[str, float]
