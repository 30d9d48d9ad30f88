"""Schemas of galleries, their bundles and calibration reports, and of their creation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from model_store.bundles.directory import GALLERY_NAME
from model_store.messages import Absence, Order
from model_store.records import (
    Facet,
    FeedbackSummary,
    GalleryOutcome,
    OperatingPoint,
    OutcomeNumbers,
    ReliabilityBin,
)

from .base import HasReason, RequestModel
from .review import ErrorsOverTime, FeedbackCorrection


class GalleryName(BaseModel):
    """A gallery in the list of galleries."""

    name: str
    title: str = Field(description="Title to display; empty without one.")
    n_items: int | None = Field(
        description="Number of items; null for a gallery that was created over HTTP and has no "
        "recent requests, and for a gallery that cannot be read now."
    )
    bundle_id: str


class GalleryList(BaseModel):
    """All galleries that are served."""

    galleries: list[GalleryName]


class EncoderState(BaseModel):
    """The encoder of a gallery."""

    fingerprint: str
    provider: str = Field(description="Execution provider in use.")
    dim: int
    posterior: str


class TextState(BaseModel):
    """The encoder of text queries, and the calibration for text queries."""

    fingerprint: str
    context_length: int = Field(description="Maximum number of tokens that the encoder reads.")
    posterior: str = Field(description="`deterministic`: the encoder gives no variance for a text.")
    calibration: CalibrationState


class Sample(BaseModel):
    """A query image to try."""

    id: str
    caption: str
    belongs: bool = Field(description="Whether the gallery holds a true match.")
    image_url: str
    thumbnail_url: str = Field(description="URL of a small version of the image.")


class MatchPromise(HasReason):
    """The match threshold for labels of one size class, and its rates."""

    size_class: Literal["one", "few", "many"] = Field(
        description="Number of items in the gallery with the first result's label: `one`, a `few` "
        "(2 to 5), or `many`."
    )
    n_labels: int = Field(description="Number of the gallery's labels in this size class.")
    threshold: float | None = Field(
        description="Threshold of the match probability; null if no error bound can be guaranteed."
    )
    point: OperatingPoint | None
    reason: str | None = Field(
        description="Why there is no guarantee, and how many calibration queries a guarantee needs."
    )


class LevelPromise(BaseModel):
    """The thresholds for answering ambiguous queries with a parent label of one level."""

    level: str
    matches: list[MatchPromise] = Field(
        description="Thresholds for answers of this level, by the size class of the likeliest "
        "label."
    )


class AbsentState(BaseModel):
    """The share of queries without a match in the gallery, and the source of that share.

    It is a share of all queries, and includes queries that are flagged out of distribution.
    """

    assumed: float = Field(
        description="Share of absent queries that was assumed when the probabilities were fitted."
    )
    expected: float | None = Field(
        description="Share in the gallery's configuration; null if the configuration has no share."
    )
    adopted: float | None = Field(
        description="Share that the operator adopted while the service was running; else null."
    )
    adopted_at: str | None = Field(description="Time when the operator adopted the share.")
    estimated: float | None = Field(
        description="Estimate of the share of queries without a match, from served queries. "
        "Queries that are flagged out of distribution count, unless they are more unusual than all "
        "calibration queries. Null with too few queries, or if queries with a match are clearly "
        "easier than in the calibration."
    )
    interval: tuple[float, float] | None = Field(
        description="95 % interval of the estimate. It covers the sampling errors of the served "
        "queries and of the calibration queries."
    )
    n_served: int = Field(description="Number of queries in the estimate.")
    used: float = Field(
        description="Share that is used if neither the request nor its key sets a share."
    )
    is_hint: bool = Field(
        description="Whether the estimate is unreliable: augmented views of items were the only "
        "absent queries in the calibration. Do not adopt an unreliable estimate."
    )
    basis: Absence = Field(description="Kind of absent queries in the calibration.")
    warning: str | None = Field(description="Advice if `used` is outside of `interval`; else null.")


class DriftReport(HasReason):
    """The drift tests: they detect served queries that differ from the calibration queries.

    The queries of each key (without keys: of each address) are tested separately. An alarm removes
    the guarantees from answers to that caller. Another test uses the queries of all callers. Its
    alarm is for the operator, and changes no answer. A change in the share of absent queries is not
    drift.
    """

    reason: str | None = Field(description="Why drift is not tested; null if it is tested.")
    n_served: int = Field(
        description="Number of queries of all callers in the current test; a reset starts a new "
        "test."
    )
    log_capital: float = Field(
        description="Evidence of drift in the queries of all callers, in nats; alarm at 5.7."
    )
    drifted: bool = Field(
        description="Whether the test of all callers' queries has an active alarm."
    )
    n_streams: int = Field(description="Number of callers whose queries are tested.")
    n_alarmed: int = Field(description="Number of tested callers with an active alarm.")


class AdoptedShare(RequestModel):
    """The share of absent queries that is used from now on."""

    share: float = Field(
        gt=0, lt=1, description="Share of queries that have no match in the gallery."
    )


class OperatorDecision(BaseModel):
    """The result of an operator's decision on the share of absent queries or on drift alarms."""

    gallery: str
    absent_share: float = Field(
        description="Share that is used if neither the request nor its key sets a share."
    )
    adopted_at: str | None = Field(
        description="Time when the operator adopted this share; null if the share is configured."
    )
    alarmed: list[str] = Field(
        description="Callers whose alarms in this process were ended by this decision. Each caller "
        "is `key <id>` or `address <address>`."
    )
    persisted: bool = Field(
        description="Whether the decision was written to the bundle directory. If so, the decision "
        "also holds after a restart and in other processes."
    )


class ResultSetOutcome(BaseModel):
    """The measured coverage and size of result sets, for one requested coverage."""

    coverage: float
    promised: bool = Field(description="Whether the coverage is guaranteed for every label.")
    promised_for: list[Literal["one", "few", "many"]] = Field(
        description="Size classes of the labels for which the coverage is guaranteed."
    )
    covered: float = Field(description="Share of sets that hold a true match.")
    mean_size: float


class CalibrationReport(BaseModel):
    """The evidence for the gallery's probabilities, and the error rates at each threshold."""

    status: CalibrationStatus
    n_queries: int = Field(
        description="Calibration queries with a match, including items of the gallery that were "
        "queries."
    )
    queries: Literal["held_out_images", "left_out_items", "views_of_items", "captions"] | None = (
        Field(
            description="The calibration queries. `held_out_images`: images that the gallery does "
            "not hold. `left_out_items`: items of the gallery; while an item is the query, the "
            "gallery does not contain this item. `views_of_items`: cropped, turned, relit and "
            "compressed views of items, for a gallery without labels. `captions`: for text "
            "queries."
        )
    )
    alpha: float | None = Field(description="Default rate of false alarms of the OOD flag.")
    coverage: float | None = Field(description="Default coverage of result sets.")
    max_error: float | None = Field(
        description="Guaranteed maximum share of wrong answers among matches."
    )
    max_false_match_rate: float | None = Field(
        description="Guaranteed maximum of the share of queries without a match in the gallery "
        "that get the verdict `match`. Null if no maximum is guaranteed."
    )
    delta: float | None = Field(
        description="Maximum probability that the guarantee is false because of random "
        "calibration data. The guarantee is for one level that was chosen in advance."
    )
    absent: AbsentState | None
    drift: DriftReport
    order: Order | None = Field(
        description="Order of the results for which this report was computed."
    )
    sources: list[str] = Field(
        description="Names of the sources that the calibration queries come from."
    )
    matches: list[MatchPromise]
    levels: list[LevelPromise] = Field(
        description="Levels of parent labels that can answer ambiguous queries, the finest first."
    )
    point: OperatingPoint | None = Field(
        description="The rates over all queries, if the thresholds in `matches` are used."
    )
    top1_ece: float | None = Field(
        description="Expected calibration error of first results, cross-fitted. The query stream "
        "has the assumed share of absent queries."
    )
    reliability: list[ReliabilityBin] = Field(
        description="Bins of the first results' match probabilities, cross-fitted. All bins have "
        "about the same weight."
    )
    risk_coverage: list[OperatingPoint] = Field(
        description="Operating points from the strictest threshold to the loosest, cross-fitted."
    )
    result_sets: list[ResultSetOutcome] = Field(
        description="Performance of result sets, cross-fitted."
    )
    outlier_auroc: dict[str, float] = Field(
        description="AUROC of the outlier score, cross-fitted. `near`: how well the score "
        "separates absent calibration queries from ordinary queries."
    )
    feedback: FeedbackSummary | None = Field(description="Null without feedback.")
    errors_over_time: ErrorsOverTime | None = Field(
        description="Error rate of verdict `match`. Null if the service stores no feedback."
    )
    correction: FeedbackCorrection | None = Field(
        description="Correction of match probabilities by feedback. All other numbers in this "
        "report do not include the correction. Null if the calibration used no feedback."
    )
    written_at: datetime | None = Field(
        None,
        description="Time when the calibration file was written. In a copied bundle, this is the "
        "time of the copy.",
    )


class OperatingPointAnswer(HasReason):
    """The operating point with the largest coverage for a maximum error."""

    max_error: float
    point: OperatingPoint | None = Field(
        description="Null if no threshold guarantees this error, or without calibration."
    )
    reason: str | None = Field(
        description="Why no threshold guarantees this error; null if `point` is given, or without "
        "calibration."
    )


class GalleryDetail(BaseModel):
    """One gallery."""

    name: str
    title: str = Field(description="Title to display; empty without one.")
    description: str
    created_at: str | None = Field(
        description="Time when the gallery was created over HTTP; null for a gallery that "
        "vouch-build built."
    )
    n_items: int
    n_labels: int
    labels: list[str] = Field(description="The first 12 labels by name; `…/labels` lists all.")
    bundle: BundleState
    encoder: EncoderState
    text: TextState | None = Field(
        description="Encoder for `POST …/search/text`; null if the encoder has no text tower."
    )
    calibration: dict[str, Any] | None = Field(description="How the decision layer was fitted.")
    metrics: dict[str, Any] | None = Field(
        description="Metrics on separate evaluation queries, measured when the bundle was built."
    )
    outcome: GalleryOutcome = Field(
        description="Quality at the time of calibration; `bundle.calibration` has the current "
        "state of the calibration."
    )
    samples: list[Sample]
    record_url: str | None = Field(
        description="URL template of the items' records. The item's percent-encoded values "
        "replace `{id}`, `{label}` or a `{key}` of its metadata."
    )
    image_origins: list[str] = Field(
        description="Other origins from which the service's page may load the `image_url` in "
        "items' metadata."
    )


class FacetList(HasReason):
    """The indexed fields of a gallery, for use in filters."""

    gallery: str
    bundle_id: str
    facets: list[Facet] = Field(
        description="Fields with an index in the bundle. Only current items are counted."
    )
    reason: str | None = Field(None, description="Why there are no facets; else null.")


class LabelList(BaseModel):
    """A page of a gallery's labels."""

    gallery: str
    bundle_id: str
    n_labels: int = Field(description="Number of labels in the whole gallery.")
    labels: list[str] = Field(description="Labels, ordered by name.")
    next_after: str | None = Field(
        description="Value of `after` for the next page; null on the last page."
    )


CalibrationStatus = Literal["valid", "drifting", "stale", "missing"]
"""`drifting`: the caller's recent queries differ from the calibration queries, or a label has lost
its last item since the calibration. Verdicts have no guarantee. `stale`: the calibration was fitted
for another gallery or search, or reviews show too many errors. Its numbers have no guarantee."""


class CalibrationState(HasReason):
    """The state of a bundle's calibration.

    A stale calibration still gives probabilities, but no verdict `match` and no guarantee. If the
    calibration is missing, there are no probabilities. The status `drifting` depends on the
    caller's own queries, or on a label that has lost its last item.
    """

    status: CalibrationStatus
    n_queries: int = Field(
        description="Calibration queries with a match, including items of the gallery that were "
        "queries."
    )
    reason: str | None = Field(
        description="Why the calibration is stale or drifting, and what to do."
    )


class BundleState(BaseModel):
    """The bundle that answered."""

    id: str
    calibration: CalibrationState


class BundleCalibration(OutcomeNumbers):
    """The calibration of a bundle, and the quality that it measured."""

    written_at: datetime = Field(
        description="Time when the calibration file was written. In a copied bundle, this is the "
        "time of the copy."
    )
    queries: str = Field(
        description="Kind of the calibration queries, see `queries` in the calibration report."
    )
    delta: float = Field(
        description="Maximum probability that the guarantee is false because of random "
        "calibration data."
    )


class BundleRecord(HasReason):
    """A bundle of a gallery."""

    id: str = Field(description="Id of the bundle, to activate it.")
    published_at: datetime = Field(
        description="Time when the bundle was published. In a copied bundle, this is the time of "
        "the copy."
    )
    release: str | None = Field(
        description="Release of Vouch that built the bundle; null if it is unknown."
    )
    n_items: int | None = Field(
        description="Number of items when the bundle was published; null if it is unknown."
    )
    n_labels: int | None = Field(
        description="Number of labels of these items; null if it is unknown."
    )
    calibration: BundleCalibration | None = Field(
        description="Null if the bundle is not calibrated, or if it cannot be read."
    )
    reason: str | None = Field(
        description="Why the bundle cannot be read, and what to do. Null if it can be read."
    )


class BundleList(BaseModel):
    """The bundles of a gallery."""

    serving: str = Field(description="Id of the served bundle.")
    bundles: list[BundleRecord] = Field(description="The stored bundles, oldest first.")
    refused: str | None = Field(
        description="Why the service refuses the bundle in `CURRENT`; null if it serves that "
        "bundle."
    )


class Activation(BaseModel):
    """The result of activating a bundle."""

    gallery: str
    bundle_id: str
    previous_id: str = Field(description="Bundle that was served before.")
    persisted: bool = Field(
        description="Whether the bundle's id was written to `CURRENT`. If so, the service also "
        "serves this bundle after a restart."
    )


Name = Annotated[
    str,
    Field(
        pattern=GALLERY_NAME,
        description="1 to 64 lower-case letters, digits, dots, hyphens and underscores. The first "
        "character is a letter or a digit.",
    ),
]
Title = Annotated[str, Field(max_length=200, description="Title to display.")]
Description = Annotated[str, Field(max_length=4000, description="Description to display.")]


class NewGallery(RequestModel):
    """A gallery to create."""

    name: Name
    like: str | None = Field(
        None,
        description="Gallery whose encoder the new gallery uses. Default: the first gallery that "
        "the service was started with, else the oldest gallery that the key can use. If there is "
        "none, the encoder that comes with Vouch.",
    )
    title: Title = ""
    description: Description = ""


class GalleryChange(RequestModel):
    """A new title or description of a gallery; an omitted field does not change."""

    title: Title | None = None
    description: Description | None = None


class GalleryRename(RequestModel):
    """The new name of a gallery."""

    name: Name


class GalleryDropped(BaseModel):
    """A dropped gallery."""

    gallery: str


class SearchUsage(BaseModel):
    """The search quota of a key, and how much of the quota is used."""

    limit: int
    used: int = Field(
        description="Searches in this period. Redis counts the searches of all replicas. Without "
        "Redis, each process counts alone."
    )
    period_s: int
    resets_in_s: float


class GalleryUsage(BaseModel):
    """A key's quota of created galleries, and how much of the quota is used."""

    limit: int
    used: int


class Usage(BaseModel):
    """The caller's scope, galleries and quotas, and how much of each quota is used."""

    key: str | None = Field(description="Id of the key; null without a key.")
    name: str | None
    scope: str
    galleries: list[str] | None = Field(
        description="Galleries that the key can use; `*` matches any characters. Null: all "
        "galleries."
    )
    rate_limit: str | None = Field(
        description="Rate limit for requests of any kind; null: no limit."
    )
    searches: SearchUsage | None = Field(description="Search quota; null: no limit.")
    created_galleries: GalleryUsage | None = Field(
        description="Quota of created galleries; null: no limit."
    )
    max_items: int | None = Field(
        description="Maximum number of items in each gallery; null: no limit."
    )


Share = Annotated[float | None, Field(gt=0, lt=1)]


class CalibrationWanted(RequestModel):
    """Error bounds of the new calibration.

    An omitted bound keeps its value. In the first calibration, it gets its default.
    """

    max_error: Share = Field(
        None, description="Maximum share of `match` verdicts that are wrong. Default: 0.05."
    )
    max_false_match_rate: Share = Field(
        None,
        description="Maximum share of `match` verdicts among queries without a match in the "
        "gallery. Default: no bound.",
    )
    expected_absent: Share = Field(
        None, description="Assumed share of queries without a match in the gallery."
    )
    alpha: Share = Field(
        None,
        description="Share of ordinary queries that are flagged as out of distribution. Default: "
        "0.05.",
    )
    coverage: Share = Field(
        None,
        description="Minimum share of result sets that contain a match, if there is one. Default: "
        "0.95.",
    )


class CalibrationRun(BaseModel):
    """The last calibration that the service ran, and the items that can be queries."""

    state: Literal["none", "running", "succeeded", "failed"] = Field(
        description="`none`: the service has not calibrated the gallery."
    )
    started_at: str | None = Field(description="ISO 8601.")
    ended_at: str | None = Field(description="ISO 8601.")
    bundle_id: str | None = Field(description="The new bundle; null unless the run succeeded.")
    reason: str | None = Field(description="Why the run failed, and what to do.")
    n_item_queries: int | None = Field(
        description="Number of items that share their label with another item. Each can be a query "
        "of the first calibration, which needs at least 50; copies do not count there. Null for a "
        "gallery that cannot be calibrated over HTTP."
    )
