"""The JSON that the service answers and reads; the client uses the same models.

::

    bundles      the bundle that answers, and whether its calibration holds
    queries      queries, before any neighbour is looked at
    search       options, results and verdicts
    texts        queries in words
    filters      filters, and how they were carried out
    vectors      vectors in place of images, neighbours of other stores
    items        the items of a gallery
    changes      changes of a gallery
    galleries    galleries and their calibration reports
    created      galleries created, described, renamed and dropped; usage
    feedback     users' feedback on matches
    review       queries that are kept to be decided on
    operations   liveness and readiness
    problems     errors, as RFC 9457 has them
"""

from service.schemas.bundles import (
    Activation,
    BundleList,
    BundleState,
    CalibrationState,
    CalibrationStatus,
)
from service.schemas.changes import BatchItemWritten, BatchWritten, ItemWritten
from service.schemas.created import (
    GalleryChange,
    GalleryDropped,
    GalleryRename,
    GalleryUsage,
    NewGallery,
    SearchUsage,
    Usage,
)
from service.schemas.feedback import (
    Decision,
    DecisionKind,
    DecisionList,
    ErrorsOverTime,
    FeedbackAnswer,
    FeedbackCorrection,
    FeedbackRequest,
    FeedbackSummary,
)
from service.schemas.filters import Explanation, FilterText
from service.schemas.galleries import (
    AbsentState,
    CalibrationReport,
    EncoderState,
    Facet,
    FacetList,
    FacetValue,
    GalleryDetail,
    GalleryList,
    GalleryName,
    LabelList,
    LevelPromise,
    MatchPromise,
    OperatingPoint,
    OperatingPointAnswer,
    ReliabilityBin,
    ResultSetOutcome,
    Sample,
    TextState,
)
from service.schemas.items import ItemDetail, ItemList
from service.schemas.operations import Live, ProviderShare, Ready, ReadyGallery
from service.schemas.problems import FieldError, Problem
from service.schemas.queries import (
    OutOfDistribution,
    Query,
    QueryImage,
    QueryText,
    Uncertainty,
)
from service.schemas.review import (
    CaseForgotten,
    CaseList,
    CaseReason,
    CaseState,
    DecisionsImported,
    ExportFormat,
    FoundItem,
    ImportProblem,
    LabelStudioTasks,
    LeasedCase,
    LeaseEnded,
    LeaseRequest,
    Leases,
    ReviewCase,
    ReviewCount,
    ReviewSummary,
)
from service.schemas.search import (
    AbsentShare,
    Alpha,
    AssessmentAnswer,
    BatchAnswer,
    BatchItem,
    EmbeddingAnswer,
    ListOptions,
    OnUncertain,
    Quality,
    QualityHint,
    Result,
    ResultSet,
    RollUp,
    SearchAnswer,
    SearchOptions,
    SearchRequest,
    SetItem,
    ShareOrigin,
    SimilarAnswer,
)
from service.schemas.texts import TextSearchRequest
from service.schemas.vectors import (
    DecidedNeighbour,
    DecisionAnswer,
    DecisionRequest,
    Neighbour,
    VectorFields,
    VectorSearchRequest,
)

__all__ = [
    "AbsentShare",
    "AbsentState",
    "Activation",
    "Alpha",
    "AssessmentAnswer",
    "BatchAnswer",
    "BatchItem",
    "BatchItemWritten",
    "BatchWritten",
    "BundleList",
    "BundleState",
    "CalibrationReport",
    "CalibrationState",
    "CalibrationStatus",
    "CaseForgotten",
    "CaseList",
    "CaseReason",
    "CaseState",
    "DecidedNeighbour",
    "Decision",
    "DecisionAnswer",
    "DecisionKind",
    "DecisionList",
    "DecisionRequest",
    "DecisionsImported",
    "EmbeddingAnswer",
    "EncoderState",
    "ErrorsOverTime",
    "Explanation",
    "ExportFormat",
    "Facet",
    "FacetList",
    "FacetValue",
    "FeedbackAnswer",
    "FeedbackCorrection",
    "FeedbackRequest",
    "FeedbackSummary",
    "FieldError",
    "FilterText",
    "FoundItem",
    "GalleryChange",
    "GalleryDetail",
    "GalleryDropped",
    "GalleryList",
    "GalleryName",
    "GalleryRename",
    "GalleryUsage",
    "ImportProblem",
    "ItemDetail",
    "ItemList",
    "ItemWritten",
    "LabelList",
    "LabelStudioTasks",
    "LeaseEnded",
    "LeaseRequest",
    "LeasedCase",
    "Leases",
    "LevelPromise",
    "ListOptions",
    "Live",
    "MatchPromise",
    "Neighbour",
    "NewGallery",
    "OnUncertain",
    "OperatingPoint",
    "OperatingPointAnswer",
    "OutOfDistribution",
    "Problem",
    "ProviderShare",
    "Quality",
    "QualityHint",
    "Query",
    "QueryImage",
    "QueryText",
    "Ready",
    "ReadyGallery",
    "ReliabilityBin",
    "Result",
    "ResultSet",
    "ResultSetOutcome",
    "ReviewCase",
    "ReviewCount",
    "ReviewSummary",
    "RollUp",
    "Sample",
    "SearchAnswer",
    "SearchOptions",
    "SearchRequest",
    "SearchUsage",
    "SetItem",
    "ShareOrigin",
    "SimilarAnswer",
    "TextSearchRequest",
    "TextState",
    "Uncertainty",
    "Usage",
    "VectorFields",
    "VectorSearchRequest",
]
